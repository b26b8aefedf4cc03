"""Text made fit for one line, or for a channel without emoji."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Co"})

# Joiners and selectors that only serve the emoji next to them, and the keycap sign.
_EMOJI_PARTS: Final = frozenset("\u200d\ufe0e\ufe0f\u20e3")

_SPACES: Final = re.compile(r" {2,}")


def clipped(text: str, characters_max: int) -> str:
    """Return a text on one line, without invisible characters, cut if it is too long."""
    line = " ".join(text.split())
    line = "".join(c for c in line if unicodedata.category(c) not in _HIDDEN)
    return line if len(line) <= characters_max else f"{line[: characters_max - 1].rstrip()}…"


def without_emoji(text: str) -> str:
    """Return a text without emoji and other pictures, and without the spaces that they leave."""
    if text.isascii():
        return text
    kept = "".join(
        c for c in text if c not in _EMOJI_PARTS and unicodedata.category(c) not in ("So", "Sk")
    )
    if kept == text:
        return text
    return "\n".join(_SPACES.sub(" ", line).strip() for line in kept.splitlines())
