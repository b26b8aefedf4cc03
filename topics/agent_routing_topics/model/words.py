"""The words of a text as the model compares them: folded, split and bounded.

Rule: any Unicode text gives words. A long text gives no more of them than its two ends. Equal words
in different forms of writing are equal.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Final

TEXT_CHARACTERS_MAX: Final = 1500
"""What is read of a text: its first two thirds and its last third. What a message is about stands
at its ends; what is pasted between them costs no time."""

STEM_CHARACTERS: Final = 6
"""Enough to tell words apart, few enough that reserve and reservation are one. Works in any
language that changes its words at their ends."""

_WORD: Final = re.compile(r"[^\W_]+")
_MARKS: Final = re.compile(r"[\u0300-\u036f]+")
_STRETCHED: Final = re.compile(r"([^\W\d_])(?!(?:(?<=\bi)|(?<=\b[vx]i))ii\b)\1{2,}")
"""A letter three times or more, as in siii and thaaanks, but for iii, viii and xiii."""

_SCRIPTS_WITHOUT_SPACES: Final = re.compile(r"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff]")


def ends_of(text: str) -> str:
    """Return what is read of a text."""
    if len(text) <= TEXT_CHARACTERS_MAX:
        return text
    tail = TEXT_CHARACTERS_MAX // 3
    return f"{text[: TEXT_CHARACTERS_MAX - tail]} {text[-tail:]}"


def folded(text: str) -> str:
    """Return what is read of a text, without case, accents and variants of writing.

    A letter that is stretched is there once.
    """
    text = ends_of(text)
    if text.isascii():
        return _STRETCHED.sub(r"\1", text.lower().replace("'", ""))
    text = unicodedata.normalize("NFKD", text.casefold().replace("\u2019", ""))
    # A second time: what the first one took apart may have been a folded ligature or a sign.
    text = unicodedata.normalize("NFKC", _MARKS.sub("", text))
    text = text.casefold().replace("'", "")[: 2 * TEXT_CHARACTERS_MAX]
    return _STRETCHED.sub(r"\1", text)


def split(text: str) -> list[str]:
    """Return the words of a text in order, folded and whole."""
    words = _WORD.findall(folded(text))
    if text.isascii():
        return words
    return [piece for word in words for piece in _pieces(word)]


def _pieces(word: str) -> list[str]:
    """Return a word; where words are written without spaces, its pairs of characters."""
    if len(word) < 2 or not _SCRIPTS_WITHOUT_SPACES.search(word):  # noqa: PLR2004 - a pair
        return [word]
    return [word[at : at + 2] for at in range(len(word) - 1)]


@lru_cache(maxsize=16384)
def stem(word: str) -> str:
    """Return the part of a folded word that its forms have in common; "#" for a number."""
    if word.isdigit():
        return "#"
    if len(word) > 4 and word.endswith("ies"):  # noqa: PLR2004 - ties, dies
        word = word[:-3] + "y"
    elif len(word) > 4 and word.endswith("es"):  # noqa: PLR2004 - yes, goes
        word = word[:-2]
    elif len(word) > 3 and word.endswith("s") and not word.endswith("ss"):  # noqa: PLR2004
        word = word[:-1]
    if len(word) > 4 and word[-1] in "aeo":  # noqa: PLR2004 - house and houses, gato and gata
        word = word[:-1]
    return word[:STEM_CHARACTERS]


def stems(text: str) -> list[str]:
    """Return the stems of a text in order."""
    return [stem(word) for word in split(text)]
