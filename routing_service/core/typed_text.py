"""Text as people type it: what counts as the same word, and where a word ends.

Rule: only what cannot change the meaning is evened out: case, the accents of the languages of the
replies, full-width letters, invisible characters and punctuation around words.
"""

from __future__ import annotations

import unicodedata
from typing import Final

# Combining forms of the grave, acute, circumflex, tilde, diaeresis and cedilla.
_ACCENTS: Final = frozenset("\u0300\u0301\u0302\u0303\u0308\u0327")

# Full-width forms of "!" to "~", as East Asian keyboards write them.
_FULL_WIDTH: Final = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}

# Invisible, but not of the category Cf: the grapheme joiner, and selectors of an emoji's look.
_INVISIBLE: Final = frozenset("\u034f" + "".join(map(chr, range(0xFE00, 0xFE10))))

# After a word and before white space or the end, these are punctuation.
_PUNCTUATION: Final = frozenset(".,;:!?…¡¿·~*\"'`´)]}»”’。，、！？；：-–—")  # noqa: RUF001 - as typed.

# These are punctuation before a letter as well: no path, address or longer word has them there.
_TIGHT: Final = frozenset(",;:!…¡¿–—，、！；：")  # noqa: RUF001 - as typed.

# Between a command and the text after it.
_SEPARATORS: Final = frozenset(".,;:!?…-–—，、！？；：。")  # noqa: RUF001 - as typed.


def is_invisible(character: str) -> bool:
    """Say whether a character takes no place: zero-width spaces, joiners, direction marks."""
    return character in _INVISIBLE or unicodedata.category(character) == "Cf"


def is_symbol(character: str) -> bool:
    """Say whether a character is an emoji, or a part of one."""
    return unicodedata.category(character) in ("So", "Sk")


def without_invisible(text: str) -> str:
    """Return a text without its invisible characters."""
    if text.isascii():
        return text
    return "".join(character for character in text if not is_invisible(character))


def fold_word(word: str) -> str:
    """Return the form in which words of commands and answers are compared.

    Letters that only look alike (a Kelvin sign, a long s, a Cyrillic a) stay what they are.
    """
    if word.isascii():
        return word.lower()
    if any("\u2100" <= character <= "\u214f" for character in word):
        return word  # The Kelvin and Angstrom signs are no letters, though Unicode folds them.
    parts = unicodedata.normalize("NFD", without_invisible(word).translate(_FULL_WIDTH))
    letters = "".join(part for part in parts if part not in _ACCENTS)
    return unicodedata.normalize("NFC", letters).lower()


def skip_invisible(text: str, start: int, also: str = "") -> int:
    """Return the place of the first character that is neither space, invisible nor in also."""
    place = start
    while place < len(text):
        character = text[place]
        if not (character.isspace() or character in also or is_invisible(character)):
            break
        place += 1
    return place


def ends_word(text: str, place: int) -> bool:
    """Say whether the character at a place is not part of a name."""
    character = text[place]
    if character.isalnum() or character in "_-" or is_invisible(character):
        return False
    return not unicodedata.combining(character)


def without_separator(text: str) -> str | None:
    """Return what follows a name: without punctuation and white space between the two.

    None if the name goes on, as a path, an address or a longer word does.
    """
    place = 0
    while place < len(text) and (
        text[place] in _PUNCTUATION or is_invisible(text[place]) or is_symbol(text[place])
    ):
        place += 1
    if place < len(text) and not text[place].isspace():
        if not place or text[place - 1] not in _TIGHT or not text[place].isalpha():
            return None
        return text[place:]
    rest = text[skip_invisible(text, place) :]
    end = 0
    while end < len(rest) and rest[end] in _SEPARATORS:
        end += 1
    if end and (end == len(rest) or rest[end].isspace()):
        rest = rest[skip_invisible(rest, end) :]
    return rest


def says_nothing(text: str) -> bool:
    """Say whether a text has no letter and no digit: punctuation, emoji, or nothing at all."""
    return not any(character.isalnum() for character in text)
