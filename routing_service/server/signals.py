"""The signals of a server process: taken by a thread, so that they work whatever the loop does.

Rule: what a stop needs is begun in that thread (the time limit of the exit); all else is left to
the event loop. Children inherit the block of these signals, and replicas wait for them in the same
way.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final, Self

import structlog

EXIT_INTERRUPTED: Final = 130
"""Stopped at once by a second SIGINT: 128 plus the signal's number, the shells' convention."""

STOPPING: Final = frozenset({signal.SIGTERM, signal.SIGINT})

_log = structlog.get_logger(__name__)


class Signals:
    """SIGTERM, SIGINT and others of one process."""

    def __init__(
        self,
        others: Iterable[str] = (),
        *,
        stopping: Callable[[], None] = lambda: None,
        ending: Callable[[], None] = lambda: None,
    ) -> None:
        """Take none yet. others: names; those that the platform has not are left out.

        stopping: called at the first signal to stop; ending: before the process ends at the second
        SIGINT. Both are called in another thread, and must not wait for the event loop.
        """
        wanted = (getattr(signal, name, None) for name in others)
        self._numbers = STOPPING | {number for number in wanted if number is not None}
        self._stopping = stopping
        self._ending = ending
        self._lock = threading.Lock()
        self._handlers: dict[signal.Signals, Any] = {}
        self._mask: set[int] = set()
        self._thread: threading.Thread | None = None
        self._is_over = False
        self._is_stopping = False
        self._early: list[signal.Signals] = []
        """Those that came before the event loop."""
        self._deliver: Callable[[signal.Signals], None] = self._early.append

    def __enter__(self) -> Self:
        """Take signals from now on. In the main thread, before the process has others."""
        for number in self._numbers:
            # For Windows, and for a thread that is older than the block below.
            self._handlers[number] = signal.signal(number, self._take_in_thread)
        if hasattr(signal, "sigwait"):
            self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._numbers)
            self._thread = threading.Thread(target=self._wait, name="signals", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave signals to what took them before."""
        self._is_over = True
        if self._thread is not None and self._thread.ident is not None:
            signal.pthread_kill(self._thread.ident, signal.SIGTERM)
            self._thread.join()
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def deliver_to(self, react: Callable[[signal.Signals], None]) -> None:
        """Have the running event loop react to those that came before, and to all that come.

        A second signal to stop is not delivered.
        """
        loop = asyncio.get_running_loop()

        def deliver(number: signal.Signals) -> None:
            with suppress(RuntimeError):  # The loop is closed: the process ends.
                loop.call_soon_threadsafe(react, number)

        with self._lock:
            for number in self._early:
                deliver(number)
            self._deliver = deliver

    def _take_in_thread(self, number: int, _frame: object) -> None:
        # The code that the signal interrupted may hold a lock that a reaction needs.
        threading.Thread(
            target=self._take, args=(signal.Signals(number),), name="signal", daemon=True
        ).start()

    def _wait(self) -> None:
        while True:
            number = signal.Signals(signal.sigwait(self._numbers))
            if self._is_over:
                return
            self._take(number)

    def _take(self, number: signal.Signals) -> None:
        if number in STOPPING:
            if self._is_stopping:
                if number is signal.SIGINT:
                    self._end()
                return
            self._is_stopping = True
            self._stopping()
        with self._lock:
            self._deliver(number)

    def _end(self) -> None:
        _log.warning("stopped_at_once", signal="SIGINT")
        self._ending()
        os._exit(EXIT_INTERRUPTED)
