"""Google ADK's own run loop, with the service behind it."""

import itertools
import threading

import pytest

pytest.importorskip("google.adk", reason="needs google-adk: make test-integrations")

from google.adk.agents import LlmAgent, LoopAgent, ParallelAgent, RunConfig, SequentialAgent
from google.adk.agents.invocation_context import LlmCallsLimitExceededError
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.adk.tools import FunctionTool, LongRunningFunctionTool, ToolContext, exit_loop
from google.adk.tools.agent_tool import AgentTool
from google.genai import types

from agent_routing import errors
from agent_routing.integrations.google_adk import REQUEST_KEY, RoutedRunner
from clients.python.examples.tax_talk import CallTool
from tests.integrations.approval_stories import *  # noqa: F403 - as stories
from tests.integrations.approval_stories import desk, refund_into, refunds
from tests.integrations.stories import *  # noqa: F403 - the tests that every adapter passes
from tests.integrations.stories import ANA, RULES, Program, Say, Script, Seen, Show
from tests.integrations.worker_stories import *  # noqa: F403 - as stories

# ADK's names are identifiers.
NAMES = {agent_id: agent_id for agent_id in RULES} | {"vat": "iva"}


class RuleModel(BaseLlm):
    """Answers by a script, and records ADK's input for the model."""

    agent_id: str
    script: object

    async def generate_content_async(self, llm_request, stream=False):  # noqa: FBT002 - ADK's
        roles = {"user": "user", "model": "assistant"}
        last = llm_request.contents[-1].parts[-1].function_response
        declared = [
            each
            for tool in llm_request.config.tools or []
            for each in tool.function_declarations or []
        ]
        assert len({each.name for each in declared}) == len(declared)
        seen = Seen(
            agent_id=self.agent_id,
            system=llm_request.config.system_instruction or "",
            messages=[
                (roles[content.role], "".join(_shown(part) for part in content.parts))
                for content in llm_request.contents
                if any(_shown(part) for part in content.parts)
            ],
            tools={each.name: each.description for each in declared},
            tool_output=str(last.response) if last else "",
        )
        reply = self.script.reply(seen)
        text = (reply[0] if isinstance(reply, list) else reply).text
        parts = [types.Part(text=text)] if text else []
        if isinstance(reply, Show):
            parts.append(types.Part.from_bytes(data=reply.image, mime_type="image/png"))
        if stream and parts:
            begun = types.Content(role="model", parts=[types.Part(text=text[:3])])
            yield LlmResponse(content=begun, partial=True)
        for each in reply if isinstance(reply, list) else [reply]:
            if isinstance(each, CallTool):
                call = types.FunctionCall(name=each.name, args=dict(each.arguments))
                parts.append(types.Part(function_call=call))
        yield LlmResponse(content=types.Content(role="model", parts=parts))


def _shown(part):
    return part.text or str(part.inline_data or part.file_data or "")


def tree_of(script, **more):
    """Return a tree with an agent for each rule, the coordinator on top."""
    agents = [
        LlmAgent(
            name=NAMES.get(agent_id, agent_id),
            instruction=f"I am {agent_id}.",
            model=RuleModel(model="rule", agent_id=agent_id, script=script),
            **more.get(agent_id, {}),
        )
        for agent_id in script.rules
        if agent_id != "coordinator"
    ]
    return LlmAgent(
        name="coordinator",
        instruction="I am coordinator.",
        model=RuleModel(model="rule", agent_id="coordinator", script=script),
        sub_agents=agents,
        **more.get("coordinator", {}),
    )


def runner_of(root, sessions=None):
    """Return ADK's runner."""
    service = sessions or InMemorySessionService()
    return Runner(agent=root, app_name="tax", session_service=service)


def approving(client, script, place, *, in_memory=False, ask=True):
    """Return a tree of which the invoice desk has a tool that needs a confirmation."""
    refund = FunctionTool(refund_into(place), require_confirmation=ask)
    root = tree_of(script, invoices={"tools": [refund]})
    sessions = None if in_memory else SqliteSessionService(str(place / "sessions.db"))
    return RoutedRunner(client, runner_of(root, sessions))


@pytest.fixture
def program():
    """A tree of ADK's agents."""
    return Program(
        example="clients/python/examples/google_adk_chat.py",
        names=NAMES,
        make=lambda client, script: RoutedRunner(client, runner_of(tree_of(script))),
        module=__name__,
        approving=approving,
    )


