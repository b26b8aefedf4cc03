"""Handoff markers in an agent's text, such as [HANDOFF_TO:motivator], as models write them.

Rule: only the text of an agent that may use markers comes here, never a user's. No marker is ever
shown, however it is written, and nothing that only dressed it up is left: quotes, bold, a bullet,
an empty block of code.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

# Bounded everywhere, so that no text takes longer than its length to search.
_NAME_MAX: Final = 256
_GAP_MAX: Final = 8

# Signs that mean the same: full-width forms, East Asian brackets, spaces that do not break. One
# character for one, so that places in both texts agree.
_ALIKE: Final = str.maketrans(
    {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}
    | {ord(sign): "[" for sign in "【〔⟦"}  # noqa: RUF001
    | {ord(sign): "]" for sign in "】〕⟧"}  # noqa: RUF001
    | {ord(sign): " " for sign in "\u00a0\u202f\u200b\u200c\u200d\u2060\ufeff\u00ad\u200e\u200f"}
)

MARKER_BRACKETS: Final = "[［【〔⟦"  # noqa: RUF001 - as models write them.
"""What a marker begins with."""

_has_bracket: Final = re.compile(f"[{re.escape(MARKER_BRACKETS)}]").search

_GAP: Final = rf"[\s\\*_`~\"']{{0,{_GAP_MAX}}}"
_OPENS: Final = r"(?:\\{0,2}\[[ \t*_`~]{0,4}){1,4}"
_CLOSES: Final = r"(?:[ \t*_`~]{0,4}\\{0,2}\]){1,4}"
_OPENING: Final = rf"{_OPENS}{_GAP}HANDOFF(?:\\?_|[ \-])?TO{_GAP}[:=]"
MARKER: Final = re.compile(
    rf"{_OPENING}(?P<name>\s{{0,{_GAP_MAX}}}[^\[\]\r\n]{{0,{_NAME_MAX}}})"
    rf"(?:(?P<more>\s[^\[\]\r\n]{{0,{_NAME_MAX}}}|\s{{0,{_GAP_MAX}}}){_CLOSES}"
    rf"|(?P<unclosed>(?=[\r\n])|\Z))",
    re.IGNORECASE,
)
# Openings without a name or an end, one directly after another: more is no text of any model.
_CASCADES_MAX: Final = 64
_OPENS_MAX: Final = 32
_LENGTH_MAX: Final = len("HANDOFF_TO:") + 5 * _GAP_MAX + 48 + 2 * _NAME_MAX

# A name as ids are written, at the start of a marker that is not closed.
_FIRST_WORD = re.compile(r"[\w.:@=;+-]*[\w@=+]")
_AFTER_UNCLOSED: Final = " \t*_`~\"')}>|\\"
_AROUND_NAME: Final = " \t\r\n\\*`~\"'<>{}()«»“”‘’"  # noqa: RUF001 - as written.

# What stands directly on both sides of a marker only dresses it up.
_PAIRS: Final = frozenset({"**", "__", "``", "~~", '""', "''", "()", "{}", "<>", "«»", "“”", "[]"})
_FENCE_BEFORE = re.compile(r"(?:```|~~~)[\w-]{0,16}[ \t]*\n[ \t]*\Z")
_FENCE_AFTER = re.compile(r"[ \t]*\n[ \t]*(?:```|~~~)(?=\s|\Z)")
_BULLET = re.compile(r"(?:\A|(?<=\n))[ \t]*(?:[-*+•>#–—]{1,6}|[0-9]{1,3}[.)])[ \t]*\Z")  # noqa: RUF001
# Opened in front of a marker: for the text after it, or, where the line ends, for nothing.
_OPENED = re.compile(r"(?:\A|(?<=\s))[*_`~\"'(«“¿¡<{]{1,6}\Z")
_DANGLING = re.compile(r"(?:\A|(?<=\s))[*_`~\"'(«“<{]{1,6}\Z")
_STOPS: Final = ".,;:!?…"
_ENDS_SENTENCE: Final = ".!?…"


def plain_signs(text: str) -> str:
    """Return a text of the same length in which signs that mean the same are one."""
    return text.translate(_ALIKE)


def may_hold_marker(text: str) -> bool:
    """Say whether a text has a bracket, as every marker does: most answers have none."""
    return _has_bracket(text) is not None


def cut_markers(text: str, is_name: Callable[[str], bool] = bool) -> tuple[str, str]:
    """Return the text without its markers, and the name in the first one, "" for none.

    is_name: says whether agents are called so; it tells the name from the text after a marker that
    is not closed.
    """
    if not may_hold_marker(text):
        return text, ""
    cutter = _Cutter(text, is_name)
    cutter.cut()
    return (cutter.text, cutter.first) if cutter.found else (text, "")


def marker_place(text: str) -> int:
    """Return where the first marker of a text begins; -1 for none."""
    if not any(bracket in text for bracket in MARKER_BRACKETS):
        return -1
    match = MARKER.search(text.translate(_ALIKE))
    return match.start() if match else -1


class _Cutter:
    """Cuts the markers out of one text, from its beginning to its end."""

    def __init__(self, text: str, is_name: Callable[[str], bool]) -> None:
        self._text = text
        self._plain = text.translate(_ALIKE)
        self._is_name = is_name
        # The text before the place, without markers, in pieces.
        self._kept: list[str] = []
        self._place = 0
        self._cascades = 0
        self.first = ""
        self.found = False

    @property
    def text(self) -> str:
        """Return what is left."""
        return "".join(self._kept).strip()

    def cut(self) -> None:
        """Take the markers out one by one."""
        while (match := MARKER.search(self._plain, self._place)) is not None:
            self._keep(match.start())
            self._take(match, 0)
            # What stood around a marker may spell one now.
            while (seam := self._at_seam()) is not None:
                self._take(*seam)
        self._keep(len(self._text))

    def _keep(self, end: int) -> None:
        self._kept.append(self._text[self._place : end])
        self._place = end

    def _tail(self) -> str:
        """Return the end of what is kept, as one piece, long enough for half a marker."""
        if self._kept and _LENGTH_MAX <= len(self._kept[-1]) <= 2 * _LENGTH_MAX:
            return self._kept[-1]
        pieces: list[str] = []
        length = 0
        while self._kept and length < _LENGTH_MAX:
            pieces.append(self._kept.pop())
            length += len(pieces[-1])
        tail = "".join(reversed(pieces))
        if len(tail) > 2 * _LENGTH_MAX:
            # Long pieces are not copied again for each marker after them.
            self._kept.append(tail[:-_LENGTH_MAX])
            tail = tail[-_LENGTH_MAX:]
        self._kept.append(tail)
        return tail

    def _at_seam(self) -> tuple[re.Match[str], int] | None:
        """Find a marker that begins before the place and ends after it."""
        tail = self._tail()[-_LENGTH_MAX:]
        # A marker has no bracket after its own, so it can only begin with the last one.
        last = max(tail.rfind(bracket) for bracket in MARKER_BRACKETS)
        if last < 0:
            return None
        tail = tail[max(0, last - _OPENS_MAX) :]
        window = tail.translate(_ALIKE) + self._plain[self._place : self._place + _LENGTH_MAX]
        starts = (MARKER.match(window, start) for start in range(len(tail)))
        match = next((found for found in starts if found is not None), None)
        if match is None:
            return None
        ends_at_seam = match.end() == len(tail) and match["unclosed"] is not None
        if match.end() <= len(tail) and not (ends_at_seam and self._cascades < _CASCADES_MAX):
            return None
        self._cascades += ends_at_seam
        is_cut = match.end() == len(window) and self._place + _LENGTH_MAX < len(self._plain)
        if is_cut and match["unclosed"] is not None:
            return None  # It is not the text that ends here, but what was looked at.
        whole = self._tail()
        self._kept[-1] = whole[: len(whole) - len(tail) + match.start()]
        return match, self._place - len(tail)

    def _take(self, match: re.Match[str], offset: int) -> None:
        """Drop a marker. offset: of the text that the match counts in."""
        name, end = match["name"] + (match["more"] or ""), match.end() + offset
        if match["unclosed"] is not None and not offset:
            name, end = self._unclosed(name, end)
        if not self.found:
            self.first = " ".join(name.replace("\\_", "_").strip(_AROUND_NAME).split())
        self.found = True
        self._place = end
        self._undress()

    def _unclosed(self, said: str, end: int) -> tuple[str, int]:
        """Return the name in a marker without an end, and where the text goes on."""
        start = end - len(said)
        words = list(re.finditer(r"\S+", said))[:16]
        for count in range(len(words), 0, -1):
            name = said[: words[count - 1].end()].strip(_AROUND_NAME + _STOPS)
            if self._is_name(name):
                stop = said.index(name) + len(name)
                break
        else:
            first = _FIRST_WORD.search(said[:_NAME_MAX])
            stop = first.end() if first else len(said)
            name = said[:stop]
        if len(words) == 1 or not said[stop:].strip(_AFTER_UNCLOSED):
            return name, end
        while stop < len(said) and said[stop] in _AFTER_UNCLOSED:
            stop += 1
        return name, start + len(said[:stop].rstrip())

    def _undress(self) -> None:
        """Drop what only dressed a marker up: what stands around the place."""
        before, after = self._tail(), self._text[self._place : self._place + _LENGTH_MAX]
        while True:
            pair = before[-1:] + after[:1]
            if pair.translate(_ALIKE) in _PAIRS:
                before, after = before[:-1], after[1:]
                self._place += 1
                continue
            fence, closing = _FENCE_BEFORE.search(before[-64:]), _FENCE_AFTER.match(after)
            if fence is None or closing is None:
                break
            before = before[: len(before) - len(fence[0])]
            after = after[closing.end() :]
            self._place += closing.end()
        ends_line = not after or after.lstrip(" \t")[:1] in ("\n", "\r", "")
        if ends_line:
            before = _DANGLING.sub("", _BULLET.sub("", before))
        # White space before a marker goes with it, so that the sentence around it closes.
        before = before.rstrip(" \t")
        if before[-1:] in ("", "\n") or _OPENED.search(before[-16:]):
            self._skip(" \t")
        if before[-1:] in ("", "\n") and ends_line:
            self._skip_line(before)
        elif (
            after
            and after[0] in _STOPS
            and not after[1:2].strip()
            and (not before or before[-1] in _ENDS_SENTENCE)
        ):
            self._place += 1  # "Te paso. [HANDOFF_TO:x]." has one full stop too many.
        self._kept[-1] = before

    def _skip(self, characters: str) -> None:
        while self._place < len(self._text) and self._text[self._place] in characters:
            self._place += 1

    def _skip_line(self, before: str) -> None:
        """Drop the line on which nothing is left, and an empty one after an empty one."""
        self._skip(" \t")
        if self._text.startswith("\r\n", self._place):
            self._place += 2
        elif self._text.startswith("\n", self._place):
            self._place += 1
        if not before or before.endswith(("\n\n", "\r\n\r\n")):
            self._skip("\r\n")
