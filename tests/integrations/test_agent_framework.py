"""Microsoft Agent Framework's handoff workflows, with the service behind them."""

import itertools

import pytest

pytest.importorskip("agent_framework", reason="needs agent-framework: make test-integrations")

from agent_framework import (
    Agent,
    AgentMiddleware,
    AgentResponse,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationContext,
    FunctionInvocationLayer,
    FunctionTool,
    Message,
    MiddlewareTermination,
    ResponseStream,
    ToolApprovalMiddleware,
    tool,
)

from agent_routing import AsyncClient
from agent_routing.integrations.agent_framework import RoutedHandoffs
from agent_routing.integrations.kept_runs import FileKeptRuns
from agent_routing.v1.task_pb2 import TASK_STATUS_FAILED
from clients.python.examples.tax_talk import CallTool
from tests.integrations.approval_stories import *  # noqa: F403 - as stories
from tests.integrations.approval_stories import desk_script, refund_into, refunds
from tests.integrations.stories import *  # noqa: F403 - the tests that every adapter passes
from tests.integrations.stories import ANA, RULES, Program, Say, Script, Seen, Show
from tests.integrations.worker_stories import *  # noqa: F403 - as stories
from tests.integrations.worker_stories import working

NAMES = {agent_id: agent_id for agent_id in RULES} | {
    "coordinator": "Tax Coordinator",
    "vat": "VAT Specialist",
}
_call_numbers = itertools.count(1)


class RuleClient(FunctionInvocationLayer, ChatMiddlewareLayer, BaseChatClient):
    """Answers by a script, and records the framework's input for the model."""

    def __init__(self, agent_id, script):
        super().__init__()
        self._agent_id = agent_id
        self._script = script

    def _inner_get_response(self, *, messages, stream, options, **kwargs):
        del kwargs
        if not stream:
            return self._answer(messages, options)

        async def updates():
            response = await self._answer(messages, options)
            for message in response.messages:
                yield ChatResponseUpdate(role="assistant", contents=message.contents)

        return ResponseStream(updates(), finalizer=ChatResponse.from_updates)

    async def _answer(self, messages, options):
        results = [each for each in messages[-1].contents if each.type == "function_result"]
        system = "".join(each.text for each in messages if each.role == "system")
        seen = Seen(
            agent_id=self._agent_id,
            system=system + (options.get("instructions") or ""),
            messages=[
                (each.role, "".join(_shown(part) for part in each.contents))
                for each in messages
                if each.role in ("user", "assistant") and any(map(_shown, each.contents))
            ],
            tools={each.name: each.description for each in options.get("tools") or ()},
            tool_output=str(results[-1].result) if results else "",
        )
        replied = self._script.reply(seen)
        contents = []
        for reply in replied if isinstance(replied, list) else [replied]:
            if reply.text:
                contents.append(Content.from_text(reply.text))
            if isinstance(reply, Show):
                contents.append(Content.from_data(reply.image, "image/png"))
            if isinstance(reply, CallTool):
                contents.append(
                    Content.from_function_call(
                        f"c{next(_call_numbers)}", reply.name, arguments=dict(reply.arguments)
                    )
                )
        return ChatResponse(messages=[Message("assistant", contents)])


def _shown(part):
    if part.type == "text":
        return part.text
    return f"{part.media_type} {part.uri}" if part.type in ("data", "uri") else ""


def agents_of(script, *, tools=None):
    """Return an agent for each rule."""
    return [
        Agent(
            client=RuleClient(agent_id, script),
            name=NAMES.get(agent_id, agent_id),
            instructions=f"I am {agent_id}.",
            tools=(tools or {}).get(agent_id, []),
        )
        for agent_id in script.rules
    ]


def approving(client, script, place, *, in_memory=False, ask=True):
    """Return an adapter whose invoice desk has a tool that needs an approval."""
    del in_memory
    mode = "always_require" if ask else "never_require"
    refund = tool(refund_into(place), approval_mode=mode)
    agents = agents_of(script, tools={"invoices": [refund]})
    return RoutedHandoffs(client, agents, kept_runs=FileKeptRuns(place / "runs"))


