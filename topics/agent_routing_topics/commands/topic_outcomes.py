"""What ``topics evaluate`` counts of whole corpora: right, found, false, and right where it asks.

Rule: every figure is over scored messages in file order, so that two runs compare the same ones.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from agent_routing_topics.evaluation import Judged, Policy, play
from agent_routing_topics.model.words import split
from routing_service.core.registry import Registry
from routing_service.replay.recorded_dialogue import RecordedDialogue
from routing_service.topics.topic_detector import TopicDetector, TopicQuestion, TopicVerdict

ASKED_PERCENT: Final = (0, 10, 20, 30, 40)
"""Shares of messages that go to the supervisor, the least sure first."""

ASK_SHARE: Final = 0.2
"""The share of messages that a service is to ask about, unless its registry says another one."""

_SEEN_BEFORE_BOUND: Final = 20
"""Messages whose sureness a running bound knows before it asks about any."""

VERBATIM_WORDS_MIN: Final = 3
"""Shorter examples may be an answer to any agent."""

HISTORIES_EACH: Final = 3
"""Histories that each example is asked with: none, and two of the dialogues'."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One scored message. changes: it is for another agent than the active one."""

    sureness: float
    is_right: bool
    is_first: bool
    changes: bool
    is_false_switch: bool
    language: str


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
                sureness=judged.verdict.how_sure(),
                is_right=judged.is_right,
                is_first=not judged.question.active_agent_id,
                changes=judged.should_switch,
                is_false_switch=judged.switched and judged.owner == judged.question.active_agent_id,
                language=language,
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
        asked = _asked_in_turn([one.sureness for one in said])
        told: dict[str, object] = {
            "messages": len(said),
            "right": _share(one.is_right for one in said),
            "first_right": _share(one.is_right for one in said if one.is_first),
            "changes_found": _share(one.is_right for one in said if one.changes),
            "false_switches": _share(one.is_false_switch for one in said),
            "right_at_asked": {
                str(percent): right_at_asked(said, percent / 100) for percent in ASKED_PERCENT
            },
            "asked_share": _share(asked),
            "right_while_asking": _share(
                one.is_right or is_asked for one, is_asked in zip(said, asked, strict=True)
            ),
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


def _asked_in_turn(sureness: Sequence[float]) -> list[bool]:
    """Return which messages a service asks about whose bound follows those before them.

    Its bound is the sureness that ASK_SHARE of the messages so far were below.
    """
    asked: list[bool] = []
    before: list[float] = []
    for number, value in enumerate(sureness):
        is_known = number >= _SEEN_BEFORE_BOUND
        asked.append(is_known and value < before[int(ASK_SHARE * number)])
        insort(before, value)
    return asked


def _share(found: Iterable[bool]) -> float | None:
    values = list(found)
    return round(sum(values) / len(values), 6) if values else None


def verbatim_of(
    registry: Registry,
    dialogues: Sequence[RecordedDialogue],
    detector: TopicDetector,
    policy: Policy,
) -> Iterator[bool]:
    """Ask every example that is one agent's alone, word for word, and yield whether it goes there.

    With no history, and with histories of the dialogues in which another agent is active: as many
    of them as there are take turns.
    """
    candidates = frozenset(agent.agent_id for agent in registry.specialists if agent.enabled)
    states = [
        judged.question
        for dialogue in dialogues
        for judged in play(dialogue.turns, _Staying(), candidates, Policy(), dialogue.language)
        if judged.question.active_agent_id
    ]
    for at, (text, owner) in enumerate(own_examples(registry)):
        others = [state for state in states if state.active_agent_id != owner]
        asked = [TopicQuestion(text=text, candidate_ids=candidates)]
        for turn in range(min(len(others), HISTORIES_EACH - 1)):
            state = others[(at * 7 + turn * 31) % len(others)]
            asked.append(_with_text(state, text))
        for question in asked:
            yield policy.dispatch(question, detector.judge(question)) == owner


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


class _Staying:
    """Leaves every message where it is."""

    def judge(self, question: TopicQuestion) -> TopicVerdict:
        """Stay."""
        return TopicVerdict(stay=1.0 if question.active_agent_id else 0.0)


def _with_text(state: TopicQuestion, text: str) -> TopicQuestion:
    return TopicQuestion(
        text=text,
        locale=state.locale,
        active_agent_id=state.active_agent_id,
        is_locked=state.is_locked,
        recent=state.recent,
        earlier_agent_ids=state.earlier_agent_ids,
        candidate_ids=state.candidate_ids,
    )
