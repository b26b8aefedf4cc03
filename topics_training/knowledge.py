"""Learning what words tell and what they are about.

Owns the weights and vectors of words. Must not know registries or dialogues. Rule: what is learned
of a text is learned from its intent, never from the name of an agent.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression

from routing_service.topics.concepts import load_concepts
from routing_service.topics.word_knowledge import WordKnowledge

_HELD_BY_MIN: Final = 2
_PAIRS_HELD_BY_MIN: Final = 8
_NOTHING_TOLD: Final = 5
"""A word that one text in so many has tells nothing."""
_TEXTS_TO_BE_SURE: Final = 6.0
_UNKNOWN: Final = 0.8
_NAMES: Final = 3
"""Texts that the name of an intent counts as: agents' descriptions are written like it."""
_LEANING_MIN: Final = 0.3
"""Smaller ones are nine tenths of all and change one verdict in five hundred."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text and what it is about; language: whose common words it is counted among."""

    text: str
    intent: str
    language: str


def learn(
    texts: Sequence[Text], commons: Sequence[Text] = (), names: Sequence[Text] = ()
) -> WordKnowledge:
    """Learn from texts with intents.

    commons: texts that only say which words are common. names: what intents are called.
    """
    concepts = load_concepts()
    bare = WordKnowledge({}, {}, (), concepts)
    words_of = [list(bare.words(text.text)) for text in texts]
    pairs = [(text, bare.pairs(text.text)) for text in (*texts, *commons)]
    words = [(text, list(bare.words(text.text))) for text in (*texts, *commons)]
    topical = _topical(words_of, [text.intent for text in texts])
    weights = {**_weights(pairs, {}, _PAIRS_HELD_BY_MIN), **_weights(words, topical)}
    known = WordKnowledge(weights, {}, (), concepts)
    named = [name for name in names for _ in range(_NAMES)]
    leanings, biases = _leanings(
        [*words_of, *(list(bare.words(name.text)) for name in named)],
        [text.intent for text in (*texts, *named)],
        known,
    )
    return WordKnowledge(weights, leanings, biases, concepts)


def _weights(
    words_of: Iterable[tuple[Text, list[str]]], topical: Mapping[str, float], held_by_min: int = 1
) -> dict[str, float]:
    """Return weights: less, the more texts have a word, in the language that uses it most.

    topical: by word, how much it tells of what a text is about. held_by_min: words that fewer texts
    have are left at the weight of one that was never seen.
    """
    held: dict[str, Counter[str]] = {}
    sizes: Counter[str] = Counter()
    for text, words in words_of:
        held.setdefault(text.language, Counter()).update(w for w in words if w[0] != "@")
        sizes[text.language] += 1
    weights: dict[str, float] = {}
    for language, counts in held.items():
        size = sizes[language]
        whole = math.log(size / (1.5 * _NOTHING_TOLD))
        for word, count in counts.items():
            if count < held_by_min:
                continue
            rarity = max(0.0, math.log(size / ((count + 0.5) * _NOTHING_TOLD)) / whole)
            weight = math.sqrt(rarity) * topical[word] if word in topical else rarity
            weights[word] = min(weight, weights.get(word, 1.0))
    return {word: round(weight, 2) for word, weight in sorted(weights.items()) if weight < 0.95}


def _topical(words_of: Sequence[list[str]], intents: Sequence[str]) -> dict[str, float]:
    """Return for each word how few intents it belongs to: 0 where it is the same in all, to 1.

    A word that few texts have is not known well enough: it is taken to be worth _UNKNOWN.
    """
    sizes = Counter(intents)
    counts = Counter(word for words in words_of for word in words)
    shares: dict[str, dict[str, float]] = {}
    for words, intent in zip(words_of, intents, strict=True):
        for word in words:
            of = shares.setdefault(word, {})
            of[intent] = of.get(intent, 0.0) + 1 / sizes[intent]
    found: dict[str, float] = {}
    for word, of in shares.items():
        whole = sum(of.values())
        entropy = -sum(share / whole * math.log(share / whole) for share in of.values())
        sureness = counts[word] / (counts[word] + _TEXTS_TO_BE_SURE)
        told = 1 - entropy / math.log(len(sizes))
        found[word] = sureness * told + (1 - sureness) * _UNKNOWN
    return found


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
    # It need not converge: the last steps change no verdict.
    model = LogisticRegression(C=10, max_iter=30).fit(table, intents)
    found: dict[str, tuple[tuple[int, float], ...]] = {}
    for word, number in column.items():
        leaning = model.coef_[:, number]
        kept = np.flatnonzero(np.abs(leaning) >= _LEANING_MIN)
        if len(kept):
            found[word] = tuple((int(sense), round(float(leaning[sense]), 1)) for sense in kept)
    return found, tuple(round(float(bias), 2) for bias in model.intercept_)
