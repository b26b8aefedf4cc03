"""Reads a question for one registry: who may get it, and what speaks for each.

Owns what was computed of the registry. Threads may share it: the messages that it keeps change no
verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from agent_routing_topics.model.agent_index import AgentIndex
from agent_routing_topics.model.choice_features import Options, View, options_of, shortlist
from agent_routing_topics.model.closeness import (
    WORDS_MAX,
    Bag,
    ClosenessIndex,
    Closest,
    closeness,
    segments_of,
)
from agent_routing_topics.model.dialogue_features import Reading, read
from agent_routing_topics.model.manner import Manner
from agent_routing_topics.model.turn_reading import reading_of
from agent_routing_topics.model.verbatim import Verbatim
from agent_routing_topics.model.words import split
from routing_service.topics.topic_detector import RecentTurn, TopicQuestion

AGENTS_COMPARED: Final = 32
"""Agents whose fits are computed in full: those that share most with the message, and whoever the
dialogue speaks for. The options are the best of them."""

MESSAGES_KEPT_MAX: Final = 512
"""Messages and their parts that a detector keeps, 20 KB each at most. When there are more, all are
forgotten."""


class _Said:
    """A text in one registry: its bag, and how close it is to the agents that were asked for."""

    __slots__ = ("_index", "_to", "bag")

    def __init__(self, words: Sequence[str], index: ClosenessIndex) -> None:
        self.bag: Bag = index.bag(words[:WORDS_MAX])
        self._index = index
        self._to: dict[int, Closest] = {}

    def to(self, place: int) -> Closest:
        """Return how close the text is to an agent."""
        found = self._to.get(place)
        if found is None:
            # Two threads may both compute it: the values are the same.
            found = self._to[place] = self._index.closest(self.bag, place)
        return found


class _Messages:
    """The latest messages that were read: each is the last turn of the next question."""

    __slots__ = ("_index", "_known")

    def __init__(self, index: ClosenessIndex) -> None:
        self._index = index
        self._known: dict[tuple[str, ...], _Said] = {}

    def of(self, words: tuple[str, ...]) -> _Said:
        """Return what is known of a message, or read it. words: folded."""
        found = self._known.get(words)
        if found is None:
            if len(self._known) >= MESSAGES_KEPT_MAX:
                self._known = {}
            found = self._known[words] = _Said(words, self._index)
        return found


class _TurnBags(NamedTuple):
    """A turn in one registry."""

    before: _Said
    answer: _Said


@dataclass(frozen=True, slots=True)
class Reader:
    """What was computed of a registry. fit_weights, target_weights: as trained.

    agents_compared: agents that a message is compared with in full.
    """

    index: AgentIndex
    closeness: ClosenessIndex
    verbatim: Verbatim
    manner: Manner
    fit_weights: tuple[float, ...]
    target_weights: tuple[float, ...]
    agents_compared: int = AGENTS_COMPARED
    _messages: _Messages = field(init=False)

    def __post_init__(self) -> None:
        """Begin with no message."""
        object.__setattr__(self, "_messages", _Messages(self.closeness))

    def read(self, question: TopicQuestion) -> Reading:
        """Compare a question with agents."""
        return read(
            question, self.index, self.fit_weights, self.target_weights, self.agents_compared
        )

    def options(self, reading: Reading) -> Options:
        """Return the options of a question that was read, as words show them."""
        places = shortlist(reading)
        return options_of(
            reading, places, self.examples(reading, places), self.manner_of(reading),
            self.view(reading, places),
        )  # fmt: skip

    def examples(self, reading: Reading, places: tuple[int, ...]) -> list[int]:
        """Return how many examples of each agent of a shortlist are compared."""
        at = self.index.place
        return [self.closeness.examples(at[reading.agent_ids[place]]) for place in places]

    def manner_of(self, reading: Reading) -> tuple[float, float]:
        """Return how a message and the answer before it are worded: what speaks for staying.

        0 at an opening, where there is no agent to stay with.
        """
        if reading.present < 0:
            return 0.0, 0.0
        recent = reading.question.recent
        return self.manner.of(reading.message.whole, recent[-1].agent_text if recent else "")

    def view(self, reading: Reading, places: tuple[int, ...]) -> View:
        """Return how close a question is to the agents of a shortlist, by words."""
        question = reading.question
        ids = [reading.agent_ids[place] for place in places]
        at = [self.index.place[agent_id] for agent_id in ids]
        message = self._messages.of(reading.message.whole)
        bag = message.bag
        # Kept like messages: the parts of a message are judged too, and by meaning once more.
        segments = [self._messages.of(tuple(split(part))) for part in segments_of(question.text)]
        turns = [(turn, self._bags_of(turn)) for turn in question.recent]
        said, answered = dict.fromkeys(ids, 0.0), dict.fromkeys(ids, 0.0)
        for turn, bags in turns:
            if turn.agent_id in said:
                agent_id = turn.agent_id
                said[agent_id] = max(said[agent_id], closeness(bag, bags.before.bag))
                answered[agent_id] = max(answered[agent_id], closeness(bag, bags.answer.bag))
        last = turns[-1][1] if turns else None
        return View(
            message=[message.to(place) for place in at],
            segments=[[part.to(place) for place in at] for part in segments],
            answer=[last.answer.to(place) for place in at] if last else [],
            before=[last.before.to(place) for place in at] if last else [],
            said=list(said.values()),
            answered=list(answered.values()),
            to_answer=closeness(bag, last.answer.bag) if last else 0.0,
            to_before=closeness(bag, last.before.bag) if last else 0.0,
        )

    def _bags_of(self, turn: RecentTurn) -> _TurnBags:
        read = reading_of(turn)
        return read.kept(
            self.closeness,
            lambda: _TurnBags(self._messages.of(read.user), _Said(read.agent, self.closeness)),
        )
