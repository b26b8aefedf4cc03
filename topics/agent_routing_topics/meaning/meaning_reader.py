"""Reads a question by meaning: vectors of the message, its parts and the last turns.

Owns the matrix of a registry's texts. Threads may share it: the vectors that it keeps of the latest
texts change no verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from agent_routing_topics.meaning.meaning_parameters import GoesOn
from agent_routing_topics.model.agent_index import AgentText, places_of_best
from agent_routing_topics.model.choice_features import Options, View, options_of, shortlist
from agent_routing_topics.model.closeness import Closest, closest_of, examples_of, segments_of
from agent_routing_topics.model.dialogue_features import Reading
from agent_routing_topics.model.reader import Reader
from agent_routing_topics.model.turn_reading import reading_of
from routing_service.topics.topic_detector import RecentTurn

TURNS_READ: Final = 3
"""The last turns whose texts have vectors: each text costs about as much as the message's own."""

CLOSEST_ADDED: Final = 4
"""Agents that are options because their texts are closest in meaning."""

CHARACTERS_MAX: Final = 400
"""Of a text, its beginning: the time that a vector takes grows with the text."""

TEXTS_KEPT_MAX: Final = 512
"""Texts whose vectors are kept, 2 KB each: a message is the last turn of the next question. When
there are more, all are forgotten."""

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
        self._kept: dict[str, Any] = {}
        self._weights: tuple[GoesOn, Any] | None = None
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
        texts = [question.text, *segments_of(question.text)]
        turns = question.recent[-TURNS_READ:]
        encoded = self._read(texts, turns)
        message = encoded[0]
        words = self._words
        to_message = self._vectors @ message
        places = shortlist(reading, self._closest_agents(reading, to_message))
        view = self._view(reading, places, encoded, to_message, turns)
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

    def _read(self, texts: Sequence[str], turns: Sequence[RecentTurn]) -> list[Any]:
        """Return the vectors of texts. Those of turns that have none are made in the same batch.

        A batch reads the encoder's weights once: a second text costs half of what it does alone.
        """
        new = [turn for turn in turns if not reading_of(turn).has(self._encode)]
        wanted = [text[:CHARACTERS_MAX] for text in texts]
        of_turns = [
            text[:CHARACTERS_MAX] for turn in new for text in (turn.user_text, turn.agent_text)
        ]
        known = self._kept
        missing = [text for text in dict.fromkeys((*wanted, *of_turns)) if text not in known]
        if missing:
            made = dict(zip(missing, self._encode(missing), strict=True))
            # Assigned whole: another thread reads the one dict or the other.
            has_room = len(known) + len(made) <= TEXTS_KEPT_MAX
            self._kept = {**known, **made} if has_room else made
            known = {**known, **made}
        for at, turn in enumerate(new):
            pair = np.stack([known[text] for text in of_turns[2 * at : 2 * at + 2]])
            reading_of(turn).kept(self._encode, lambda pair=pair: pair)  # type: ignore[misc]
        return [known[text] for text in wanted]

    def _pair(self, turn: RecentTurn) -> Any:
        """Return the vectors of what the user said and what the agent answered."""

        def made() -> Any:
            return self._encode([turn.user_text[:CHARACTERS_MAX], turn.agent_text[:CHARACTERS_MAX]])

        return reading_of(turn).kept(self._encode, made)

    def _closest_agents(self, reading: Reading, to_message: Any) -> list[int]:
        """Return the places of the agents closest in meaning, of those that the reading has.

        to_message: how close each text of all agents is.
        """
        best = np.maximum.reduceat(to_message, self._starts).tolist()
        place = self._words.index.place
        values = [best[place[agent_id]] for agent_id in reading.agent_ids]
        return places_of_best(values, CLOSEST_ADDED)

    def _to_agents(self, vectors: Sequence[Any], at: Sequence[int]) -> list[list[Closest]]:
        """Return how close each vector is to each agent."""
        if not vectors:
            return []
        slices = [self._slices[place] for place in at]
        texts = np.concatenate([self._vectors[part] for part in slices])
        found = (texts @ np.stack(vectors, axis=1)).T.tolist()
        ends = np.cumsum([part.stop - part.start for part in slices]).tolist()
        begins = [0, *ends[:-1]]
        return [
            [closest_of(values[begin:end]) for begin, end in zip(begins, ends, strict=True)]
            for values in found
        ]

    def _view(
        self,
        reading: Reading,
        places: tuple[int, ...],
        encoded: Sequence[Any],
        to_message: Any,
        turns: Sequence[RecentTurn],
    ) -> View:
        """Return how close a question is to the agents of a shortlist, by meaning.

        encoded: the message and its parts. to_message: how close each text of all agents is.
        """
        message = encoded[0]
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
        found = self._to_agents([*encoded[1:], *(last if last is not None else ())], at)
        segments = len(encoded) - 1
        return View(
            message=[closest_of(to_message[self._slices[place]].tolist()) for place in at],
            segments=found[:segments],
            answer=found[segments + 1] if last is not None else [],
            before=found[segments] if last is not None else [],
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
            for block, weights in zip(blocks, self._weights_of(goes_on), strict=True)
        )
        return odds + sum(value * weight for value, weight in zip(rest, goes_on.rest, strict=True))

    def _weights_of(self, goes_on: GoesOn) -> Any:
        """Return the weights of vectors as rows, made once."""
        known = self._weights
        if known is None or known[0] is not goes_on:
            known = self._weights = goes_on, np.asarray(goes_on.vectors, dtype=np.float64)
        return known[1]
