"""Group commit: the calls that wait become one round trip, and one wait for the disk.

A call alone does not wait for others; the calls that wait while a group is on its way are the next
group. Calls are sent in the order in which they came, and an error reply concerns one call. A write
is acknowledged only after the server has confirmed that it is on disk. A read is answered only
after the server has confirmed, behind it, that it is the primary. Nothing is sent twice, except
scripts that the server did not have: those have then done nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Final, Protocol

import structlog
from redis.exceptions import NoScriptError, ResponseError

from routing_service.storage.redis.bounds import DEFAULT_BOUNDS, RedisBounds
from routing_service.storage.redis.connection import (
    DRIVER_ERRORS,
    MOVED_ON,
    Connection,
    Connector,
    Reply,
    check_primary,
    error_text,
    exchange,
    is_usable,
    reply_error,
)
from routing_service.storage.redis.scripts import Command, load_commands
from routing_service.storage.store import StoreClosed, StoreError, StoreUnavailable
from routing_service.storage.write_company import WriteCompany
from routing_service.storage.write_figures import WriteFigures

GROUP_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes in one group, so that a group of large changes does not keep the small ones waiting."""

CALL_BYTES: Final = 512
"""Estimated memory of a call besides its payload, for the limits."""

GRACE_S: Final = 1.0
"""The server itself ends a wait for its disk when the time is up; a connection that is silent for
this long after that is given up."""

SCRIPT_LOADS_MAX: Final = 3
"""How often one group may find its scripts missing before it fails: another client must keep
flushing them."""

_log = structlog.get_logger(__name__)


class GroupEnd(Protocol):
    """What a pipeline sends after each group, and how it reads the replies."""

    commands: tuple[Command, ...]

    def check(self, replies: Sequence[Reply]) -> None:
        """Raise StoreUnavailable if the group's replies must not be returned."""
        ...


class OnPrimary:
    """Ends a group of reads: a server that has become a replica may have given old data."""

    commands: tuple[Command, ...] = (("HELLO",),)

    def check(self, replies: Sequence[Reply]) -> None:
        """See GroupEnd.check."""
        if isinstance(replies[-1], ResponseError):
            raise reply_error(replies[-1]) from replies[-1]
        check_primary(replies[-1])


class OnDisk:
    """Ends a group of writes: waits until the server and this many replicas have it on disk.

    The probe is written first so that there is something to wait for: a group that was refused as a
    whole has written nothing, yet its answers may tell of what another client has just written.
    """

    def __init__(self, probe: bytes, *, replicas: int, timeout_s: float) -> None:
        """Wait for as long. probe: a key that is written and never read."""
        wait: Command = ("WAITAOF", 1, replicas, round(timeout_s * 1000))
        self.commands: tuple[Command, ...] = (("SET", probe, b"1"), wait)
        self._replicas = replicas

    def check(self, replies: Sequence[Reply]) -> None:
        """See GroupEnd.check."""
        for reply in replies:
            if isinstance(reply, ResponseError):
                raise reply_error(reply) from reply
        on_disk, on_replicas = replies[-1]
        if on_disk < 1:
            raise StoreUnavailable("the store's server did not get it to its disk in time")
        if on_replicas < self._replicas:
            raise StoreUnavailable(
                f"{on_replicas} of {self._replicas} replicas got it to their disks in time"
            )


