"""The figures of ``topics evaluate`` and their confidence.

Its rule: a figure comes with its 95 % interval, and turns of one dialogue are not treated as
independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Final

from agent_routing_topics.evaluation import Judged
from routing_service.replay.figures import CALIBRATION_BINS, Calibration

_Z_95: Final = 1.96


@dataclass(frozen=True, slots=True)
class Measured:
    """A figure and its 95 % interval. of: its denominator, in messages or switches."""

    value: float
    low: float
    high: float
    of: float

    def times(self, factor: float) -> Measured:
        """Return the figure in another unit."""
        return Measured(self.value * factor, self.low * factor, self.high * factor, self.of)


@dataclass(slots=True)
class DialogueCounts:
    """The counts of one dialogue."""

    scored: int = 0
    right: int = 0
    unsupervised: int = 0
    switches: int = 0
    right_switches: int = 0
    due_switches: int = 0
    false_switches: int = 0
    stuck: int = 0
    calibration: Calibration = field(default_factory=Calibration)


class Marks:
    """The counts of one corpus, or of some agents' messages, by dialogue."""

    def __init__(self) -> None:
        self._counts: list[DialogueCounts] = []
        self._dialogue = -1

    @property
    def scored(self) -> int:
        """The scored messages."""
        return sum(counts.scored for counts in self._counts)

    def take(self, dialogue: int, judged: Judged) -> None:
        """Count one message. The messages of a dialogue must come in a row."""
        if not judged.is_scored:
            return
        counts = self._of(dialogue)
        counts.scored += 1
        counts.right += judged.is_right
        counts.unsupervised += bool(judged.dispatched)
        counts.switches += judged.switched
        counts.right_switches += judged.switched and judged.is_right
        counts.due_switches += judged.should_switch and bool(judged.owner)
        counts.false_switches += judged.switched and judged.owner == judged.active
        counts.calibration += Calibration.of(judged.probability, is_right=judged.is_right)

    def take_alone(self, dialogue: int, judged: Judged) -> None:
        """Count one message of the run in which wrong dispatches are not corrected."""
        if judged.is_scored and judged.dispatched not in ("", judged.owner):
            self._of(dialogue).stuck += 1

    def figures(self) -> dict[str, Measured]:
        """Return the figures by name, in the order of display."""
        all_of_it = self._counts
        scored = [counts.scored for counts in all_of_it]
        right_switches = [counts.right_switches for counts in all_of_it]
        switches = [counts.switches for counts in all_of_it]
        due = [counts.due_switches for counts in all_of_it]
        both = [(one + other) / 2 for one, other in zip(switches, due, strict=True)]
        false = share([counts.false_switches for counts in all_of_it], scored)
        return {
            "right": share([counts.right for counts in all_of_it], scored),
            "without_supervisor": share([counts.unsupervised for counts in all_of_it], scored),
            "switch_precision": share(right_switches, switches),
            "switch_recall": share(right_switches, due),
            "switch_f1": share(right_switches, both),
            "false_switches_per_1000": false.times(1000),
            "stuck": share([counts.stuck for counts in all_of_it], scored),
            "calibration_error": calibration_error([counts.calibration for counts in all_of_it]),
        }

    def as_dict(self) -> dict[str, object]:
        """Return the figures by name, each with its interval as NAME_low and NAME_high."""
        told: dict[str, object] = {"scored_turns": self.scored}
        for name, found in self.figures().items():
            told[name] = round(found.value, 6)
            told[f"{name}_low"], told[f"{name}_high"] = round(found.low, 6), round(found.high, 6)
        return told

    def _of(self, dialogue: int) -> DialogueCounts:
        if dialogue != self._dialogue:
            self._dialogue = dialogue
            self._counts.append(DialogueCounts())
        return self._counts[-1]


def share(parts: Sequence[float], wholes: Sequence[float]) -> Measured:
    """Return a share of sums over dialogues with Wilson's interval, which also holds near 0 and 1.

    The interval uses the effective number of turns: if dialogues differ more than by chance, it is
    smaller, by the variance of a ratio over clusters.
    """
    whole = sum(wholes)
    if not whole:
        return Measured(0.0, 0.0, 1.0, 0)
    value = sum(parts) / whole
    clusters = sum(1 for each in wholes if each)
    by_chance = value * (1 - value) / whole
    worth = float(whole)
    if clusters > 1 and by_chance:
        squares = sum((part - value * all_) ** 2 for part, all_ in zip(parts, wholes, strict=True))
        variance = squares * clusters / (clusters - 1) / whole**2
        worth = whole / max(1.0, variance / by_chance)
    low, high = wilson(value, worth)
    return Measured(value, low, high, whole)


def wilson(value: float, whole: float) -> tuple[float, float]:
    """Return the 95 % interval of a share of this many independent trials, by Wilson's score."""
    if not whole:
        return 0.0, 1.0
    square = _Z_95**2
    middle = value + square / (2 * whole)
    reach = _Z_95 * sqrt(value * (1 - value) / whole + square / (4 * whole**2))
    scale = 1 + square / whole
    return max(0.0, (middle - reach) / scale), min(1.0, (middle + reach) / scale)


def calibration_error(found: Sequence[Calibration]) -> Measured:
    """Return the expected calibration error, with an interval from the variance of dialogues."""
    whole = sum((each for each in found), Calibration())
    total = sum(whole.counts)
    if not total:
        return Measured(0.0, 0.0, 1.0, 0)
    value = whole.error
    signs = [
        1 if said > right else -1 for said, right in zip(whole.sums, whole.rights, strict=True)
    ]
    squares = 0.0
    for each in found:
        gap = sum(signs[at] * (each.sums[at] - each.rights[at]) for at in range(CALIBRATION_BINS))
        squares += (gap - value * sum(each.counts)) ** 2
    reach = _Z_95 * sqrt(squares * len(found) / max(1, len(found) - 1)) / total
    return Measured(value, max(0.0, value - reach), min(1.0, value + reach), total)
