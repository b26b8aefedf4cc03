"""A proxy that can cut a connection after the call was done and before its answer arrives.

Owns one listening port and the traffic through it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class CutLine:
    """Forwards bytes both ways; ``cut_answers`` closes a line at the server's next bytes."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._lines: set[asyncio.Task[None]] = set()
        self.port = 0
        self.cut_answers = False
        self.cuts = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._lines.add(task)
        there, to_server = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pass_on(reader, to_server, is_answer=False))
                both.create_task(self._pass_on(there, writer, is_answer=True))
        except* (OSError, asyncio.CancelledError):
            pass
        finally:
            for end in (to_server, writer):
                end.close()
            self._lines.discard(task)

    async def _pass_on(
        self, source: asyncio.StreamReader, to: asyncio.StreamWriter, *, is_answer: bool
    ) -> None:
        while data := await source.read(1 << 16):
            if is_answer and self.cut_answers:
                self.cuts += 1
                break
            to.write(data)
            await to.drain()
        raise ConnectionResetError

    async def close(self) -> None:
        for task in list(self._lines):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


@asynccontextmanager
async def cut_line(port: int, tls: ssl.SSLContext | None = None) -> AsyncIterator[CutLine]:
    """Listen on a free port, and forward to the given one.

    tls: used for the listener; the forwarded side is plaintext.
    """
    line = CutLine(port)
    server = await asyncio.start_server(line.serve, "127.0.0.1", 0, ssl=tls)
    line.port = server.sockets[0].getsockname()[1]
    try:
        yield line
    finally:
        server.close()
        await line.close()
