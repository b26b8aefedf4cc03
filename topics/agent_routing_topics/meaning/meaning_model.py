"""The model with vectors: the word model first, and meaning where words are not sure.

Rule: until a registry's vectors are there, its detector judges by words alone.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from agent_routing_topics.meaning.example_vectors import ExampleVectors
from agent_routing_topics.meaning.meaning_parameters import MeaningParameters
from agent_routing_topics.meaning.meaning_reader import Encode, MeaningReader, texts_of
from agent_routing_topics.model.agent_index import AgentText
from agent_routing_topics.model.compiled_forest import Score, compiled
from agent_routing_topics.model.trained_model import (
    TrainedDetector,
    TrainedModel,
    agent_texts,
    said_word_for_word,
    verdict_of,
)
from routing_service.topics.topic_detector import TopicQuestion, TopicVerdict

if TYPE_CHECKING:
    from routing_service.core.registry import Registry

STAY_SURE: Final = 0.75
OTHER_SURE: Final = 0.85
"""Where words are so sure that a message stays, or that it is for another agent, no vector is made.
In folds over whole registries that is 51 % of messages, 60 % with 25 more examples an agent, and as
many are right as with vectors for all."""

PART_LEAST: Final = 0.6
"""A part of a message that words take for no agent's request with so much has none by meaning."""

LIMIT_S: Final = 2.0
"""Hundreds of times of what a verdict takes: only a machine without a free core is late, and its
messages are routed as if topics were off."""

_log = structlog.get_logger(__name__)


class MeaningModel:
    """Makes detectors from the word model, an encoder and what was learned of its vectors.

    limit_s: how long a verdict may take, off the event loop.
    """

    def __init__(
        self,
        words: TrainedModel,
        parameters: MeaningParameters,
        encode: Encode,
        vectors_path: Path | None = None,
        *,
        waits: bool = False,
        limit_s: float = LIMIT_S,
    ) -> None:
        """Take over what has been checked. vectors_path: the file of kept vectors, if any.

        waits: a detector is made only once its vectors are there, rather than computed in a thread.
        """
        self.limit_s = limit_s
        self._waits = waits
        self.version = f"{words.version}-{parameters.version}"
        self._words = words
        self._parameters = parameters
        self._encode = encode
        self._score = compiled(parameters.choice)
        self._vectors = ExampleVectors(vectors_path, encode, parameters.encoder)

    def has_seen(self, corpus: str, agent_id: str) -> bool:
        """Tell whether an agent of a corpus was in what the model was trained on."""
        return self._words.has_seen(corpus, agent_id)

    def for_registry(self, registry: Registry) -> MeaningDetector:
        """Make the detector of a registry; see for_agents()."""
        return self.for_agents(agent_texts(registry))

    def for_agents(self, agents: Sequence[AgentText]) -> MeaningDetector:
        """Make the detector of agents; missing vectors are computed in a thread."""
        in_order = sorted(agents, key=lambda agent: agent.agent_id)
        detector = MeaningDetector(
            self._words.for_agents(in_order), self._parameters, self._score, self._encode
        )
        texts = [text for agent in in_order for text in texts_of(agent)]

        def fill() -> None:
            try:
                detector.take(in_order, self._vectors.of(texts))
            except Exception as error:  # noqa: BLE001 - the word model goes on judging
                _log.error("topic_vectors_failed", exc_info=error)

        if not texts:
            return detector
        if self._waits or not self._vectors.missing(texts):
            fill()
        else:
            threading.Thread(target=fill, name="topic vectors", daemon=True).start()
        return detector


class MeaningDetector:
    """The model for one registry."""

    def __init__(
        self, words: TrainedDetector, parameters: MeaningParameters, score: Score, encode: Encode
    ) -> None:
        """Begin with words alone."""
        self._words = words
        self._parameters = parameters
        self._score = score
        self._encode = encode
        self._reader: MeaningReader | None = None

    @property
    def is_ready(self) -> bool:
        """Tell whether the registry's vectors are there."""
        return self._reader is not None

    def take(self, agents: Sequence[AgentText], vectors: object) -> None:
        """Judge by meaning from now on. vectors: a row a text of all agents, in order."""
        self._reader = MeaningReader(self._words.reader, agents, vectors, self._encode)

    def judge(self, question: TopicQuestion) -> TopicVerdict:
        """Say for whom a message is."""
        return self._judged(question, 0.0)

    def judge_part(self, question: TopicQuestion) -> TopicVerdict:
        """Say for whom a part of a message is: by words where they see no request in it."""
        return self._judged(question, PART_LEAST)

    def _judged(self, question: TopicQuestion, least: float) -> TopicVerdict:
        by_meaning, words = self._reader, self._words
        if by_meaning is None or not words.reader.index.agent_ids:
            return words.judge(question)
        owner = words.reader.verbatim.owner_of(question)
        if owner:
            return said_word_for_word(question, owner)
        reading = words.reader.read(question)
        verdict = words.verdict(reading)
        if is_sure(verdict) or _likeliest(verdict) < least:
            return verdict
        options = by_meaning.options(reading, self._parameters.goes_on)
        return verdict_of(reading, options, self._score, self._parameters.temperatures)


def is_sure(verdict: TopicVerdict) -> bool:
    """Tell whether a verdict by words needs no vectors."""
    return verdict.stay >= STAY_SURE or _best_other(verdict) >= OTHER_SURE


def _likeliest(verdict: TopicVerdict) -> float:
    return max(verdict.stay, _best_other(verdict))


def _best_other(verdict: TopicVerdict) -> float:
    return verdict.ranked[0][1] if verdict.ranked else 0.0
