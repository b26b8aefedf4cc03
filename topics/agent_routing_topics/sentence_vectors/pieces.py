"""Splits a text into the pieces of words that the encoder has vectors of.

A unigram model: of all ways to split a word, the one whose pieces are likeliest together. No piece
spans two words, so each word is split once and kept.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

UNKNOWN: Final = 0
BEGINNING: Final = 1
END: Final = 2
_SPECIAL: Final = 3

WORD_START: Final = "\u2581"
"""Stands before each word."""

WORDS_KEPT: Final = 16_384
WORD_CHARACTERS_MAX: Final = 512
"""A longer word is read to here: the time it takes grows with it."""

_UNKNOWN_PENALTY: Final = 10.0


class Pieces:
    """The pieces, their scores and the search. Safe to share between threads."""

    def __init__(self, names: Sequence[str], scores: Sequence[float]) -> None:
        """Take over the pieces in the order of their numbers, with their log probabilities."""
        self._numbers = {name: number for number, name in enumerate(names) if number >= _SPECIAL}
        self._scores = scores
        self._longest = max(map(len, names))
        self._unknown = min(scores) - _UNKNOWN_PENALTY
        self._of_word = lru_cache(maxsize=WORDS_KEPT)(self._split)

    def numbers(self, text: str) -> list[int]:
        """Return the pieces of a text by number, between BEGINNING and END."""
        found = [BEGINNING]
        for word in normalized(text).split():
            found += self._of_word(word)
        if len(found) == 1:
            found.append(UNKNOWN)
        found.append(END)
        return found

    def _split(self, word: str) -> tuple[int, ...]:
        text = WORD_START + word[:WORD_CHARACTERS_MAX]
        size = len(text)
        # By end: the best score up to there, where its last piece begins, and which one it is.
        best = [0.0] + [float("-inf")] * size
        begins, pieces = [0] * (size + 1), [UNKNOWN] * (size + 1)
        for start in range(size):
            so_far = best[start]
            for end in range(start + 1, min(size, start + self._longest) + 1):
                number = self._numbers.get(text[start:end])
                if number is not None:
                    score = so_far + self._scores[number]
                elif end == start + 1:
                    number, score = UNKNOWN, so_far + self._unknown
                else:
                    continue
                if score > best[end]:
                    best[end], begins[end], pieces[end] = score, start, number
        found: list[int] = []
        at = size
        while at:
            found.append(pieces[at])
            at = begins[at]
        return tuple(reversed(found))


def normalized(text: str) -> str:
    """Return a text in its compatibility form, with control characters left out."""
    if text.isascii() and text.isprintable():
        return text
    spaced = "".join(" " if one in "\t\n\r\x0b\x0c\u200b\ufeff" else one for one in text)
    kept = (
        one for one in unicodedata.normalize("NFKC", spaced) if unicodedata.category(one) != "Cc"
    )
    return "".join(kept)
