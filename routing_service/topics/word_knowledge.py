"""What the model knows of words before it has seen a registry.

Owns how common a word is, and what messages with it tend to ask for. Must not know agents. Rule: a
word that was never seen is taken to be rare, and to say nothing of what is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Final

from routing_service.topics.concepts import concepts_of
from routing_service.topics.words import stems

_NUMBER: Final = "#"
_NUMBER_WEIGHT: Final = 0.05

_MEANT_AT_LEAST: Final = 0.2

WORDS_MAX: Final = 96
"""Different words that are compared of one message, the first ones: as long as people write."""

SENSES_KEPT: Final = 8
_PROBABILITY_MIN: Final = 0.005
"""Senses of a message that are looked at, and from which probability on."""


@dataclass(frozen=True, slots=True)
class WordKnowledge:
    """What was learned of words.

    weights: how much a word tells, from 0 (in every message) to 1; absent: 1. senses: things that
    messages ask for, numbered from 0; leanings: by word, how much it speaks for which of them.
    biases: by sense, what speaks for it without any word.
    """

    weights: Mapping[str, float]
    leanings: Mapping[str, Sequence[tuple[int, float]]]
    biases: Sequence[float]
    concepts: Mapping[str, tuple[str, ...]]

    def weight(self, word: str) -> float:
        """Return how much a word tells; one that is not known tells most."""
        return self.weights.get(word, _NUMBER_WEIGHT if word == _NUMBER else 1.0)

    def words(self, text: str) -> dict[str, float]:
        """Return the different words of a text, in order, and its concepts; WORDS_MAX at most.

        Each with how sure it is to be meant: 1 for a word, less for a concept that only an
        everyday word stands for, or one that may also mean something else.
        """
        return self.words_of(stems(text))

    def words_of(self, found: list[str]) -> dict[str, float]:
        """Return the same of the stems of a text."""
        words = dict.fromkeys(found[:WORDS_MAX], 1.0)
        for concept, word, meanings in concepts_of(found[:WORDS_MAX], self.concepts):
            sureness = max(_MEANT_AT_LEAST, self.weight(word)) / math.sqrt(meanings)
            words[concept] = max(words.get(concept, 0.0), sureness)
        return dict(islice(words.items(), WORDS_MAX))

    def pairs(self, text: str) -> list[str]:
        """Return the different pairs of neighbouring words of a text, WORDS_MAX at most."""
        return self.pairs_of(stems(text))

    def pairs_of(self, found: list[str]) -> list[str]:
        """Return the same of the stems of a text."""
        return list(map(" ".join, dict.fromkeys(pairwise(found[: WORDS_MAX + 1]))))

    def senses(self, words: Iterable[str]) -> tuple[tuple[int, float], ...]:
        """Return the likeliest senses of words and their probabilities, best first.

        Nothing where no word is known: then there is nothing to go by.
        """
        known = [
            (self.weight(word), self.leanings[word]) for word in words if word in self.leanings
        ]
        length = math.sqrt(sum(weight * weight for weight, _ in known))
        if not length:
            return ()
        scores = list(self.biases)
        for weight, leanings in known:
            share = weight / length
            for sense, leaning in leanings:
                scores[sense] += share * leaning
        exp, best = math.exp, max(scores)
        powers = [exp(score - best) for score in scores]
        whole = sum(powers)
        bound = whole * _PROBABILITY_MIN
        likely = [(sense, power / whole) for sense, power in enumerate(powers) if power >= bound]
        likely.sort(key=lambda found: -found[1])
        return tuple(likely[:SENSES_KEPT])
