"""Learning the weight and meaning of each term.

Owns the weights and vectors of terms. Rule: a text is learned from its intent, never from the name
of an agent.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.sparse import csr_matrix, diags

from agent_routing_topics.model.concepts import load_concepts
from agent_routing_topics.model.word_knowledge import (
    LEANING_STEPS,
    LEANING_ZERO,
    SenseGroup,
    WordKnowledge,
)

_PAIRS_HELD_BY_MIN: Final = 8
_NOTHING_TOLD: Final = 5
"""A term that occurs in one text of this many carries no information."""
_TEXTS_TO_BE_SURE: Final = 6.0
_UNKNOWN: Final = 0.8
_NAMES: Final = 3
"""The name of an intent counts as this many texts: agents' descriptions are written like it."""
_LEANING_MIN: Final = 3
"""Steps. Smaller values are the majority and hardly change a verdict."""
_LEANING_MAX: Final = 127
_PAIR_HELD_BY_MIN: Final = 2
_LOOSENESS: Final = 50.0
"""How far the texts are trusted, against leanings of zero."""
_STEPS: Final = 60
"""Of the fit. It need not converge: the last steps change no verdict."""
_PAIR_WORTH: Final = 0.7
_CONCEPT_WORTH: Final = 1.5
"""A concept counts as this many terms: it also covers terms that no text had."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text and its intent. language: of the common terms that it counts towards."""

    text: str
    intent: str
    language: str


def learn(
    texts: Sequence[Text], commons: Sequence[Text] = (), names: Sequence[Text] = ()
) -> WordKnowledge:
    """Learn from texts with intents.

    commons: texts that only show which terms are common. names: the intents' names.
    """
    concepts = load_concepts()
    bare = WordKnowledge({}, (), concepts)
    words_of = [list(bare.words(text.text)) for text in texts]
    pairs = [(text, bare.pairs(text.text)) for text in (*texts, *commons)]
    words = [(text, list(bare.words(text.text))) for text in (*texts, *commons)]
    topical = _topical(words_of, [text.intent for text in texts])
    weights = {**_weights(pairs, {}, _PAIRS_HELD_BY_MIN), **_weights(words, topical)}
    named = [*texts, *(name for name in names for _ in range(_NAMES))]
    by_group: dict[str, list[Text]] = {}
    for text in named:
        by_group.setdefault(text.intent.partition(":")[0], []).append(text)
    groups = tuple(
        _group(name, [bare.tokens(text.text) for text in own], [text.intent for text in own])
        for name, own in by_group.items()
        if len({text.intent for text in own}) > 1
    )
    return WordKnowledge(weights, groups, concepts)


def _weights(
    words_of: Iterable[tuple[Text, list[str]]], topical: Mapping[str, float], held_by_min: int = 1
) -> dict[str, float]:
    """Return weights: lower, the more texts have a term, in the language that uses it most.

    topical: by term, how much it says about a text's intent. held_by_min: terms in fewer texts keep
    the weight of an unseen term.
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
    """Return for each term how few intents it belongs to: from 0, equally frequent in all, to 1.

    A term that few texts have is not known well enough: it counts as _UNKNOWN.
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


def _group(name: str, tokens_of: list[list[str]], intents: list[str]) -> SenseGroup:
    """Learn how much each token speaks for each intent."""
    counts = Counter(token for tokens in tokens_of for token in tokens)
    vocabulary = sorted(
        token for token, count in counts.items() if " " not in token or count >= _PAIR_HELD_BY_MIN
    )
    column = {token: number for number, token in enumerate(vocabulary)}
    worth = np.array(
        [
            (1 + math.log((len(tokens_of) + 1) / (counts[token] + 1)))
            * (_CONCEPT_WORTH if token[0] == "@" else _PAIR_WORTH if " " in token else 1.0)
            for token in vocabulary
        ]
    )
    # Lengths as they will be read from a byte.
    squares = np.clip(np.rint(worth * worth), 1, 255)
    columns: list[int] = []
    ends = [0]
    for tokens in tokens_of:
        columns += [column[token] for token in tokens if token in column]
        ends.append(len(columns))
    held = csr_matrix((np.ones(len(columns)), columns, ends), shape=(len(ends) - 1, len(column)))
    lengths = np.sqrt(np.maximum(held @ squares, 1.0))
    senses = {intent: number for number, intent in enumerate(sorted(set(intents)))}
    leanings, biases = _fitted(
        (diags(1 / lengths) @ held @ diags(worth)).tocsr(),
        np.array([senses[intent] for intent in intents]),
    )
    leanings *= worth[:, np.newaxis]
    # A leaning towards all alike makes no difference; without it, most others are zero.
    leanings -= np.median(leanings, axis=1, keepdims=True)
    steps = np.clip(np.rint(leanings * LEANING_STEPS), -_LEANING_MAX, _LEANING_MAX).astype(int)
    return SenseGroup(
        name,
        tuple(round(float(bias), 2) for bias in biases),
        {token: _bytes(squares[number], steps[number]) for token, number in column.items()},
    )


def _bytes(square: float, steps: NDArray[np.int_]) -> bytes:
    kept = np.flatnonzero(np.abs(steps) >= _LEANING_MIN)
    pairs = np.stack((kept, steps[kept] + LEANING_ZERO), axis=1)
    return bytes((int(square), *pairs.ravel().tolist()))


def _fitted(
    table: csr_matrix, chosen: NDArray[np.int_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the leanings of columns and the biases of senses: a logistic regression."""
    texts, columns = table.shape
    senses = int(chosen.max()) + 1
    turned = table.T.tocsr()
    rows = np.arange(texts)

    def loss(values: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        leanings = values[senses:].reshape(columns, senses)
        scores = table @ leanings + values[:senses]
        scores -= scores.max(axis=1, keepdims=True)
        powers = np.exp(scores)
        wholes = powers.sum(axis=1, keepdims=True)
        missed = np.log(wholes).sum() - scores[rows, chosen].sum()
        shares = powers / wholes
        shares[rows, chosen] -= 1
        shares *= _LOOSENESS
        gradient = np.concatenate((shares.sum(axis=0), (turned @ shares + leanings).ravel()))
        return _LOOSENESS * missed + 0.5 * float(leanings.ravel() @ leanings.ravel()), gradient

    found = minimize(
        loss,
        np.zeros(senses * (columns + 1)),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": _STEPS, "maxcor": 5},
    )
    return found.x[senses:].reshape(columns, senses), found.x[:senses]