@pytest.fixture
def program():
    """Agents of the framework."""
    return Program(
        example="clients/python/examples/agent_framework_chat.py",
        names=NAMES,
        make=lambda client, script: RoutedHandoffs(client, agents_of(script)),
        module=__name__,
        approving=approving,
    )


@pytest.mark.parametrize("target", ["payroll", "invoices"])
async def test_handoffs_of_a_workflow_are_tracked(either_client, client, session, target):
    """The framework's own tools, in one run of its workflow; the model reads a refusal."""
    script = Script(
        coordinator=lambda seen: (
            Say(seen.tool_output) if seen.tool_output else CallTool(f"handoff_to_{target}", {})
        )
    )
    agents = {agent.name: agent for agent in agents_of(script)}

    def build(builder):
        return builder.add_handoff(
            "Tax Coordinator", [agents[name] for name in ("payroll", "invoices")]
        )

    routed = RoutedHandoffs(either_client, agents.values(), build=build)
    run = await routed.run("please", session_id=session, **ANA)
    # The registry's agents that are not in the workflow are out of reach of its own handoffs.
    offered = script.of("coordinator")[0].tools["transfer_to_agent"]
    assert [line for line in offered.splitlines() if line.startswith("- ")] == [
        "- clerk: Clerk",
        "- elsewhere: Old files.",
        "- desk: People who help. (people)",
    ]
    assert len(run.results) == 1
    if target == "payroll":
        assert "plan:premium" in run.text
        assert script.of("payroll") == []
    else:
        assert (run.agent_id, run.text) == ("invoices", "the secret of the invoice desk")
        assert client.status(session, user_id="ana").active_agent.agent_id == "invoices"


async def test_workflow_with_handoffs_of_its_own_hands_over_to_people(client, session):
    """They are no agent of the workflow, which ends."""
    script = Script(
        coordinator=lambda _: CallTool("handoff_to_invoices", {}),
        invoices=lambda _: CallTool("transfer_to_agent", {"agent_id": "desk"}, "One moment."),
    )
    agents = {agent.name: agent for agent in agents_of(script)}

    def build(builder):
        return builder.add_handoff("Tax Coordinator", [agents["invoices"]])

    routed = RoutedHandoffs(client, agents.values(), build=build)
    run = await routed.run("please", session_id=session, **ANA)
    assert (run.next.agent.agent_id, run.agent_id, run.text) == ("desk", "invoices", "One moment.")


async def test_handoffs_of_a_workflow_work_in_a_worker(inboxes, session):
    """The workflow ends at the handoff; the target runs from its own inbox."""
    script = Script(coordinator=lambda _: CallTool("handoff_to_invoices", {}))
    agents = {agent.name: agent for agent in agents_of(script)}

    def build(builder):
        return builder.add_handoff("Tax Coordinator", [agents["invoices"]])

    async with AsyncClient(inboxes.address, timeout=20) as client:
        routed = RoutedHandoffs(client, agents.values(), build=build)
        async with working(routed, client):
            asked = await client.ask("please", session_id=session, wait=60, **ANA)
    assert asked.text == "the secret of the invoice desk"
    assert len(script.of("invoices")) == 1


def test_agents_of_one_name_are_refused(client):
    """One of them would never run, without a sign of it."""
    agents = [*agents_of(Script()), *agents_of(Script())[:1]]
    with pytest.raises(ValueError, match="two agents have the name"):
        RoutedHandoffs(client, agents)


async def test_tools_are_steps_of_the_turn(client, session):
    """With their input and result."""

    @tool(approval_mode="never_require")
    def look_up(number: str) -> str:
        """Look up an invoice."""
        return f"{number} is paid"

    script = Script(
        coordinator=lambda seen: (
            Say(seen.tool_output) if seen.tool_output else CallTool("look_up", {"number": "F-1"})
        )
    )
    routed = RoutedHandoffs(client, agents_of(script, tools={"coordinator": [look_up]}))
    run = await routed.run("please", session_id=session, **ANA)
    assert run.text == "F-1 is paid"
    (turn,) = client.list_turns(session, user_id="ana")
    assert [(step.name, step.output) for step in turn.steps] == [("look_up", "F-1 is paid")]


