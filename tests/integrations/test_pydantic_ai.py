"""Pydantic AI's own run loop, with the service behind it."""

import itertools

import pytest

pytest.importorskip("pydantic_ai", reason="needs pydantic-ai: make test-integrations")

from pydantic import BaseModel
from pydantic_ai import Agent, ApprovalRequired, ModelRetry, RunContext, Tool
from pydantic_ai.exceptions import UsageLimitExceeded
from pydantic_ai.messages import (
    BinaryContent,
    FilePart,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import DeltaToolCall, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.usage import UsageLimits

from agent_routing.integrations.kept_runs import FileKeptRuns
from agent_routing.integrations.pydantic_ai import RoutedAgents
from clients.python.examples.tax_talk import CallTool
from tests.integrations.approval_stories import *  # noqa: F403 - as stories
from tests.integrations.approval_stories import desk, refund_into, refunds
from tests.integrations.stories import *  # noqa: F403 - the tests that every adapter passes
from tests.integrations.stories import (
    ANA,
    QUESTION,
    RULES,
    Program,
    Say,
    Script,
    Seen,
    Show,
    transfer,
)
from tests.integrations.worker_stories import *  # noqa: F403 - as stories

NAMES = {agent_id: agent_id for agent_id in RULES} | {
    "coordinator": "Tax Coordinator",
    "vat": "VAT Specialist",
}
_call_numbers = itertools.count(1)


def model_of(agent_id, script):
    """Return a model that answers by a script, and records Pydantic AI's input for it."""

    def reply(messages, info):
        seen = Seen(
            agent_id=agent_id,
            system=info.instructions or "",
            messages=list(_said(messages)),
            tools={tool.name: tool.description for tool in info.function_tools},
            tool_output=_tool_output(messages),
        )
        replied = script.reply(seen)
        return replied if isinstance(replied, list) else [replied]

    def respond(messages, info):
        replies = reply(messages, info)
        parts = [TextPart(replies[0].text)] if replies[0].text else []
        if isinstance(replies[0], Show):
            parts.append(FilePart(BinaryContent(replies[0].image, media_type="image/png")))
        parts += [
            ToolCallPart(each.name, dict(each.arguments), f"c{next(_call_numbers)}")
            for each in replies
            if isinstance(each, CallTool)
        ]
        return ModelResponse(parts)

    async def stream(messages, info):
        for part in respond(messages, info).parts:
            if isinstance(part, TextPart):
                yield part.content
            else:
                arguments = part.args_as_json_str()
                delta = DeltaToolCall(part.tool_name, arguments, tool_call_id=part.tool_call_id)
                yield {1: delta}

    return FunctionModel(respond, stream_function=stream)


def _said(messages):
    for message in messages:
        for part in message.parts:
            if isinstance(part, TextPart):
                yield "assistant", part.content
            elif isinstance(part, UserPromptPart):
                content = part.content
                parts = [content] if isinstance(content, str) else content
                yield (
                    "user",
                    "".join(each if isinstance(each, str) else str(each) for each in parts),
                )


def _tool_output(messages):
    last = messages[-1].parts[-1]
    return str(last.content) if isinstance(last, ToolReturnPart) else ""


def agents_of(script, *, tools=None):
    """Return an agent for each rule."""
    return [
        Agent(
            model_of(agent_id, script),
            name=NAMES.get(agent_id, agent_id),
            instructions=f"I am {agent_id}.",
            tools=(tools or {}).get(agent_id, []),
        )
        for agent_id in script.rules
    ]


def approving(client, script, place, *, in_memory=False, ask=True):
    """Return agents of which the invoice desk has a tool that needs an approval."""
    del in_memory
    refund = Tool(refund_into(place), requires_approval=ask)
    agents = agents_of(script, tools={"invoices": [refund]})
    return RoutedAgents(client, agents, kept_runs=FileKeptRuns(place / "runs"))


@pytest.fixture
def program():
    """Agents of Pydantic AI."""
    return Program(
        example="clients/python/examples/pydantic_ai_chat.py",
        names=NAMES,
        make=lambda client, script: RoutedAgents(client, agents_of(script)),
        module=__name__,
        approving=approving,
    )


def test_options_of_a_run_are_passed_on(client, session):
    """For example how many requests one run may make."""
    routed = RoutedAgents(client, agents_of(Script()))
    with pytest.raises(UsageLimitExceeded):
        routed.run_sync(
            "run payroll",
            session_id=session,
            options={"usage_limits": UsageLimits(request_limit=1)},
            **ANA,
        )


def test_structured_output_is_the_text_of_the_answer(client, session):
    """As JSON; Pydantic AI's own TestModel calls the agent's tools and gives an output."""

    class Sum(BaseModel):
        euros: int

    agents = agents_of(Script())
    desk = Agent(
        TestModel(call_tools=[], custom_output_args={"euros": 5}),
        name="invoices",
        output_type=Sum,
        system_prompt="I am invoices.",
    )
    routed = RoutedAgents(client, [*(a for a in agents if a.name != "invoices"), desk])
    client.set_active_agent(session, "invoices", user_id="ana")
    assert routed.run_sync("how much?", session_id=session, **ANA).text == '{"euros":5}'


def test_what_an_output_function_makes_is_the_answer(client, session):
    """The model calls it in place of an answer: its text is not the model's."""

    def look_up(number: str) -> str:
        """Answer with the state of an invoice."""
        return f"{number} is paid"

    script = Script(invoices=lambda _: CallTool("final_result", {"number": "F-1"}))
    desk = Agent(model_of("invoices", script), name="invoices", output_type=look_up)
    client.set_active_agent(session, "invoices", user_id="ana")
    run = RoutedAgents(client, [desk]).run_sync("F-1?", session_id=session, **ANA)
    assert run.text == "F-1 is paid"


def _strict(agent_id, script, **more):
    """Return an agent whose answers must be polite, and all that its validator got."""
    agent = Agent(model_of(agent_id, script), name=NAMES[agent_id], **more)
    checked = []

    @agent.output_validator
    def polite(output: str) -> str:
        checked.append(output)
        if not output.startswith("Please"):
            raise ModelRetry("be polite")
        return f"{output}."

    return agent, checked


async def test_output_validators_check_answers_and_nothing_else(either_client, client, session):
    """The model tries again; a transfer and a question end the run without them."""

    def rule(seen):
        if "invoice" in seen.user_text:
            return transfer("invoices")
        if "VAT" in seen.user_text:
            return CallTool("ask_user", {"question": QUESTION})
        return Say("Please wait") if len(script.of("coordinator")) % 2 == 0 else Say("Wait")

    script = Script(coordinator=rule)
    strict, checked = _strict("coordinator", script)
    routed = RoutedAgents(either_client, [strict, *agents_of(script)[1:]])
    run = await routed.run("hello", session_id=session, **ANA)
    assert (run.text, checked) == ("Please wait.", ["Wait", "Please wait"])
    stream = routed.stream("VAT?", session_id=session, **ANA)
    assert [event async for event in stream]
    assert stream.run.text == QUESTION
    handed = await routed.run("the invoice", session_id=session, **ANA)
    assert (handed.agent_id, handed.text) == ("invoices", "the secret of the invoice desk")
    assert len(checked) == 2
    # The program's agent is as it was.
    assert (await strict.run("hello", model=TestModel(custom_output_text="Please"))).output


def test_output_validators_do_not_get_a_request_for_approval(client, session, tmp_path):
    """They get the answer after the decision."""
    script = Script(
        invoices=lambda seen: (
            Say(f"Please: {seen.tool_output}")
            if seen.tool_output
            else CallTool("refund", {"amount": "10", "account": "DE-7"})
        )
    )
    refund = Tool(refund_into(tmp_path), requires_approval=True)
    strict, checked = _strict("invoices", script, tools=[refund])
    kept = FileKeptRuns(tmp_path / "runs")
    routed = RoutedAgents(client, [strict], kept_runs=kept)
    client.set_active_agent(session, "invoices", user_id="ana")
    asked = routed.run_sync("refund 10", session_id=session, **ANA)
    assert checked == []
    done = routed.decide_sync(asked.approval, "APPROVE", user_id="ana")
    assert (done.text, checked) == ("Please: refunded 10.", ["Please: refunded 10"])
    assert refunds(tmp_path) == ["10 to DE-7"]


def test_agent_without_a_name_is_refused(client):
    """It could not be found in the registry."""
    with pytest.raises(ValueError, match="no name"):
        RoutedAgents(client, [Agent(TestModel())])


def test_agents_of_one_name_are_refused(client):
    """One of them would never run, without a sign of it."""
    agents = [Agent(TestModel(), name="payroll"), Agent(TestModel(), name="Payroll")]
    with pytest.raises(ValueError, match="two agents have the name 'Payroll'"):
        RoutedAgents(client, agents)


def test_approval_that_a_tool_asks_for_by_its_arguments(client, session, tmp_path):
    """A call that needs none has run by then; the one that was approved is told that it was."""
    refund = refund_into(tmp_path)

    def checked(ctx: RunContext, amount: str, account: str) -> str:
        if int(amount) > 100 and not ctx.tool_call_approved:
            raise ApprovalRequired
        return refund(amount, account)

    client.set_active_agent(session, "invoices", user_id="ana")
    agents = agents_of(Script(invoices=desk), tools={"invoices": [Tool(checked, name="refund")]})
    routed = RoutedAgents(client, agents, kept_runs=FileKeptRuns(tmp_path / "runs"))
    run = routed.run_sync("refund 20 and 120", session_id=session, **ANA)
    assert run.approval.prompt.startswith("refund: amount: 120")
    assert refunds(tmp_path) == ["20 to DE-7"]
    done = routed.decide_sync(run.approval, "APPROVE", user_id="ana")
    assert done.approval is None
    assert refunds(tmp_path) == ["20 to DE-7", "120 to DE-7"]
