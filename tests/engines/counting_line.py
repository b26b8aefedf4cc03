"""A proxy that counts the round trips of a store's client, and says what each one asked.

Owns one listening port and the traffic through it. It reads the protocol of PostgreSQL's frontend
or of Redis, so that a prepared statement is known by its text.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

_POSTGRES_START: Final = 4
"""Bytes of the length that begins the first message, which has no type."""


class Reader(Protocol):
    """Reads what a client sends on one connection."""

    def read(self, data: bytes) -> list[str]:
        """Take the next bytes; return the statements that end in them."""
        ...


@dataclass
class PostgresReader:
    """The statements of one connection, in the extended protocol and the simple one."""

    _rest: bytes = b""
    _started: bool = False
    _prepared: dict[bytes, str] = field(default_factory=dict)

    def read(self, data: bytes) -> list[str]:
        """See Reader.read."""
        self._rest += data
        found: list[str] = []
        while (message := self._next()) is not None:
            kind, body = message
            if kind == b"P":
                name, text = body.split(b"\0")[:2]
                self._prepared[name] = text.decode()
            elif kind == b"B":
                found.append(self._prepared[body.split(b"\0")[1]])
            elif kind == b"Q":
                found.append(body.rstrip(b"\0").decode())
        return found

    def _next(self) -> tuple[bytes, bytes] | None:
        """Return the next whole message: its type, empty for the first one, and its body."""
        head = 1 if self._started else 0
        if len(self._rest) < head + _POSTGRES_START:
            return None
        end = head + int.from_bytes(self._rest[head : head + _POSTGRES_START])
        if len(self._rest) < end:
            return None
        kind, body = self._rest[:head], self._rest[head + _POSTGRES_START : end]
        self._rest = self._rest[end:]
        self._started = True
        return kind, body


@dataclass
class RedisReader:
    """The commands of one connection: the name, and for a script its hash."""

    _rest: bytes = b""

    def read(self, data: bytes) -> list[str]:
        """See Reader.read."""
        self._rest += data
        found: list[str] = []
        while (command := self._next()) is not None:
            found.append(
                " ".join(part.decode() for part in command[: 1 + (command[0] == b"EVALSHA")])
            )
        return found

    def _next(self) -> list[bytes] | None:
        """Return the next whole command."""
        place = self._rest.find(b"\r\n")
        if place < 0:
            return None
        parts: list[bytes] = []
        count, place = int(self._rest[1:place]), place + 2
        for _ in range(count):
            end = self._rest.find(b"\r\n", place)
            if end < 0:
                return None
            size = int(self._rest[place + 1 : end])
            place = end + 2 + size + 2
            if len(self._rest) < place:
                return None
            parts.append(self._rest[place - 2 - size : place - 2])
        self._rest = self._rest[place:]
        return parts


class CountingLine:
    """Forwards bytes both ways. A round trip is what a client sends until it has an answer."""

    def __init__(self, port: int, new_reader: Callable[[], Reader]) -> None:
        self._server_port = port
        self._new_reader = new_reader
        self._lines: set[asyncio.Task[None]] = set()
        self.port = 0
        self.round_trips: list[list[str]] = []

    async def serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """Forward one connection until either side closes it."""
        task = asyncio.current_task()
        assert task is not None
        self._lines.add(task)
        server, to_server = await asyncio.open_connection("127.0.0.1", self._server_port)
        reader = self._new_reader()
        current: list[str] | None = None

        async def ask() -> None:
            nonlocal current
            while data := await client.read(1 << 16):
                if current is None:
                    current = []
                    self.round_trips.append(current)
                current += reader.read(data)
                to_server.write(data)
                await to_server.drain()
            raise ConnectionResetError

        async def answer() -> None:
            nonlocal current
            while data := await server.read(1 << 16):
                current = None
                to_client.write(data)
                await to_client.drain()
            raise ConnectionResetError

        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(ask())
                both.create_task(answer())
        except* (OSError, asyncio.CancelledError):
            pass
        finally:
            for end in (to_server, to_client):
                end.close()
            self._lines.discard(task)

    async def close(self) -> None:
        """Close all connections."""
        for task in list(self._lines):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


@asynccontextmanager
async def counting_line(port: int, new_reader: Callable[[], Reader]) -> AsyncIterator[CountingLine]:
    """Listen on a free port, and forward to the given one on this machine."""
    line = CountingLine(port, new_reader)
    server = await asyncio.start_server(line.serve, "127.0.0.1", 0)
    line.port = server.sockets[0].getsockname()[1]
    try:
        yield line
    finally:
        server.close()
        await line.close()
