"""The sureness below which a verdict counts as unsure.

Two wishes: that a share of messages is asked about (ask_share), or that a share of dispatches is
right (right_wanted), where what is asked about counts as right. Both are read from one count of
verdicts by sureness. It begins with what the detector expects, and follows the registry's own
traffic. The bound in force is an input of the decision and is stored with the message, so a replay
decides the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

BINS: Final = 100
"""Steps of sureness from 0 to 1. Within a step the bound is interpolated."""

PRIOR_MESSAGES: Final = 40.0
"""Weight of the prior. After as many judged messages the registry's own count for half. Measured: a
weight of 40 kept the share asked within 16 to 19 % of 20 % wanted from the first message on."""

MEMORY_MESSAGES: Final = 5_000.0
"""Judged messages from which on older ones count for less: traffic and registries change."""

ROUNDING_MAX: Final = 1e-9
"""Of sums of shares."""

FLAT: Final = (1.0 / BINS,) * BINS
_MIDDLES: Final = tuple((place + 0.5) / BINS for place in range(BINS))


@dataclass(frozen=True, slots=True)
class Prior:
    """What is expected before a message comes, by bin of sureness.

    shares: of messages; right: how many of a bin's dispatches are right. Without anything known,
    sureness is spread evenly, and a verdict is right as often as it is sure.
    """

    shares: Sequence[float] = FLAT
    right: Sequence[float] = _MIDDLES

    @classmethod
    def of(cls, detector: object) -> Prior:
        """Return the prior that a detector offers, or that of one that offers none.

        It offers shares and right in equal steps of sureness, which divide BINS.
        """
        offered = getattr(detector, "prior", None)
        if isinstance(offered, tuple) and len(offered) == 2:  # noqa: PLR2004 - shares and right
            shares, right = offered
            if len(shares) == len(right) > 0 and BINS % len(shares) == 0:
                each = BINS // len(shares)
                finer = tuple(share / each for share in shares for _ in range(each))
                return cls(finer, tuple(rate for rate in right for _ in range(each)))
        return cls()


class Counts(msgspec.Struct, array_like=True):
    """Judged messages by sureness. right: the sum of the likeliest options' probabilities."""

    messages: list[float] = msgspec.field(default_factory=lambda: [0.0] * BINS)
    right: list[float] = msgspec.field(default_factory=lambda: [0.0] * BINS)

    @property
    def total(self) -> float:
        """How many messages were judged, older ones as far as they count."""
        return sum(self.messages)

    def note(self, sureness: float, probability: float) -> None:
        """Count a judged message. probability: of its likeliest option."""
        place = min(max(int(sureness * BINS), 0), BINS - 1)
        self.messages[place] += 1.0
        self.right[place] += probability
        if self.total > 2 * MEMORY_MESSAGES:
            self.messages = [each / 2 for each in self.messages]
            self.right = [each / 2 for each in self.right]

    def plus(self, other: Counts) -> Counts:
        """Return both together."""
        both = Counts(
            [a + b for a, b in zip(self.messages, other.messages, strict=True)],
            [a + b for a, b in zip(self.right, other.right, strict=True)],
        )
        scale = min(1.0, 2 * MEMORY_MESSAGES / both.total) if both.total else 1.0
        return Counts([scale * each for each in both.messages], [scale * x for x in both.right])


def ask_bound(
    counts: Counts, prior: Prior, *, ask_share: float, right_wanted: float | None
) -> float:
    """Return the sureness below which a message is asked about.

    right_wanted: in place of ask_share, unless None.
    """
    messages = [
        PRIOR_MESSAGES * share + count
        for share, count in zip(prior.shares, counts.messages, strict=True)
    ]
    right = [
        PRIOR_MESSAGES * share * rate + count
        for share, rate, count in zip(prior.shares, prior.right, counts.right, strict=True)
    ]
    total = sum(messages)
    if right_wanted is None:
        missing, gains = ask_share * total, messages
    else:
        missing = right_wanted * total - sum(right)
        gains = [count - sure for count, sure in zip(messages, right, strict=True)]
    for place, gain in enumerate(gains):
        if missing <= ROUNDING_MAX:
            return place / BINS
        if gain >= missing:
            return (place + missing / gain) / BINS
        missing -= gain
    return 1.0


def expected(prior: Prior, bound: float) -> tuple[float, float]:
    """Return which share of messages a bound asks about, and which is right then, by the prior."""
    asked = right = 0.0
    for place, (share, rate) in enumerate(zip(prior.shares, prior.right, strict=True)):
        below = share * min(1.0, max(0.0, bound * BINS - place))
        asked += below
        right += below + (share - below) * rate
    return asked, right
