"""Adapts a detector's probabilities to one registry, by two numbers learned from its conversations.

Rule: the likeliest of two agents stays the likelier one; only how sure a verdict is, and whether a
message stays, can change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from routing_service.topics.topic_detector import TopicVerdict

TEMPERATURES: Final = tuple(round(0.5 + 0.1 * step, 1) for step in range(21))
STAY_OFFSETS: Final = tuple(round(-2 + 0.25 * step, 2) for step in range(17))
"""What is tried: the bounds are those of the registry's file."""

_LEAST: Final = 1e-4
"""What an option has that the detector did not name."""

_DIGITS: Final = 6

STAY: Final = ""
NONE: Final = "none of them"
"""Options besides agents. No agent's id has a space."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What probabilities are changed by.

    temperature: their logarithms are divided by it: above 1 = less sure. stay: added to the
    logarithm of staying with the active agent.
    """

    temperature: float = 1.0
    stay: float = 0.0

    @property
    def is_idle(self) -> bool:
        """Tell whether it changes nothing."""
        return self.temperature == 1.0 and self.stay == 0.0

    def shares(self, ranked: Sequence[tuple[str, float]], stay: float) -> dict[str, float]:
        """Return the probability of each option: agents, STAY where it is possible, NONE."""
        options = dict(ranked)
        if stay > 0:
            options[STAY] = stay
        options[NONE] = max(0.0, 1.0 - sum(options.values()))
        logs = {
            name: math.log(max(_LEAST, share)) / self.temperature
            + (self.stay if name == STAY else 0.0)
            for name, share in options.items()
        }
        best = max(logs.values())
        powers = {name: math.exp(value - best) for name, value in logs.items()}
        whole = sum(powers.values())
        return {name: power / whole for name, power in powers.items()}

    def applied(self, verdict: TopicVerdict) -> TopicVerdict:
        """Return a verdict with other probabilities, and the sureness that goes with them.

        A verdict that is wholly sure, as of an example word for word, stays as it is.
        """
        if self.is_idle or verdict.sureness == 1.0:
            return verdict
        shares = self.shares(verdict.ranked, verdict.stay)
        leads = sorted(shares.values(), reverse=True)
        return replace(
            verdict,
            ranked=tuple((name, round(shares[name], _DIGITS)) for name, _ in verdict.ranked),
            stay=round(shares.get(STAY, 0.0), _DIGITS),
            sureness=round(leads[0] - leads[1], _DIGITS),
        )


@dataclass(frozen=True, slots=True)
class Sample:
    """A verdict on a message whose option is known. weight: how far its owner is believed."""

    ranked: tuple[tuple[str, float], ...]
    stay: float
    option: str
    weight: float = 1.0

    def loss(self, by: Calibration) -> float:
        """Return the logarithm of how unlikely the right option was, times the weight."""
        return -self.weight * math.log(max(_LEAST, by.shares(self.ranked, self.stay)[self.option]))

    def is_right(self, by: Calibration) -> bool:
        """Tell whether the likeliest option is the right one."""
        shares = by.shares(self.ranked, self.stay)
        return max(shares, key=shares.__getitem__) == self.option


def option_of(ranked: Sequence[tuple[str, float]], active: str, owner: str) -> str:
    """Return the option that an owner is. One that was not named counts as none of them."""
    if active and owner == active:
        return STAY
    return owner if any(name == owner for name, _ in ranked) else NONE


def fit(samples: Sequence[Sample]) -> Calibration:
    """Return the calibration under which the samples are likeliest; the idle one without any."""
    best = Calibration()
    if not samples:
        return best
    least = sum(sample.loss(best) for sample in samples)
    for temperature in TEMPERATURES:
        for stay in STAY_OFFSETS:
            tried = Calibration(temperature, stay)
            loss = sum(sample.loss(tried) for sample in samples)
            if loss < least:
                best, least = tried, loss
    return best


def off_by(samples: Sequence[Sample], by: Calibration, bins: int = 10) -> float:
    """Return how far off the likeliest options' probabilities are: the expected error in bins."""
    found: dict[int, list[tuple[float, bool]]] = {}
    for sample in samples:
        shares = by.shares(sample.ranked, sample.stay)
        best = max(shares, key=shares.__getitem__)
        place = min(int(shares[best] * bins), bins - 1)
        found.setdefault(place, []).append((shares[best], best == sample.option))
    gaps = [abs(sum(share - is_right for share, is_right in rows)) for rows in found.values()]
    return sum(gaps) / len(samples) if samples else 0.0
