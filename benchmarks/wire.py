"""A client that costs next to nothing: gRPC calls as prepared HTTP/2 frames on plain sockets.

It implements only as much of HTTP/2 as unary calls need. Rule: every answer's grpc-status is read,
and one other than 0 ends the load.

grpc.aio's own client uses more processor time than an echo server: on a machine of two cores the
client would be measured. h2load uses even less, but sends the same bytes each time, so it cannot
continue a conversation.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, cast

_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_HEADER_TABLE_SIZE, _INITIAL_WINDOW_SIZE = 1, 4
_WINDOW_MAX: Final = 2**31 - 1
_WINDOW_DEFAULT: Final = 2**16 - 1
_FRAME_HEAD_BYTES: Final = 9
_MESSAGE_HEAD_BYTES: Final = 5
_STATUS_OK: Final = b"\x0bgrpc-status\x010"
"""The header as a server sends it without a header table: written out."""

Next = Callable[[bytes], tuple[bytes, bytes] | None]
"""A conversation: takes the last answer's message, b"" at first, and returns the next call: its
headers, as made by ``headers``, and its message. None = it is over."""


class CallFailed(Exception):
    """The server answered with something other than OK."""


@dataclass
class Played:
    """What a load took: all of it, and each call, in seconds."""

    seconds: float = 0.0
    call_seconds: list[float] = field(default_factory=list)

    @property
    def calls_per_s(self) -> float:
        """The rate."""
        return len(self.call_seconds) / self.seconds


def headers(path: str, **metadata: str) -> bytes:
    """Return the headers of a call as they go on the wire. path: "/package.Service/Method"."""
    return b"".join(
        (
            b"\x83\x86",  # POST and http, by their numbers in HTTP/2's own table.
            b"\x04" + _text(path),
            b"\x01" + _text("127.0.0.1"),
            b"\x0f\x10" + _text("application/grpc"),
            b"\x00" + _text("te") + _text("trailers"),
            *(b"\x00" + _text(name) + _text(value) for name, value in metadata.items()),
        )
    )


def play(address: str, conversations: Iterable[Next], *, connections: int, at_once: int) -> Played:
    """Play conversations over some connections, so many of them at a time.

    There are no more connections than conversations at a time: each has one.

    Raises CallFailed.
    """
    try:
        from uvloop import run  # noqa: PLC0415 - not on every platform
    except ImportError:
        run = asyncio.run
    return cast("Played", run(_play(address, iter(conversations), connections, at_once)))


async def _play(
    address: str, conversations: Iterator[Next], connections: int, at_once: int
) -> Played:
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    played = Played()
    lines: list[_Line] = []
    for _ in range(min(connections, at_once)):
        _, line = await loop.create_connection(
            lambda: _Line(conversations, played.call_seconds), host, int(port)
        )
        lines.append(line)
    begun_s = time.perf_counter()
    for place in range(at_once):
        lines[place % len(lines)].begin()
    try:
        await asyncio.gather(*(line.done for line in lines))
    finally:
        played.seconds = time.perf_counter() - begun_s
        for line in lines:
            line.close()
    return played


class _Line(asyncio.Protocol):
    """One connection and the conversations on it; where one ends, the next that waits begins."""

    def __init__(self, conversations: Iterator[Next], call_seconds: list[float]) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._conversations = conversations
        self._call_seconds = call_seconds
        self._calls: dict[int, tuple[Next, float]] = {}
        self._messages: dict[int, bytes] = {}
        self._buffer = b""
        self._next_id = 1
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        settings = struct.pack(">HIHI", _HEADER_TABLE_SIZE, 0, _INITIAL_WINDOW_SIZE, _WINDOW_MAX)
        more = struct.pack(">I", _WINDOW_MAX - _WINDOW_DEFAULT)
        self._transport.write(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            + _frame(_SETTINGS, 0, 0, settings)
            + _frame(_WINDOW_UPDATE, 0, 0, more)
        )

    def begin(self) -> None:
        """Begin the next conversation that waits, if there is one."""
        for conversation in self._conversations:
            if self._go_on(conversation, b""):
                return
        if not self._calls and not self.done.done():
            self.done.set_result(None)

    def close(self) -> None:
        """Hang up."""
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"the server hung up: {exc}")

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data
        at = 0
        while len(buffer) - at >= _FRAME_HEAD_BYTES:
            size = int.from_bytes(buffer[at : at + 3], "big")
            end = at + _FRAME_HEAD_BYTES + size
            if len(buffer) < end:
                break
            kind, flags = buffer[at + 3], buffer[at + 4]
            stream = int.from_bytes(buffer[at + 5 : at + _FRAME_HEAD_BYTES], "big")
            self._received(kind, flags, stream, buffer[at + _FRAME_HEAD_BYTES : end])
            at = end
        self._buffer = buffer[at:]

    def _received(self, kind: int, flags: int, stream: int, body: bytes) -> None:
        if kind == _DATA:
            self._messages[stream] = self._messages.get(stream, b"") + body
        elif kind == _HEADERS:
            if flags & _END_STREAM:
                self._ended(stream, body)
        elif kind == _SETTINGS and not flags & _ACK:
            self._transport.write(_frame(_SETTINGS, _ACK, 0, b""))
        elif kind == _PING and not flags & _ACK:
            self._transport.write(_frame(_PING, _ACK, 0, body))
        elif kind in {_RST_STREAM, _GOAWAY}:
            self._fail(f"frame {kind} of the server: {body!r}")

    def _ended(self, stream: int, trailers: bytes) -> None:
        conversation, sent_s = self._calls.pop(stream)
        self._call_seconds.append(time.perf_counter() - sent_s)
        if _STATUS_OK not in trailers:
            self._fail(f"a call was answered with {trailers!r}")
            return
        message = self._messages.pop(stream)[_MESSAGE_HEAD_BYTES:]
        if not self._go_on(conversation, message):
            self.begin()

    def _go_on(self, conversation: Next, message: bytes) -> bool:
        call = conversation(message)
        if call is None:
            return False
        head, body = call
        stream = self._next_id
        self._next_id += 2
        self._calls[stream] = (conversation, time.perf_counter())
        framed = b"\x00" + len(body).to_bytes(4, "big") + body
        self._transport.write(
            _frame(_HEADERS, _END_HEADERS, stream, head)
            + _frame(_DATA, _END_STREAM, stream, framed)
        )
        return True

    def _fail(self, why: str) -> None:
        if not self.done.done():
            self.done.set_exception(CallFailed(why))


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + body


def _text(value: str) -> bytes:
    """Return a header's name or value; plain, and short enough for one byte of length."""
    data = value.encode("ascii")
    assert len(data) < 0x7F, value  # noqa: PLR2004 - seven bits
    return bytes((len(data),)) + data
