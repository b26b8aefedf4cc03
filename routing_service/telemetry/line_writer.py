"""Whole lines to a stream, in their order, from any thread.

Rule: no call may fail or wait for its log line. In a server a thread of the writer's own writes, so
that a reader that stops reading stops that thread alone. A line that finds no room, or cannot be
written, is lost and counted; the log says so as soon as it can be written again.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import stat
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, TextIO

LINE_WAIT_S: Final = 0.005
"""How much of the log a kill -9 may lose; the decisions themselves are in the store."""

QUEUE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Lines that wait for the reader of a server's log: about ten thousand. With two thousand calls a
second, more than a busy server logs, the reader may stop for five seconds before a line is lost."""

LAST_LINES_S: Final = 0.5
"""The wait for the last lines of a process that ends: the reader of the log may hang too."""

_OTHERS_WAIT_US: Final = 1_000
"""For a socket, how long a writer other than this one may wait for its reader."""

Line = bytes | Callable[[], bytes]
"""A line of the log, or a function that makes it and must not raise."""


class LineWriter:
    """Writes in the calling thread, or in a thread of its own after start().

    The write itself costs 1 to 2 µs, but it lets other threads have Python's interpreter lock, and
    getting that back costs a busy event loop ten times as much: lines below warning wait a moment,
    to be written together.
    """

    def __init__(self, stream: TextIO, lost_line: Callable[[int], bytes] | None = None) -> None:
        """Write to a stream, past its text layer. lost_line: makes the line for so many lost."""
        self._stream = stream
        self._lost_line = lost_line or (lambda count: b"%d lines lost" % count)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting: deque[Line] = deque()
        """Lines of write_soon; they are made when they are written or queued."""
        self._is_due = False
        """Whether a flush is scheduled; it takes all lines added until it runs."""
        self._queue: list[bytes] = []
        self._queue_bytes = 0
        """Of the queue, and of the lines that the thread is writing."""
        self._is_full = False
        """Whether a line found no room since the thread last took the queue; later ones have none
        either, so that the gap is in one place."""
        self._has_thread = False
        self._has_failed = False
        """Whether the last write failed."""
        self._lost_unreported = 0
        self.lines_lost = 0

    def start(self) -> None:
        """Write in a thread from now on, if the stream is a file of the operating system.

        What else writes to it, such as gRPC's own code to stderr, does not wait either: on Linux,
        what finds no room in a pipe, a terminal or a socket is lost.
        """
        try:
            descriptor = self._stream.fileno()
        except OSError:  # In memory: that waits for no reader.
            return
        own = os.dup(descriptor)
        _never_block(descriptor)
        self._has_thread = True
        threading.Thread(target=self._run, args=(own,), name="log lines", daemon=True).start()

    def write(self, line: bytes) -> None:
        """Write or queue the waiting lines, then this one. line: without its newline."""
        with self._lock:
            self._waiting.append(line)
            self._take_waiting()

    def write_soon(self, line: Line) -> None:
        """Write or queue one line within LINE_WAIT_S, or at once if no event loop runs.

        A line made at that time costs less: its call continues meanwhile, and making many lines in
        a row is faster.
        """
        self._waiting.append(line)
        if self._is_due:
            return
        self._is_due = True
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self.flush()
            return
        loop.call_later(LINE_WAIT_S, self.flush)

    def flush(self, wait_s: float = 0.0) -> None:
        """Write or queue the waiting lines. wait_s: at most, for the queue to be written."""
        with self._lock:
            self._take_waiting()
        if wait_s:
            with self._changed:
                self._changed.wait_for(lambda: not self._queue_bytes, wait_s)

    def _take_waiting(self) -> None:
        # Cleared first, so that a line from another thread schedules a flush of its own. Cleared
        # with every write, because the loop that was to flush may have ended.
        self._is_due = False
        waiting = self._waiting
        if not waiting:
            return
        lines = []
        while waiting:
            line = waiting.popleft()
            lines.append(line if isinstance(line, bytes) else line())
        if self._has_thread:
            self._enqueue(lines)
            return
        try:
            # In one call, so that no other process's output comes between.
            self._stream.buffer.write(_joined(lines))
            self._stream.buffer.flush()
        except (OSError, ValueError):
            # The reader is gone, the disk is full or the stream is closed.
            self.lines_lost += len(lines)

    def _enqueue(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            if self._is_full or self._queue_bytes + len(line) >= QUEUE_BYTES_MAX:
                self._is_full = True
                self.lines_lost += 1
                self._lost_unreported += 1
            else:
                self._queue.append(line)
                self._queue_bytes += len(line) + 1
        self._changed.notify_all()

    def _run(self, descriptor: int) -> None:
        """Write the queue, until the process ends."""
        while True:
            with self._changed:
                self._changed.wait_for(self._has_work)
                lines, self._queue, self._is_full = self._queue, [], False
                # A line is lost only behind a full queue, so that the gap is behind these lines.
                lost, self._lost_unreported = self._lost_unreported, 0
            data = _joined(lines)
            try:
                _write_all(descriptor, data + self._report(lost))
                failed = 0
            except OSError:  # The reader is gone, or the disk is full.
                failed = len(lines)
            with self._changed:
                self._has_failed = bool(failed)
                self.lines_lost += failed
                self._lost_unreported += failed + lost if failed else 0
                self._queue_bytes -= len(data)
                self._changed.notify_all()

    def _has_work(self) -> bool:
        # If nothing can be written, the next line is the next attempt.
        return bool(self._queue or (self._lost_unreported and not self._has_failed))

    def _report(self, lost: int) -> bytes:
        return _joined([self._lost_line(lost)]) if lost else b""


def print_lines(lines: list[str]) -> None:
    """Print to stdout, and wait no longer than LAST_LINES_S for its reader."""

    def write() -> None:
        with suppress(OSError):  # A closed pipe does not stop the server.
            _write_all(sys.stdout.fileno(), _joined([line.encode() for line in lines]))

    printing = threading.Thread(target=write, name="printed lines", daemon=True)
    printing.start()
    printing.join(LAST_LINES_S)


def _joined(lines: list[bytes]) -> bytes:
    return b"\n".join([*lines, b""])


def _write_all(descriptor: int, data: bytes) -> None:
    """Write to the end, however long the reader takes. Raises OSError."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:  # A process that shares it has made it so.
            select.select([], [descriptor], [])


def _never_block(descriptor: int) -> None:
    """Let writes to a descriptor fail, not wait, if its reader does not read.

    The descriptor is opened a second time: the flag would otherwise be set for other processes and
    for duplicates too. Left as it is: files, which do not block, and what cannot be opened again.
    """
    with suppress(OSError):
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISSOCK(mode):
            with socket.socket(fileno=os.dup(descriptor)) as connection:
                wait = struct.pack("ll", 0, _OTHERS_WAIT_US)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, wait)
        elif sys.platform == "linux" and (stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)):
            again = os.open(
                Path("/proc/self/fd") / str(descriptor),
                os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY,
            )
            os.dup2(again, descriptor)
            os.close(again)
