"""Reads a question by meaning: vectors of the message, its parts and the last turns.

Owns the matrix of a registry's texts. Immutable once made, so that threads may share it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from routing_service.topics.meaning.meaning_parameters import GoesOn
from routing_service.topics.model.agent_index import AgentText, places_of_best
from routing_service.topics.model.choice_features import Options, View, options_of, shortlist
from routing_service.topics.model.closeness import Closest, closest_of, examples_of, segments_of
from routing_service.topics.model.dialogue_features import Reading
from routing_service.topics.model.reader import Reader
from routing_service.topics.model.turn_reading import reading_of
from routing_service.topics.topic_detector import RecentTurn

TURNS_READ: Final = 3
"""The last turns whose texts have vectors: each text costs about as much as the message's own."""

CLOSEST_ADDED: Final = 4
"""Agents that are options because their texts are closest in meaning."""

CHARACTERS_MAX: Final = 400
"""Of a text, its beginning: the time that a vector takes grows with the text."""

Encode = Callable[[Sequence[str]], Any]


def texts_of(agent: AgentText) -> list[str]:
    """Return what an agent is compared by: name with description, name, and its examples."""
    described = ". ".join((*agent.names[:1], *agent.descriptions))
    texts = (described, " ".join(agent.names), *examples_of(agent))
    return [text[:CHARACTERS_MAX] for text in texts]


class MeaningReader:
    """The texts of a registry's agents as vectors."""

    def __init__(
        self, words: Reader, agents: Sequence[AgentText], vectors: Any, encode: Encode
    ) -> None:
        """Take over a row a text of all agents, in the order of the index."""
        self._words = words
        self._vectors = vectors
        self._encode = encode
        sizes = [len(texts_of(agent)) for agent in agents]
        ends = np.cumsum(sizes)
        self._slices = [
            slice(int(end) - size, int(end)) for size, end in zip(sizes, ends, strict=True)
        ]
        # The name is no text that a message is compared with for the shortlist.
        self._starts = ends - np.asarray(sizes)

    def options(self, reading: Reading, goes_on: GoesOn) -> Options:
        """Return the options of a question that was read by words."""
        question = reading.question
        texts = [question.text[:CHARACTERS_MAX]]
        texts += [part[:CHARACTERS_MAX] for part in segments_of(question.text)]
        turns = question.recent[-TURNS_READ:]
        self._read_turns(turns)
        encoded = self._encode(texts)
        message, segments = encoded[0], encoded[1:]
        words = self._words
        closest = self._closest_agents(reading, message)
        places = shortlist(reading, closest)
        view = self._view(reading, places, message, segments, turns)
        manner = words.manner_of(reading)
        odds = self._goes_on(reading, goes_on, message, turns, view, manner)
        return options_of(
            reading,
            places,
            words.examples(reading, places),
            manner,
            words.view(reading, places),
            view,
            goes_on=odds,
        )

    def _read_turns(self, turns: Sequence[RecentTurn]) -> None:
        """Make the vectors of turns that have none yet, all in one batch."""
        new = [turn for turn in turns if not reading_of(turn).has(self._encode)]
        if new:
            texts = [
                text[:CHARACTERS_MAX] for turn in new for text in (turn.user_text, turn.agent_text)
            ]
            found = self._encode(texts)
            for at, turn in enumerate(new):
                pair = found[2 * at : 2 * at + 2]
                reading_of(turn).kept(self._encode, lambda pair=pair: pair)  # type: ignore[misc]

    def _pair(self, turn: RecentTurn) -> Any:
        """Return the vectors of what the user said and what the agent answered."""

        def made() -> Any:
            return self._encode([turn.user_text[:CHARACTERS_MAX], turn.agent_text[:CHARACTERS_MAX]])

        return reading_of(turn).kept(self._encode, made)

    def _closest_agents(self, reading: Reading, message: Any) -> list[int]:
        """Return the places of the agents closest in meaning, of those that the reading has."""
        best = np.maximum.reduceat(self._vectors @ message, self._starts)
        place = self._words.index.place
        values = [float(best[place[agent_id]]) for agent_id in reading.agent_ids]
        return places_of_best(values, CLOSEST_ADDED)

    def _to_agents(self, vector: Any, at: Sequence[int]) -> list[Closest]:
        found = [(self._vectors[self._slices[place]] @ vector).tolist() for place in at]
        return [closest_of(values) for values in found]

    def _view(
        self,
        reading: Reading,
        places: tuple[int, ...],
        message: Any,
        segments: Any,
        turns: Sequence[RecentTurn],
    ) -> View:
        ids = [reading.agent_ids[place] for place in places]
        at = [self._words.index.place[agent_id] for agent_id in ids]
        said, answered = dict.fromkeys(ids, 0.0), dict.fromkeys(ids, 0.0)
        for turn in turns:
            if turn.agent_id in said:
                before, answer = (float(value) for value in self._pair(turn) @ message)
                said[turn.agent_id] = max(said[turn.agent_id], before)
                answered[turn.agent_id] = max(answered[turn.agent_id], answer)
        last = self._pair(turns[-1]) if turns else None
        to_last = (last @ message).tolist() if last is not None else (0.0, 0.0)
        return View(
            message=self._to_agents(message, at),
            segments=[self._to_agents(part, at) for part in segments],
            answer=self._to_agents(last[1], at) if last is not None else [],
            before=self._to_agents(last[0], at) if last is not None else [],
            said=list(said.values()),
            answered=list(answered.values()),
            to_answer=to_last[1],
            to_before=to_last[0],
        )

    def _goes_on(  # noqa: PLR0917 - parts of one reading
        self,
        reading: Reading,
        goes_on: GoesOn,
        message: Any,
        turns: Sequence[RecentTurn],
        view: View,
        manner: tuple[float, float],
    ) -> float:
        """Return the log odds that a message goes on with the active agent; 0 at an opening."""
        if reading.present < 0 or not turns:
            return 0.0
        before, answer = self._pair(turns[-1])
        outcome = turns[-1].outcome
        rest = (
            *(view.to_answer, view.to_before),
            *(outcome == "follow_up", outcome == "complete"),
            *manner,
        )
        blocks = (message, answer, message * answer, message * before)
        odds = goes_on.base + sum(
            float(np.dot(block, weights))
            for block, weights in zip(blocks, goes_on.vectors, strict=True)
        )
        return odds + sum(value * weight for value, weight in zip(rest, goes_on.rest, strict=True))
