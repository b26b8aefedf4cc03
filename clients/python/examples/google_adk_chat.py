"""A chat with agents of Google ADK, routed by the service. No model, no network.

    pip install "agent-routing-client[google-adk]"
    python clients/python/examples/google_adk_chat.py "How much VAT do I owe?" "10,000 euros"

with the tax example served on 127.0.0.1:50051 (`make run`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any

import tax_talk
from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.genai import types

from agent_routing import Client
from agent_routing.integrations.google_adk import RoutedRunner


class RuleModel(BaseLlm):
    """A rule instead of a model."""

    rule: Callable[[str, str], Any]

    async def generate_content_async(
        self,
        llm_request: Any,
        stream: bool = False,  # noqa: FBT001, FBT002 - ADK's signature
    ) -> AsyncGenerator[LlmResponse, None]:
        """Answer; when streaming, first the beginning of the text."""
        last = llm_request.contents[-1].parts[-1]
        tool_output = str(last.function_response.response) if last.function_response else ""
        user_text = next(
            content.parts[-1].text
            for content in reversed(llm_request.contents)
            if content.role == "user" and content.parts[-1].text
        )
        reply = self.rule(user_text, tool_output)
        parts = [types.Part(text=reply.text)] if reply.text else []
        if stream and parts:
            begun = types.Content(role="model", parts=[types.Part(text=reply.text[:5])])
            yield LlmResponse(content=begun, partial=True)
        if isinstance(reply, tax_talk.CallTool):
            call = types.FunctionCall(name=reply.name, args=dict(reply.arguments))
            parts.append(types.Part(function_call=call))
        yield LlmResponse(content=types.Content(role="model", parts=parts))


def agent(name: str, rule: Callable[[str, str], Any], **more: Any) -> LlmAgent:
    """Return an agent; its name is an id or an alias of the registry."""
    return LlmAgent(name=name, model=RuleModel(model="rule", rule=rule), **more)


def root_agent() -> LlmAgent:
    """Return the tree of all agents."""
    specialists = [
        agent("iva", tax_talk.vat),
        agent("invoices", tax_talk.invoices),
        agent("payroll", tax_talk.payroll),
    ]
    return agent("coordinator", tax_talk.coordinator, sub_agents=specialists)


def tax_runner() -> Runner:
    """Return ADK's own runner for them."""
    sessions = InMemorySessionService()
    return Runner(agent=root_agent(), app_name="tax", session_service=sessions)


def main() -> None:
    """Say each message of the command line."""
    given = tax_talk.arguments("Google ADK")
    with Client(given.address) as client:
        routed = RoutedRunner(client, tax_runner())
        for message in given.messages:
            run = routed.run_sync(
                message, session_id=given.session, user_id="ana", locale="en", channel="web"
            )
            print(f"user: {message}")
            print(f"{run.agent_id} ({run.reason}): {run.text}")


if __name__ == "__main__":
    main()
