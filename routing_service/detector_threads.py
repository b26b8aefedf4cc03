"""Threads in which detectors of others judge, so that a slow one holds nobody for long.

Owns the threads, how many there are, and how long anybody waits for one. Must not know what is
asked. Rule: whoever waits is told in time, whatever becomes of the call; a call that never ends
takes a thread with it, and neither the server's end nor the other threads.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Final, TypeVar

THREADS_MAX: Final = 4
"""Calls at a time. Models compute in all cores by themselves; threads here are for waiting."""

WAITING_MAX: Final = 32
"""Calls that wait for a thread. Each has its own limit of time, so more would only be late."""

_Made = TypeVar("_Made")
_Job = tuple[Callable[[], Any], asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class ThreadsBusy(Exception):
    """No thread is free, and as many calls as may be wait for one."""


class DetectorThreads:
    """Runs calls beside an event loop. Threads are made when they are needed, and end with Python.

    Not concurrent.futures: Python would wait at its end for a call that never ends.
    """

    def __init__(self) -> None:
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._threads = 0
        self._open = 0

    async def call(self, work: Callable[[], _Made], limit_s: float) -> _Made:
        """Return what work returns, or raise what it raises.

        Raises ThreadsBusy at once, and TimeoutError after limit_s seconds; then the work goes on
        and its result is lost.
        """
        if self._open >= THREADS_MAX + WAITING_MAX:
            raise ThreadsBusy
        self._open += 1
        if self._threads < min(self._open, THREADS_MAX):
            self._threads += 1
            name = f"topic-detector-{self._threads}"
            threading.Thread(target=self._run, name=name, daemon=True).start()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[_Made] = loop.create_future()
        self._jobs.put((work, loop, done))
        async with asyncio.timeout(limit_s):
            return await done

    def _run(self) -> None:
        while True:
            work, loop, done = self._jobs.get()
            value, error = None, None
            # Nobody waits any more: its place in the queue was all that it took.
            if not done.cancelled():
                try:
                    value = work()
                except Exception as raised:  # noqa: BLE001 - it is raised where it is awaited
                    error = raised
            # A loop that has ended has nobody who waits.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._end, done, value, error)

    def _end(self, done: asyncio.Future[Any], value: object, error: Exception | None) -> None:
        self._open -= 1
        if done.done():
            return
        if error is None:
            done.set_result(value)
        else:
            done.set_exception(error)
