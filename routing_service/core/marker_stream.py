"""Handoff markers in an answer that is sent in parts, before the whole of it is there.

Rule: where a part ends follows from the last CONTEXT_CHARS of what was written, and from nothing
else, so that any replica continues where another stopped.
"""

from __future__ import annotations

import re
from typing import Final

from routing_service.core.markers import MARKER, MARKER_BRACKETS, plain_signs

CONTEXT_CHARS: Final = 160
"""How much of the text before a part comes with it. A marker that is longer is shown in part, until
the whole answer replaces it."""

_BRACKET: Final = re.compile(f"[{re.escape(MARKER_BRACKETS)}]")
_DRESSING: Final = re.compile(r"[\s\\*_`~\"'\-]")
_OPENS: Final = re.compile(r"(?:\[[ \t*_`~\\]*){1,4}")
_CLOSES: Final = re.compile(r"(?:\][ \t*_`~\\]*){1,4}")
_LINE: Final = re.compile(r"[:=][^\r\n]*[\r\n]")
_WORD: Final = "HANDOFFTO"


def shown_part(before: str, text: str) -> tuple[int, int, str]:
    """Return which part of before + text can be shown now: where it begins and ends, and the part.

    before: the last CONTEXT_CHARS characters before text, or all. The part begins where the one
    before it ended, and has no markers; what may begin a marker is left to the next one.
    """
    whole = before + text
    begin, end = _settled(before), _settled(whole)
    part = whole[begin:end]
    pieces: list[str] = []
    place = 0
    for marker in MARKER.finditer(plain_signs(part)):
        pieces.append(part[place : marker.start()])
        place = marker.end()
    return begin, end, "".join((*pieces, part[place:]))


def _settled(whole: str) -> int:
    """Return the length of a text without what may begin a marker at its end."""
    start = max(0, len(whole) - CONTEXT_CHARS)
    for bracket in _BRACKET.finditer(whole, start):
        if _may_go_on(plain_signs(whole[bracket.start() :])):
            return bracket.start()
    return len(whole)


def _may_go_on(tail: str) -> bool:
    """Say whether a text that begins with a bracket may become a marker, or is one without end.

    What was once ruled out stays so however the text goes on.
    """
    opens = _OPENS.match(tail)
    assert opens is not None
    rest = tail[opens.end() :]
    said = _DRESSING.sub("", rest).upper()
    if not said.startswith(_WORD):
        return _WORD.startswith(said)
    after = said[len(_WORD) :]
    if "[" in rest or (after and after[0] not in ":="):
        return False
    if _LINE.search(rest):
        return False
    closes = _CLOSES.search(rest)
    if closes is None:
        return True
    is_whole = closes[0].count("]") >= opens[0].count("[")
    return not is_whole and closes.end() == len(rest)
