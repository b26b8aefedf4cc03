"""What is looked at of a message and of each option it may be for: one row of numbers an option.

Options are the agents that the user may be given, the active one, and none of them, where no agent
is active or the registry says nothing of the active one. Rule: a row depends on the question and on
the registry's texts, and on no agent's id.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from agent_routing_topics.model.agent_text import AgentText
from agent_routing_topics.model.going_on import odds_of, parts_of
from agent_routing_topics.model.registry_words import Closeness, RegistryWords
from agent_routing_topics.model.words import split, stem
from routing_service.topics.topic_detector import RecentTurn, TopicQuestion

NONE: Final = ""
"""The option that a message is for none of the agents."""

OPTIONS_MAX: Final = 8
"""Agents that are compared in full, besides those that had the conversation. The others have no
words in common with the message, or fewer."""

ANSWER_CHARACTERS: Final = 240
"""Of an agent's last answer, its end: what it asks stands there."""

EXAMPLES_MAX: Final = 25.0
STRETCH_MAX: Final = 4
SOON_MAX: Final = 2
"""Answers of the active agent in a row up to which a message is soon after."""

_CLOSE: Final = ("described", "shown", "both", "part", "answer", "context")
WORD_COLUMNS: Final = (
    *(f"stems_{name}" for name in _CLOSE),
    *(f"pieces_{name}" for name in _CLOSE),
    "stems_said",
)
MEANING_COLUMNS: Final = tuple(
    f"meaning_{name}" for name in ("described", "shown", "both", "context", "said", "told")
)
OWN: Final = ("is_active", "is_none", "back", "turns_had", "examples", "is_described")
SHARED: Final = (
    *("is_locked", "is_finished", "words", "parts", "asks", "answer_asks", "stretch", "turns"),
    *("options", "examples_mean", "near_answer", "goes_on"),
)
MEANING_SHARED: Final = ("goes_on_meaning",)


def names_of(columns: Sequence[str], shared: Sequence[str]) -> tuple[str, ...]:
    """Return the names of a row's numbers, in order."""
    leads = (f"{name}_{kind}" for kind in ("lead", "over") for name in columns)
    return (*columns, *leads, *OWN, *shared)


WORD_FEATURES: Final = names_of(WORD_COLUMNS, SHARED)
MEANING_FEATURES: Final = names_of(WORD_COLUMNS + MEANING_COLUMNS, SHARED + MEANING_SHARED)


@dataclass(slots=True)
class TurnReading:
    """What is read of an earlier turn, kept with it. vectors: of the user's text and the answer."""

    stems: frozenset[str]
    vectors: list[Any] = field(default_factory=lambda: [None, None])


@dataclass(slots=True)
class Reading:
    """A question as it was read. places: of the agents that are options; columns: by option."""

    question: TopicQuestion
    places: list[int]
    ids: list[str]
    parts: list[str]
    columns: list[list[float]]
    own: list[list[float]]
    shared: list[float]

    @property
    def kind(self) -> int:
        """Return which of the temperatures holds: of first messages, soon after, or later."""
        if not self.question.active_agent_id:
            return 0
        return 1 if self.shared[SHARED.index("stretch")] <= SOON_MAX else 2

    def rows(self, columns: Sequence[list[float]] = (), shared: Sequence[float] = ()) -> Any:
        """Return a row an option. columns, shared: further ones, as of meaning."""
        every = [*self.columns, *columns]
        leads, overs = [], []
        for column in every:
            ordered = sorted(column)
            top, second = ordered[-1], ordered[-2] if len(ordered) > 1 else 0.0
            mean = sum(ordered) / len(ordered)
            leads.append([value - (second if value == top else top) for value in column])
            overs.append([value - mean for value in column])
        by_option = zip(*every, *leads, *overs, strict=True)
        tail = [*self.shared, *shared]
        return [[*close, *own, *tail] for close, own in zip(by_option, self.own, strict=True)]


