"""Text of users and agents, made harmless for a terminal.

Its rule: the result moves no cursor, sets no title, fills no clipboard and reverses no text.
"""

from __future__ import annotations

import re
from typing import Final

_UNSEEN: Final = re.compile(
    # Controls except newline and tab, including DEL and C1; then characters without width, and
    # those that reverse the order of their neighbours. U+200C and U+200D stay: they join letters
    # and emoji.
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"
    "\u00ad\u034f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
_PICTURES: Final = 0x2400
"""Unicode has a picture from here for each control character below the space."""


def seen(text: str) -> str:
    r"""Return text that is safe for a terminal: ESC as ␛, invisible characters as \x9b or \u202e.

    Newlines and tabs stay. The function is idempotent.
    """
    return _UNSEEN.sub(_sign, text)


def seen_json(text: str) -> str:
    r"""Return equal JSON with invisible characters escaped, such as \u009b."""
    return _UNSEEN.sub(_json_escape, text)


def _sign(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < ord(" "):
        return chr(_PICTURES + code)
    if code <= 0xFF:  # noqa: PLR2004 - what two digits can say
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"  # noqa: PLR2004 - as above


def _json_escape(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
