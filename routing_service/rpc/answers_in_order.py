"""Many messages on one stream: answered as they are ready, those of one session in order.

Owns: what of a stream is under way. Must not know: what a message means.
Rule: bounded; a session's next message is begun when the one before is answered, and a stream that
is not read is not read from.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Final

import structlog
from google.protobuf.message import DecodeError

from agent_routing.v1 import routing_service_pb2

_log = structlog.get_logger(__name__)

IN_FLIGHT_MAX: Final = 128
"""Messages of one stream under way. Twice a group commit's worth: more would only wait longer."""


class AnswersInOrder:
    """One stream of messages."""

    def __init__(
        self, answer: Callable[[bytes], Awaitable[bytes]], write: Callable[[bytes], Awaitable[None]]
    ) -> None:
        """Answer by one function, write by another; only one write is under way at a time."""
        self._answer = answer
        self._write = write
        self._writing = asyncio.Lock()
        self._places = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._latest: dict[str, asyncio.Task[None]] = {}
        self._reading: asyncio.Task[None] | None = None

    async def run(self, requests: AsyncIterator[bytes]) -> None:
        """Answer every message until the caller has no more, or reading was stopped."""
        async with asyncio.TaskGroup() as group:
            self._reading = group.create_task(self._read(requests, group))

    def stop_reading(self) -> None:
        """Take no more messages; those that were taken are answered, and then ``run`` returns."""
        if self._reading is not None:
            # A group lets a cancelled task go and waits for the others.
            self._reading.cancel()

    async def _read(self, requests: AsyncIterator[bytes], group: asyncio.TaskGroup) -> None:
        async for data in requests:
            await self._places.acquire()
            session_id = _session_of(data)
            before = self._latest.get(session_id) if session_id else None
            task = group.create_task(self._one(data, before))
            if session_id:
                self._latest[session_id] = task
                task.add_done_callback(partial(self._forget, session_id))

    async def _one(self, data: bytes, before: asyncio.Task[None] | None) -> None:
        try:
            if before is not None:
                await asyncio.wait((before,))
            body = await self._answer(data)
            async with self._writing:
                await self._send(body)
        finally:
            self._places.release()

    async def _send(self, body: bytes) -> None:
        try:
            await self._write(body)
        except Exception as error:  # noqa: BLE001 - gRPC has its own, unnamed, for a peer that is gone
            # What was decided is stored, and a repeat gets it; nobody is left to tell here.
            _log.debug("stream_peer_gone", error=type(error).__name__)
            self.stop_reading()

    def _forget(self, session_id: str, done: asyncio.Task[None]) -> None:
        if self._latest.get(session_id) is done:
            del self._latest[session_id]


def _session_of(data: bytes) -> str:
    """Return the session a message names; "" for none, or bytes that are no message."""
    try:
        return routing_service_pb2.RouteStreamRequest.FromString(data).route.session_id
    except (DecodeError, UnicodeDecodeError):
        return ""