class OptionReader:
    """Reads questions for one registry. Verdicts may share it between threads."""

    def __init__(
        self, agents: Sequence[AgentText], words: RegistryWords, goes_on: Mapping[str, float]
    ) -> None:
        """Take over what was computed of a registry's agents. goes_on: weights of tokens."""
        self.agents = agents
        self.words = words
        self._goes_on = goes_on
        self._at = {agent.agent_id: place for place, agent in enumerate(agents)}
        self._examples = [min(float(len(one.examples)), EXAMPLES_MAX) for one in agents]
        self.examples_mean = sum(self._examples) / max(1, len(agents))
        self._maker = f"topics-{id(self)}"

    def read(self, question: TopicQuestion) -> Reading:
        """Read a question by its words."""
        words, recent = self.words, question.recent
        parts = parts_of(question.text)
        close = [words.closeness(split(part)) for part in parts]
        whole = close[0]
        for more in close[1:]:
            whole = whole + more
        answer = recent[-1].agent_text[-ANSWER_CHARACTERS:] if recent else ""
        answered = split(answer)
        to_answer = words.closeness(answered)
        stems = {stem(word) for word in split(question.text)}
        said, had = self._said(recent, stems)
        columns = self._columns(whole, close, to_answer)
        columns.append(said)
        places = self._options(question, columns, had)
        active = question.active_agent_id
        ids = [self.agents[place].agent_id for place in places]
        kept = [[column[place] for place in places] for column in columns]
        own = [self._own(question, place, had) for place in places]
        if active not in ids:
            ids.append(NONE)
            kept = [[*column, 0.0] for column in kept]
            own.append([0.0, 1.0, 0.0, 0.0, 0.0, 0.0])
        shared = self._shared(question, parts, stems, {stem(word) for word in answered}, answer)
        shared[SHARED.index("options")] = float(len(ids))
        return Reading(question, places, ids, parts, kept, own, shared)

    def turn(self, turn: RecentTurn) -> TurnReading:
        """Return what was read of a turn, kept in its notes."""
        return turn.notes.kept(self._maker, lambda: _read_turn(turn))

    def place_of(self, agent_id: str) -> int | None:
        """Return an agent's place, None for one that the registry says nothing of."""
        return self._at.get(agent_id)

    def _columns(
        self, whole: Closeness, parts: Sequence[Closeness], answer: Closeness
    ) -> list[list[float]]:
        columns = []
        context = whole + answer
        for space in (0, 1):
            both = whole.of(space, 2)
            best = both
            if len(parts) > 1:
                by_part = [one.of(space, 2) for one in parts]
                best = [max(each) for each in zip(*by_part, strict=True)]
            columns += [whole.of(space, 0), whole.of(space, 1), both, best]
            columns += [answer.of(space, 2), context.of(space, 2)]
        return columns

    def _said(
        self, recent: Sequence[RecentTurn], stems: set[str]
    ) -> tuple[list[float], list[float]]:
        """Return how close a message is to what was said with each agent, and its turns."""
        said, had = [0.0] * len(self.agents), [0.0] * len(self.agents)
        square = self.words.square(stems)
        for turn in recent:
            place = self._at.get(turn.agent_id)
            if place is None:
                continue
            had[place] += 1
            own = self.turn(turn).stems
            if common := self.words.square(own & stems):
                near = common / math.sqrt(square * self.words.square(own))
                said[place] = max(said[place], near)
        return said, had

    def _options(
        self, question: TopicQuestion, columns: Sequence[list[float]], had: Sequence[float]
    ) -> list[int]:
        """Return the agents that are compared in full, in the registry's order."""
        active, candidates = question.active_agent_id, question.candidate_ids
        allowed = [
            place
            for place, agent in enumerate(self.agents)
            if agent.agent_id in candidates or agent.agent_id == active
        ]
        if len(allowed) <= OPTIONS_MAX:
            return allowed
        stems, pieces = columns[2], columns[2 + len(_CLOSE)]
        near = {place: stems[place] + pieces[place] for place in allowed}
        best = set(sorted(allowed, key=lambda place: (-near[place], place))[:OPTIONS_MAX])
        return [
            place
            for place in allowed
            if place in best or had[place] or self.agents[place].agent_id == active
        ]

    def _own(self, question: TopicQuestion, place: int, had: Sequence[float]) -> list[float]:
        agent = self.agents[place]
        earlier = question.earlier_agent_ids
        back = 0.0
        if agent.agent_id in earlier:
            back = 1.0 / (len(earlier) - earlier.index(agent.agent_id))
        is_active = float(agent.agent_id == question.active_agent_id)
        is_described = float(bool(agent.descriptions))
        return [is_active, 0.0, back, had[place], self._examples[place], is_described]

    def _shared(
        self,
        question: TopicQuestion,
        parts: Sequence[str],
        stems: set[str],
        answered: set[str],
        answer: str,
    ) -> list[float]:
        recent, active, square = question.recent, question.active_agent_id, self.words.square
        stretch = 0
        for turn in reversed(recent):
            if turn.agent_id != active or stretch == STRETCH_MAX:
                break
            stretch += 1
        common = square(answered & stems)
        near = common / math.sqrt(square(answered) * square(stems)) if common else 0.0
        return [
            float(question.is_locked),
            float(bool(recent) and recent[-1].outcome == "complete"),
            math.log1p(len(split(question.text))),
            float(len(parts)),
            float("?" in question.text),
            float(answer.rstrip().endswith("?")),
            float(stretch),
            float(len(recent)),
            0.0,
            self.examples_mean,
            near,
            odds_of(question, self._goes_on) if active else 0.0,
        ]


def _read_turn(turn: RecentTurn) -> TurnReading:
    texts = split(turn.user_text) + split(turn.agent_text)
    return TurnReading(frozenset(stem(word) for word in texts))
