"""Group commit: the writes that wait become one transaction, and one wait for the disk.

A write alone does not wait for others; the writes that wait while a group is on its way to the disk
are the next group. A write's error is its own and not the group's. A write is acknowledged only
after COMMIT has returned.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from routing_service.storage.in_hand import WritesInHand
from routing_service.storage.sqlite.bounds import DEFAULT_BOUNDS, SqliteBounds
from routing_service.storage.sqlite.bulk import APPENDS_MAX, write_together
from routing_service.storage.sqlite.connection import ConnectionThread, error_fields, store_error
from routing_service.storage.store import (
    Append,
    AppendRefused,
    RequestSeen,
    RevisionConflict,
    SessionKey,
    StoreClosed,
    StoreUnavailable,
    TaskTaken,
)
from routing_service.storage.write_company import WriteCompany
from routing_service.storage.write_figures import WriteFigures

GROUP_WRITES_MAX: Final = APPENDS_MAX
"""Writes in one transaction."""

GROUP_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes in one transaction, so that a group of large changes does not outgrow the page cache."""

TOGETHER_MIN: Final = 4
"""From this many appends on, writing them together costs less than one by one."""

Action = Callable[[sqlite3.Connection], object]
"""Runs inside the group's transaction. It may refuse (see _REFUSALS) only before it has written."""


@dataclass(frozen=True, slots=True)
class Write:
    """One caller's write, in one of two forms of the same thing."""

    action: Action
    append: Append | None = None
    """Where set, the action is this append, and it may be written together with others."""


WriteOutcome = object | Exception
"""What a write returned, or the exception that its caller gets."""

