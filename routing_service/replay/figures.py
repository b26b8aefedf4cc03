"""What a replay counts, and how counts become figures.

Owns the meaning of every figure. It must not know how a dialogue is played. Its rule: shares are
of what was really played, and two runs that decided alike have the same digest, whatever ids,
order or time they had.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, fields

_DIGEST_BITS = 256


@dataclass(slots=True)
class Tally:
    """Counts of one dialogue, or of many added up."""

    dialogues: int = 0
    user_turns: int = 0
    scored_turns: int = 0
    """User turns whose owner the record shows; the others are in no score."""
    saved_turns: int = 0
    """User turns that stickiness took past the supervisor."""
    supervisor_calls: int = 0
    """Dispatches to the supervisor, those that a wrong dispatch led to included."""
    unsupervised_turns: int = 0
    """User turns for which the supervisor was not dispatched at all."""
    first_right_turns: int = 0
    """Scored turns that Route sent to their owner."""
    misrouted_turns: int = 0
    """Scored turns that Route sent to an agent which is not their owner (nor the supervisor)."""
    handoffs: int = 0
    """Handoffs to the owner of a turn, from the supervisor or from a misled agent."""
    handoffs_refused: int = 0
    """Handoffs that the rules of the registry refused."""
    stuck_turns: int = 0
    """User turns that ended with an agent which does not own them."""
    errors: int = 0
    """Calls that failed for good; each ends its dialogue."""
    digest: int = 0
    """See decisions_digest."""

    def add(self, other: Tally) -> None:
        """Add another tally, in any order."""
        for count in fields(self):
            setattr(self, count.name, getattr(self, count.name) + getattr(other, count.name))
        self.digest %= 1 << _DIGEST_BITS


@dataclass(slots=True)
class DecisionDigest:
    """The decisions of one dialogue, as a number that leaves out ids and times."""

    dialogue_id: str
    _hash: hashlib._Hash = field(default_factory=hashlib.sha256)

    def __post_init__(self) -> None:
        """Begin with the dialogue: equal decisions of two dialogues are two decisions."""
        self.note("dialogue", self.dialogue_id)

    def note(self, *decided: object) -> None:
        """Add one decision."""
        self._hash.update("\x1f".join(map(str, decided)).encode() + b"\x1e")

    def value(self) -> int:
        """Return the number; those of several dialogues are added up in any order."""
        return int.from_bytes(self._hash.digest())


@dataclass(frozen=True, slots=True)
class Figures:
    """A finished replay. Shares are from 0 to 1."""

    tally: Tally
    seconds: float
    bad_lines: int = 0
    run_label: str = ""

    def as_dict(self) -> dict[str, object]:
        """Return the figures by name, in the order in which they are shown."""
        tally = self.tally
        return {
            "dialogues": tally.dialogues,
            "user_turns": tally.user_turns,
            "supervisor_calls_saved": _share(tally.saved_turns, tally.user_turns),
            "first_dispatch_right": _share(tally.first_right_turns, tally.scored_turns),
            "handoffs": tally.handoffs,
            "misrouted": _share(tally.misrouted_turns, tally.scored_turns),
            "stuck_turns": tally.stuck_turns,
            "errors": tally.errors,
            "seconds": round(self.seconds, 3),
            "turns_per_s": round(tally.user_turns / self.seconds, 1) if self.seconds else 0.0,
            "scored_turns": tally.scored_turns,
            "misrouted_turns": tally.misrouted_turns,
            "supervisor_calls": tally.supervisor_calls,
            "unsupervised_turns": _share(tally.unsupervised_turns, tally.user_turns),
            "handoffs_refused": tally.handoffs_refused,
            "bad_lines": self.bad_lines,
            "run_label": self.run_label,
            "decisions_digest": f"{tally.digest:064x}",
        }


def _share(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0