async def test_tools_of_the_program_that_transfer_are_tracked(either_client, client, session):
    """With any tool name; for a refused one the model reads an error."""

    def bring_in(name: str, tool_context: ToolContext) -> dict:
        """A transfer tool of the program."""
        tool_context.actions.transfer_to_agent = name
        return {"result": "done"}

    script = Script(
        coordinator=lambda seen: (
            Say(seen.tool_output)
            if seen.tool_output
            else CallTool("bring_in", {"name": seen.user_text})
        )
    )
    root = tree_of(script, coordinator={"tools": [bring_in]})
    routed = RoutedRunner(either_client, runner_of(root))
    refused = await routed.run("payroll", session_id=session, **ANA)
    assert "plan:premium" in refused.text
    handed = await routed.run("iva", session_id=session, **ANA)
    assert handed.agent_id == "vat"
    assert client.status(session, user_id="ana").active_agent.agent_id == "vat"
    people = await routed.run("desk", session_id=f"{session}-2", **ANA)
    assert people.next.agent.agent_id == "desk"


async def test_agent_out_of_reach_in_the_tree_is_refused_in_words(client, session):
    """ADK would abort the run; the model reads why and answers."""
    script = Script(
        invoices=lambda seen: Say(seen.tool_output) if seen.tool_output else transfer("payroll")
    )
    root = tree_of(script, invoices={"disallow_transfer_to_peers": True})
    run = await RoutedRunner(client, runner_of(root)).run(
        "Where is my invoice?", session_id=session, **ANA
    )
    assert run.agent_id == "invoices"
    assert 'you cannot reach agent "payroll"' in run.text


async def test_agent_that_may_not_transfer_to_its_parent_keeps_the_conversation(client, session):
    """ADK itself would begin the next message at the root, without a sign of it."""
    script = Script(vat=lambda seen: transfer("invoices") if "bill" in seen.user_text else Say("5"))
    root = tree_of(script, vat={"disallow_transfer_to_parent": True})
    routed = RoutedRunner(client, runner_of(root))
    client.set_active_agent(session, "vat", user_id="ana")
    kept = await routed.run("How much?", session_id=session, **ANA)
    assert (kept.agent_id, kept.text) == ("vat", "5")
    passed_on = await routed.run("And the bill?", session_id=session, **ANA)
    assert (passed_on.agent_id, passed_on.text) == ("invoices", "the secret of the invoice desk")
    assert script.of("coordinator") == []


async def test_agent_of_an_agent_tool_runs_as_it_is(client, session):
    """It is a tool of the agent that calls it: the service does not know it, nor its transfers."""
    inner = Script(
        clerk=lambda _: CallTool("transfer_to_agent", {"agent_name": "archivist"}),
        archivist=lambda seen: Say(f"found for {seen.user_text}"),
    )
    script = Script(
        coordinator=lambda seen: (
            Say(seen.tool_output) if seen.tool_output else CallTool("clerk", {"request": "F-1"})
        )
    )
    below = LlmAgent(name="archivist", model=_model("archivist", inner))
    clerk = LlmAgent(name="clerk", model=_model("clerk", inner), sub_agents=[below])
    root = tree_of(script, coordinator={"tools": [AgentTool(agent=clerk)]})
    run = await RoutedRunner(client, runner_of(root)).run("find it", session_id=session, **ANA)
    assert "found for" in run.text
    assert run.agent_id == "coordinator"
    assert "ask_user" not in inner.of("clerk")[0].tools
    (turn,) = client.list_turns(session, user_id="ana")
    assert [step.name for step in turn.steps] == ["clerk"]


def _model(agent_id, script):
    return RuleModel(model="rule", agent_id=agent_id, script=script)


def _desk_of(kind, script, **more):
    """Return a tree whose invoice desk is an agent with the steps writer and checker."""
    steps = [
        LlmAgent(name=name, model=_model(name, script), tools=more.get(name, []))
        for name in ("writer", "checker")
    ]
    desk = kind(name="invoices", sub_agents=steps)
    return LlmAgent(name="coordinator", model=_model("coordinator", script), sub_agents=[desk])


