"""Messages between replicas by PUBLISH, received on a connection of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import structlog

from routing_service.storage.redis.connection import DRIVER_ERRORS, Connection, Connector
from routing_service.storage.relay import RELAY_BYTES_MAX
from routing_service.storage.store import StoreClosed, StoreError

if TYPE_CHECKING:
    from routing_service.storage.redis.scripts import Command

LISTEN_RETRY_S: Final = 0.5
"""How long the listener waits before it connects again."""

_SUBSCRIBE: Final = "SUBSCRIBE"
_MESSAGE: Final = b"message"

_log = structlog.get_logger(__name__)


class PublishRelay:
    """See relay.Relay."""

    def __init__(
        self,
        connector: Connector,
        channel: bytes,
        origin: bytes,
        call: Callable[[list[Command]], Awaitable[object]],
    ) -> None:
        """Send nothing yet. origin: identifies this replica's messages. call: sends commands."""
        self._connector = connector
        self._channel = channel
        self._origin = origin
        self._call = call
        self._listener: Callable[[bytes], None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._closed = False

    def hear(self, listener: Callable[[bytes], None]) -> None:
        """See Relay.hear."""
        self._listener = listener

    def begin(self) -> None:
        """See Relay.begin."""
        if self._listening is None and not self._closed:
            self._listening = asyncio.create_task(self._listen(), name="redis listener")

    async def send(self, messages: Sequence[bytes]) -> None:
        """See Relay.send."""
        if self._closed:
            raise StoreClosed
        commands: list[Command] = []
        for message in messages:
            assert len(message) <= RELAY_BYTES_MAX, len(message)
            commands.append(("PUBLISH", self._channel, self._origin + message))
        await self._call(commands)

    async def close(self) -> None:
        """Stop listening."""
        self._closed = True
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening])

    async def _listen(self) -> None:
        while True:
            try:
                await self._listen_once()
            except StoreError:
                pass  # The connector has logged it.
            except DRIVER_ERRORS as error:
                _log.warning("store_listener_lost", **self._connector.error_fields(error))
            await asyncio.sleep(LISTEN_RETRY_S)

    async def _listen_once(self) -> None:
        connection: Connection = await self._connector.connect()
        try:
            await connection.send_command(_SUBSCRIBE, self._channel)
            while True:
                kind, _, data, *_ = await connection.read_response()
                if kind == _MESSAGE and not data.startswith(self._origin) and self._listener:
                    self._listener(data[len(self._origin) :])
        finally:
            with suppress(*DRIVER_ERRORS):
                await connection.disconnect(nowait=True)
