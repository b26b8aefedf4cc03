"""What a message says about the dialogue itself: cues.txt.

The file has phrases by which people agree, thank, ask, change the subject or return to it. A
message in a language without cues has none, and the other features judge it.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import Final

from agent_routing_topics.model.words import split

_FILE: Final = "cues.txt"

_Phrases = dict[str, list[tuple[tuple[str, ...], int]]]


def _read(lines: list[str]) -> tuple[tuple[str, ...], _Phrases]:
    """Return the cues, and by their first words the phrases with the numbers of their cues."""
    names: list[str] = []
    phrases: _Phrases = {}
    for line in lines:
        if line.startswith("#"):
            continue
        name, _, said = line.partition(":")
        for phrase in said.split("|"):
            words = tuple(split(phrase))
            phrases.setdefault(words[0], []).append((words, len(names)))
        names.append(name)
    return tuple(names), phrases


CUES, _PHRASES = _read(files(__package__).joinpath(_FILE).read_text(encoding="utf-8").splitlines())


def cues_of(words: Sequence[str]) -> list[int]:
    """Return how often each of CUES stands in a text's folded words."""
    counts = [0] * len(CUES)
    for at, word in enumerate(words):
        for phrase, number in _PHRASES.get(word, ()):
            length = len(phrase)
            if length == 1 or tuple(words[at : at + length]) == phrase:
                counts[number] += 1
    return counts
