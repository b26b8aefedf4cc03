"""A blocking call in a thread of its own, with one deadline for the whole call.

A time limit per read cannot bound a call: a peer that sends a byte a second never reaches it. Here
the deadline closes the call's sockets, and the thread is a daemon, so that a call which still does
not end (a name server that hangs) never delays the exit of the process.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

LINGERING_MAX: Final = 4
"""Calls that may run at once, including those past their deadline. A name server that hangs holds
at most this many threads; further calls are refused until one ends."""

_Made = TypeVar("_Made")


class DeadlinePassed(Exception):
    """The call took longer than it may, or too many earlier calls still run."""


class Sockets:
    """The open sockets of one call, so that they can be closed from another thread."""

    def __init__(self) -> None:
        """Begin with none."""
        self._lock = threading.Lock()
        self._handles: list[int] = []
        self._is_cut = False

    def connect(self, *given: Any, **named: Any) -> socket.socket:
        """Connect as socket.create_connection() does, and remember the socket.

        Raises OSError, also after the deadline.
        """
        made = socket.create_connection(*given, **named)
        with self._lock:
            if self._is_cut:
                made.close()
                raise TimeoutError("the deadline has passed")
            # A duplicate: TLS takes the socket over, and its handshake has to be bounded too.
            self._handles.append(os.dup(made.fileno()))
        return made

    def cut(self) -> None:
        """Shut every socket down: blocked reads and writes fail at once."""
        with self._lock:
            self._is_cut = True
            for handle in self._handles:
                with suppress(OSError), socket.socket(fileno=os.dup(handle)) as same:
                    same.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Close the duplicates when the call has ended."""
        with self._lock:
            for handle in self._handles:
                os.close(handle)
            self._handles.clear()


class CutOffCalls:
    """Runs blocking calls, each in a daemon thread and with a deadline that it cannot outlive."""

    def __init__(self, lingering_max: int = LINGERING_MAX) -> None:
        """Run nothing yet."""
        self._lingering_max = lingering_max
        self._running = 0
        self._lock = threading.Lock()

    async def call(self, work: Callable[[Sockets], _Made], limit_s: float) -> _Made:
        """Return what work returns, or raise what it raises. work: connects by the given Sockets.

        Raises DeadlinePassed after limit_s seconds; work's sockets are closed then.
        """
        with self._lock:
            if self._running >= self._lingering_max:
                raise DeadlinePassed(f"{self._running} earlier attempts have not ended yet")
            self._running += 1
        loop = asyncio.get_running_loop()
        done: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
        sockets = Sockets()

        def settle(outcome: tuple[Any, BaseException | None]) -> None:
            if not done.done():
                done.set_result(outcome)

        def run() -> None:
            value, error = None, None
            try:
                value = work(sockets)
            except BaseException as raised:  # noqa: BLE001 - raised again where it is awaited
                error = raised
            finally:
                sockets.release()
                with self._lock:
                    self._running -= 1
            # A loop that has ended awaits nothing.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, (value, error))

        threading.Thread(target=run, name="fetch of sign-in keys", daemon=True).start()
        try:
            async with asyncio.timeout(limit_s):
                value, error = await done
        except TimeoutError:
            raise DeadlinePassed(f"it took more than {limit_s:g} s") from None
        finally:
            sockets.cut()
        if error is not None:
            raise error
        made: _Made = value
        return made
