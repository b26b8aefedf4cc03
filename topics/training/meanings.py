"""Training of what is learned of vectors: who goes on, and the trees that see meaning too.

Rule: what a message's odds of going on are to trees that train, other registries taught.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
from sklearn.linear_model import LogisticRegression

from agent_routing_topics.meaning.meaning_parameters import FORMAT, GoesOn, MeaningParameters
from agent_routing_topics.meaning.meaning_reader import CHARACTERS_MAX, MeaningReader, texts_of
from agent_routing_topics.model.agent_index import AgentIndex, go_on
from agent_routing_topics.model.choice_features import MEANING_FEATURES
from agent_routing_topics.model.closeness import ClosenessIndex
from agent_routing_topics.model.reader import Reader
from agent_routing_topics.model.verbatim import Verbatim
from agent_routing_topics.sentence_vectors import load_encoder, model_sha256
from topics.training.choice_forest import Fitted, Group, fit_choice
from topics.training.questions import Asked
from topics.training.train import Basis, group_from, reading_with

_FOLDS: Final = 5
_STRENGTH: Final = 0.1
_SCALES: Final = (2.2, 2.2, 25.0, 25.0)
"""Of the blocks of vectors: products of two are small numbers."""
_REST_SCALES: Final = (4.0, 4.0, 2.0, 2.0, 1.0, 1.0)
_CORPORA_SHARE: Final = 0.06
_CORPORA_WEIGHT: Final = 2.0
_DIGITS: Final = 3


class Vectors:
    """Vectors of texts, each computed once. Called as an encoder is."""

    def __init__(self) -> None:
        self._encoder = load_encoder()
        self._known: dict[str, Any] = {}

    def encode(self, texts: Sequence[str]) -> Any:
        """Return a row a text."""
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        if new:
            # As the service keeps them.
            found = self._encoder.encode(new).astype(np.float16).astype(np.float32)
            self._known.update(zip(new, found, strict=True))
        return np.array([self._known[text] for text in texts]).reshape(len(texts), -1)


@dataclass
class _Worths:
    """Stands for the manner: what the phrases of one message are worth to those who saw others."""

    now: tuple[float, float] = (0.0, 0.0)

    def of(self, _words: object, _answer: object) -> tuple[float, float]:
        """Return them."""
        return self.now


@dataclass(frozen=True, slots=True)
class TrainedMeaning:
    """Parameters, and how they were judged by folds."""

    parameters: MeaningParameters
    fitted: Fitted


def train_meaning(
    asked: Sequence[Asked], basis: Basis, worths: dict[int, tuple[float, float]]
) -> TrainedMeaning:
    """Return what is learned of questions that the word model was trained on."""
    chance = random.Random(6)
    kept = [one for one in asked if one.source.registry or chance.random() < _CORPORA_SHARE]
    vectors = Vectors()
    goes_on, by_registry = _learn_goes_on(kept, worths, vectors)
    groups = list(_groups(kept, basis, worths, by_registry | {"": goes_on}, vectors))
    fitted = fit_choice(MEANING_FEATURES, groups)
    parameters = MeaningParameters(
        format=FORMAT,
        version="",
        encoder=model_sha256(),
        goes_on=goes_on,
        choice=fitted.forest,
        temperatures=fitted.temperatures,
    )
    digest = hashlib.sha256(msgspec.json.encode(parameters)).hexdigest()[:8]
    version = f"use-{digest}"
    return TrainedMeaning(msgspec.structs.replace(parameters, version=version), fitted)


def _learn_goes_on(
    asked: Sequence[Asked], worths: dict[int, tuple[float, float]], vectors: Vectors
) -> tuple[GoesOn, dict[str, GoesOn]]:
    """Return what all field registries teach, and by registry what others teach."""
    own = [
        one
        for one in asked
        if one.source.kind == "given"
        and one.is_scored
        and one.reading.present >= 0
        and one.reading.question.recent
    ]
    rows = np.stack([_row(one, worths[id(one)], vectors) for one in own])
    stays = np.array([one.owner == one.reading.present for one in own])
    names = np.array([one.source.registry for one in own])
    order = sorted(set(names.tolist()), key=lambda name: (name[-2:], name))
    random.Random(3).shuffle(order)
    by_registry: dict[str, GoesOn] = {}
    for at in range(_FOLDS):
        held = order[at::_FOLDS]
        rest = ~np.isin(names, held)
        by_registry |= dict.fromkeys(held, _fit(rows[rest], stays[rest]))
    return _fit(rows, stays), by_registry


def _row(one: Asked, manner: tuple[float, float], vectors: Vectors) -> Any:
    question = one.reading.question
    last = question.recent[-1]
    texts = (question.text, last.user_text, last.agent_text)
    message, before, answer = vectors.encode([text[:CHARACTERS_MAX] for text in texts])
    rest = (
        *(answer @ message, before @ message),
        *(last.outcome == "follow_up", last.outcome == "complete"),
        *manner,
    )
    blocks = (message, answer, message * answer, message * before)
    scaled = [block * scale for block, scale in zip(blocks, _SCALES, strict=True)]
    return np.concatenate([*scaled, np.array(rest) * _REST_SCALES])


def _fit(rows: Any, stays: Any) -> GoesOn:
    model = LogisticRegression(C=_STRENGTH, max_iter=200).fit(rows, stays)
    weights = model.coef_[0]
    ends = np.split(weights[: -len(_REST_SCALES)], len(_SCALES))
    return GoesOn(
        base=_short(model.intercept_[0]),
        vectors=tuple(
            tuple(_short(weight * scale) for weight in block)
            for block, scale in zip(ends, _SCALES, strict=True)
        ),
        rest=tuple(
            _short(weight * scale)
            for weight, scale in zip(weights[-len(_REST_SCALES) :], _REST_SCALES, strict=True)
        ),
    )


def _groups(
    asked: Sequence[Asked],
    basis: Basis,
    worths: dict[int, tuple[float, float]],
    goes_on: dict[str, GoesOn],
    vectors: Vectors,
) -> Iterator[Group]:
    """Yield the options of each question, as words and meaning show them."""
    known: tuple[Any, Any] = (None, None)
    manner = _Worths()
    for one in asked:
        source = one.source
        if known[0] is not source:
            words = Reader(
                AgentIndex(source.agents, source.knowledge),
                ClosenessIndex(source.agents, source.knowledge, go_on),
                Verbatim(()),
                manner,  # type: ignore[arg-type]
                basis.fit,
                basis.target,
            )
            texts = [text for agent in source.agents for text in texts_of(agent)]
            meaning = MeaningReader(words, source.agents, vectors.encode(texts), vectors.encode)
            known = (source, meaning)
        manner.now = worths.get(id(one), (0.0, 0.0))
        reading = reading_with(one, basis)
        options = known[1].options(reading, goes_on[source.registry])
        group = group_from(one, reading, options, _CORPORA_WEIGHT)
        if group is not None:
            yield group


def _short(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
