"""What is counted of messages that were judged by trees which had not seen their registry."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from topics.training.trees import Group

TEMPERATURES: Final = tuple(step / 20 for step in range(8, 41))
SLICE_MIN: Final = 300

Heats = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Judged:
    """A message's options with their scores."""

    group: Group
    scores: Any

    def shares(self, heats: Heats) -> Any:
        """Return the options' probabilities."""
        powers = np.exp((self.scores - self.scores.max()) / heats[self.group.heat])
        return powers / powers.sum()

    def lead(self, heats: Heats) -> tuple[float, bool]:
        """Return the lead of the likeliest option, and whether it is right."""
        shares = self.shares(heats)
        ordered = np.sort(shares)[::-1]
        lead = float(ordered[0] - ordered[1]) if len(ordered) > 1 else 1.0
        return lead, int(shares.argmax()) == self.group.right


def temperatures_of(judged: Sequence[Judged]) -> Heats:
    """Return the temperatures under which the right options are likeliest."""

    def lost(own: Sequence[Judged], heat: float) -> float:
        heats = (heat, heat, heat)
        return -sum(float(np.log(one.shares(heats)[one.group.right] + 1e-9)) for one in own)

    found = []
    for place in range(3):
        own = [one for one in judged if one.group.right >= 0 and one.group.heat == place]
        found.append(min(TEMPERATURES, key=lambda heat, own=own: lost(own, heat)))
    return found[0], found[1], found[2]


SLICES: Final[dict[str, Callable[[Group], bool]]] = {
    "first messages": lambda one: one.active < 0,
    "after 1 turn": lambda one: one.active >= 0 and one.stretch <= 1,
    "after 2 turns": lambda one: one.active >= 0 and one.stretch == 2,
    "later": lambda one: one.active >= 0 and one.stretch > 2,
    "locked": lambda one: one.is_locked,
    "en": lambda one: one.language == "en",
    "es": lambda one: one.language == "es",
    "pt": lambda one: one.language == "pt",
}


def figures_of(judged: Sequence[Judged], heats: Heats) -> Iterator[str]:
    """Yield a line for all messages and one for each slice."""
    whole = [one for one in judged if not one.group.is_short]
    yield _line("all", whole, heats)
    short = [one for one in judged if one.group.is_short and not one.group.is_locked]
    yield _line("made short, no question", short, heats)
    for name, is_in in SLICES.items():
        own = [one for one in whole if is_in(one.group)]
        if len(own) >= SLICE_MIN:
            yield _line(name, own, heats)


def _line(name: str, judged: Sequence[Judged], heats: Heats) -> str:
    leads, rights, tops = [], [], []
    changes, found, false = 0, 0, 0
    for one in judged:
        lead, is_right = one.lead(heats)
        leads.append(lead)
        rights.append(is_right)
        shares = one.shares(heats)
        tops.append(float(shares.max()))
        if one.group.active >= 0:
            is_change = one.group.right != one.group.active
            changes += is_change
            found += is_change and is_right
            false += not is_change and not is_right
    order = np.argsort(leads, kind="stable")
    asked = round(len(judged) / 5)
    right = np.array(rights, dtype=float)
    fifth = (asked + right[order[asked:]].sum()) / len(judged)
    bins = np.minimum((np.array(tops) * 10).astype(int), 9)
    off = sum(abs((np.array(tops) - right)[bins == place].sum()) for place in range(10))
    return (
        f"{name}: {len(judged)} messages, right {right.mean():.3f}, a fifth asked {fifth:.3f}, "
        f"changes found {found / max(1, changes):.3f}, false switches {false / len(judged):.3f}, "
        f"calibration error {off / len(judged):.3f}"
    )
