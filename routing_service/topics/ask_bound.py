"""The sureness below which a verdict counts as unsure, so that a wanted share of messages does.

The bound is a running quantile of the sureness of judged messages. It begins as a prior and follows
the registry's own traffic, without a read or write of the store. The bound in force is an input of
the decision and is stored with the message, so a replay decides the same.
"""

from __future__ import annotations

from typing import Final

BINS: Final = 200
"""Steps of sureness from 0 to 1: the bound is within half a hundredth of the exact quantile."""

PRIOR_MESSAGES: Final = 200.0
"""Weight of the prior. After as many judged messages the registry's own count for half."""

MEMORY_MESSAGES: Final = 5_000.0
"""Judged messages after which an older one counts for 1/e: traffic and registries change."""


class AskBound:
    """The bound of one registry. For one thread."""

    def __init__(self, share: float) -> None:
        """Begin with sureness spread evenly. share: of messages that may be unsure, 0 to 1."""
        self._share = share
        self._weights = [PRIOR_MESSAGES / BINS] * BINS
        self._total = PRIOR_MESSAGES
        # Newer messages get more weight, instead of older ones less: one addition a message.
        self._next = 1.0
        self._growth = 1.0 + 1.0 / MEMORY_MESSAGES
        # The bound's bin, and the weight of the bins below it.
        self._bin = 0
        self._below = 0.0
        self._settle()

    @property
    def value(self) -> float:
        """A verdict with less sureness than this is unsure."""
        return self._bin / BINS

    def note(self, sureness: float) -> None:
        """Count a judged message."""
        place = min(max(int(sureness * BINS), 0), BINS - 1)
        self._weights[place] += self._next
        self._total += self._next
        if place < self._bin:
            self._below += self._next
        self._next *= self._growth
        if self._next > 1e9:  # noqa: PLR2004 - far from where floats lose digits
            self._rescale()
        self._settle()

    def _settle(self) -> None:
        """Move the bin until the weight below it is the share, as near as bins allow."""
        wanted = self._share * self._total
        while self._bin < BINS and self._below + self._weights[self._bin] <= wanted:
            self._below += self._weights[self._bin]
            self._bin += 1
        while self._bin > 0 and self._below > wanted:
            self._bin -= 1
            self._below -= self._weights[self._bin]

    def _rescale(self) -> None:
        self._weights = [weight / self._next for weight in self._weights]
        self._total /= self._next
        self._below /= self._next
        self._next = 1.0
