"""A chat with agents of the OpenAI Agents SDK, routed by the service. No model, no network.

    pip install "agent-routing-client[openai-agents]"
    python clients/python/examples/openai_agents_chat.py "How much VAT do I owe?" "10,000 euros"

with the tax example served on 127.0.0.1:50051 (`make run`).
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any

import tax_talk
from agents import Agent, set_tracing_disabled
from agents.testing import ModelCall, ModelStep, ScriptedModel, assistant_message, function_call

from agent_routing import Client
from agent_routing.integrations.openai_agents import RoutedAgents

_call_numbers = itertools.count(1)


class RuleModel(ScriptedModel):
    """A rule instead of a model."""

    def __init__(self, rule: Callable[[str, str], tax_talk.Say | tax_talk.CallTool]) -> None:
        super().__init__()
        self._rule = rule

    async def get_response(self, *args: Any, **kwargs: Any) -> Any:
        """Answer at once."""
        self.enqueue(ModelStep.respond(self._respond))
        return await super().get_response(*args, **kwargs)

    async def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """Answer in pieces."""
        self.enqueue(ModelStep.respond(self._respond))
        async for event in super().stream_response(*args, **kwargs):
            yield event

    def _respond(self, call: ModelCall) -> list[Any]:
        last = call.input[-1]
        tool_output = str(last.get("output", ""))
        user_text = next(each["content"] for each in reversed(call.input) if "content" in each)
        reply = self._rule(user_text, tool_output)
        if isinstance(reply, tax_talk.Say):
            return [assistant_message(reply.text)]
        call_id = f"call-{next(_call_numbers)}"
        said = [assistant_message(reply.text)] if reply.text else []
        return [*said, function_call(reply.name, reply.arguments, call_id=call_id)]


# Its name is an id or an alias of the registry.
AGENTS = [
    Agent(name="Tax Coordinator", model=RuleModel(tax_talk.coordinator)),
    Agent(name="VAT Specialist", model=RuleModel(tax_talk.vat)),
    Agent(name="Invoice Desk", model=RuleModel(tax_talk.invoices)),
    Agent(name="payroll", model=RuleModel(tax_talk.payroll)),
]


def main() -> None:
    """Say each message of the command line."""
    given = tax_talk.arguments("the OpenAI Agents SDK")
    set_tracing_disabled(disabled=True)
    with Client(given.address) as client:
        routed = RoutedAgents(client, AGENTS)
        for message in given.messages:
            run = routed.run_sync(
                message, session_id=given.session, user_id="ana", locale="en", channel="web"
            )
            print(f"user: {message}")
            print(f"{run.agent_id} ({run.reason}): {run.text}")


if __name__ == "__main__":
    main()