async def test_options_of_a_run_are_passed_on(client, session):
    """For example what tools get besides the model's arguments; a message's win."""

    @tool(approval_mode="never_require")
    def look_up(number: str, ctx: FunctionInvocationContext) -> str:
        """Look up an invoice."""
        return f"{number} in {ctx.kwargs['ledger']}"

    script = Script(
        coordinator=lambda seen: (
            Say(seen.tool_output) if seen.tool_output else CallTool("look_up", {"number": "F-1"})
        )
    )
    agents = agents_of(script, tools={"coordinator": [look_up]})
    routed = RoutedHandoffs(
        client, agents, run_options={"function_invocation_kwargs": {"ledger": "the old ledger"}}
    )
    options = {"function_invocation_kwargs": {"ledger": "the new ledger"}}
    run = await routed.run("please", session_id=session, options=options, **ANA)
    assert run.text == "F-1 in the new ledger"
    again = await routed.run("please", session_id=session, **ANA)
    assert again.text == "F-1 in the old ledger"


class Censor(AgentMiddleware):
    """The program's own middleware: it words the answer, or gives one without the model."""

    async def process(self, context, call_next):
        """Answer at once, before or after the model, or replace the model's answer."""
        asked = context.messages[-1].text
        if asked == "stop":
            context.result = _reply("not today")
            raise MiddlewareTermination
        await call_next()
        context.result = _reply(f"{context.result.text}, censored")
        if asked == "after":
            raise MiddlewareTermination


def _reply(text):
    return AgentResponse(messages=[Message("assistant", [text])])


@pytest.mark.parametrize(
    ("said", "answer", "calls"),
    [("hello", "fine, censored", 1), ("stop", "not today", 0), ("after", "fine, censored", 1)],
)
async def test_answer_is_what_the_middleware_of_the_program_makes_of_it(
    client, session, said, answer, calls
):
    """Replaced, or given without the model: the user, and the next agent, read only that."""
    script = Script(coordinator=lambda _: Say("fine"))
    agents = agents_of(script)
    agents[0].middleware = [Censor()]
    run = await RoutedHandoffs(client, agents).run(said, session_id=session, **ANA)
    assert (run.text, len(script.seen)) == (answer, calls)
    (turn,) = client.list_turns(session, user_id="ana")
    assert turn.agent_text == answer


def test_approvals_that_a_middleware_asks_for_one_by_one(client, session, tmp_path):
    """The framework's own queue of approvals gives the next one without calling the model."""
    refund = tool(refund_into(tmp_path), approval_mode="always_require")
    agents = agents_of(desk_script(), tools={"invoices": [refund]})
    desk = next(agent for agent in agents if agent.name == "invoices")
    desk.middleware = [ToolApprovalMiddleware()]
    routed = RoutedHandoffs(client, agents, kept_runs=FileKeptRuns(tmp_path / "runs"))
    client.set_active_agent(session, "invoices", user_id="ana")
    asked = routed.run_sync("refund 10 and 20", session_id=session, **ANA)
    assert "amount: 10" in asked.approval.prompt
    second = routed.decide_sync(asked.approval, "APPROVE", user_id="ana")
    assert "amount: 20" in second.approval.prompt
    done = routed.decide_sync(second.approval, "REJECT", user_id="ana")
    assert done.approval is None
    assert refunds(tmp_path) == ["10 to DE-7"]


async def test_tool_that_nothing_executes_is_refused(client, session):
    """At once if the agent has it; as a failed turn if a run brings it."""
    where = FunctionTool(
        name="where", func=None, description="", input_model={"type": "object", "properties": {}}
    )
    agents = agents_of(Script(), tools={"coordinator": [where]})
    with pytest.raises(ValueError, match="'Tax Coordinator' has the tool 'where', which is only"):
        RoutedHandoffs(client, agents)
    agents = agents_of(Script(coordinator=lambda _: CallTool("where", {})))
    routed = RoutedHandoffs(client, agents)
    agents[0].default_options["tools"] = [where]
    with pytest.raises(RuntimeError, match="'Tax Coordinator' called the tool 'where'"):
        await routed.run("where am I?", session_id=session, **ANA)
    assert client.status(session, user_id="ana").task.status == TASK_STATUS_FAILED
