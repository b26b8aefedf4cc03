"""Many messages on one stream: answered as they are ready, those of one session in order.

Owns: what of a stream is under way. Must not know: what a message means.
Rule: bounded; a session's next message is begun when the one before is answered, and a stream that
is not read is not read from, and ends after a while.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, Final

import structlog
from google.protobuf.message import DecodeError

from agent_routing.v1 import routing_service_pb2
from routing_service.core.errors import Reason, RoutingError
from routing_service.rpc.rpc_method import StreamMessage
from routing_service.rpc.stream_writes import ReaderRefused, ReaderTooSlow

_log = structlog.get_logger(__name__)

IN_FLIGHT_MAX: Final = 128
"""Messages of one stream under way. Twice a group commit's worth: more would only wait longer."""

LINES_KEPT_MAX: Final = 8 * IN_FLIGHT_MAX
"""Sessions whose latest message is remembered, done or not; then the done ones are let go of at
once, which costs less than each by itself. No more than IN_FLIGHT_MAX are not."""


class OrderedStream:
    """One stream of messages."""

    def __init__(
        self,
        answer: Callable[[StreamMessage], Awaitable[bytes]],
        write: Callable[[bytes], Coroutine[Any, Any, None]],
        *,
        write_s_max: float,
    ) -> None:
        """Answer by one function, write by another; only one write is under way at a time.

        answer: takes a message as it was read here, or the bytes that are none. write_s_max: how
        long the caller may leave gRPC's buffers full before it is let go.
        """
        self._answer = answer
        self._write = write
        self._write_s_max = write_s_max
        self._places = IN_FLIGHT_MAX
        self._place_free = asyncio.Event()
        # By session, or task; those that are done stay until there are many.
        self._latest: dict[str, asyncio.Task[None]] = {}
        self._reading: asyncio.Task[None] | None = None
        # Answers to be written, by one task for all: a task and a wait for each would cost as much
        # as the answer itself.
        self._answered: deque[bytes] = deque()
        self._more = asyncio.Event()
        self._is_complete = False
        self._is_slow = asyncio.Event()
        # When the present write began, by the loop's clock; one timer looks at it now and then.
        self._writing_s: float | None = None
        self._alarm: asyncio.TimerHandle | None = None

    async def run(self, requests: AsyncIterator[bytes]) -> None:
        """Answer every message until the caller has no more, or reading was stopped.

        Raises OVERLOADED where the caller does not read; what was decided is stored all the same.
        """
        writing = asyncio.ensure_future(self._write_all())
        slow = asyncio.ensure_future(self._is_slow.wait())
        self._look_at_write()
        try:
            try:
                async with asyncio.TaskGroup() as group:
                    self._reading = group.create_task(self._read(requests, group))
            except BaseExceptionGroup as failures:
                raise failures.exceptions[0] from None
            self._is_complete = True
            self._more.set()
            await asyncio.wait((writing, slow), return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            writing.cancel()  # The call is gone.
            raise
        finally:
            slow.cancel()
            if self._alarm is not None:
                self._alarm.cancel()
        if self._is_slow.is_set():
            # Not given up: gRPC takes nothing else on this call before that write is done.
            raise ReaderRefused(_nobody_reads(self._write_s_max), ReaderTooSlow(writing))
        writing.result()

    def stop_reading(self) -> None:
        """Take no more messages; those that were taken are answered, and then ``run`` returns."""
        if self._reading is not None:
            # A group lets a cancelled task go and waits for the others.
            self._reading.cancel()

    async def _read(self, requests: AsyncIterator[bytes], group: asyncio.TaskGroup) -> None:
        async for data in requests:
            while not self._places:
                self._place_free.clear()
                await self._place_free.wait()
            self._places -= 1
            message = _read(data)
            line = _line_of(message)
            before = self._latest.get(line) if line else None
            if before is not None and before.done():
                before = None
            task = group.create_task(self._one(message, before))
            if line:
                self._latest[line] = task
                if len(self._latest) > LINES_KEPT_MAX:
                    self._latest = {
                        line: latest for line, latest in self._latest.items() if not latest.done()
                    }

    async def _one(self, message: StreamMessage, before: asyncio.Task[None] | None) -> None:
        try:
            if before is not None:
                await asyncio.wait((before,))
            body = await self._answer(message)
        except BaseException:
            self._free_place()
            raise
        # Its place is free when it is written: a stream that is not read is not read from.
        self._answered.append(body)
        self._more.set()

    def _free_place(self) -> None:
        self._places += 1
        if self._places == 1:
            self._place_free.set()

    async def _write_all(self) -> None:
        """Write answers as they come, until there are no more, or the caller does not read."""
        loop = asyncio.get_running_loop()
        while not self._is_slow.is_set():
            if not self._answered:
                if self._is_complete:
                    return
                self._more.clear()
                await self._more.wait()
                continue
            body = self._answered.popleft()
            self._writing_s = loop.time()
            try:
                await self._write(body)
            except Exception as error:  # noqa: BLE001 - gRPC has its own, unnamed, for a peer that is gone
                # What was decided is stored, and a repeat gets it; nobody is left to tell here.
                _log.debug("stream_peer_gone", error=type(error).__name__)
                self.stop_reading()
            finally:
                self._writing_s = None
                self._free_place()

    def _look_at_write(self) -> None:
        """Look whether the present write takes too long, and when to look again."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        began_s = now_s if self._writing_s is None else self._writing_s
        if now_s - began_s >= self._write_s_max:
            self._too_slow()
        else:
            self._alarm = loop.call_at(began_s + self._write_s_max, self._look_at_write)

    def _too_slow(self) -> None:
        """Let a caller go who has not read for long; what is under way is decided to its end."""
        self._is_slow.set()
        self.stop_reading()


def _read(data: bytes) -> StreamMessage:
    try:
        return routing_service_pb2.RouteStreamRequest.FromString(data)
    except (DecodeError, UnicodeDecodeError):
        return data


def _line_of(message: StreamMessage) -> str:
    """Return what a message waits in line for: its session, or the task that it names alone.

    "" for a message that begins a session, or bytes that are no message.
    """
    if isinstance(message, bytes):
        return ""
    route = message.route
    # No session's id has a slash.
    return route.session_id or (f"task/{route.task_id}" if route.task_id else "")


def _nobody_reads(seconds: float) -> RoutingError:
    return RoutingError(
        Reason.OVERLOADED,
        f"no answer on this stream was read for {seconds:g} s; open another, read its answers as "
        "they come, and repeat what was not answered with the same request_ids",
        metadata={"limit": "unread_answers"},
        retry_after_s=1.0,
    )
