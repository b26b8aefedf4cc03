"""The result of a benchmark: a number under a fixed key, and the measurements behind it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Scale:
    """How much is measured. sessions_many: the meaning of "1m" in a key, less in a quick run.

    The report has it next to the figures, so that quick runs are not mistaken for full ones.
    """

    is_quick: bool
    rounds: int
    sessions: int
    turns_per_session: int
    at_once: int
    lone_calls: int
    sessions_many: int
    turns_long: int
    watchers: int
    threads: int
    starts: int

    @property
    def turns(self) -> int:
        """Turns of one round."""
        return self.sessions * self.turns_per_session


FULL = Scale(
    is_quick=False,
    rounds=5,
    sessions=200,
    turns_per_session=10,
    at_once=64,
    lone_calls=400,
    sessions_many=1_000_000,
    turns_long=10_000,
    watchers=1_000,
    threads=40,
    starts=7,
)
QUICK = Scale(
    is_quick=True,
    rounds=2,
    sessions=64,
    turns_per_session=5,
    at_once=64,
    lone_calls=60,
    sessions_many=10_000,
    turns_long=300,
    watchers=100,
    threads=8,
    starts=2,
)


@dataclass(frozen=True)
class Figure:
    """One number.

    bound: the target, None = the figure is only reported. is_most: the bound is a maximum, not a
    minimum. rounds: the measurements by subject, a number for each round. beside: other
    measurements of the same run.
    """

    key: str
    value: float
    unit: str
    bound: float | None = None
    is_most: bool = False
    rounds: Mapping[str, Sequence[float]] = field(default_factory=dict)
    beside: Mapping[str, Any] = field(default_factory=dict)

    @property
    def holds(self) -> bool | None:
        """Say whether the bound is kept; None without one."""
        if self.bound is None:
            return None
        return self.value <= self.bound if self.is_most else self.value >= self.bound

    @property
    def spread(self) -> str:
        """Return the spread of the rounds, by subject."""
        return "; ".join(
            f"{name} {_short(min(values))}-{_short(max(values))}"
            for name, values in self.rounds.items()
            if values
        )


Benchmark = Callable[[Scale], list[Figure]]


def ratio(rounds: Mapping[str, Sequence[float]], ours: str, reference: str) -> float:
    """Return the ratio of two medians."""
    return statistics.median(rounds[ours]) / statistics.median(rounds[reference])


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which this share of the values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"  # noqa: PLR2004 - three digits
