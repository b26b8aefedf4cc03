"""The result of a benchmark: a number under a fixed key, and the measurements behind it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Self

CONFIDENCE = 0.95
"""Share of such intervals that contain the figure of endless rounds."""


@dataclass(frozen=True)
class Scale:
    """How much is measured. sessions_many: the meaning of "1m" in a key, less in a quick run.

    The report has it next to the figures, so that quick runs are not mistaken for full ones.
    rounds_of_calls: rounds against the echo and of a stream, enough for an interval in any run.
    """

    is_quick: bool
    rounds: int
    rounds_of_calls: int
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
    rounds=7,
    rounds_of_calls=11,
    sessions=100,
    turns_per_session=10,
    at_once=64,
    lone_calls=200,
    sessions_many=1_000_000,
    turns_long=10_000,
    watchers=1_000,
    threads=40,
    starts=7,
)
QUICK = Scale(
    is_quick=True,
    rounds=2,
    rounds_of_calls=6,
    sessions=32,
    turns_per_session=4,
    at_once=64,
    lone_calls=30,
    sessions_many=3_000,
    turns_long=150,
    watchers=50,
    threads=4,
    starts=2,
)


@dataclass(frozen=True)
class Figure:
    """One number.

    bound: the target, None = the figure is only reported. is_most: the bound is a maximum, not a
    minimum. rounds: the measurements by subject, a number for each round. per_round: the figure
    itself, a value for each round. beside: other measurements of the same run.
    """

    key: str
    value: float
    unit: str
    bound: float | None = None
    is_most: bool = False
    rounds: Mapping[str, Sequence[float]] = field(default_factory=dict)
    per_round: Sequence[float] = ()
    beside: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        key: str,
        per_round: Sequence[float],
        unit: str,
        bound: float | None = None,
        *,
        is_most: bool = False,
        rounds: Mapping[str, Sequence[float]],
        beside: Mapping[str, Any] = MappingProxyType({}),
    ) -> Self:
        """Return the figure whose value is the median of its rounds."""
        return cls(
            key,
            statistics.median(per_round),
            unit,
            bound,
            is_most=is_most,
            rounds=rounds,
            per_round=per_round,
            beside=beside,
        )

    @property
    def holds(self) -> bool | None:
        """Say whether the bound is kept; None without one."""
        if self.bound is None:
            return None
        return self.value <= self.bound if self.is_most else self.value >= self.bound

    @property
    def interval(self) -> tuple[float, float] | None:
        """Return the 95 % confidence interval of the figure; None if its rounds are too few."""
        return median_interval(self.per_round)

    @property
    def spread(self) -> str:
        """Return the spread of the rounds, by subject."""
        return "; ".join(
            f"{name} {_short(min(values))}-{_short(max(values))}"
            for name, values in self.rounds.items()
            if values
        )


Benchmark = Callable[[Scale], list[Figure]]


def ratios(rounds: Mapping[str, Sequence[float]], ours: str, reference: str) -> list[float]:
    """Return the ratio of each round.

    The two were measured within seconds, so what else the machine did then affected both.
    """
    return [one / other for one, other in zip(rounds[ours], rounds[reference], strict=True)]


def ratio(rounds: Mapping[str, Sequence[float]], ours: str, reference: str) -> float:
    """Return the median of the rounds' ratios."""
    return statistics.median(ratios(rounds, ours, reference))


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the narrowest pair of the values that has the median between them in 95 % of cases.

    By the sign test: each value is above the median with a chance of a half, whatever the
    distribution, so a round that other load has spoilt moves the interval by one place at most.
    None if even the smallest and the largest are not enough, with fewer than six values.
    """
    ordered = sorted(values)
    count = len(ordered)
    outside = 0.0
    place = None
    for below in range(count // 2):
        # Twice, for both ends.
        outside += 2 * math.comb(count, below) / 2**count
        if outside > 1 - CONFIDENCE:
            break
        place = below
    return None if place is None else (ordered[place], ordered[-1 - place])


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which this share of the values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"  # noqa: PLR2004 - three digits
