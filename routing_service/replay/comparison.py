"""Two registries on the same dialogues, and the differences between them.

Its rule: a difference is the new registry's figure minus the old one's, and turns come in the order
of the record, however they were played.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from routing_service.replay.dialogue_files import FoundDialogue
from routing_service.replay.figures import ReplayFigures
from routing_service.replay.play import FirstDispatch

COMPARED: Final = (
    "supervisor_calls_saved",
    "supervisor_calls",
    "first_dispatch_right",
    "misrouted",
    "misrouted_turns",
    "handoffs",
    "handoffs_refused",
    "stuck_turns",
    "switch_precision",
    "switch_recall",
    "false_switches_per_1000",
    "errors",
)
"""Figures whose differences are meaningful; the others are equal, or specific to the run."""


EFFECTS: Final = {
    "right": "right now",
    "supervised": "by the supervisor now",
    "misrouted": "misrouted now",
}
"""The effect of the new registry on a message, by its new and its old target."""

NO_EFFECT: Final = "as good as before"


@dataclass(frozen=True, slots=True)
class ChangedTurn:
    """A user's message that the two registries sent elsewhere, or for another reason.

    turn: its place in the record, from 0. owner: its true owner, "" if the record does not show
    it. effect: one of EFFECTS, or "unknown" without an owner.
    """

    dialogue_id: str
    place: str
    turn: int
    owner: str
    old_agent: str
    old_reason: str
    new_agent: str
    new_reason: str
    effect: str

    def as_dict(self) -> dict[str, object]:
        """Return the turn by name, in the order in which it is shown."""
        return {
            "dialogue_id": self.dialogue_id,
            "place": self.place,
            "turn": self.turn,
            "owner": self.owner,
            "old": {"agent": self.old_agent, "reason": self.old_reason},
            "new": {"agent": self.new_agent, "reason": self.new_reason},
            "effect": self.effect,
        }


@dataclass(slots=True)
class ChangedTurns:
    """The changed turns of a running replay. kept_max: only the first are kept; None = all."""

    kept_max: int | None = None
    effects: Counter[str] = field(default_factory=Counter)
    _kept: dict[int, list[ChangedTurn]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """The number of changed turns, including those not kept."""
        return self.effects.total()

    def note(
        self, number: int, found: FoundDialogue, sides: tuple[list[FirstDispatch], ...]
    ) -> None:
        """Record a dialogue, the number-th of the run, that was played on both sides."""
        old, new = sides
        changed = list(_changed(found, old, new))
        self.effects.update(turn.effect for turn in changed)
        if changed:
            self._kept[number] = changed
            self._trim()

    def in_order(self) -> list[ChangedTurn]:
        """Return the kept turns, in the order of the record."""
        turns = [turn for number in sorted(self._kept) for turn in self._kept[number]]
        return turns if self.kept_max is None else turns[: self.kept_max]

    def _trim(self) -> None:
        """Drop the last dialogues if the ones before them are enough."""
        if self.kept_max is None:
            return
        kept = sum(map(len, self._kept.values()))
        # Dialogues end in any order; the last of the record goes first.
        while kept - len(self._kept[last := max(self._kept)]) >= self.kept_max:
            kept -= len(self._kept.pop(last))


@dataclass(frozen=True, slots=True)
class Compared:
    """One of the two registries. name: of its file, or of its source."""

    name: str
    version: str
    figures: ReplayFigures


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two finished replays of the same dialogues."""

    old: Compared
    new: Compared
    changed: ChangedTurns

    def rows(self) -> Iterator[tuple[str, float, float, float]]:
        """Yield name, old value, new value and difference of each figure that is compared."""
        old, new = self.old.figures.as_dict(), self.new.figures.as_dict()
        for name in COMPARED:
            was, is_now = old[name], new[name]
            assert isinstance(was, int | float)
            assert isinstance(is_now, int | float)
            yield name, was, is_now, round(is_now - was, 6)

    def as_dict(self) -> dict[str, object]:
        """Return everything, for programs."""
        return {
            "old": _side(self.old),
            "new": _side(self.new),
            "difference": {name: difference for name, _, _, difference in self.rows()},
            "changed_turns": self.changed.count,
            "effects": dict(sorted(self.changed.effects.items())),
            "changes": [turn.as_dict() for turn in self.changed.in_order()],
        }


def _side(side: Compared) -> dict[str, object]:
    return {
        "registry": side.name,
        "registry_version": side.version,
        **side.figures.as_dict(),
    }


def _changed(
    found: FoundDialogue, old: list[FirstDispatch], new: list[FirstDispatch]
) -> Iterator[ChangedTurn]:
    """Yield the turns of a dialogue that differ. One that failed on a side ends with that side."""
    for was, is_now in zip(old, new, strict=False):
        if (was.agent_id, was.reason) == (is_now.agent_id, is_now.reason):
            continue
        yield ChangedTurn(
            dialogue_id=found.dialogue.dialogue_id,
            place=str(found.place),
            turn=was.turn,
            owner=is_now.owner,
            old_agent=was.agent_id,
            old_reason=was.reason,
            new_agent=is_now.agent_id,
            new_reason=is_now.reason,
            effect=effect_of(was, is_now),
        )


def effect_of(was: FirstDispatch, is_now: FirstDispatch) -> str:
    """Return whether the new registry is better for a message: an effect of ChangedTurn."""
    if not is_now.owner:
        return "unknown"
    before, after = _verdict(was), _verdict(is_now)
    return NO_EFFECT if before == after else EFFECTS[after]


def _verdict(first: FirstDispatch) -> str:
    """Return the key of EFFECTS for a message: whether it reached its owner."""
    if first.agent_id == first.owner:
        return "right"
    return "supervised" if first.is_home else "misrouted"
