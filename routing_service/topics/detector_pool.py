"""Worker threads for topic detectors of other packages.

Each call has a time limit. Rule: the caller gets its answer or an error within the limit. A call
that never ends keeps its thread, but delays neither the server's end nor the other threads.
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
_Outcome = tuple[Any, Exception | None]
_Job = tuple[Callable[[], Any], asyncio.AbstractEventLoop, "asyncio.Future[_Outcome]"]


class ThreadsBusy(Exception):
    """No thread is free, and as many calls as may be wait for one; or there are none any more."""


class TooLate(Exception):
    """A call took longer than it may. No TimeoutError: calls raise those of their own."""


class DetectorThreads:
    """Runs calls beside an event loop. Threads are made when they are needed, and end with Python.

    Not concurrent.futures: Python would wait at its end for a call that never ends.
    """

    def __init__(self, *, threads_max: int = THREADS_MAX, waiting_max: int = WAITING_MAX) -> None:
        """Start no thread yet. threads_max: calls at a time. waiting_max: calls that wait."""
        self._threads_max = threads_max
        self._open_max = threads_max + waiting_max
        # None tells a thread to end.
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._threads = 0
        self._open = 0
        self._is_closed = False

    async def call(self, work: Callable[[], _Made], limit_s: float) -> _Made:
        """Return what work returns, or raise what it raises; see as_exception.

        Raises ThreadsBusy at once, and TooLate after limit_s seconds; then the work goes on and its
        result is lost.
        """
        if self._is_closed or self._open >= self._open_max:
            raise ThreadsBusy
        if self._threads < min(self._open + 1, self._threads_max):
            self._start_thread()
        self._open += 1
        loop = asyncio.get_running_loop()
        done: asyncio.Future[_Outcome] = loop.create_future()
        self._jobs.put((work, loop, done))
        try:
            async with asyncio.timeout(limit_s):
                value, error = await done
        except TimeoutError:
            raise TooLate(f"it took longer than {limit_s:g} s") from None
        if error is not None:
            raise error
        made: _Made = value
        return made

    def close(self) -> None:
        """Let the threads end, each when it is done with its call; wait for none of them."""
        if not self._is_closed:
            self._is_closed = True
            for _ in range(self._threads):
                self._jobs.put(None)

    def _start_thread(self) -> None:
        name = f"topic-detector-{self._threads + 1}"
        try:
            threading.Thread(target=self._run, name=name, daemon=True).start()
        except RuntimeError:
            # The system gives no more threads now; those that there are do the work.
            if not self._threads:
                raise
        else:
            self._threads += 1

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._carry_out(*job)
            # A thread that waits for its next call holds nothing of the last one.
            del job

    def _carry_out(
        self,
        work: Callable[[], Any],
        loop: asyncio.AbstractEventLoop,
        done: asyncio.Future[_Outcome],
    ) -> None:
        value, error = None, None
        # Nobody waits any more: its place in the queue was all that it took.
        if not done.cancelled():
            try:
                value = work()
            except BaseException as raised:  # noqa: BLE001 - it is raised where it is awaited
                error = as_exception(raised)
        # A loop that has ended has nobody who waits.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(self._end, done, (value, error))

    def _end(self, done: asyncio.Future[_Outcome], outcome: _Outcome) -> None:
        self._open -= 1
        if not done.done():
            # As a value: a future refuses some errors, such as StopIteration.
            done.set_result(outcome)


def as_exception(raised: BaseException) -> Exception:
    """Return what was raised; a RuntimeError from it where it would end a thread or the server.

    Such as SystemExit, and the panics of extensions in Rust, which are no Exception.
    """
    if isinstance(raised, Exception):
        return raised
    error = RuntimeError(repr(raised))
    error.__cause__ = raised
    return error
