"""A few connections for many calls, each held for one round trip.

Every wait is bounded, for a free connection as for the server's answer. A connection goes back only
if it is idle and whole. A call whose caller is cancelled still finishes, because a connection
that is cut in mid-call has to be made again.

The driver's own pool tries again in the background, at intervals that double: a server that was
away for ten seconds is not found again for up to ten more. Here each call that needs a connection
tries for itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, TypeVar

import psycopg
import structlog

from routing_service.storage.postgres.connection import (
    Connection,
    Connector,
    is_usable,
    is_whole,
    sever,
    store_error,
)
from routing_service.storage.store import StoreClosed, StoreUnavailable

GRACE_S: Final = 1.0
"""The server itself ends a call when its time is up; a connection that is silent for this long
after that is given up."""

WAITING_CALLS_MAX: Final = 4_096
"""Calls that may wait for a connection: about a second's worth."""

T = TypeVar("T")
Work = Callable[[Connection], Awaitable[T]]

_log = structlog.get_logger(__name__)


class ConnectionPool:
    """Runs calls on up to ``size_max`` connections, made when they are needed."""

    def __init__(
        self,
        connector: Connector,
        *,
        size_max: int,
        call_timeout_s: float,
        grace_s: float = GRACE_S,
        waiting_calls_max: int = WAITING_CALLS_MAX,
    ) -> None:
        """Make no connection yet. call_timeout_s: as the connections tell the server."""
        self._connector = connector
        self._size_max = size_max
        self._call_timeout_s = call_timeout_s
        self._grace_s = grace_s
        self._waiting_calls_max = waiting_calls_max
        self._idle: list[Connection] = []
        self._made = 0
        """The number of connections, including those being made."""
        self._waiting: deque[asyncio.Future[Connection | None]] = deque()
        self._calls: set[asyncio.Task[object]] = set()
        self._closing = False

    @property
    def idle(self) -> int:
        """Connections that are made and not in use."""
        return len(self._idle)

    async def run(self, work: Work[T], *, timeout_s: float | None = None) -> T:
        """Call work with a connection and return what it returns.

        timeout_s: for the answer; None = the pool's.
        If the caller is cancelled, its call still finishes.
        Raises StoreUnavailable, StoreClosed, and the store's errors for those of the driver.
        """
        if self._closing:
            raise StoreClosed
        call = asyncio.get_running_loop().create_task(
            self._run(work, self._call_timeout_s if timeout_s is None else timeout_s)
        )
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        return await asyncio.shield(call)

    async def close(self) -> None:
        """Let the calls that run finish, then close the connections."""
        self._closing = True
        if self._calls:
            await asyncio.wait(self._calls)
        while self._idle:
            await self._drop(self._idle.pop())

    async def _run(self, work: Work[T], timeout_s: float) -> T:
        connection = await self._take()
        late = False

        def give_up() -> None:
            nonlocal late
            late = True
            sever(connection)

        timer = asyncio.get_running_loop().call_later(timeout_s + self._grace_s, give_up)
        try:
            return await work(connection)
        except psycopg.Error as error:
            _log.error("store_call_failed", late=late, **self._connector.error_fields(error))
            if late:
                raise StoreUnavailable("the store's server does not answer; try again") from error
            raise store_error(error) from error
        finally:
            timer.cancel()
            await self._give_back(connection)

    async def _take(self) -> Connection:
        """Return an idle connection, or make one, or wait until one of the two is possible."""
        while self._idle:
            # The last one used, so that unneeded connections stay idle.
            connection = self._idle.pop()
            if is_usable(connection):
                return connection
            await self._drop(connection)
        if self._made >= self._size_max:
            handed_over = await self._wait()
            if handed_over is not None:
                return handed_over
        else:
            self._made += 1
        try:
            return await self._connector.connect()
        except BaseException:
            self._made -= 1
            self._offer_room()
            raise

    async def _wait(self) -> Connection | None:
        """Wait for a connection; None = the caller may make one, which is counted already."""
        if len(self._waiting) >= self._waiting_calls_max:
            raise StoreUnavailable(f"{len(self._waiting)} calls wait for the store; try again")
        turn: asyncio.Future[Connection | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout(self._call_timeout_s):
                return await turn
        except TimeoutError:
            if turn.done() and not turn.cancelled():
                # The connection was assigned at the same moment and must not be lost.
                return turn.result()
            raise StoreUnavailable("no connection to the store became free; try again") from None
        finally:
            if turn.cancelled():
                with suppress(ValueError):
                    self._waiting.remove(turn)

    def _next_waiting(self) -> asyncio.Future[Connection | None] | None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                return turn
        return None

    def _offer_room(self) -> None:
        """Let the first waiting call replace a lost connection."""
        if self._made < self._size_max and (turn := self._next_waiting()) is not None:
            self._made += 1
            turn.set_result(None)

    async def _give_back(self, connection: Connection) -> None:
        # A call that takes it, maybe at once, checks that its server is still there.
        good = is_usable(connection) if self._waiting else is_whole(connection)
        if not good:
            await self._drop(connection)
            self._offer_room()
        elif (turn := self._next_waiting()) is not None:
            turn.set_result(connection)
        else:
            self._idle.append(connection)

    async def _drop(self, connection: Connection) -> None:
        self._made -= 1
        with suppress(psycopg.Error, OSError):
            await connection.close()