_REFUSALS: Final = (RequestSeen, RevisionConflict, TaskTaken, AppendRefused)
"""A write's own refusal: it wrote nothing and the group continues."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Waiting:
    key: SessionKey
    size_bytes: int
    write: Write
    outcome: asyncio.Future[object]


class GroupWriter:
    """Takes writes from any number of callers and puts them through one connection."""

    def __init__(
        self,
        connection: ConnectionThread,
        *,
        group_writes_max: int,
        on_abandoned: Callable[[], Awaitable[None]],
        bounds: SqliteBounds = DEFAULT_BOUNDS,
    ) -> None:
        """Start the writer task on the running event loop.

        on_abandoned: awaited when the loop ends without ``close``; it has to end the connections'
        threads, or the process would never exit.
        """
        self.figures = WriteFigures()
        self._connection = connection
        self._group_writes_max = group_writes_max
        self._on_abandoned = on_abandoned
        self._bounds = bounds
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._wake = asyncio.Event()
        self._company = WriteCompany(
            self._waiting, writes_max=group_writes_max, pace_s=bounds.write_company_pace_s
        )
        self._closing = False
        self._checkpoint_due = False
        self._log_to_empty = False
        self._checkpoint_timer: asyncio.TimerHandle | None = None
        self._last_write_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._run(), name="sqlite group writer")

    @property
    def in_hand(self) -> WritesInHand:
        """The writes that have no answer yet."""
        return self._company.in_hand

    @property
    def bounds(self) -> SqliteBounds:
        """The bounds of its queue and waits."""
        return self._bounds

    async def write(self, key: SessionKey, size_bytes: int, write: Write) -> object:
        """Run one write within a group and return what it returned, once it is on disk.

        key: writes of one key run in the order of the calls, groups in the order of keys.
        A caller that is cancelled while its write waits takes it out of the queue; one that is
        cancelled later has it written. Raises what the write raises, StoreUnavailable,
        StoreCorrupt and StoreClosed.
        """
        if self._closing:
            raise StoreClosed
        if (
            len(self._waiting) >= self._bounds.waiting_writes_max
            or self._waiting_bytes + size_bytes > self._bounds.waiting_bytes_max
        ):
            raise StoreUnavailable(f"{len(self._waiting)} writes wait for the store; try again")
        waiting = _Waiting(key, size_bytes, write, self._loop.create_future())
        self._waiting.append(waiting)
        self._waiting_bytes += size_bytes
        self._company.came()
        self._wake.set()
        try:
            return await waiting.outcome
        finally:
            self._company.went()

    async def close(self) -> None:
        """Write the waiting writes, then stop. Later writes raise StoreClosed."""
        self._closing = True
        self._wake.set()
        self._company.close()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._waiting:
                    if (company := self._company.begin()) is not None:
                        await company
                    await self._write_group(self._take_group())
                if self._closing:
                    return
                if self._checkpoint_due:
                    await self._checkpoint()
        except asyncio.CancelledError:
            # The event loop is being torn down and the store was not closed.
            _log.warning("store_not_closed", writes=len(self._waiting))
            self._stop_taking()
            await self._on_abandoned()
            raise
        finally:
            self._stop_taking()

    def _stop_taking(self) -> None:
        self._closing = True
        if self._checkpoint_timer is not None:
            self._checkpoint_timer.cancel()
        for waiting in self._waiting:
            _settle(waiting, StoreClosed())
        self._waiting.clear()

    def _take_group(self) -> list[_Waiting]:
        group: list[_Waiting] = []
        group_bytes = 0
        while self._waiting and len(group) < self._group_writes_max:
            group_bytes += self._waiting[0].size_bytes
            if group and group_bytes > GROUP_BYTES_MAX:
                break
            waiting = self._waiting.popleft()
            self._waiting_bytes -= waiting.size_bytes
            if not waiting.outcome.done():  # It is, where the caller was cancelled.
                group.append(waiting)
        # Neighbours in the index one after the other. The sort is stable: writes of one session
        # stay in the order in which they came.
        group.sort(key=lambda waiting: waiting.key)
        return group

    async def _write_group(self, group: Sequence[_Waiting]) -> None:
        if not group:
            return
        writes = [waiting.write for waiting in group]
        begun_s = time.perf_counter()
        try:
            outcomes = await self._connection.run(write_group, writes)
        except asyncio.CancelledError:
            for waiting in group:
                _settle(waiting, StoreUnavailable("the service stopped while it was writing"))
            raise
        except Exception as error:  # noqa: BLE001 - the writer survives any error
            outcomes = [error] * len(group)
        self.figures.count(len(group), time.perf_counter() - begun_s)
        failures: dict[int, tuple[Exception, int]] = {}  # Each once, and how many it met.
        for waiting, outcome in zip(group, outcomes, strict=True):
            if isinstance(outcome, Exception) and not isinstance(outcome, _REFUSALS):
                _, count = failures.get(id(outcome), (outcome, 0))
                failures[id(outcome)] = (outcome, count + 1)
                _settle(waiting, _as_store_error(outcome))
            else:
                _settle(waiting, outcome)
        for failure, count in failures.values():
            _log.error("store_write_failed", writes=count, **error_fields(failure))
        self._plan_checkpoint()

    async def empty_log(self) -> None:
        """Checkpoint and truncate the log, which still holds erased content.

        If a reader blocks it longer than the connection waits, each idle moment tries again.
        """
        if self._closing:
            raise StoreClosed
        self._log_to_empty = True
        await self._checkpoint()
        if self._log_to_empty:
            self._plan_checkpoint()

    async def compact(self) -> None:
        """Rewrite the file, between two groups. Raises sqlite3.Error, StoreClosed."""
        if self._closing:
            raise StoreClosed
        await self._connection.run(compact)
        await self.empty_log()

    def _plan_checkpoint(self) -> None:
        self._last_write_s = self._loop.time()
        if self._checkpoint_timer is None:
            self._checkpoint_timer = self._loop.call_later(
                self._bounds.checkpoint_idle_s, self._on_timer
            )

    def _on_timer(self) -> None:
        idle_s = self._loop.time() - self._last_write_s
        if idle_s < self._bounds.checkpoint_idle_s:
            rest_s = self._bounds.checkpoint_idle_s - idle_s
            self._checkpoint_timer = self._loop.call_later(rest_s, self._on_timer)
            return
        self._checkpoint_timer = None
        self._checkpoint_due = True
        self._wake.set()

    async def _checkpoint(self) -> None:
        self._checkpoint_due = False
        try:
            if self._log_to_empty:
                self._log_to_empty = not await self._connection.run(empty_log)
                if self._log_to_empty:
                    _log.warning("store_log_not_emptied", reason="a reader is in the way")
            else:
                await self._connection.run(checkpoint)
        except sqlite3.Error as error:
            # The log keeps every commit, and the next checkpoint writes them to the file.
            _log.warning("store_checkpoint_failed", **error_fields(error))


def write_group(connection: sqlite3.Connection, writes: Sequence[Write]) -> list[WriteOutcome]:
    """Run writes in one transaction and commit it; an outcome for each, in their order.

    An error that concerns all, such as a full disk, is the outcome of all. If one of them may have
    failed half-way, the transaction is rolled back and each half of the group is tried separately,
    until the failing write is alone. (Savepoints would cost every write a third more, and after a
    damaged page SQLite gives up the whole transaction anyway.)
    """
    try:
        return _in_transaction(connection, writes)
    except sqlite3.Error as error:
        if len(writes) == 1 or isinstance(store_error(error), StoreUnavailable):
            return [error] * len(writes)
    except Exception as error:  # noqa: BLE001 - the other writes are still written
        if len(writes) == 1:
            return [error]
    half = len(writes) // 2
    return [*write_group(connection, writes[:half]), *write_group(connection, writes[half:])]


def checkpoint(connection: sqlite3.Connection) -> None:
    """Checkpoint the log as far as no reader needs it."""
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()


def empty_log(connection: sqlite3.Connection) -> bool:
    """Checkpoint and truncate the log; False if a reader blocked it."""
    ((is_busy, _, _),) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return not is_busy


def compact(connection: sqlite3.Connection) -> None:
    """Rewrite the file, so that it holds only what can be read."""
    connection.execute("VACUUM")


def _in_transaction(connection: sqlite3.Connection, writes: Sequence[Write]) -> list[WriteOutcome]:
    # These two calls of the driver release the interpreter lock once each. execute() releases it
    # four times, and has to get it back from the event loop as often.
    connection.executescript("BEGIN IMMEDIATE")
    try:
        outcomes = _run_together(connection, writes)
        _commit(connection)
    except BaseException:
        # Some errors end the transaction.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return outcomes


def _commit(connection: sqlite3.Connection) -> None:
    if not connection.in_transaction:
        # commit() would succeed then, with nothing on disk.
        message = "the transaction has ended by itself"
        raise sqlite3.OperationalError(message)
    connection.commit()


def _run_together(connection: sqlite3.Connection, writes: Sequence[Write]) -> list[WriteOutcome]:
    appends = [(place, write.append) for place, write in enumerate(writes) if write.append]
    done: set[int] = set()
    if len(appends) >= TOGETHER_MIN:
        written = write_together(connection, [append for _, append in appends])
        done = {place for (place, _), was in zip(appends, written, strict=True) if was}
    return [
        None if place in done else _run_refusable(connection, write.action)
        for place, write in enumerate(writes)
    ]


def _run_refusable(connection: sqlite3.Connection, action: Action) -> WriteOutcome:
    try:
        return action(connection)
    except _REFUSALS as refusal:
        return refusal


def _as_store_error(error: Exception) -> Exception:
    """Return the store's error for a driver's, one for each caller; bugs stay unchanged."""
    if not isinstance(error, sqlite3.Error):
        return error
    failure = store_error(error)
    failure.__cause__ = error
    return failure


def _settle(waiting: _Waiting, outcome: WriteOutcome) -> None:
    if waiting.outcome.done():
        return
    if isinstance(outcome, Exception):
        waiting.outcome.set_exception(outcome)
    else:
        waiting.outcome.set_result(outcome)
