"""The OpenAI Agents SDK's own run loop, with the service behind it."""

import itertools

import pytest

pytest.importorskip("agents", reason="needs openai-agents: make test-integrations")

from agents import Agent, handoff, set_tracing_disabled
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call

from agent_routing import AsyncClient
from agent_routing.integrations.openai_agents import RoutedAgents
from clients.python.examples.tax_talk import CallTool
from tests.integrations.stories import *  # noqa: F403 - the tests that every adapter passes
from tests.integrations.stories import ANA, RULES, Program, Say, Script, Seen

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
        if not isinstance(reply, CallTool):
            return [assistant_message(reply.text)]
        said = [assistant_message(reply.text)] if reply.text else []
        called = function_call(reply.name, reply.arguments, call_id=f"c{next(_call_numbers)}")
        return [*said, called]


def _text(content):
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def agents_of(script, **handoffs):
    """Return an agent for each rule."""
    return [
        Agent(
            name=NAMES.get(agent_id, agent_id),
            instructions=f"I am {agent_id}.",
            model=RuleModel(agent_id, script),
            handoffs=handoffs.get(agent_id, []),
        )
        for agent_id in script.rules
    ]


@pytest.fixture
def program():
    """Agents of the SDK."""
    return Program(
        example="clients/python/examples/openai_agents_chat.py",
        names=NAMES,
        make=lambda client, script: RoutedAgents(client, agents_of(script)),
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
    assert "transfer_to_agent" not in script.of("coordinator")[0].tools
    assert client.status(f"{session}-2", user_id="ana").active_agent.agent_id == "vat"
    # The program's own agents are as they were.
    assert coordinator.handoffs == own
    assert [tool.name for tool in coordinator.tools] == []


async def test_options_of_the_runner_are_passed_on(client, session):
    """For example how many calls a run may make."""
    script = Script(coordinator=lambda _: CallTool("transfer_to_agent", {"agent_id": "payroll"}))
    routed = RoutedAgents(client, agents_of(script), run_options={"max_turns": 2})
    with pytest.raises(Exception, match="Max turns"):
        await routed.run("again and again", session_id=session, **ANA)
    assert len(script.seen) == 2


def test_async_client_cannot_serve_a_blocking_run(shared_server):
    """The error comes at once, with the remedy."""
    routed = RoutedAgents(AsyncClient(shared_server.address), agents_of(Script()))
    with pytest.raises(TypeError, match=r"give an agent_routing\.Client"):
        routed.run_sync("hello", session_id="wrong", **ANA)
