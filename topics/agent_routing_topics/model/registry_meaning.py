"""How close a text is in meaning to a registry's agents. Needs NumPy.

A registry's texts have much in common: their mean is taken from every vector before two are
compared. Three vectors an agent: what it says of itself, its examples, and both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from agent_routing_topics.model.agent_text import AgentText
from agent_routing_topics.model.option_rows import ANSWER_CHARACTERS, NONE, OptionReader, Reading
from routing_service.topics.topic_detector import RecentTurn

CONTEXT_WEIGHT: Final = 0.5
"""Of what the agent said last, in the context of a message."""

GOES_ON_SCALE: Final = 10.0
"""Of the products of two vectors, which are as large as the vectors' own numbers then."""

Encode = Callable[[Sequence[str]], Any]


class RegistryMeaning:
    """The vectors of one registry. Immutable."""

    def __init__(self, agents: Sequence[AgentText], vectors: Any) -> None:
        """Take over a row a text of all agents, in order."""
        self._mean = vectors.mean(axis=0)
        centred = self.centred(vectors)
        found, first = [], 0
        for agent in agents:
            shown = first + len(agent.description)
            end = first + len(agent.texts)
            parts = (centred[first:shown], centred[shown:end], centred[first:end])
            found += [part.sum(axis=0) for part in parts]
            first = end
        self._documents = _units(np.asarray(found, dtype=np.float32))

    def centred(self, vectors: Any) -> Any:
        """Return vectors without what all texts of the registry have in common, of length 1."""
        return _units(vectors - self._mean)

    def closeness(self, centred: Any) -> Any:
        """Return the cosines of centred vectors: by vector, agent and document."""
        return (centred @ self._documents.T).reshape(len(centred), -1, 3)


def columns_of(
    reader: OptionReader, meaning: RegistryMeaning, reading: Reading, encode: Encode, goes_on: Any
) -> tuple[list[list[float]], list[float]]:
    """Return the columns of a reading by meaning, and what all options share.

    Encodes what has no vector yet: the message, the last answer, and turns judged by words.
    """
    question = reading.question
    turns = [reader.turn(turn) for turn in question.recent]
    missing: dict[str, None] = {question.text: None}
    for turn, read in zip(question.recent, turns, strict=True):
        for text, vector in zip(texts_of(turn), read.vectors, strict=True):
            if vector is None and text:
                missing[text] = None
    texts = list(missing)
    vectors = dict(zip(texts, encode(texts), strict=True))
    for turn, read in zip(question.recent, turns, strict=True):
        for at, text in enumerate(texts_of(turn)):
            if read.vectors[at] is None and text:
                read.vectors[at] = vectors[text]
    message = vectors[question.text]
    answer = turns[-1].vectors[1] if turns else None
    own = meaning.centred(message)
    context = own
    if answer is not None:
        context = _units(context + CONTEXT_WEIGHT * meaning.centred(answer))
    close = meaning.closeness(np.asarray([own, context]))
    said, told = np.zeros(len(reader.agents)), np.zeros(len(reader.agents))
    for turn, read in zip(question.recent, turns, strict=True):
        place = reader.place_of(turn.agent_id)
        held = [vector for vector in read.vectors if vector is not None]
        if place is None or not held:
            continue
        said[place] = max(said[place], float(meaning.centred(np.mean(held, axis=0)) @ own))
        if read.vectors[0] is not None:
            told[place] = max(told[place], float(read.vectors[0] @ message))
    by_agent = [*close[0].T, close[1, :, 2], said, told]
    columns = [column[reading.places].tolist() for column in map(np.asarray, by_agent)]
    if reading.ids[-1:] == [NONE]:
        columns = [[*column, 0.0] for column in columns]
    odds = float(goes_on @ pair_of(message, answer)) if question.active_agent_id else 0.0
    return columns, [odds]


def texts_of(turn: RecentTurn) -> tuple[str, str]:
    """Return what is encoded of a turn: the user's text, and the end of the answer."""
    return turn.user_text, turn.agent_text[-ANSWER_CHARACTERS:]


def pair_of(message: Any, answer: Any) -> Any:
    """Return what the odds of going on are read from: two vectors, their products, and 1."""
    if answer is None:
        answer = np.zeros_like(message)
    return np.concatenate([message, answer, GOES_ON_SCALE * message * answer, [1.0]])


def _units(vectors: Any) -> Any:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-9)
