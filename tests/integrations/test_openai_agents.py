"""The OpenAI Agents SDK's own run loop, with the service behind it."""

import asyncio
import base64
import itertools

import pytest

pytest.importorskip("agents", reason="needs openai-agents: make test-integrations")

from agents import (
    Agent,
    RunConfig,
    SQLiteSession,
    function_tool,
    handoff,
    set_tracing_disabled,
)
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call
from openai.types.responses.response_output_item import ImageGenerationCall

from agent_routing import AsyncClient
from agent_routing.integrations.approvals import ApprovedRunLost
from agent_routing.integrations.kept_runs import FileKeptRuns
from agent_routing.integrations.openai_agents import RoutedAgents
from agent_routing.v1.task_pb2 import TASK_STATUS_FAILED
from clients.python.examples.tax_talk import CallTool
from tests.integrations.approval_stories import *  # noqa: F403 - as stories
from tests.integrations.approval_stories import desk_script, refund_into, refunds
from tests.integrations.stories import *  # noqa: F403 - the tests that every adapter passes
from tests.integrations.stories import ANA, REQUEST_ID, RULES, Program, Say, Script, Seen, Show
from tests.integrations.worker_stories import *  # noqa: F403 - as stories
from tests.integrations.worker_stories import working

NAMES = {agent_id: agent_id for agent_id in RULES} | {
    "coordinator": "Tax Coordinator",
    "vat": "VAT Specialist",
}
set_tracing_disabled(disabled=True)
_call_numbers = itertools.count(1)


class RuleModel(ScriptedModel):
    """Answers by a script, and records the SDK's input for the model."""

    def __init__(self, agent_id, script):
        super().__init__()
        self._agent_id = agent_id
        self._script = script

    async def get_response(self, *args, **kwargs):
        self.enqueue(ModelStep.respond(self._respond))
        return await super().get_response(*args, **kwargs)

    async def stream_response(self, *args, **kwargs):
        self.enqueue(ModelStep.respond(self._respond))
        async for event in super().stream_response(*args, **kwargs):
            yield event

    def _respond(self, call):
        tools = {tool.name: tool.description for tool in call.tools}
        tools |= {each.tool_name: each.tool_description for each in call.handoffs}
        items = [item for item in call.input if item.get("content")]
        seen = Seen(
            agent_id=self._agent_id,
            system=call.system_instructions or "",
            messages=[(item["role"], _text(item["content"])) for item in items],
            tools=tools,
            tool_output=str(call.input[-1].get("output", "")),
        )
        reply = self._script.reply(seen)
        replies = reply if isinstance(reply, list) else [reply]
        if isinstance(reply, Show):
            image = base64.b64encode(reply.image).decode()
            return [
                ImageGenerationCall(
                    id="i1", result=image, status="completed", type="image_generation_call"
                ),
                assistant_message(reply.text),
            ]
        said = [assistant_message(replies[0].text)] if replies[0].text else []
        called = [
            function_call(each.name, each.arguments, call_id=f"c{next(_call_numbers)}")
            for each in replies
            if isinstance(each, CallTool)
        ]
        return [*said, *called]


def _text(content):
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or str(part) for part in content)


def agents_of(script, *, tools=None, **handoffs):
    """Return an agent for each rule."""
    return [
        Agent(
            name=NAMES.get(agent_id, agent_id),
            instructions=f"I am {agent_id}.",
            model=RuleModel(agent_id, script),
            handoffs=handoffs.get(agent_id, []),
            tools=(tools or {}).get(agent_id, []),
        )
        for agent_id in script.rules
    ]


def approving(client, script, place, *, in_memory=False, ask=True):
    """Return agents of which the invoice desk has a tool that needs an approval."""
    del in_memory
    refund = function_tool(refund_into(place), needs_approval=ask)
    agents = agents_of(script, tools={"invoices": [refund]})
    return RoutedAgents(client, agents, kept_runs=FileKeptRuns(place / "runs"))


@pytest.fixture
def program():
    """Agents of the SDK."""
    return Program(
        example="clients/python/examples/openai_agents_chat.py",
        names=NAMES,
        make=lambda client, script: RoutedAgents(client, agents_of(script)),
        module=__name__,
        approving=approving,
    )


