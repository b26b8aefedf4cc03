"""One time limit for many calls.

Works like asyncio.timeout, but with one timer for all calls: each has the same time, so the call
that started first is due first. A timer per call costs a tenth of the steps of a stream's message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

T = TypeVar("T")


class TimeLimit:
    """Gives each call the same time. For one event loop."""

    def __init__(self, seconds: float) -> None:
        """Limit each call to so many seconds."""
        self.seconds = seconds
        self._began_s: dict[asyncio.Task[Any], float] = {}
        """When each running call started, in this order."""
        self._overdue: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def run(self, call: Awaitable[T]) -> T:
        """Await a call, one at a time per task. Raises TimeoutError if it takes too long."""
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
            # If the task was also cancelled for another reason, that cancellation goes on.
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
        """Cancel the calls whose time is up, and set the timer for the next one."""
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
