"""Microsoft Agent Framework's function approvals, as requests for approval.

Owns how a handoff workflow that waits is kept, and how a decision reaches it. Rule: the state is
the framework's own checkpoint, read with the types that the framework allows in checkpoints.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from agent_framework import ChatContext, ChatMiddleware, FileCheckpointStorage

from agent_routing.integrations.approvals import Decided, describe_call
from agent_routing.integrations.routed_turn import RoutedTurn

REFUSALS_MAX: Final = 5
"""Times that a run continues without an approval that it cannot get; then it ends as it is."""

_REQUEST: Final = "function_approval_request"
_CALL: Final = "function_call"


class LastCheckpoint:
    """A checkpoint storage for one run: it has the newest checkpoint alone."""

    def __init__(self, checkpoint: Any = None) -> None:
        self.checkpoint = checkpoint

    async def save(self, checkpoint: Any) -> str:
        """Take a checkpoint."""
        self.checkpoint = checkpoint
        return str(checkpoint.checkpoint_id)

    async def load(self, checkpoint_id: str) -> Any:
        """Return the checkpoint."""
        assert self.checkpoint.checkpoint_id == checkpoint_id
        return self.checkpoint

    async def list_checkpoints(self, *, workflow_name: str) -> list[Any]:
        """Return the checkpoint, if it is there."""
        del workflow_name
        return [] if self.checkpoint is None else [self.checkpoint]

    async def delete(self, checkpoint_id: str) -> bool:
        """Forget the checkpoint."""
        found = self.checkpoint is not None and self.checkpoint.checkpoint_id == checkpoint_id
        self.checkpoint = None if found else self.checkpoint
        return found

    async def get_latest(self, *, workflow_name: str) -> Any:
        """Return the checkpoint, or None."""
        del workflow_name
        return self.checkpoint

    async def list_checkpoint_ids(self, *, workflow_name: str) -> list[str]:
        """Return the checkpoint's id, if it is there."""
        return [
            each.checkpoint_id for each in await self.list_checkpoints(workflow_name=workflow_name)
        ]


@dataclass(slots=True)
class KeptWorkflow:
    """A workflow that waits. agent: by whose run it began. checkpoint: as the framework stores it.

    decisions: by the request's id: True, or the text for the model about a rejection.
    """

    agent: str
    checkpoint: str
    decisions: dict[str, bool | str] = field(default_factory=dict)

    @classmethod
    def read(cls, state: str) -> KeptWorkflow:
        """Return a workflow that was kept."""
        return cls(**json.loads(state))

    def text(self) -> str:
        """Return the workflow as it is kept."""
        return json.dumps(
            {"agent": self.agent, "checkpoint": self.checkpoint, "decisions": self.decisions}
        )

    async def load(self) -> Waiting:
        """Return the checkpoint with its requests."""
        with tempfile.TemporaryDirectory(prefix="agent-routing-") as folder:
            checkpoint_id = json.loads(self.checkpoint)["checkpoint_id"]
            path = Path(folder, f"{checkpoint_id}.json")
            await asyncio.to_thread(path.write_text, self.checkpoint, "utf-8")
            loaded = await FileCheckpointStorage(folder).load(checkpoint_id)
        events = loaded.pending_request_info_events
        requests = {key: each.data for key, each in events.items() if is_request(each.data)}
        return Waiting(loaded, requests)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A checkpoint, and the approvals that it waits for, in the model's order."""

    checkpoint: Any
    requests: Mapping[str, Any]

    def responses(self, decisions: Mapping[str, bool | str]) -> dict[str, Any]:
        """Return what the workflow gets for the decisions."""
        return {
            key: request.to_function_approval_response(approved=decisions[key] is True)
            for key, request in self.requests.items()
        }

    def rejections(self, decisions: Mapping[str, bool | str]) -> dict[str, str]:
        """Return the texts for the model, by the id of the call that was rejected."""
        return {
            request.function_call.call_id: text
            for key, request in self.requests.items()
            if isinstance(text := decisions[key], str)
        }


def is_request(data: object) -> bool:
    """Tell whether a workflow's request is for an approval."""
    return getattr(data, "type", "") == _REQUEST


def requests_of(result: Any) -> dict[str, Any]:
    """Return the approvals that a workflow waits for, by the request's id."""
    return {
        event.request_id: event.data
        for event in result.get_request_info_events()
        if is_request(event.data)
    }


def unanswered_call(result: Any) -> str | None:
    """Return the name of a tool that a workflow waits for its client to execute, or None."""
    for event in result.get_request_info_events():
        if getattr(event.data, "type", "") == _CALL:
            return str(event.data.name)
    return None


async def kept_workflow(agent: str, checkpoint: Any) -> KeptWorkflow:
    """Return a workflow that waits, to be kept."""
    with tempfile.TemporaryDirectory(prefix="agent-routing-") as folder:
        await FileCheckpointStorage(folder).save(checkpoint)
        path = Path(folder, f"{checkpoint.checkpoint_id}.json")
        return KeptWorkflow(agent, await asyncio.to_thread(path.read_text, "utf-8"))


def ask_first(turn: RoutedTurn, requests: Mapping[str, Any], kept: KeptWorkflow) -> None:
    """End a turn with the first call that is not decided."""
    waiting = next(call for key, call in requests.items() if key not in kept.decisions)
    called = waiting.function_call
    given = called.arguments or ""
    turn.need_approval(describe_call(called.name, given), called.name, given)


def decide_first(requests: Mapping[str, Any], kept: KeptWorkflow, decided: Decided) -> bool:
    """Record the decision about the first call that waits; tell whether it was the last."""
    waiting = [key for key in requests if key not in kept.decisions]
    kept.decisions[waiting[0]] = True if decided.is_approved else decided.rejection
    return len(waiting) == 1


class Rejections(ChatMiddleware):
    """Gives the model the reason of a rejection. texts: by the id of the call, as they come."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts

    async def process(self, context: ChatContext, call_next: Callable[[], Awaitable[None]]) -> None:
        """Put the reasons in the place of the framework's own text."""
        for message in context.messages:
            for each in message.contents:
                if each.type == "function_result" and each.call_id in self._texts:
                    each.result = self._texts[each.call_id]
        await call_next()