async def test_handoffs_that_the_program_has_itself_are_tracked(client, session):
    """With their own names and side effects; a refused one has no side effects."""
    happened = []
    script = Script(
        coordinator=lambda seen: (
            Say(seen.tool_output)
            if seen.tool_output
            else CallTool("transfer_to_payroll" if "payroll" in seen.user_text else "to_vat", {})
        )
    )
    specialists = agents_of(script)
    vat, payroll = specialists[1], specialists[3]
    own = [
        handoff(vat, tool_name_override="to_vat", on_handoff=lambda _: happened.append("vat")),
        handoff(payroll, on_handoff=lambda _: happened.append("payroll")),
    ]
    coordinator = agents_of(script, coordinator=own)[0]
    routed = RoutedAgents(client, [coordinator, *specialists[1:]])
    refused = await routed.run("payroll", session_id=session, **ANA)
    assert "plan:premium" in refused.text
    assert happened == []
    handed = await routed.run("the other", session_id=f"{session}-2", **ANA)
    assert (handed.agent_id, happened) == ("vat", ["vat"])
    # The registry's agents that are not in the program are out of reach of its own handoffs.
    offered = script.of("coordinator")[0].tools["transfer_to_agent"]
    assert [line for line in offered.splitlines() if line.startswith("- ")] == [
        "- clerk: Clerk",
        "- elsewhere: Old files.",
        "- desk: People who help. (people)",
    ]
    assert client.status(f"{session}-2", user_id="ana").active_agent.agent_id == "vat"
    # The program's own agents are as they were.
    assert coordinator.handoffs == own
    assert [tool.name for tool in coordinator.tools] == []


@pytest.mark.parametrize("way", ["run", "run_sync", "stream"])
async def test_handoff_of_the_program_to_an_agent_with_an_inbox_ends_the_run(client, session, way):
    """Its workers run that agent; the handoff's own side effects happen."""
    happened = []
    script = Script(
        coordinator=lambda _: CallTool("to_clerk", {}, "One moment."),
        clerk=lambda _: Say("from a worker"),
    )
    *specialists, clerk = agents_of(script)
    own = handoff(
        clerk, tool_name_override="to_clerk", on_handoff=lambda _: happened.append("clerk")
    )
    coordinator = agents_of(script, coordinator=[own])[0]
    routed = RoutedAgents(client, [coordinator, *specialists[1:], clerk])
    given = {"session_id": session, **ANA}
    if way == "stream":
        stream = routed.stream("please", **given)
        _ = [event async for event in stream]
        run = stream.run
    elif way == "run":
        run = await routed.run("please", **given)
    else:
        run = await asyncio.to_thread(routed.run_sync, "please", **given)
    assert (run.next.agent.agent_id, run.text, happened) == ("clerk", "One moment.", ["clerk"])
    assert script.of("clerk") == []


@pytest.mark.parametrize(("comment", "read"), [("", "not published"), ("too early", "too early")])
def test_rejection_is_said_as_the_program_formats_it(client, session, tmp_path, comment, read):
    """By the run's tool_error_formatter; a comment of the person who decided comes before it."""

    def formatter(given):
        return "not published" if given.kind == "approval_rejected" else None

    client.set_active_agent(session, "invoices", user_id="ana")
    routed = approving(client, Script(invoices=desk), tmp_path)
    options = {"run_config": RunConfig(tool_error_formatter=formatter)}
    run = routed.run_sync("refund 10", session_id=session, options=options, **ANA)
    done = routed.decide_sync(
        run.approval, "REJECT", options=options, user_id="ana", comment=comment
    )
    assert read in done.text
    assert refunds(tmp_path) == []


def test_approval_that_depends_on_the_arguments(client, session, tmp_path):
    """needs_approval as a function: a call that needs none runs before the other is decided."""

    async def is_large(_context, given, _call_id):
        return int(given["amount"]) > 100

    refund = function_tool(refund_into(tmp_path), needs_approval=is_large)
    agents = agents_of(Script(invoices=desk), tools={"invoices": [refund]})
    routed = RoutedAgents(client, agents, kept_runs=FileKeptRuns(tmp_path / "runs"))
    client.set_active_agent(session, "invoices", user_id="ana")
    run = routed.run_sync("refund 20 and 120", session_id=session, **ANA)
    assert run.approval.prompt.startswith("refund: amount: 120")
    assert refunds(tmp_path) == ["20 to DE-7"]
    done = routed.decide_sync(run.approval, "APPROVE", user_id="ana")
    assert done.approval is None
    assert refunds(tmp_path) == ["20 to DE-7", "120 to DE-7"]


async def test_own_handoffs_work_in_a_worker(inboxes, session):
    """As tools that end the run; their side effects happen only if the handoff is accepted."""
    happened = []
    script = Script(
        coordinator=lambda seen: (
            Say(seen.tool_output)
            if seen.tool_output
            else CallTool("transfer_to_payroll" if "payroll" in seen.user_text else "to_desk", {})
        )
    )
    specialists = agents_of(script)
    own = [
        handoff(
            specialists[2],
            tool_name_override="to_desk",
            on_handoff=lambda _: happened.append("desk"),
        ),
        handoff(specialists[3], on_handoff=lambda _: happened.append("payroll")),
    ]
    coordinator = agents_of(script, coordinator=own)[0]
    async with AsyncClient(inboxes.address, timeout=20) as client:
        routed = RoutedAgents(client, [coordinator, *specialists[1:]])
        async with working(routed, client):
            refused = await client.ask("payroll", session_id=session, wait=60, **ANA)
            handed = await client.ask("the other", session_id=f"{session}-2", wait=60, **ANA)
    assert "plan:premium" in refused.text
    assert handed.text == "the secret of the invoice desk"
    assert happened == ["desk"]


