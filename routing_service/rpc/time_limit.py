"""One time limit for many calls.

Owns: what becomes of a call that takes longer. Must not know: what is called.
Rule: as asyncio.timeout, but with one timer for all of them: each has the same time, so the call
that began first is due first. A timer of its own costs a message of a stream a tenth of its steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

T = TypeVar("T")


class TimeLimit:
    """Gives each call the same time. For one event loop."""

    def __init__(self, seconds: float) -> None:
        """Let nothing take longer than so many seconds."""
        self.seconds = seconds
        self._began_s: dict[asyncio.Task[Any], float] = {}
        """What is under way, in the order in which it began."""
        self._overdue: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def run(self, call: Awaitable[T]) -> T:
        """Await a call, once at a time in a task. Raises TimeoutError where it took too long."""
        task = asyncio.current_task()
        assert task is not None
        cancelling = task.cancelling()
        loop = asyncio.get_running_loop()
        self._began_s[task] = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(self.seconds, self._end_overdue)
        try:
            return await call
        except asyncio.CancelledError:
            # Whoever cancelled the task for another reason besides gets to hear of it.
            if task in self._overdue and task.cancelling() - 1 <= cancelling:
                raise TimeoutError from None
            raise
        finally:
            if task in self._overdue:
                self._overdue.remove(task)
                task.uncancel()
            else:
                del self._began_s[task]

    def _end_overdue(self) -> None:
        """Cancel what has had its time, and look again when the next one has."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        self._timer = None
        for task, began_s in list(self._began_s.items()):
            if began_s + self.seconds > now_s:
                self._timer = loop.call_at(began_s + self.seconds, self._end_overdue)
                return
            del self._began_s[task]
            self._overdue.add(task)
            task.cancel()
