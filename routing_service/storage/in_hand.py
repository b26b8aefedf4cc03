"""How many writes are in hand at once: it decides whether a group waits for more writes or reads.

The number follows the load up at once, and down where a group waited for more than came.
"""

from __future__ import annotations

from typing import Final

BUSY_WRITES_MIN: Final = 8
"""A group waits for more from this many writes at once on. Below it, or alone, it does not."""

LEFT: Final = 0.9
"""What is left of the number after a group that had most of what it waited for."""

LEFT_ALONE: Final = 0.5
"""What is left of it after one that had few: soon after a burst writes go alone again."""


class WritesInHand:
    """Writes whose callers have no answer yet."""

    __slots__ = ("_now", "lately")

    def __init__(self) -> None:
        self._now = 0
        self.lately = 0.0
        """The recent number of writes at once."""

    @property
    def are_many(self) -> bool:
        """Whether a group should wait for more."""
        return self.lately >= BUSY_WRITES_MIN

    def came(self) -> None:
        """Count a write that is asked for."""
        self._now += 1
        self.lately = max(self.lately, self._now)

    def went(self) -> None:
        """Count a write that is answered."""
        self._now -= 1

    def fade(self, left: float = LEFT) -> None:
        """Reduce the weight of the past. left: the share that remains."""
        self.lately = max(self._now, self.lately * left)
