"""Group commit: the writes that wait become one transaction, one round trip, one wait for the disk.

A write alone does not wait for others; the writes that wait while all connections are busy are the
next group. No session and no task is in two writes of one group or in two groups in flight, so
within the store no write waits for another's row. A write's error is its own and not the group's.
A write is acknowledged only after its commit has returned.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import psycopg
import structlog
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt
from tenacity.wait import wait_random_exponential

from routing_service.storage.postgres.bounds import DEFAULT_BOUNDS, PostgresBounds
from routing_service.storage.postgres.connection import Connection, is_away
from routing_service.storage.postgres.pool import ConnectionPool
from routing_service.storage.postgres.rows import Rows
from routing_service.storage.store import (
    Append,
    AppendRefused,
    AuditEntry,
    SessionKey,
    StoreClosed,
    StoreCorrupt,
    StoreError,
    StoreUnavailable,
)
from routing_service.storage.write_company import WriteCompany
from routing_service.storage.write_figures import WriteFigures

GROUP_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes in one group, so that a group of large changes does not keep the small ones waiting."""

PASSED_OVER_MAX: Final = 1_024
"""Writes that forming a group skips because their session is being written. Callers send one write
a session at a time, so there are few; this bounds the search if a caller does not."""

OVERLAP_AFTER_S: Final = 0.1
"""The next group starts after this time even if the one before has not returned: that may wait for
a row that another transaction holds. A shorter time costs more than it gains: two groups at once
were half as large each, and 32 callers got a tenth less done, with twice the 99th percentile."""

RETRY_ATTEMPTS_MAX: Final = 5
RETRY_WAIT_MAX_S: Final = 0.1
"""A conflict of two replicas on the same rows is over within a commit or two."""


@dataclass(frozen=True, slots=True)
class SettingWrite:
    """One setting to store."""

    tenant: str
    name: str
    value: bytes


@dataclass(frozen=True, slots=True)
class ProbeWrite:
    """The readiness probe's write. It runs after all writes that were accepted before it."""


Write: TypeAlias = Append | AuditEntry | SettingWrite | ProbeWrite

_log = structlog.get_logger(__name__)

_MET_ANOTHER: Final = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected)
"""40001 and 40P01: a conflict with another replica's group; nothing of this group is stored."""

