"""Streamed text without handoff markers: a user who reads along never sees one flash.

Rule: text is held back only while it may become a marker, or may dress one up. What counts as a
marker is the service's (tests/clients/vectors/text); the service's own text, in the answer to
complete_turn(), is the last word.
"""

from __future__ import annotations

from typing import Final

_ALIKE: Final = (
    {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}
    | {ord(sign): ord("[") for sign in "【〔⟦"}  # noqa: RUF001 - as models write them.
    | {ord(sign): ord("]") for sign in "】〕⟧"}  # noqa: RUF001 - as models write them.
    | {
        ord(sign): ord(" ")
        for sign in "\u00a0\u202f\u200b\u200c\u200d\u2060\ufeff\u00ad\u200e\u200f"
    }
)
_GAP: Final = frozenset(" \t\r\n\\*_`~\"'[")
_DRESS: Final = "*_`~\"'({<«“"
_UNDRESS: Final = "*_`~\"')}>»”"
_HELD: Final = frozenset(" \t\r\n\\" + _DRESS)
_WORD: Final = frozenset(".:@=;+-_")
_AFTER_UNCLOSED: Final = frozenset(" \t*_`~\"')}>|\\")

GAP_MAX: Final = 40
NAME_MAX: Final = 256
HELD_MAX: Final = 64
"""Of spaces, quotes and signs of emphasis that may stand in front of a marker."""

_NO: Final = -1
_MAYBE: Final = -2


class MarkerFilter:
    """Filters one answer. Feed it each token, show what it returns, then what end() returns.

    shown = MarkerFilter()
    for token in tokens:
        show(shown.feed(token))
    show(shown.end())
    """

    def __init__(self) -> None:
        self._text = ""  # Not shown yet.
        self._last = ""  # The last character that was shown.
        self._closers = ""  # What may still be around the last marker.
        self._is_after = False

    def feed(self, token: str) -> str:
        """Return what may be shown by now."""
        self._text += token
        return self._flow(is_end=False)

    def end(self) -> str:
        """Return the rest, once there are no more tokens."""
        return self._flow(is_end=True)

    def _flow(self, *, is_end: bool) -> str:
        shown: list[str] = []
        while True:
            if self._is_after and not self._tidy(is_end=is_end):
                break
            plain = self._text.translate(_ALIKE)
            start, end = _find(plain, is_end=is_end)
            if end < 0:
                kept = len(self._text) if is_end else _held_from(plain, start)
                shown.append(self._show(kept))
                break
            dressed = start
            while dressed > 0 and plain[dressed - 1] in _DRESS and start - dressed < GAP_MAX:
                dressed -= 1
            self._closers = "".join(
                _UNDRESS[_DRESS.index(sign)] for sign in reversed(plain[dressed:start])
            )
            text, rest = self._text[:dressed].rstrip(" \t"), self._text[end:]
            self._text = text
            shown.append(self._show(len(text)))
            self._text = rest
            self._is_after = True
        return "".join(shown)

    def _show(self, count: int) -> str:
        text, self._text = self._text[:count], self._text[count:]
        if text:
            self._last = text[-1]
        return text

    def _tidy(self, *, is_end: bool) -> bool:
        """Drop what is left of a marker's dress; False: that shows with the next token."""
        place = 0
        plain = self._text.translate(_ALIKE)
        while place < len(plain) and (
            plain[place] in "]\\" or (self._closers and plain[place] == self._closers[0])
        ):
            if plain[place] not in "]\\":
                self._closers = self._closers[1:]
            place += 1
        self._text, plain = self._text[place:], plain[place:]
        if self._last in ("", "\n"):
            line = plain.lstrip(" \t")
            if line in ("", "\r") and not is_end:
                return False
            ends = 2 if line.startswith("\r\n") else int(line.startswith("\n"))
            self._text = self._text[len(plain) - len(line) + ends :]
        elif not plain and not is_end:
            return False
        self._is_after, self._closers = False, ""
        return True


def _find(plain: str, *, is_end: bool) -> tuple[int, int]:
    """Return where a marker begins and ends; its end is _MAYBE if more text decides, or _NO."""
    start = plain.find("[")
    while start >= 0:
        end = _marker_end(plain, start, is_end=is_end)
        if end != _NO:
            while start > 0 and plain[start - 1] == "\\":
                start -= 1
            return start, end
        start = plain.find("[", start + 1)
    return len(plain), _NO


def _marker_end(plain: str, start: int, *, is_end: bool) -> int:
    """Return the end of the marker at a bracket, _MAYBE or _NO."""
    place = _skip(plain, start + 1)
    for letters in ("handoff", "", "to"):
        if not letters:
            while plain[place : place + 1] in ("_", "\\", " ", "-") and place < len(plain):
                place += 1
            continue
        said = plain[place : place + len(letters)].lower()
        if said != letters[: len(said)]:
            return _NO
        if len(said) < len(letters):
            return _NO if is_end else _MAYBE
        place += len(letters)
    place = _skip(plain, place)
    if place >= len(plain):
        return _NO if is_end else _MAYBE
    if plain[place] not in ":=":
        return _NO
    return _name_end(plain, place + 1, is_end=is_end)


def _skip(plain: str, place: int) -> int:
    stop = min(len(plain), place + GAP_MAX)
    while place < stop and plain[place] in _GAP:
        place += 1
    return place


def _name_end(plain: str, start: int, *, is_end: bool) -> int:
    """Return where a marker ends whose name begins at start, _MAYBE if more text decides."""
    line_end, place = -1, start
    while place < len(plain):
        sign = plain[place]
        if sign == "]":
            return place + 1
        if sign == "[" or (sign in "\r\n" and line_end >= 0 and plain[line_end:place].strip()):
            break
        if sign in "\r\n" and line_end < 0 and plain[start:place].strip():
            line_end = place
        if place - max(start, line_end) >= NAME_MAX:
            break
        place += 1
    else:
        if not is_end:
            return _MAYBE
    return _unclosed_end(plain, start, line_end if line_end >= 0 else place)


def _unclosed_end(plain: str, start: int, end: int) -> int:
    """Return where the text goes on behind a marker without a bracket at its end."""
    place = start
    while place < end and plain[place] in _AFTER_UNCLOSED:
        place += 1
    while place < end and (plain[place].isalnum() or plain[place] in _WORD):
        place += 1
    rest = place
    while rest < end and plain[rest] in _AFTER_UNCLOSED:
        rest += 1
    return end if rest == end else place


def _held_from(plain: str, start: int) -> int:
    """Return from where a text is held back: a marker may begin at start, or behind its end."""
    place = start
    while place > 0 and start - place < HELD_MAX and plain[place - 1] in _HELD:
        place -= 1
    return place