async def test_options_of_the_runner_are_passed_on(client, session):
    """For example how many calls a run may make."""
    script = Script(coordinator=lambda _: CallTool("transfer_to_agent", {"agent_id": "payroll"}))
    routed = RoutedAgents(client, agents_of(script), run_options={"max_turns": 2})
    with pytest.raises(Exception, match="Max turns"):
        await routed.run("again and again", session_id=session, **ANA)
    assert len(script.seen) == 2
    with pytest.raises(Exception, match="Max turns"):
        await routed.run("again", session_id=f"{session}-2", options={"max_turns": 1}, **ANA)
    assert len(script.seen) == 3


def test_agents_of_one_name_are_refused(client):
    """One of them would never run, without a sign of it."""
    with pytest.raises(ValueError, match="two agents have the name 'payroll'"):
        RoutedAgents(client, [Agent(name="Payroll"), Agent(name="payroll")])


def test_agents_that_are_one_agent_of_the_registry_are_refused(client, session):
    """An id and an alias of the same agent: which of the two runs would be chance."""
    routed = RoutedAgents(client, [Agent(name="vat"), Agent(name="VAT Specialist")])
    with pytest.raises(LookupError, match="'vat' and 'VAT Specialist' are both agent 'vat'"):
        routed.run_sync("hello", session_id=session, **ANA)


@pytest.mark.parametrize("wrap", [lambda agent: agent, handoff])
def test_handoff_to_an_agent_that_was_not_given_is_refused(client, wrap):
    """Such a handoff could never happen."""
    payroll = Agent(name="payroll")
    coordinator = Agent(name="coordinator", handoffs=[wrap(payroll)])
    with pytest.raises(ValueError, match="hands over to 'payroll', which is not among the agents"):
        RoutedAgents(client, [coordinator])
    RoutedAgents(client, [coordinator, payroll])


def test_memory_of_the_sdk_is_refused(client, session):
    """With it the model would read each past message twice: it is in the service's history too."""
    agents = agents_of(Script())
    with pytest.raises(ValueError, match="option 'session' would add"):
        RoutedAgents(client, agents, run_options={"session": SQLiteSession("kept")})
    routed = RoutedAgents(client, agents)
    given = {"options": {"previous_response_id": "r1"}, "session_id": session, **ANA}
    with pytest.raises(ValueError, match="option 'previous_response_id' would add"):
        routed.run_sync("hello", **given)


def test_async_client_cannot_serve_a_blocking_run(shared_server):
    """The error comes at once, with the remedy."""
    routed = RoutedAgents(AsyncClient(shared_server.address), agents_of(Script()))
    with pytest.raises(TypeError, match=r"give an agent_routing\.Client"):
        routed.run_sync("hello", session_id="wrong", **ANA)


class RefusingRuns(FileKeptRuns):
    """A place that loses what it was given."""

    def take(self, session_id, request_id):
        """Find nothing."""
        del session_id, request_id


async def test_run_that_is_not_kept_any_more_is_an_error_and_not_begun_again(
    client, session, tmp_path
):
    """What was approved may have been executed by a process that died: nothing is repeated."""
    client.set_active_agent(session, "invoices", user_id="ana")
    refund = function_tool(refund_into(tmp_path), needs_approval=True)
    routed = RoutedAgents(
        client,
        agents_of(desk_script(), tools={"invoices": [refund]}),
        kept_runs=RefusingRuns(tmp_path),
    )
    run = await routed.run("refund 10", session_id=session, **ANA)
    with pytest.raises(ApprovedRunLost, match="do not share"):
        await routed.decide(run.approval, "APPROVE", user_id="ana")
    assert refunds(tmp_path) == []
    status = client.status(session, user_id="ana")
    assert (status.task.status, len(status.open_requests)) == (TASK_STATUS_FAILED, 0)


def test_kept_runs_are_taken_once_and_readable_by_their_owner_alone(tmp_path, monkeypatch):
    """The default folder follows the XDG base directories."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    kept = FileKeptRuns()
    kept.save("päge/../1", REQUEST_ID, "one")
    kept.save("päge/../1", REQUEST_ID, "two")
    (file,) = (tmp_path / "agent-routing" / "runs").rglob("*.json")
    assert file.stat().st_mode & 0o077 == 0
    assert kept.take("another", REQUEST_ID) is None
    assert kept.take("päge/../1", REQUEST_ID) == "two"
    assert kept.take("päge/../1", REQUEST_ID) is None
    kept.save("päge/../1", REQUEST_ID, "three")
    kept.remove("päge/../1", REQUEST_ID)
    kept.remove("päge/../1", REQUEST_ID)
    assert kept.take("päge/../1", REQUEST_ID) is None
