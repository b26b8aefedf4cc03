"""What is learned before the trees: how common stems are, and what tells that a message goes on.

Rule: what a message is described by was learned of other registries.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from sklearn.feature_extraction import DictVectorizer
from sklearn.linear_model import LogisticRegression

from agent_routing_topics.model.going_on import tokens_of
from agent_routing_topics.model.registry_meaning import pair_of, texts_of
from agent_routing_topics.model.words import split, stem
from topics.training.data import Conversations, Message

REGISTRIES_MIN_OF_STEM: Final = 3
REGISTRIES_MIN_OF_TOKEN: Final = 4
"""In fewer registries, a word is one of a subject."""

STRENGTH: Final = 0.3
"""How far weights may go from 0 (scikit-learn's C)."""

VectorOf = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Learned:
    """shares: of messages that have a stem. goes_on, goes_on_meaning: as in the parameters."""

    shares: Mapping[str, float]
    goes_on: Mapping[str, float]
    goes_on_meaning: Any


def learn(registries: Sequence[Conversations], vector_of: VectorOf) -> Learned:
    """Learn from registries."""
    return Learned(
        _shares(registries), _goes_on(registries), _goes_on_meaning(registries, vector_of)
    )


def _shares(registries: Sequence[Conversations]) -> dict[str, float]:
    counts: Counter[str] = Counter()
    held: dict[str, set[str]] = defaultdict(set)
    total = 0
    for registry in registries:
        for message in registry.messages:
            total += 1
            for each in {stem(word) for word in split(message.question.text)}:
                counts[each] += 1
                held[each].add(registry.name)
    return {
        each: round(counts[each] / total, 5)
        for each in sorted(counts)
        if len(held[each]) >= REGISTRIES_MIN_OF_STEM
    }


def _stays(message: Message) -> bool:
    return message.owner in ("", message.question.active_agent_id)


def _with_active(registries: Sequence[Conversations]) -> list[tuple[str, Message]]:
    return [
        (registry.name, message)
        for registry in registries
        for message in registry.messages
        if message.question.active_agent_id
    ]


def _goes_on(registries: Sequence[Conversations]) -> dict[str, float]:
    found = _with_active(registries)
    tokens = [sorted(tokens_of(message.question)) for _, message in found]
    held: dict[str, set[str]] = defaultdict(set)
    for (name, _), own in zip(found, tokens, strict=True):
        for token in own:
            held[token].add(name)
    table = DictVectorizer()
    rows = table.fit_transform(
        {token: 1.0 for token in own if len(held[token]) >= REGISTRIES_MIN_OF_TOKEN}
        for own in tokens
    )
    fitted = LogisticRegression(C=STRENGTH, max_iter=400).fit(
        rows, [_stays(message) for _, message in found]
    )
    weights = dict(zip(table.get_feature_names_out(), fitted.coef_[0], strict=True))
    weights[""] = fitted.intercept_[0]
    return {token: round(float(weights[token]), 4) for token in sorted(weights)}


def _goes_on_meaning(registries: Sequence[Conversations], vector_of: VectorOf) -> Any:
    found = [message for _, message in _with_active(registries)]
    rows = []
    for message in found:
        recent = message.question.recent
        answer = texts_of(recent[-1])[1] if recent else ""
        rows.append(
            pair_of(vector_of(message.question.text), vector_of(answer) if answer else None)
        )
    fitted = LogisticRegression(C=STRENGTH, max_iter=400, fit_intercept=False).fit(
        np.asarray(rows), [_stays(message) for message in found]
    )
    return np.round(fitted.coef_[0], 4)
