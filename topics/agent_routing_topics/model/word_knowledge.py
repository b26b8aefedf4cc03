"""How common a word is, and what messages with it usually ask for, before a registry is known.

A word that training never saw is taken to be rare, and says nothing about the request.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, pairwise
from typing import Final

from agent_routing_topics.model.concepts import concepts_of
from agent_routing_topics.model.words import split, stem, stems

_NUMBER: Final = "#"
_NUMBER_WEIGHT: Final = 0.05

_MEANT_AT_LEAST: Final = 0.2

WORDS_MAX: Final = 96
"""Different words that are compared of one message, the first ones: as long as people write."""

SENSES_KEPT: Final = 8
_PROBABILITY_MIN: Final = 0.005
"""Senses of a message that are looked at in each group, and from which probability on."""

LEANING_ZERO: Final = 128
LEANING_STEPS: Final = 2
"""How a leaning is kept in a byte: in halves, with 128 for none."""

WHOLE: Final = "="
"""Begins a token that is a word with its ending. No stem, pair or concept does."""

_BEGINNING: Final = "^"
"""Makes a pair with the first word: many requests say at once what is to be done."""

Senses = tuple[tuple[int, float], ...]
"""Senses with their probabilities, the likeliest first."""


_LANE_BYTES: Final = 4
_LANE_BITS: Final = 8 * _LANE_BYTES


@lru_cache(maxsize=8192)
def _joined(values: bytes) -> int:
    """Return the square of a token's length and its leanings as one number, 32 bits each.

    Adding two such numbers adds all their parts at once. Kept for the tokens that people use.
    """
    pairs = zip(values[1::2], values[2::2], strict=True)
    leanings = ((leaning - LEANING_ZERO) << _LANE_BITS * (1 + sense) for sense, leaning in pairs)
    return values[0] + sum(leanings)


@lru_cache(maxsize=256)
def _sign_bits(lanes: int) -> int:
    """Return a number with the highest bit of each 32 set."""
    return sum(1 << (_LANE_BITS * (1 + lane) - 1) for lane in range(lanes))


def _parted(total: int, lanes: int) -> tuple[int, ...]:
    """Return the parts of a sum of joined numbers, which may be negative."""
    # Added, it keeps each part above zero; taken away bit by bit, it leaves each with its sign.
    signs = _sign_bits(lanes)
    return struct.unpack(
        f"<{lanes}i", ((total + signs) ^ signs).to_bytes(_LANE_BYTES * lanes, "little")
    )


@dataclass(frozen=True, slots=True)
class SenseGroup:
    """Things that messages ask for, told apart from one another: learned together, of one corpus.

    name: the corpus. biases: by sense, what speaks for it without any word. tokens: by token a byte
    for the square of its length, then a sense and a leaning by turns, a byte each.
    """

    name: str
    biases: tuple[float, ...]
    tokens: dict[str, bytes]

    def senses(self, tokens: Iterable[str]) -> Senses:
        """Return what tokens ask for; nothing where none is known: there is nothing to go by."""
        total = sum(map(_joined, filter(None, map(self.tokens.get, tokens))))
        squares, *scores = _parted(total, 1 + len(self.biases))
        if not squares:
            return ()
        scale = 1 / (LEANING_STEPS * math.sqrt(squares))
        odds = [bias + scale * score for bias, score in zip(self.biases, scores, strict=True)]
        exp, best = math.exp, max(odds)
        powers = [exp(score - best) for score in odds]
        whole = sum(powers)
        least = whole * _PROBABILITY_MIN
        likely = [(power, sense) for sense, power in enumerate(powers) if power >= least]
        likely.sort(reverse=True)
        return tuple((sense, power / whole) for power, sense in likely[:SENSES_KEPT])


@dataclass(frozen=True, slots=True)
class WordKnowledge:
    """What was learned of words.

    weights: how much a word tells, from 0 (in every message) to 1; absent: 1. groups: what messages
    ask for, by corpus. concepts: by stem, and by pair of stems, what it means.
    """

    weights: Mapping[str, float]
    groups: Sequence[SenseGroup]
    concepts: Mapping[str, tuple[str, ...]]

    def weight(self, word: str) -> float:
        """Return how much a word tells; one that is not known tells most."""
        return self.weights.get(word, _NUMBER_WEIGHT if word == _NUMBER else 1.0)

    def knows(self, word: str) -> bool:
        """Tell whether a word was in what was learned from."""
        return any(word in group.tokens for group in self.groups)

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

    def read(self, text: str) -> tuple[list[str], dict[str, float], list[str]]:
        """Return the words of a text, folded and whole, then what words and pairs give for it."""
        whole = split(text)
        found = list(map(stem, whole))
        return whole, self.words_of(found), self.pairs_of(found)

    def tokens(self, text: str) -> list[str]:
        """Return what of a text tells what it asks for."""
        return self.tokens_of(*self.read(text))

    @staticmethod
    def tokens_of(whole: Sequence[str], words: Iterable[str], pairs: Iterable[str]) -> list[str]:
        """Return the same of a text that has been read."""
        endings = dict.fromkeys(word for word in whole[:WORDS_MAX] if not word.isdigit())
        first = [f"{_BEGINNING} {word}" for word in islice(words, 1)]
        return [*first, *(WHOLE + word for word in endings), *words, *pairs]

    def senses(self, text: str) -> tuple[Senses, ...]:
        """Return what a text asks for, by group."""
        return self.senses_of(*self.read(text))

    def senses_of(
        self, whole: Sequence[str], words: Iterable[str], pairs: Iterable[str]
    ) -> tuple[Senses, ...]:
        """Return the same of a text that has been read."""
        tokens = self.tokens_of(whole, words, pairs)
        return tuple(group.senses(tokens) for group in self.groups)