# ADK deprecates these classes in favour of its workflows, and programs have them.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        (SequentialAgent, "checked: [draft]"),
        (LoopAgent, "draft"),
        (ParallelAgent, "draft\n\nchecked: []"),
    ],
)
async def test_steps_of_an_agent_are_one_answer(client, session, kind, answer):
    """Each reads those before it, apart from branches; the last one answers, or each branch."""

    def check(seen):
        told = [text for _, text in seen.messages if text.startswith("For context: agent writer")]
        return Say(f"checked: [{told[0].rpartition(' ')[2] if told else ''}]")

    script = Script(
        coordinator=lambda _: CallTool("transfer_to_agent", {"agent_name": "invoices"}),
        writer=lambda _: Say("draft"),
        checker=(lambda _: CallTool("exit_loop", {})) if kind is LoopAgent else check,
    )
    routed = RoutedRunner(client, runner_of(_desk_of(kind, script, checker=[exit_loop])))
    for said in ("an invoice", "another"):
        run = await routed.run(said, session_id=session, **ANA)
        assert (run.agent_id, run.text) == ("invoices", answer)
    assert len(script.of("coordinator")) == 1
    assert "ask_user" not in script.of("writer")[0].tools
    # The past has the answers, and not the steps.
    assert ("assistant", answer) in script.of("writer")[-1].messages


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_decision_about_a_step_continues_that_step(client, session, tmp_path):
    """ADK pauses the sequence, and does not run the steps after it."""
    script = Script(writer=desk, checker=lambda _: Say("checked"))
    refund = FunctionTool(refund_into(tmp_path), require_confirmation=True)
    root = _desk_of(SequentialAgent, script, writer=[refund])
    client.set_active_agent(session, "invoices", user_id="ana")
    routed = RoutedRunner(client, runner_of(root))
    asked = routed.run_sync("refund 10", session_id=session, **ANA)
    assert asked.approval.prompt == "refund: amount: 10, account: DE-7"
    done = routed.decide_sync(asked.approval, "APPROVE", user_id="ana")
    assert "refunded 10" in done.text
    assert (refunds(tmp_path), script.of("checker")) == (["10 to DE-7"], [])


def _clerk(place, *, kind=LongRunningFunctionTool, first=True):
    """Return a tool that begins a refund, about which a person decides later."""
    begin = refund_into(place)

    def refund(amount: str, account: str):
        """Ask the accountants for a refund."""
        begun = begin(amount, account)
        return {"status": "pending", "ticket": begun} if first else None

    return kind(refund)


def _asking(client, place, script, **more):
    """Return an adapter whose invoice desk has that tool; the sessions are in a file."""
    tool = _clerk(place, **{key: more.pop(key) for key in ("kind", "first") if key in more})
    sessions = SqliteSessionService(str(place / "sessions.db"))
    runner = runner_of(tree_of(script, invoices={"tools": [tool]}), sessions)
    return RoutedRunner(client, runner, long_running=["refund"], **more)


def _waiting_desk(seen):
    """The invoice desk: it says that it waits, until it reads the decision."""
    return Say("I have asked.") if "pending" in seen.tool_output else desk(seen)


@pytest.mark.parametrize("kind", [LongRunningFunctionTool, FunctionTool])
def test_later_result_of_a_long_running_tool_is_a_decision(client, session, tmp_path, kind):
    """Decided by another process: the model reads the result in the place of the first one."""
    client.set_active_agent(session, "invoices", user_id="ana")
    asking = _asking(client, tmp_path, Script(invoices=_waiting_desk), kind=kind)
    asked = asking.run_sync("refund 10", session_id=session, **ANA)
    assert asked.text == "I have asked."
    assert asked.approval.prompt == "refund: amount: 10, account: DE-7"
    script = Script(invoices=_waiting_desk)
    other = _asking(client, tmp_path, script, kind=kind)
    done = other.decide_sync(asked.approval, "REJECT", user_id="ana", comment="too late")
    for part in ("'status': 'rejected'", "'ticket': 'refunded 10'", "'comment': 'too late'"):
        assert part in done.text
    (seen,) = script.of("invoices")
    assert "I have asked." not in str(seen.messages)
    assert refunds(tmp_path) == ["10 to DE-7"]
    assert other.decide_sync(asked.approval, "REJECT", user_id="ana", comment="too late").text == (
        done.text
    )
    # The past has both answers.
    after = other.run_sync("thanks", session_id=session, **ANA)
    assert after.approval is None
    assert ("assistant", done.text) in script.of("invoices")[-1].messages


def test_several_long_running_tools_are_decided_one_by_one(client, session, tmp_path):
    """A tool without a first result ends the run at once; the program words the result."""
    client.set_active_agent(session, "invoices", user_id="ana")

    def word(name, first, decided):
        return {"said": f"{name} {dict(first)} {decided.is_approved}"}

    script = Script(invoices=desk)
    routed = _asking(client, tmp_path, script, first=False, later_result=word)
    first = routed.run_sync("refund 10 and 20", session_id=session, **ANA)
    assert len(script.of("invoices")) == 1
    second = routed.decide_sync(first.approval, "APPROVE", user_id="ana")
    assert "amount: 20" in second.approval.prompt
    done = routed.decide_sync(second.approval, "REJECT", user_id="ana")
    assert "refund {} False" in done.text
    assert done.approval is None
    assert refunds(tmp_path) == ["10 to DE-7", "20 to DE-7"]


