"""A group of writes waits for more of them if many callers write at once.

Otherwise the store's pace makes many small groups, and each group costs the event loop, the driver
and the database about the same, however many writes are in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sized
from typing import Final

from routing_service.storage.in_hand import LEFT, LEFT_ALONE, WritesInHand

SHARE: Final = 0.75
"""A group waits until it has this share of the recent number of writes in hand, waiting or on their
way to the disk: the callers of the rest are still being answered."""

PACE_S: Final = 0.0004
"""A group waits at most this long for each write that it wants: about as fast as a busy event loop
brings them. With 8 in hand that is 2.4 ms at most, with 64 it is 19 ms."""

FEW: Final = 0.25
"""If less than this share of the writes that a group waits for comes, the load has fallen."""


class WriteCompany:
    """Counts the writes in hand, and says when a group should wait."""

    def __init__(self, waiting: Sized, *, writes_max: int, pace_s: float = PACE_S) -> None:
        """Wait for nothing yet. waiting: the writer's queue. writes_max: of one group."""
        self.in_hand = WritesInHand()
        self._waiting = waiting
        self._writes_max = writes_max
        self._pace_s = pace_s
        self._wanted = 0
        self._is_closed = False
        self._gathering: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_gathering(self) -> bool:
        """Whether a group waits for more writes now."""
        return self._gathering is not None

    def came(self) -> None:
        """Count a write that was put into the queue; it may be the last that a group waits for."""
        self.in_hand.came()
        if len(self._waiting) >= self._wanted:
            self._end()

    def went(self) -> None:
        """Count a write that is answered."""
        self.in_hand.went()

    def begin(self) -> asyncio.Future[None] | None:
        """Begin the wait of the next group; None = it should not wait.

        The future ends with enough writes, when the time is up, or by ``close``.
        """
        if self._is_closed or not self.in_hand.are_many:
            return None
        self._wanted = min(int(self.in_hand.lately * SHARE), self._writes_max)
        if len(self._waiting) >= self._wanted:
            return None
        loop = asyncio.get_running_loop()
        self._gathering = loop.create_future()
        self._timer = loop.call_later(self._wanted * self._pace_s, self._end)
        return self._gathering

    def close(self) -> None:
        """End the wait, if there is one, and begin no other: no more writes will come."""
        self._is_closed = True
        self._end()

    def _end(self) -> None:
        gathering, self._gathering = self._gathering, None
        if gathering is None or gathering.done():  # Done: its writer was cancelled.
            return
        assert self._timer is not None
        self._timer.cancel()
        came = len(self._waiting)
        if came < self._wanted:
            # The next group waits for fewer. On a busy machine nearly all come, but later: less
            # patience after each such group would soon make every group small.
            self.in_hand.fade(LEFT_ALONE if came < FEW * self._wanted else LEFT)
        gathering.set_result(None)
