"""A chat with agents of Pydantic AI, routed by the service. No model, no network.

    pip install "agent-routing-client[pydantic-ai]"
    python clients/python/examples/pydantic_ai_chat.py "How much VAT do I owe?" "10,000 euros"

with the tax example served on 127.0.0.1:50051 (`make run`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tax_talk
from pydantic_ai import Agent
from pydantic_ai.messages import (
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import FunctionModel

from agent_routing import Client
from agent_routing.integrations.pydantic_ai import RoutedAgents


def rule_model(rule: Callable[[str, str], tax_talk.Say | tax_talk.CallTool]) -> FunctionModel:
    """Return a rule instead of a model."""

    def respond(messages: list[Any], _info: object) -> ModelResponse:
        parts = [part for message in messages for part in message.parts]
        tool_output = str(parts[-1].content) if isinstance(parts[-1], ToolReturnPart) else ""
        said = next(part for part in reversed(parts) if isinstance(part, UserPromptPart))
        reply = rule(str(said.content), tool_output)
        answer: list[Any] = [TextPart(reply.text)] if reply.text else []
        if isinstance(reply, tax_talk.CallTool):
            answer.append(ToolCallPart(reply.name, dict(reply.arguments)))
        return ModelResponse(answer)

    return FunctionModel(respond)


# Its name is an id or an alias of the registry.
AGENTS = [
    Agent(rule_model(tax_talk.coordinator), name="Tax Coordinator"),
    Agent(rule_model(tax_talk.vat), name="VAT Specialist"),
    Agent(rule_model(tax_talk.invoices), name="Invoice Desk"),
    Agent(rule_model(tax_talk.payroll), name="payroll"),
]


def main() -> None:
    """Say each message of the command line."""
    given = tax_talk.arguments("Pydantic AI")
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
