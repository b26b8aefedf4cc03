"""Messages between replicas by NOTIFY, on a channel next to the one of hints.

What waits while a group is on its way is the next group, so that NOTIFY's lock, which one
transaction of a server holds at a time, is taken once for all of them.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from routing_service.storage.relay import RELAY_BYTES_MAX
from routing_service.storage.store import StoreClosed, StoreError, StoreUnavailable

if TYPE_CHECKING:
    from routing_service.storage.postgres.connection import Connection
    from routing_service.storage.postgres.hints import HintListener
    from routing_service.storage.postgres.pool import ConnectionPool

GROUP_MESSAGES_MAX: Final = 64
"""Messages of one transaction: half a megabyte of the server's queue of notifications, which has
8 GB by default and is emptied as listeners read."""

WAITING_MAX: Final = 4_096
"""Messages that wait to be sent; beyond that, new ones are refused."""

_CHANNEL_HEX: Final = 24

# As of hints: a NOTIFY that a crash loses is harmless, so it does not wait for the disk.
_NOTIFY: Final = (
    b"SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, message) "
    b"FROM unnest($2::text[]) AS message"
)


def relay_channel(schema: str) -> str:
    """Return the channel of a store's messages. Names of channels have 63 bytes at most."""
    return "live_" + hashlib.sha256(schema.encode()).hexdigest()[:_CHANNEL_HEX]


class NotifyRelay:
    """See relay.Relay."""

    def __init__(
        self, pool: ConnectionPool, channel: str, origin: str, listener: HintListener
    ) -> None:
        """Send nothing yet. origin: identifies this replica's messages."""
        self._pool = pool
        self._channel = channel
        self._origin = origin
        self._hints = listener
        self._listener: Callable[[bytes], None] | None = None
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []
        self._sending: asyncio.Task[None] | None = None
        self._closed = False

    def hear(self, listener: Callable[[bytes], None]) -> None:
        """See Relay.hear."""
        self._listener = listener
        self._hints.also_listen(self._channel, self._heard)

    def begin(self) -> None:
        """See Relay.begin."""
        self._hints.start()

    async def send(self, messages: Sequence[bytes]) -> None:
        """See Relay.send."""
        if self._closed:
            raise StoreClosed
        loop = asyncio.get_running_loop()
        sent: list[asyncio.Future[None]] = []
        for message in messages:
            assert len(message) <= RELAY_BYTES_MAX, len(message)
            if len(self._waiting) >= WAITING_MAX:
                break
            done = loop.create_future()
            payload = self._origin + base64.b64encode(message).decode()
            self._waiting.append((payload, done))
            sent.append(done)
        if self._sending is None:
            self._sending = asyncio.create_task(self._send_all(), name="postgres relay")
        await asyncio.gather(*sent)
        if len(sent) < len(messages):
            reason = "too many messages wait to be sent to other replicas"
            raise StoreUnavailable(reason)

    async def close(self) -> None:
        """Drop what is unsent."""
        self._closed = True
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.wait([self._sending])
        for _, done in self._waiting:
            if not done.done():
                done.set_exception(StoreClosed())
        self._waiting.clear()

    async def _send_all(self) -> None:
        try:
            while self._waiting:
                group = self._waiting[:GROUP_MESSAGES_MAX]
                del self._waiting[:GROUP_MESSAGES_MAX]
                payloads = [payload for payload, _ in group]
                failed: StoreError | None = None
                try:
                    await self._pool.run(partial(self._notify, payloads))
                except StoreError as error:
                    failed = error
                except asyncio.CancelledError:
                    self._waiting[:0] = group
                    raise
                for _, done in group:
                    if done.done():
                        continue  # Its caller has left.
                    if failed is None:
                        done.set_result(None)
                    else:
                        done.set_exception(failed)
        finally:
            self._sending = None

    async def _notify(self, payloads: list[str], connection: Connection) -> None:
        await connection.execute(_NOTIFY, (self._channel, payloads))

    def _heard(self, payload: str) -> None:
        """Pass another replica's message on. Every user who may connect may send."""
        if payload.startswith(self._origin) or self._listener is None:
            return
        try:
            message = base64.b64decode(payload[len(self._origin) :], validate=True)
        except (binascii.Error, ValueError):
            return
        self._listener(message)
