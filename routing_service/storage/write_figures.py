"""How large groups of writes are, and how long the store takes for one.

A group is counted once, so that counting costs a write next to nothing. Not locked: one event loop
counts.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

GROUP_WRITES_BOUNDS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Upper bounds of the buckets of group sizes, included. Engines that write no groups stay at 1."""

WRITE_SECONDS_BOUNDS: Final = (
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
)
"""Upper bounds of the buckets of durations, included. A local disk syncs in 0.4 to 1.1 ms; the
longest is how long SQLite waits for another program."""


class WriteFigures:
    """The counts since the start of the process, not cumulative."""

    __slots__ = ("group_writes_buckets", "seconds_buckets", "seconds_sum", "writes")

    def __init__(self) -> None:
        self.writes = 0
        self.seconds_sum = 0.0
        self.group_writes_buckets = [0] * (len(GROUP_WRITES_BOUNDS) + 1)
        self.seconds_buckets = [0] * (len(WRITE_SECONDS_BOUNDS) + 1)

    def count(self, writes: int, seconds: float) -> None:
        """Count a group of writes that the store has answered, also with an error."""
        self.writes += writes
        self.seconds_sum += seconds
        self.group_writes_buckets[bisect_left(GROUP_WRITES_BOUNDS, writes)] += 1
        self.seconds_buckets[bisect_left(WRITE_SECONDS_BOUNDS, seconds)] += 1
