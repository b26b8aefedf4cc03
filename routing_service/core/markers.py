"""Handoff markers in an agent's text, such as [HANDOFF_TO:motivator].

Rule: only the text of an agent that may use markers is searched, never a user's.
"""

from __future__ import annotations

import re

# Bounded everywhere, so that no text takes longer than its length to search.
_NAME_MAX = 256
_SPACES_MAX = 8
_MARKER = re.compile(
    rf"\[[ \t]{{0,{_SPACES_MAX}}}HANDOFF_TO[ \t]{{0,{_SPACES_MAX}}}"
    rf":([^\[\]\r\n]{{1,{_NAME_MAX}}})\]",
    re.IGNORECASE,
)
_LENGTH_MAX = len("[HANDOFF_TO:]") + 2 * _SPACES_MAX + _NAME_MAX


def cut_markers(text: str) -> tuple[str, str]:
    """Return the text without its markers, and the name in the first one, "" for none."""
    found = _MARKER.search(text)
    if found is None:
        return text, ""
    first = found.group(1).strip()
    while found is not None:
        # White space before a marker goes with it, so that the sentence around it closes.
        kept = text[: found.start()].rstrip(" \t")
        text = kept + text[found.end() :]
        # What stood around a marker may spell one now: users see none, however it was written.
        found = _MARKER.search(text, max(0, len(kept) - _LENGTH_MAX))
    return text.strip(), first
