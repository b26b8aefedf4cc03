"""Hints between replicas that something was committed, by NOTIFY and LISTEN.

A hint may be lost, repeated or late: it only makes a replica read the log sooner.

A hint is sent after the commit, in a transaction of its own. Sent with the appends it would make
their commits wait for each other: PostgreSQL lets one transaction with a NOTIFY commit at a time,
its wait for the disk included. Measured with 16 writers: 1,960 commits a second with it inside,
6,650 with it after.
"""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import psycopg
import structlog

from routing_service.storage.postgres.connection import Connection, Connector, sever
from routing_service.storage.store import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from routing_service.storage.postgres.pool import ConnectionPool

SEND_PAUSE_S: Final = 0.02
"""The pause between two hints of one replica. A hint costs as much as a small append, one covers
all commits since the last, and watchers may learn of a change within 100 ms."""

LISTEN_RETRY_S: Final = 0.5
"""How long the listener waits before it connects again."""

# A NOTIFY writes to the server's log. Losing it in a crash is harmless, so it does not wait for the
# disk; the appends themselves did.
_NOTIFY: Final = b"SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, $2)"

_log = structlog.get_logger(__name__)


class HintSender:
    """Tells the other replicas that this one has committed something."""

    def __init__(self, pool: ConnectionPool, channel: str, origin: str) -> None:
        """Send nothing yet. origin: identifies this replica's hints."""
        self._pool = pool
        self._channel = channel
        self._payload = json.dumps([origin])
        self._is_due = False
        self._sending: asyncio.Task[None] | None = None

    def send(self) -> None:
        """Send a hint soon: at once, or SEND_PAUSE_S after the last one."""
        self._is_due = True
        if self._sending is None:
            self._sending = asyncio.create_task(self._send_all(), name="postgres hints")

    async def close(self) -> None:
        """Drop an unsent hint."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.wait([self._sending])

    async def _send_all(self) -> None:
        try:
            while self._is_due:
                self._is_due = False
                try:
                    await self._pool.run(self._notify)
                except StoreError as error:
                    # Nothing is lost: the log has the changes, and its readers poll it too.
                    _log.warning("store_hints_not_sent", error=str(error))
                await asyncio.sleep(SEND_PAUSE_S)
        finally:
            self._sending = None

    async def _notify(self, connection: Connection) -> None:
        await connection.execute(_NOTIFY, (self._channel, self._payload))


def is_own(payload: str, origin: str) -> bool:
    """Whether a hint is this replica's own. An unreadable hint is another's.

    Every user who may connect may send; other releases may add to the list behind the origin.
    """
    try:
        sender, *_ = json.loads(payload)
    except (ValueError, TypeError):
        return False
    return bool(sender == origin)


class HintListener:
    """Listens for other replicas' hints, on a connection of its own.

    It connects at the first wait, and again each time the connection is lost. Each new connection
    counts as a hint, because some may have been missed.
    """

    def __init__(self, connector: Connector, channel: str, origin: str) -> None:
        """Listen to nothing yet. origin: whose hints are our own."""
        self._connector = connector
        self._channel = channel
        self._origin = origin
        self._count = 0
        self._heard = asyncio.Event()
        self._listening: asyncio.Task[None] | None = None
        self._connection: Connection | None = None
        self._is_live = False
        self._closed = False
        self._also: dict[str, Callable[[str], None]] = {}

    def also_listen(self, channel: str, heard: Callable[[str], None]) -> None:
        """Listen to another channel too, from the next connection on. heard: gets the payloads."""
        self._also[channel] = heard

    def start(self) -> None:
        """Connect, if this has not begun yet."""
        if self._listening is None and not self._closed:
            self._listening = asyncio.create_task(self._listen(), name="postgres listener")

    @property
    def is_live(self) -> bool:
        """Whether LISTEN has been sent on a connection that is still open."""
        return self._is_live

    async def wait(self, seen: int, timeout_s: float) -> int:
        """Wait until more than ``seen`` hints were heard, or for timeout_s; return how many."""
        self.start()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._count <= seen and not self._closed:
                    await self._heard.wait()
        return self._count

    async def close(self) -> None:
        """Stop listening; every wait returns."""
        self._closed = True
        self._wake()
        if self._listening is not None:
            if self._connection is not None:
                sever(self._connection)
            self._listening.cancel()
            await asyncio.wait([self._listening])

    async def _listen(self) -> None:
        while True:
            try:
                await self._listen_once()
            except StoreError:
                pass  # The connector has logged it.
            except (psycopg.Error, OSError) as error:
                _log.warning("store_listener_lost", **self._connector.error_fields(error))
            await asyncio.sleep(LISTEN_RETRY_S)

    async def _listen_once(self) -> None:
        connection = await self._connector.connect()
        self._connection = connection
        try:
            for channel in (self._channel, *self._also):
                await connection.execute(f"LISTEN {channel}".encode())
            self._is_live = True
            self._hear()
            async for notify in connection.notifies():
                heard = self._also.get(notify.channel)
                if heard is not None:
                    heard(notify.payload)
                elif not is_own(notify.payload, self._origin):
                    self._hear()
        finally:
            self._is_live = False
            self._connection = None
            with suppress(psycopg.Error, OSError):
                await connection.close()

    def _hear(self) -> None:
        self._count += 1
        self._wake()

    def _wake(self) -> None:
        # A new event for later waits: each wait is for the next hint.
        self._heard.set()
        self._heard = asyncio.Event()


def new_origin() -> str:
    """Name this store's hints."""
    return os.urandom(8).hex()
