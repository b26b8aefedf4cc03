"""A chat with agents of Microsoft Agent Framework, routed by the service. No model, no network.

    pip install "agent-routing-client[agent-framework]"
    python clients/python/examples/agent_framework_chat.py "How much VAT do I owe?" "10,000 euros"

with the tax example served on 127.0.0.1:50051 (`make run`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import tax_talk
from agent_framework import (
    Agent,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    Content,
    FunctionInvocationLayer,
    Message,
)

from agent_routing import Client
from agent_routing.integrations.agent_framework import RoutedHandoffs

_call_numbers = itertools.count(1)


class RuleClient(FunctionInvocationLayer, ChatMiddlewareLayer, BaseChatClient):
    """A rule instead of a model."""

    def __init__(self, rule: Callable[[str, str], tax_talk.Say | tax_talk.CallTool]) -> None:
        super().__init__()
        self._rule = rule

    async def _inner_get_response(self, *, messages: Sequence[Message], **_: Any) -> ChatResponse:
        results = [each for each in messages[-1].contents if each.type == "function_result"]
        said = next(each.text for each in reversed(messages) if each.role == "user")
        reply = self._rule(said, str(results[-1].result) if results else "")
        contents = [Content.from_text(reply.text)] if reply.text else []
        if isinstance(reply, tax_talk.CallTool):
            call_id = f"call-{next(_call_numbers)}"
            arguments = dict(reply.arguments)
            contents.append(Content.from_function_call(call_id, reply.name, arguments=arguments))
        return ChatResponse(messages=[Message("assistant", contents)])


# Its name is an id or an alias of the registry.
AGENTS = [
    Agent(client=RuleClient(tax_talk.coordinator), name="Tax Coordinator"),
    Agent(client=RuleClient(tax_talk.vat), name="VAT Specialist"),
    Agent(client=RuleClient(tax_talk.invoices), name="Invoice Desk"),
    Agent(client=RuleClient(tax_talk.payroll), name="payroll"),
]


def main() -> None:
    """Say each message of the command line."""
    given = tax_talk.arguments("Microsoft Agent Framework")
    with Client(given.address) as client:
        routed = RoutedHandoffs(client, AGENTS)
        for message in given.messages:
            run = routed.run_sync(
                message, session_id=given.session, user_id="ana", locale="en", channel="web"
            )
            print(f"user: {message}")
            print(f"{run.agent_id} ({run.reason}): {run.text}")


if __name__ == "__main__":
    main()
