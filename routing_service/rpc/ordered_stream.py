"""Many messages on one stream: answered as they are ready, those of one session in order.

A session's next message is started when the one before is answered. Backpressure: a slot is freed
only once its answer is written, and a caller that does not read is disconnected after a time.
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
from routing_service.rpc.wire_format import framed, tag_of

_log = structlog.get_logger(__name__)

IN_FLIGHT_MAX: Final = 128
"""Messages of one stream in progress: two group commits. More would only wait longer."""

QUEUES_KEPT_MAX: Final = 8 * IN_FLIGHT_MAX
"""Sessions whose latest message is remembered, finished or not. Beyond that the finished ones are
dropped together, which costs less than one by one. At most IN_FLIGHT_MAX are not finished."""

GROUP_BYTES_MAX: Final = 64 * 1024
"""Answers in one message of the stream. gRPC takes one write at a time on a call, and each is a
system call, so a group of commits is written in one; 64 KiB is HTTP/2's initial window, and far
below the 4 MiB that clients take by default."""

_MORE: Final = tag_of(routing_service_pb2.RouteStreamResponse, "more")


class OrderedStream:
    """One stream of messages."""

    def __init__(
        self,
        answer: Callable[[StreamMessage], Awaitable[bytes]],
        write: Callable[[bytes], Coroutine[Any, Any, None]],
        *,
        write_s_max: float,
    ) -> None:
        """Answer with one function, write with another, one write at a time.

        answer: takes a parsed message, or bytes that do not parse. write_s_max: how long the caller
        may leave gRPC's buffers full before it is disconnected.
        """
        self._answer = answer
        self._write = write
        self._write_s_max = write_s_max
        self._slots = IN_FLIGHT_MAX
        self._slot_free = asyncio.Event()
        # The latest message by session or task. Finished ones stay until there are many.
        self._latest: dict[str, asyncio.Task[None]] = {}
        self._reading: asyncio.Task[None] | None = None
        # Answers to be written, by one task for all: a task for each would cost as much as the
        # answer itself.
        self._answered: deque[bytes] = deque()
        self._takes_more = False
        self._more = asyncio.Event()
        self._is_complete = False
        self._is_slow = asyncio.Event()
        # When the current write started, by the loop's clock. One timer checks it.
        self._writing_s: float | None = None
        self._alarm: asyncio.TimerHandle | None = None

    async def run(self, requests: AsyncIterator[bytes]) -> None:
        """Answer every message until the caller sends no more, or reading is stopped.

        Raises OVERLOADED if the caller does not read; what was decided is stored nevertheless.
        """
        writing = asyncio.ensure_future(self._write_all())
        slow = asyncio.ensure_future(self._is_slow.wait())
        self._check_write()
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
            writing.cancel()  # The call has ended.
            raise
        finally:
            slow.cancel()
            if self._alarm is not None:
                self._alarm.cancel()
        if self._is_slow.is_set():
            # The write goes on: gRPC accepts nothing else on this call before it is done.
            raise ReaderRefused(_unread_answers(self._write_s_max), ReaderTooSlow(writing))
        writing.result()

    def stop_reading(self) -> None:
        """Take no more messages. Those already taken are answered, then ``run`` returns."""
        if self._reading is not None:
            # A task group ignores a cancelled task and waits for the others.
            self._reading.cancel()

    async def _read(self, requests: AsyncIterator[bytes], group: asyncio.TaskGroup) -> None:
        async for data in requests:
            while not self._slots:
                self._slot_free.clear()
                await self._slot_free.wait()
            self._slots -= 1
            message = _read(data)
            if not isinstance(message, bytes):
                self._takes_more = self._takes_more or message.takes_more
            queue = _queue_of(message)
            before = self._latest.get(queue) if queue else None
            if before is not None and before.done():
                before = None
            task = group.create_task(self._one(message, before))
            if queue:
                self._latest[queue] = task
                if len(self._latest) > QUEUES_KEPT_MAX:
                    self._latest = {
                        queue: latest for queue, latest in self._latest.items() if not latest.done()
                    }

    async def _one(self, message: StreamMessage, before: asyncio.Task[None] | None) -> None:
        try:
            if before is not None:
                await asyncio.wait((before,))
            body = await self._answer(message)
        except BaseException:
            self._free_slots(1)
            raise
        # Its slot is freed when the answer is written.
        self._answered.append(body)
        self._more.set()

    def _free_slots(self, count: int) -> None:
        if not self._slots:
            self._slot_free.set()
        self._slots += count

    def _take_group(self) -> tuple[bytes, int]:
        """Return the next message to write, and how many answers it has."""
        body = self._answered.popleft()
        if not (self._takes_more and self._answered):
            return body, 1
        # A repeated field at the end of a serialised message adds to it.
        parts, size_bytes = [body], len(body)
        while self._answered:
            more = framed(_MORE, self._answered[0])
            size_bytes += len(more)
            if size_bytes > GROUP_BYTES_MAX:
                break
            self._answered.popleft()
            parts.append(more)
        return b"".join(parts), len(parts)

    async def _write_all(self) -> None:
        """Write answers as they are ready, until there are no more or the caller does not read."""
        loop = asyncio.get_running_loop()
        while not self._is_slow.is_set():
            if not self._answered:
                if self._is_complete:
                    return
                self._more.clear()
                await self._more.wait()
                continue
            body, answers = self._take_group()
            self._writing_s = loop.time()
            try:
                await self._write(body)
            except Exception as error:  # noqa: BLE001 - gRPC raises its own, unnamed
                # The peer has disconnected. What was decided is stored, and a repeat gets it.
                _log.debug("stream_peer_gone", error=type(error).__name__)
                self.stop_reading()
            finally:
                self._writing_s = None
                self._free_slots(answers)

    def _check_write(self) -> None:
        """Check whether the current write takes too long, and set the timer for the next check."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        began_s = now_s if self._writing_s is None else self._writing_s
        if now_s - began_s >= self._write_s_max:
            self._too_slow()
        else:
            self._alarm = loop.call_at(began_s + self._write_s_max, self._check_write)

    def _too_slow(self) -> None:
        """Disconnect a caller that does not read. Messages in progress are still decided."""
        self._is_slow.set()
        self.stop_reading()


def _read(data: bytes) -> StreamMessage:
    try:
        return routing_service_pb2.RouteStreamRequest.FromString(data)
    except (DecodeError, UnicodeDecodeError):
        return data


def _queue_of(message: StreamMessage) -> str:
    """Return the queue of a message: its session, or its task if it names only that.

    "" for a message that starts a session, or bytes that do not parse.
    """
    if isinstance(message, bytes):
        return ""
    route = message.route
    # A session id cannot contain a slash.
    return route.session_id or (f"task/{route.task_id}" if route.task_id else "")


def _unread_answers(seconds: float) -> RoutingError:
    return RoutingError(
        Reason.OVERLOADED,
        f"no answer on this stream was read for {seconds:g} s; open another stream, read its "
        "answers as they arrive, and repeat unanswered messages with the same request_ids",
        metadata={"limit": "unread_answers"},
        retry_after_s=1.0,
    )
