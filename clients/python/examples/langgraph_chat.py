"""A chat with agents of a LangGraph swarm, routed by the service. No model, no network.

    pip install "agent-routing-client[langgraph]" langgraph-swarm
    python clients/python/examples/langgraph_chat.py "How much VAT do I owe?" "10,000 euros"

with the tax example served on 127.0.0.1:50051 (`make run`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import tax_talk
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph_swarm import create_swarm

from agent_routing import Client
from agent_routing.integrations.langgraph import RoutedGraph, RoutingMiddleware

_call_numbers = itertools.count(1)


class RuleModel(BaseChatModel):
    """A rule instead of a model."""

    rule: Callable[[str, str], Any]

    @property
    def _llm_type(self) -> str:
        return "rule"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        """Take any tools."""
        return self.bind(tools=tools, **kwargs)

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        last = messages[-1]
        tool_output = str(last.content) if isinstance(last, ToolMessage) else ""
        said = next(each for each in reversed(messages) if isinstance(each, HumanMessage))
        reply = self.rule(str(said.content), tool_output)
        message = AIMessage(reply.text)
        if isinstance(reply, tax_talk.CallTool):
            call = {"name": reply.name, "args": dict(reply.arguments)}
            message.tool_calls = [
                {**call, "id": f"call-{next(_call_numbers)}", "type": "tool_call"}
            ]
        return ChatResult(generations=[ChatGeneration(message=message)])


# Its name is an id or an alias of the registry.
RULES = {
    "Tax Coordinator": tax_talk.coordinator,
    "VAT Specialist": tax_talk.vat,
    "Invoice Desk": tax_talk.invoices,
    "payroll": tax_talk.payroll,
}


def swarm() -> Any:
    """Return the graph of all agents."""
    routing = RoutingMiddleware()
    agents = [
        create_agent(RuleModel(rule=rule), name=name, middleware=[routing])
        for name, rule in RULES.items()
    ]
    return create_swarm(agents, default_active_agent="Tax Coordinator").compile()


def main() -> None:
    """Say each message of the command line."""
    given = tax_talk.arguments("LangGraph")
    with Client(given.address) as client:
        routed = RoutedGraph(client, swarm())
        for message in given.messages:
            run = routed.run_sync(
                message, session_id=given.session, user_id="ana", locale="en", channel="web"
            )
            print(f"user: {message}")
            print(f"{run.agent_id} ({run.reason}): {run.text}")


if __name__ == "__main__":
    main()