def test_long_running_tool_does_not_begin_where_it_could_not_wait(client, session, tmp_path):
    """The user writes instead of deciding: the model reads why, and the request stays."""
    client.set_active_agent(session, "invoices", user_id="ana")
    routed = _asking(client, tmp_path, Script(invoices=_waiting_desk))
    asked = routed.run_sync("refund 10", session_id=session, **ANA)
    written = routed.run_sync("refund 20 then", session_id=session, **ANA)
    assert "has not been decided yet" in written.text
    assert refunds(tmp_path) == ["10 to DE-7"]
    done = routed.decide_sync(asked.approval, "APPROVE", user_id="ana")
    assert "approved" in done.text


async def test_agent_that_wants_no_history_gets_none(client, session):
    """ADK's include_contents: the message and this turn, without the turns before."""
    script = Script()
    routed = RoutedRunner(
        client, runner_of(tree_of(script, coordinator={"include_contents": "none"}))
    )
    for said in ("hello", "again"):
        await routed.run(said, session_id=session, **ANA)
    assert script.of("coordinator")[-1].messages == [("user", "again")]


async def test_options_of_a_run_are_passed_on(client, session):
    """For example how many calls of a model one run may make."""
    routed = RoutedRunner(client, runner_of(tree_of(Script())))
    with pytest.raises(LlmCallsLimitExceededError):
        await routed.run(
            "VAT?", session_id=session, options={"run_config": RunConfig(max_llm_calls=1)}, **ANA
        )


async def test_events_carry_the_request_and_begin_with_the_stored_agent(client, session):
    """ADK's own session is a record of the product; it has a link to the service's session."""
    runner = runner_of(tree_of(Script()))
    routed = RoutedRunner(client, runner)
    await routed.run("Where is my invoice?", session_id=session, **ANA)
    stream = routed.stream("and now?", session_id=session, **ANA)
    events = [event async for event in stream]
    assert {event.author for event in events} == {"invoices"}
    newest = list(client.list_turns(session, user_id="ana"))[-1]
    assert {event.custom_metadata[REQUEST_KEY] for event in events} == {newest.request_id}


def test_blocking_stream_is_followed_like_any_other(client, session):
    """ADK runs it in its own thread."""
    stream = RoutedRunner(client, runner_of(tree_of(Script()))).stream_sync(
        "VAT?", session_id=session, **ANA
    )
    assert len(list(stream)) >= 3
    assert (stream.run.agent_id, stream.run.locked) == ("vat", True)


async def test_runs_started_elsewhere_are_left_alone(client, session):
    """The runner may have other runs; the plugin does not change them."""
    script = Script()
    runner = runner_of(tree_of(script))
    RoutedRunner(client, runner)
    await runner.session_service.create_session(app_name="tax", user_id="ben", session_id=session)
    message = types.Content(role="user", parts=[types.Part(text="hello")])
    events = [
        event
        async for event in runner.run_async(user_id="ben", session_id=session, new_message=message)
    ]
    assert events[-1].content.parts[0].text == "hello from the coordinator"
    assert "ask_user" not in script.seen[0].tools


def test_an_attempt_that_ends_leaves_the_next_one_of_its_turn_alone(client, session):
    """A worker whose lease lapsed may run a turn again before the first attempt has ended."""
    both_run, first_ended = threading.Barrier(2), threading.Event()
    began = itertools.count()

    def rule(_seen):
        is_second = next(began) == 1
        both_run.wait(60)
        if is_second:
            first_ended.wait(60)
            return CallTool("ask_user", {"question": "Which one?"})
        return Say("the first")

    routed = RoutedRunner(client, runner_of(tree_of(Script(coordinator=rule))))
    dispatch = client.route("hello", session_id=session, **ANA).dispatch
    ended = []

    def attempt():
        try:
            ended.append(routed.answer_sync(session, dispatch, user_id="ana").text)
        except Exception as error:  # noqa: BLE001 - in a thread, for the test
            ended.append(error)
        first_ended.set()

    threads = [threading.Thread(target=attempt) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert ended[0] == "the first"
    # Still a routed run: its question reached the service, which had the answer already.
    assert isinstance(ended[1], errors.RoutingError), ended
