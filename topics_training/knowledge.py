"""Learning what words tell and what they are about.

Owns the weights and vectors of words. Must not know registries or dialogues. Rule: what is learned
of a text is learned from its intent, never from the name of an agent.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression

from routing_service.topics.concepts import load_concepts
from routing_service.topics.word_knowledge import WordKnowledge

_HELD_BY_MIN: Final = 2
_LEANING_MIN: Final = 0.3
"""Smaller ones are nine tenths of all and change one verdict in five hundred."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text and what it is about; language: whose common words it is counted among."""

    text: str
    intent: str
    language: str


def learn(texts: Sequence[Text], commons: Sequence[Text] = ()) -> WordKnowledge:
    """Learn from texts with intents; commons: texts that only say which words are common."""
    concepts = load_concepts()
    bare = WordKnowledge({}, {}, (), concepts)
    words_of = [bare.words(text.text) for text in texts]
    held: dict[str, Counter[str]] = {}
    sizes: Counter[str] = Counter()
    for text, words in [
        *zip(texts, words_of, strict=True),
        *((text, bare.words(text.text)) for text in commons),
    ]:
        held.setdefault(text.language, Counter()).update(w for w in words if w[0] != "@")
        sizes[text.language] += 1
    weights = _weights(held, sizes)
    known = WordKnowledge(weights, {}, (), concepts)
    leanings, biases = _leanings(words_of, [text.intent for text in texts], known)
    return WordKnowledge(weights, leanings, biases, concepts)


def _weights(held: dict[str, Counter[str]], sizes: Counter[str]) -> dict[str, float]:
    """Return weights: less, the more texts have a word, in the language that uses it most."""
    weights: dict[str, float] = {}
    for language, counts in held.items():
        whole = math.log(sizes[language] / 1.5)
        for word, count in counts.items():
            weight = max(0.0, math.log(sizes[language] / (count + 0.5)) / whole)
            weights[word] = min(weight, weights.get(word, 1.0))
    return {word: round(weight, 2) for word, weight in sorted(weights.items()) if weight < 0.95}


def _leanings(
    words_of: list[list[str]], intents: list[str], known: WordKnowledge
) -> tuple[dict[str, tuple[tuple[int, float], ...]], tuple[float, ...]]:
    counts = Counter(word for words in words_of for word in words)
    vocabulary = sorted(word for word, count in counts.items() if count >= _HELD_BY_MIN)
    column = {word: number for number, word in enumerate(vocabulary)}
    values: list[float] = []
    columns: list[int] = []
    ends = [0]
    for words in words_of:
        held = [(column[word], known.weight(word)) for word in words if word in column]
        length = math.sqrt(sum(weight * weight for _, weight in held)) or 1.0
        columns += [number for number, _ in held]
        values += [weight / length for _, weight in held]
        ends.append(len(columns))
    table = csr_matrix((values, columns, ends), shape=(len(words_of), len(vocabulary)))
    model = LogisticRegression(C=10, max_iter=60).fit(table, intents)
    found: dict[str, tuple[tuple[int, float], ...]] = {}
    for word, number in column.items():
        leaning = model.coef_[:, number]
        kept = np.flatnonzero(np.abs(leaning) >= _LEANING_MIN)
        if len(kept):
            found[word] = tuple((int(sense), round(float(leaning[sense]), 1)) for sense in kept)
    return found, tuple(round(float(bias), 2) for bias in model.intercept_)
