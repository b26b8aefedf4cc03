"""The counts of a replay and its figures.

Its rule: shares are of what was really played, and two runs with the same decisions have the same
digest, independent of ids, order and time.
"""

from __future__ import annotations

import hashlib
import operator
from dataclasses import dataclass, field, fields
from typing import Final

_DIGEST_BITS = 256


CALIBRATION_BINS: Final = 10


@dataclass(frozen=True, slots=True)
class Calibration:
    """How often verdicts were right, by their probability: bins of a tenth each.

    A bin has the number of verdicts, of right verdicts, and the sum of the probabilities.
    """

    counts: tuple[int, ...] = (0,) * CALIBRATION_BINS
    rights: tuple[int, ...] = (0,) * CALIBRATION_BINS
    sums: tuple[float, ...] = (0.0,) * CALIBRATION_BINS

    @classmethod
    def of(cls, probability: float, *, is_right: bool) -> Calibration:
        """Return the bins of one verdict."""
        place = min(int(probability * CALIBRATION_BINS), CALIBRATION_BINS - 1)
        bins = range(CALIBRATION_BINS)
        return cls(
            tuple(int(at == place) for at in bins),
            tuple(int(at == place and is_right) for at in bins),
            tuple(probability if at == place else 0.0 for at in bins),
        )

    def __add__(self, other: Calibration) -> Calibration:
        """Return the sum of both."""
        return Calibration(
            tuple(map(operator.add, self.counts, other.counts)),
            tuple(map(operator.add, self.rights, other.rights)),
            tuple(map(operator.add, self.sums, other.sums)),
        )

    @property
    def error(self) -> float:
        """Return the expected calibration error: the mean error of the probabilities, 0-1."""
        total = sum(self.counts)
        gaps = map(lambda right, said: abs(right - said), self.rights, self.sums)
        return sum(gaps) / total if total else 0.0


@dataclass(slots=True)
class Tally:
    """Counts of one dialogue, or of many added up."""

    dialogues: int = 0
    user_turns: int = 0
    scored_turns: int = 0
    """User turns whose owner the record shows; the others are in no score."""
    saved_turns: int = 0
    """User turns in which stickiness bypassed the supervisor."""
    supervisor_calls: int = 0
    """Dispatches to the supervisor, including those after a wrong dispatch."""
    unsupervised_turns: int = 0
    """User turns for which the supervisor was not dispatched at all."""
    first_right_turns: int = 0
    """Scored turns that Route sent to their owner."""
    misrouted_turns: int = 0
    """Scored turns that Route sent to an agent other than their owner and the supervisor."""
    handoffs: int = 0
    """Handoffs to the owner of a turn, from the supervisor or from a misled agent."""
    handoffs_refused: int = 0
    """Handoffs that the rules of the registry refused."""
    stuck_turns: int = 0
    """User turns that ended with the wrong agent."""
    judged_turns: int = 0
    """Scored turns that the server asked topic detection about."""
    switches: int = 0
    """Scored turns that their topic took, or in suggest mode would take, to another agent than the
    active one. First messages are not among them."""
    right_switches: int = 0
    """Those of them that were for that agent."""
    false_switches: int = 0
    """Those of them that were for the agent that was active."""
    due_switches: int = 0
    """Scored turns that were for another agent than the active one."""
    offers: int = 0
    """Suggestions made, on turns that are not scored too."""
    offers_accepted: int = 0
    offers_declined: int = 0
    calibration: Calibration = field(default_factory=Calibration)
    """Of the judged turns: the likeliest of all agents, the active one and none of them."""
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
class ReplayFigures:
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
            "judged_turns": tally.judged_turns,
            "switches": tally.switches,
            "due_switches": tally.due_switches,
            "switch_precision": _share(tally.right_switches, tally.switches),
            "switch_recall": _share(tally.right_switches, tally.due_switches),
            "switch_f1": _share(2 * tally.right_switches, tally.switches + tally.due_switches),
            "false_switches_per_1000": round(
                1000 * tally.false_switches / tally.scored_turns if tally.scored_turns else 0.0, 3
            ),
            "stuck_turns_share": _share(tally.stuck_turns, tally.user_turns),
            "suggestions": tally.offers,
            "suggestions_accepted": tally.offers_accepted,
            "suggestions_declined": tally.offers_declined,
            "calibration_error": round(tally.calibration.error, 6),
            "bad_lines": self.bad_lines,
            "run_label": self.run_label,
            "decisions_digest": f"{tally.digest:064x}",
        }


def _share(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0