class InMemory:
    """Ends a group of writes that the server need only have in its memory."""

    commands: tuple[Command, ...] = ()

    def check(self, replies: Sequence[Reply]) -> None:
        """See GroupEnd.check."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    commands: Sequence[Command]
    size_bytes: int
    outcome: asyncio.Future[list[Reply]]


class Pipeline:
    """Takes calls from any number of callers and puts them through one connection."""

    def __init__(
        self,
        name: str,
        connector: Connector,
        end: GroupEnd,
        *,
        group_calls_max: int,
        gathers: bool = False,
        bounds: RedisBounds = DEFAULT_BOUNDS,
    ) -> None:
        """Connect to nothing yet. name: for the names of its tasks.

        gathers: whether a group waits for more calls if there are many.
        """
        self.figures = WriteFigures()
        self._name = name
        self._connector = connector
        self._end = end
        self._group_calls_max = group_calls_max
        self._waiting_calls_max = bounds.waiting_calls_max
        self._waiting_bytes_max = bounds.waiting_bytes_max
        self._timeout_s = connector.place.options.call_timeout_s + GRACE_S
        self._connection: Connection | None = None
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._company: WriteCompany | None = None
        if gathers:
            self._company = WriteCompany(
                self._waiting, writes_max=group_calls_max, pace_s=bounds.write_company_pace_s
            )
        self._working: asyncio.Task[None] | None = None
        self._closing = False

    @property
    def waiting(self) -> int:
        """How many calls wait."""
        return len(self._waiting)

    async def call(self, commands: Sequence[Command]) -> list[Reply]:
        """Send commands, in order, within a group, and return their replies.

        A caller that is cancelled while its call waits takes it out of the queue; one that is
        cancelled later does not stop it. Raises StoreUnavailable, StoreClosed, and the store's
        error for the first error reply.
        """
        if self._closing:
            raise StoreClosed
        size_bytes = CALL_BYTES + sum(
            len(part) for command in commands for part in command if isinstance(part, bytes)
        )
        if (
            len(self._waiting) >= self._waiting_calls_max
            or self._waiting_bytes + size_bytes > self._waiting_bytes_max
        ):
            raise StoreUnavailable(f"{len(self._waiting)} calls wait for the store; try again")
        loop = asyncio.get_running_loop()
        waiting = _Waiting(commands, size_bytes, loop.create_future())
        self._waiting.append(waiting)
        self._waiting_bytes += size_bytes
        if self._working is None:
            self._working = loop.create_task(self._work(), name=f"redis {self._name}")
        replies = await self._outcome(waiting)
        for reply in replies:
            if isinstance(reply, ResponseError):
                text = self._connector.place.without_secrets(error_text(reply))
                _log.error("store_call_failed", error=text)
                raise reply_error(reply) from reply
        return replies

    async def _outcome(self, waiting: _Waiting) -> list[Reply]:
        if self._company is None:
            return await waiting.outcome
        self._company.came()
        try:
            return await waiting.outcome
        finally:
            self._company.went()

    async def close(self) -> None:
        """Send the waiting calls, then release the connection. Later calls raise StoreClosed."""
        self._closing = True
        if self._company is not None:
            self._company.close()
        if self._working is not None:
            await asyncio.wait([self._working])
        await self._drop()

    async def _work(self) -> None:
        group: list[_Waiting] = []
        try:
            # Let all tasks that are ready add their calls to the group.
            await asyncio.sleep(0)
            while self._waiting:
                if self._company is not None and (company := self._company.begin()) is not None:
                    await company
                group = self._take_group()
                if group:
                    await self._run(group)
        except asyncio.CancelledError:
            # The event loop is being torn down and the store was not closed.
            _log.warning("store_not_closed", calls=len(self._waiting) + len(group))
            self._closing = True
            self._fail([*group, *self._waiting], StoreUnavailable("the service stopped meanwhile"))
            raise
        finally:
            self._working = None

    def _take_group(self) -> list[_Waiting]:
        group: list[_Waiting] = []
        group_bytes = 0
        while self._waiting and len(group) < self._group_calls_max:
            waiting = self._waiting[0]
            if group and group_bytes + waiting.size_bytes > GROUP_BYTES_MAX:
                break
            self._waiting.popleft()
            self._waiting_bytes -= waiting.size_bytes
            if not waiting.outcome.done():  # Otherwise its caller was cancelled.
                group.append(waiting)
                group_bytes += waiting.size_bytes
        return group

    async def _run(self, group: list[_Waiting]) -> None:
        calls, begun_s = len(group), time.perf_counter()
        try:
            replies = await self._exchange(group)
        except StoreUnavailable as error:
            if self._connection is None:
                # The waiting calls would fail the same way, one time-out after the other.
                group = [*group, *self._waiting]
                self._waiting.clear()
                self._waiting_bytes = 0
            self._fail(group, error)
            return
        except Exception:  # noqa: BLE001 - the pipeline survives any error
            # A bug of this service. The outcome of the calls is unknown.
            _log.exception("store_group_failed", calls=len(group))
            await self._drop()
            self._fail(group, StoreUnavailable("the store failed; the log has the reason"))
            return
        finally:
            self.figures.count(calls, time.perf_counter() - begun_s)
        place = 0
        for waiting in group:
            end = place + len(waiting.commands)
            if not waiting.outcome.done():
                waiting.outcome.set_result(replies[place:end])
            place = end

    async def _exchange(self, group: Sequence[_Waiting]) -> list[Reply]:
        """Send a group and return its replies, if they may be returned."""
        connection = await self._ready_connection()
        commands = [command for waiting in group for command in waiting.commands]
        late = asyncio.timeout(self._timeout_s)
        try:
            async with late:
                replies, ended = await self._send(connection, commands)
        except DRIVER_ERRORS as error:
            fields = self._connector.error_fields(error)
            _log.error("store_group_failed", calls=len(group), late=late.expired(), **fields)
            await self._drop()
            if late.expired():
                raise StoreUnavailable("the store's server does not answer; try again") from error
            raise StoreUnavailable(
                "the connection to the store's server was lost; try again"
            ) from error
        try:
            self._end.check(ended)
        except StoreError as error:
            _log.error("store_group_failed", calls=len(group), late=False, error=str(error))
            await self._drop()
            raise StoreUnavailable(str(error)) from error
        if any(_has_moved_on(reply) for reply in replies):
            await self._drop()
        return replies

    async def _send(
        self, connection: Connection, commands: list[Command]
    ) -> tuple[list[Reply], list[Reply]]:
        end = list(self._end.commands)
        replies = await exchange(connection, [*commands, *end])
        replies, ended = replies[: len(commands)], replies[len(commands) :]
        for _ in range(SCRIPT_LOADS_MAX):
            missing = [n for n, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
            if not missing:
                break
            again = [commands[place] for place in missing]
            loads = load_commands()
            more = await exchange(connection, [*loads, *again, *end])
            for place, reply in zip(missing, more[len(loads) :], strict=False):
                replies[place] = reply
            ended = more[len(loads) + len(again) :]
        return replies, ended

    async def _ready_connection(self) -> Connection:
        if self._connection is not None:
            if await is_usable(self._connection):
                return self._connection
            await self._drop()
        self._connection = await self._connector.connect()
        return self._connection

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)

    @staticmethod
    def _fail(group: Sequence[_Waiting], error: StoreError) -> None:
        for waiting in group:
            if not waiting.outcome.done():
                # An exception for each caller, because raising one adds to its traceback.
                failure = copy(error)
                failure.__cause__ = error.__cause__
                waiting.outcome.set_exception(failure)


def _has_moved_on(reply: Reply) -> bool:
    return isinstance(reply, ResponseError) and error_text(reply).startswith(MOVED_ON)
