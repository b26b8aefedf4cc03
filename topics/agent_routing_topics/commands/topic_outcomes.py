"""What ``topics evaluate`` counts of whole corpora: right, found, false, and right where it asks.

Rule: every figure is over scored messages in file order, so that two runs compare the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from agent_routing_topics.evaluation import Judged
from agent_routing_topics.model.words import split
from routing_service.core.registry import Registry
from routing_service.replay.recorded_dialogue import RecordedDialogue, RecordedTurn

ASKED_PERCENT: Final = (0, 10, 20, 30, 40)
"""Shares of messages that go to the supervisor, the least sure first."""

VERBATIM_WORDS_MIN: Final = 3
"""Shorter examples may be an answer to any agent."""

HISTORIES_EACH: Final = 3
"""Histories that each example is asked with: none, and two of the dialogues'."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One scored message. changes: it is for another agent than the active one.

    is_right_asking: with what is asked about, as the service does.
    """

    sureness: float
    is_right: bool
    is_first: bool
    changes: bool
    is_false_switch: bool
    language: str
    is_asked: bool = False
    is_right_asking: bool = False


class Outcomes:
    """The scored messages of some dialogues, in file order."""

    def __init__(self) -> None:
        """Begin with none."""
        self._all: list[Outcome] = []
        self.verbatim_right = 0
        self.verbatim_asked = 0

    def take(self, judged: Judged, language: str) -> None:
        """Count a message, unless its owner is uncertain."""
        if not judged.is_scored:
            return
        self._all.append(
            Outcome(
                sureness=judged.sureness,
                is_right=judged.is_right,
                is_first=not judged.active,
                changes=judged.should_switch,
                is_false_switch=judged.switched and judged.owner == judged.active,
                language=language,
                is_asked=judged.is_asked,
                is_right_asking=judged.is_right_asking,
            )
        )

    def take_verbatim(self, *, is_right: bool) -> None:
        """Count an example that was asked word for word."""
        self.verbatim_asked += 1
        self.verbatim_right += is_right

    @property
    def languages(self) -> list[str]:
        """Return the languages of the messages, in order."""
        return sorted({one.language for one in self._all})

    def of_language(self, language: str) -> Outcomes:
        """Return the messages of one language."""
        found = Outcomes()
        found._all = [one for one in self._all if one.language == language]
        return found

    def as_dict(self) -> dict[str, object]:
        """Return the figures by name, each from 0 to 1; None where there is nothing to count."""
        said = self._all
        told: dict[str, object] = {
            "messages": len(said),
            "right": _share(one.is_right for one in said),
            "first_right": _share(one.is_right for one in said if one.is_first),
            "changes_found": _share(one.is_right for one in said if one.changes),
            "false_switches": _share(one.is_false_switch for one in said),
            "right_at_asked": {
                str(percent): right_at_asked(said, percent / 100) for percent in ASKED_PERCENT
            },
            "asked_share": _share(one.is_asked for one in said),
            "right_while_asking": _share(one.is_right_asking for one in said),
        }
        if self.verbatim_asked:
            told["verbatim"] = round(self.verbatim_right / self.verbatim_asked, 6)
            told["verbatim_asked"] = self.verbatim_asked
        return told


def right_at_asked(said: Sequence[Outcome], share: float) -> float | None:
    """Return the share that is right if the least sure messages are asked about; ties in order."""
    by_sureness = sorted(said, key=lambda one: one.sureness)
    asked = round(share * len(said))
    rights = asked + sum(one.is_right for one in by_sureness[asked:])
    return round(rights / len(said), 6) if said else None


def _share(found: Iterable[bool]) -> float | None:
    values = list(found)
    return round(sum(values) / len(values), 6) if values else None


def verbatim_dialogues(
    registry: Registry, dialogues: Sequence[RecordedDialogue]
) -> Iterator[RecordedDialogue]:
    """Yield, for every example that is one agent's alone, dialogues that end with it word for word.

    One has nothing else; the others begin as some of the dialogues do, with another agent.
    """
    begun = [
        (dialogue, dialogue.turns[:2])
        for dialogue in dialogues
        if [turn.speaker for turn in dialogue.turns[:2]] == ["user", "agent"]
        and dialogue.turns[0].agent
    ]
    for at, (text, owner) in enumerate(own_examples(registry)):
        said = RecordedTurn("user", text, owner)
        language = registry.default_locale
        yield RecordedDialogue(f"example-{at}", [said], language=language)
        others = [each for each in begun if each[1][1].agent != owner]
        for turn in range(min(len(others), HISTORIES_EACH - 1)):
            dialogue, before = others[(at * 7 + turn * 31) % len(others)]
            yield RecordedDialogue(
                f"example-{at}-{turn}", [*before, said], language=dialogue.language
            )


def own_examples(registry: Registry) -> list[tuple[str, str]]:
    """Return the examples that no other agent has, each with its agent."""
    holders: dict[tuple[str, ...], dict[str, str]] = {}
    for agent in registry.specialists:
        if agent.enabled:
            for example in agent.examples:
                holders.setdefault(tuple(split(example)), {})[agent.agent_id] = example
    return [
        (text, owner)
        for words, held in holders.items()
        if len(held) == 1 and len(words) >= VERBATIM_WORDS_MIN
        for owner, text in held.items()
    ]