_EXCLUSIVE: Final = (SettingWrite, ProbeWrite)
"""Writes of these kinds form groups of their own."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    write: Write
    size_bytes: int
    outcome: asyncio.Future[None]
    names: tuple[Hashable, ...] = field(default=())
    """The keys that no other write in flight may have: its session first, then its tasks."""


class GroupWriter:
    """Takes writes from any number of callers and puts them through a few connections."""

    def __init__(
        self,
        pool: ConnectionPool,
        rows: Rows,
        *,
        groups_in_flight_max: int,
        group_writes_max: int,
        on_stored: Callable[[Sequence[Append]], None],
        bounds: PostgresBounds = DEFAULT_BOUNDS,
        figures: WriteFigures | None = None,
    ) -> None:
        """Write nothing yet. on_stored: called after the commit of appends.

        figures: where to count; None = figures of its own.
        """
        self.figures = WriteFigures() if figures is None else figures
        self._pool = pool
        self._rows = rows
        self._groups_in_flight_max = groups_in_flight_max
        self._group_writes_max = group_writes_max
        self._on_stored = on_stored
        self._waiting_writes_max = bounds.waiting_writes_max
        self._waiting_bytes_max = bounds.waiting_bytes_max
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._groups: set[asyncio.Task[None]] = set()
        self._busy: set[Hashable] = set()
        self._planned: asyncio.Handle | None = None
        self._sent_at_s = 0.0
        self._company = WriteCompany(
            self._waiting, writes_max=group_writes_max, pace_s=bounds.write_company_pace_s
        )
        self._closing = False
        self._loop = asyncio.get_running_loop()

    async def write(self, write: Write, size_bytes: int) -> None:
        """Run one write within a group and return once it is on disk.

        A caller that is cancelled while its write waits takes it out of the queue; one that is
        cancelled later has it written. Raises the write's own refusal, StoreUnavailable,
        StoreCorrupt and StoreClosed.
        """
        if self._closing:
            raise StoreClosed
        if (
            len(self._waiting) >= self._waiting_writes_max
            or self._waiting_bytes + size_bytes > self._waiting_bytes_max
        ):
            raise StoreUnavailable(f"{len(self._waiting)} writes wait for the store; try again")
        waiting = _Waiting(write, size_bytes, self._loop.create_future(), _names(write))
        self._waiting.append(waiting)
        self._waiting_bytes += size_bytes
        self._company.came()
        self._plan()
        try:
            await waiting.outcome
        finally:
            self._company.went()

    async def close(self) -> None:
        """Write the waiting writes, then stop. Later writes raise StoreClosed."""
        self._closing = True
        self._company.close()
        self._send()
        while self._groups:
            await asyncio.wait(self._groups)
            self._send()

    def _plan(self) -> None:
        """Send the waiting writes, after all ready tasks have added theirs."""
        if self._planned is None and not self._company.is_gathering:
            self._planned = self._loop.call_soon(self._send)

    def _send(self, *, is_gathered: bool = False) -> None:
        if self._planned is not None:
            self._planned.cancel()
            self._planned = None
        while self._waiting and len(self._groups) < self._groups_in_flight_max:
            if self._groups and self._loop.time() < self._sent_at_s + OVERLAP_AFTER_S:
                # That group's end, or its time limit, whichever is first, calls this again.
                at_s = self._sent_at_s + OVERLAP_AFTER_S
                self._planned = self._loop.call_at(at_s, self._send)
                return
            if not is_gathered:
                if self._company.is_gathering:
                    return
                if (company := self._company.begin()) is not None:
                    company.add_done_callback(lambda _: self._send(is_gathered=True))
                    return
            is_gathered = False
            group = self._take_group()
            if not group:
                return
            self._sent_at_s = self._loop.time()
            self._busy.update(name for waiting in group for name in waiting.names)
            task = self._loop.create_task(self._write(group), name="postgres group")
            self._groups.add(task)
            task.add_done_callback(self._on_written)

    def _on_written(self, task: asyncio.Task[None]) -> None:
        self._groups.discard(task)
        # Also if no write waits: it cancels the timer for this group's time limit.
        self._send()

    def _take_group(self) -> list[_Waiting]:
        """Take the writes that can go together, in the order of the calls."""
        group: list[_Waiting] = []
        group_bytes = 0
        passed_over: list[_Waiting] = []
        names = set(self._busy)
        while self._waiting and len(passed_over) < PASSED_OVER_MAX:
            waiting = self._waiting[0]
            if waiting.outcome.done():  # Its caller was cancelled.
                self._pop()
                continue
            if isinstance(waiting.write, ProbeWrite) and (group or passed_over or self._groups):
                break
            if group and (
                len(group) >= self._group_writes_max
                or group_bytes + waiting.size_bytes > GROUP_BYTES_MAX
            ):
                break
            self._pop()
            if names.isdisjoint(waiting.names) and _may_join(group, waiting):
                group.append(waiting)
                group_bytes += waiting.size_bytes
            else:
                passed_over.append(waiting)
            # Also of one passed over: the order within a session is the order of the calls.
            names.update(waiting.names)
            if isinstance(group[0].write if group else None, _EXCLUSIVE):
                break
        self._waiting.extendleft(reversed(passed_over))
        self._waiting_bytes += sum(waiting.size_bytes for waiting in passed_over)
        return group

    def _pop(self) -> None:
        self._waiting_bytes -= self._waiting.popleft().size_bytes

    async def _write(self, group: list[_Waiting]) -> None:
        try:
            await self._write_group(group)
        except asyncio.CancelledError:
            # The event loop is being torn down and the store was not closed.
            _log.warning("store_not_closed", writes=len(self._waiting) + len(group))
            self._closing = True
            stopped = StoreUnavailable("the service stopped while it was writing")
            self._fail([*group, *self._waiting], stopped)
            raise
        finally:
            self._busy.difference_update(name for waiting in group for name in waiting.names)

    async def _write_group(self, group: list[_Waiting]) -> None:
        try:
            outcomes = await self._run(group)
        except StoreError as error:
            if _is_one_writes_affair(error) and len(group) > 1:
                # Nothing of the group is stored; written alone, the failing write shows.
                for waiting in group:
                    await self._write_group([waiting])
            elif isinstance(error, StoreUnavailable) and is_away(error):
                # The waiting writes would fail the same way, one time-out after the other.
                self._fail([*group, *self._waiting], error)
                self._waiting.clear()
                self._waiting_bytes = 0
            else:
                self._fail(group, error)
            return
        except Exception as error:  # noqa: BLE001 - the writer survives any error
            # A bug, or a value that the driver cannot send.
            if len(group) > 1:
                for waiting in group:
                    await self._write_group([waiting])
            else:
                _log.exception("store_write_failed")
                _settle(group[0], error)
            return
        stored: list[Append] = []
        for waiting, outcome in zip(group, outcomes, strict=True):
            _settle(waiting, outcome)
            if outcome is None and isinstance(waiting.write, Append):
                stored.append(waiting.write)
        if stored:
            self._on_stored(stored)

    async def _run(self, group: list[_Waiting]) -> list[StoreError | None]:
        group.sort(key=_order)
        writes = [waiting.write for waiting in group]

        async def run(connection: Connection) -> list[StoreError | None]:
            return await self._run_on(connection, writes)

        begun_s = time.perf_counter()
        try:
            return await self._pool.run(run)
        finally:
            self.figures.count(len(group), time.perf_counter() - begun_s)

    async def _run_on(
        self, connection: Connection, writes: Sequence[Write]
    ) -> list[StoreError | None]:
        """Run one group, again after a conflict with a replica; an outcome for each write."""
        with suppress(*_MET_ANOTHER):
            return await self._run_once(connection, writes)
        async for attempt in AsyncRetrying(
            retry=retry_if_exception_type(_MET_ANOTHER),
            stop=stop_after_attempt(RETRY_ATTEMPTS_MAX),
            wait=wait_random_exponential(multiplier=0.005, max=RETRY_WAIT_MAX_S),
            reraise=True,
        ):
            with attempt:
                return await self._run_once(connection, writes)
        raise AssertionError("the last attempt returns or raises")

    async def _run_once(
        self, connection: Connection, writes: Sequence[Write]
    ) -> list[StoreError | None]:
        refusals: dict[int, StoreError] = {}
        match writes[0]:
            case Append():
                appends = [write for write in writes if isinstance(write, Append)]
                refusals = await self._rows.append_group(connection, appends)
            case AuditEntry():
                entries = [write for write in writes if isinstance(write, AuditEntry)]
                await self._rows.append_audit(connection, entries)
            case SettingWrite(tenant, name, value):
                await self._rows.put_setting(connection, tenant, name, value)
            case ProbeWrite():
                await self._rows.write_probe(connection)
        return [refusals.get(place) for place in range(len(writes))]

    @staticmethod
    def _fail(group: Sequence[_Waiting], error: StoreError) -> None:
        for waiting in group:
            # An exception for each caller, because raising one adds to its traceback.
            failure = copy(error)
            failure.__cause__ = error.__cause__
            _settle(waiting, failure)


def _names(write: Write) -> tuple[Hashable, ...]:
    match write:
        case Append():
            tenant = write.key.tenant
            return (write.key, *((tenant, "task", task.task_id) for task in write.tasks))
        case SettingWrite(tenant, name):
            return ((tenant, "setting", name),)
        case _:
            return ()


def _may_join(group: Sequence[_Waiting], waiting: _Waiting) -> bool:
    """Whether a write is of the same kind as the group's first."""
    if not group:
        return True
    return type(group[0].write) is type(waiting.write)


def _order(waiting: _Waiting) -> SessionKey:
    """Sort the groups of all replicas by the same key, which prevents deadlocks.

    The sort is stable: audit entries, which have no row key, keep the order of the calls.
    """
    return waiting.write.key if isinstance(waiting.write, Append) else SessionKey("", "")


def _is_one_writes_affair(error: StoreError) -> bool:
    """Whether a single write may have made the group fail."""
    if isinstance(error, AppendRefused | StoreCorrupt):
        return True
    # Another transaction holds one of the sessions.
    return isinstance(error.__cause__, psycopg.errors.LockNotAvailable)


def _settle(waiting: _Waiting, outcome: Exception | None) -> None:
    if waiting.outcome.done():
        return
    if outcome is None:
        waiting.outcome.set_result(None)
    else:
        waiting.outcome.set_exception(outcome)
