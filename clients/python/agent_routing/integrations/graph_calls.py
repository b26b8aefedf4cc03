"""Tool calls of a decided LangGraph run, at most once each.

LangGraph repeats a task that did not end, so a process that dies while a tool runs would leave the
tool to be executed again. Rule: before such a call begins, the checkpointer has a mark of it, and
afterwards its result. A marked call is not begun again: its result is used if it is there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    empty_checkpoint,
)
from langgraph.errors import GraphInterrupt

from agent_routing.integrations.approvals import ApprovedRunLost

_MARK_KEY: Final = "agent_routing_call"
"""The key of a mark in the metadata of its checkpoint."""

_RESULT: Final = "result"
_VERSION: Final = "1"
"""The channel of a call's result, and its version."""

_MARK_ID: Final = "00000000-0000-6000-8000-000000000000"
"""The id of a mark's checkpoint: the next mark of a call takes the place of the one before."""


class DecidedCalls:
    """The calls of one decided run. Each mark is a thread of its own: the run's thread goes on.

    prefix: of the marks' threads: the run's thread, and the request with which the run began.
    """

    def __init__(self, saver: BaseCheckpointSaver[Any], prefix: str) -> None:
        self._saver = saver
        self._prefix = prefix
        self._marked: list[str] = []

    def once(self, call: Any, run: Callable[[], Any]) -> Any:
        """Execute a call that no attempt has begun, or return the result that it had.

        A call that interrupts may begin again: it waits for the next decision. Raises
        ApprovedRunLost for a call that was begun and has no result here.
        """
        place = self._place(call)
        if (known := _result(call, self._saver.get_tuple(place))) is not None:
            return known
        self._saver.put(place, *_mark("begun"))
        try:
            result = run()
        except GraphInterrupt:
            self._saver.put(place, *_mark("interrupted"))
            raise
        # A Command, such as a handoff, is done with once it has been asked for.
        if isinstance(result, ToolMessage):
            self._saver.put(place, *_mark("ended", result))
        return result

    async def aonce(self, call: Any, run: Callable[[], Awaitable[Any]]) -> Any:
        """Do as once(), in an event loop."""
        place = self._place(call)
        if (known := _result(call, await self._saver.aget_tuple(place))) is not None:
            return known
        await self._saver.aput(place, *_mark("begun"))
        try:
            result = await run()
        except GraphInterrupt:
            await self._saver.aput(place, *_mark("interrupted"))
            raise
        if isinstance(result, ToolMessage):
            await self._saver.aput(place, *_mark("ended", result))
        return result

    def forget(self) -> None:
        """Remove the marks of a run that has ended, if the checkpointer can."""
        while self._marked:
            with suppress(NotImplementedError):
                self._saver.delete_thread(self._marked.pop())

    async def aforget(self) -> None:
        """Do as forget(), in an event loop."""
        while self._marked:
            with suppress(NotImplementedError):
                await self._saver.adelete_thread(self._marked.pop())

    def _place(self, call: Any) -> RunnableConfig:
        thread_id = f"{self._prefix}:{call['id'] or call['name']}"
        self._marked.append(thread_id)
        return {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}


def _mark(
    mark: str, result: ToolMessage | None = None
) -> tuple[Checkpoint, CheckpointMetadata, ChannelVersions]:
    """Return the arguments of put() for a mark."""
    metadata: Any = {"source": "update", "step": -1, "parents": {}, _MARK_KEY: mark}
    values = {} if result is None else {_RESULT: result}
    versions: ChannelVersions = dict.fromkeys(values, _VERSION)
    checkpoint = empty_checkpoint()
    checkpoint.update(id=_MARK_ID, channel_values=values, channel_versions=versions)
    return checkpoint, metadata, versions


def _result(call: Any, found: CheckpointTuple | None) -> ToolMessage | None:
    """Return the result that a call had; None if it may begin. Raises ApprovedRunLost."""
    metadata: Any = {} if found is None else found.metadata or {}
    mark = metadata.get(_MARK_KEY)
    if found is not None and mark == "ended":
        result: ToolMessage = found.checkpoint["channel_values"][_RESULT]
        return result
    if mark == "begun":
        raise ApprovedRunLost(
            f"an earlier attempt began the call {call['id']!r} of {call['name']} and may have"
            " executed it, so it is not executed again"
        )
    return None
