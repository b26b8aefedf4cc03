"""The meaning of words of everyday services, across languages: concepts.txt.

A concept is compared like a word. It begins with "@", which no word of a text does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib.resources import files
from typing import Final

from agent_routing_topics.model.words import split, stem

_FILE: Final = "concepts.txt"


def load_concepts() -> dict[str, tuple[str, ...]]:
    """Return the concepts of each stem, and of each pair of stems written "first second"."""
    lines = files(__package__).joinpath(_FILE).read_text(encoding="utf-8").splitlines()
    return read_concepts(lines)


def read_concepts(lines: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Read lines of "name: word word other-word | word"; "other-word" is a pair of words."""
    found: dict[str, dict[str, None]] = {}
    for line in lines:
        if not line.strip() or line.startswith("#"):
            continue
        name, _, words = line.partition(":")
        for word in words.replace("|", " ").split():
            key = " ".join(stem(part) for part in split(word))
            found.setdefault(key, {})[f"@{name.strip()}"] = None
    return {key: tuple(names) for key, names in found.items()}


def concepts_of(
    stems: list[str], concepts: Mapping[str, tuple[str, ...]]
) -> Iterator[tuple[str, str, int]]:
    """Yield each concept with the stem that stands for it, and with how many it stands for."""
    previous = ""
    for word in stems:
        found = concepts.get(word, ())
        for concept in found:
            yield concept, word, len(found)
        if previous:
            found = concepts.get(f"{previous} {word}", ())
            for concept in found:
                yield concept, word, len(found)
        previous = word
