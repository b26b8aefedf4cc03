"""A contender: Microsoft Agent Framework's handoff orchestration with FileCheckpointStorage.

As its samples show: HandoffBuilder with add_handoff for each pair, a workflow that asks the user
after each answer, and checkpoints. Each message is the response to the workflow's open request, and
a new process restores the newest checkpoint with it: run(checkpoint_id=…, responses=…). Checkpoints
belong to a workflow's name, so each session is a workflow of its own name.

A checkpoint with an open question holds the type list[Message], which FileCheckpointStorage refuses
by default in this release: it logs a warning, which names the remedy that is used here.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_framework import (
    Agent,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    Content,
    FileCheckpointStorage,
    FunctionInvocationLayer,
    Message,
    Workflow,
    tool,
)
from agent_framework.orchestrations import HandoffAgentUserRequest, HandoffBuilder
from scripted import TOOL, HandOver, LookUp, Seen, Story, decide, look_up, main

PREFIX = "handoff_to_"


class ScriptedClient(BaseChatClient):
    """Answers for one agent of a story."""

    def __init__(self, *, story: Story, agent: str, **more: Any) -> None:
        """Keep them. more: of the layers."""
        super().__init__(**more)
        self.story, self.agent = story, agent

    def _inner_get_response(
        self,
        *,
        messages: Sequence[Message],
        stream: bool = False,
        options: Mapping[str, Any],
        **kwargs: Any,
    ) -> Awaitable[ChatResponse]:
        del stream, kwargs
        decision = decide(self.story, self.agent, _seen(messages, options))
        contents: list[Any] = [decision.text]
        if isinstance(decision, HandOver):
            contents.append(self._call(PREFIX + decision.target))
        if isinstance(decision, LookUp):
            contents.append(self._call(TOOL))

        async def response() -> ChatResponse:
            return ChatResponse(messages=[Message(role="assistant", contents=contents)])

        return response()

    def _call(self, name: str) -> Content:
        call_id = f"call-{time.time_ns()}"
        return Content.from_function_call(call_id=call_id, name=name, arguments="{}")


class Scripted(FunctionInvocationLayer, ChatMiddlewareLayer, ScriptedClient):
    """With the layers that call tools."""


def _seen(messages: Sequence[Message], options: Mapping[str, Any]) -> Seen:
    users = [n for n, each in enumerate(messages) if each.role == "user"]
    names = [getattr(each, "name", "") for each in options.get("tools") or []]
    results = [
        str(content.result or content.exception)
        for content in messages[-1].contents
        if content.type == "function_result"
    ]
    result = results[-1] if results else ""
    return Seen(
        text=messages[users[-1]].text,
        result="" if result.startswith("{") else result,  # A handoff's own result is JSON.
        targets=[each.removeprefix(PREFIX) for each in names if each.startswith(PREFIX)],
        messages=len(messages),
    )


class AgentFramework:
    """The story's agents in a handoff workflow for each session."""

    async def open(self, story: Story, folder: Path) -> None:
        """Keep what a workflow is built of."""
        logging.disable(logging.WARNING)
        self.story = story
        self.storage = FileCheckpointStorage(
            folder / "checkpoints", allowed_checkpoint_types=["types:GenericAlias"]
        )

    def _workflow(self, session: str) -> Workflow:
        look = tool(name=TOOL, approval_mode="never_require")(look_up)
        agents = {
            name: Agent(
                client=Scripted(story=self.story, agent=name),
                name=name,
                id=name,
                tools=[look] if name == "invoices" else [],
                require_per_service_call_history_persistence=True,
            )
            for name in self.story.handoffs
        }
        builder = HandoffBuilder(
            name=session, participants=list(agents.values()), checkpoint_storage=self.storage
        ).with_start_agent(agents[self.story.home])
        for name, targets in self.story.handoffs.items():
            builder = builder.add_handoff(agents[name], [agents[each] for each in targets])
        return builder.build()

    async def send(self, session: str, text: str, request_id: str) -> Mapping[str, Any]:
        """Answer the request that is open, or the one that the caller names in a repeat."""
        workflow = self._workflow(session)
        latest = await self.storage.get_latest(workflow_name=session)
        if latest is None:
            return _told(await workflow.run(text))
        asked = request_id or next(iter(latest.pending_request_info_events), "")
        responses = {asked: HandoffAgentUserRequest.create_response(text)}
        result = await workflow.run(responses=responses, checkpoint_id=latest.checkpoint_id)
        return {**_told(result), "asked": asked}

    async def resume(self, session: str, text: str, request_id: str) -> Mapping[str, Any]:
        """Restore the newest checkpoint."""
        del text, request_id
        latest = await self.storage.get_latest(workflow_name=session)
        assert latest is not None
        return _told(await self._workflow(session).run(checkpoint_id=latest.checkpoint_id))

    async def read(self, session: str) -> Mapping[str, Any]:
        """Read the newest checkpoint: the conversation as its agents know it."""
        latest = await self.storage.get_latest(workflow_name=session)
        if latest is None:
            return {"texts": [], "active": "", "unfinished": ""}
        pending = latest.pending_request_info_events
        texts: list[str] = []
        for state in latest.state.get("_executor_state", {}).values():
            found = [each.text for each in state.get("full_conversation", []) if each.text]
            cached = [each.text for each in state.get("cache", []) if each.text]
            texts = max(texts, found + cached, key=len)
        active = next((each.source_executor_id for each in pending.values()), "")
        undelivered = [name for name, sent in latest.messages.items() if sent]
        return {
            "texts": texts,
            "active": active,
            "unfinished": json.dumps(undelivered) if undelivered else "",
            "keys": sorted(latest.state),
        }

    async def close(self) -> None:
        """Nothing is open."""


def _told(result: Any) -> dict[str, Any]:
    outputs = [each.text for each in result.get_outputs() if each.text]
    return {"answer": outputs[-1] if outputs else ""}


if __name__ == "__main__":
    main(AgentFramework())
