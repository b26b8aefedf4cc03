"""How close words are to a registry's agents.

Three documents an agent: what it says of itself, its examples, and both together. Two spaces:
stems, and pieces of three to five characters, which also match what is mistyped or formed
otherwise. A word weighs the logarithm of how rare it is, in the registry and in conversations at
large. Each word's closeness to all documents is kept for the next message that has the word.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from agent_routing_topics.model.agent_text import AgentText
from agent_routing_topics.model.words import split, stem

SPACES: Final = 2
DOCUMENTS: Final = 3
"""Of an agent: what it says of itself, examples, both."""

UNKNOWN_SHARE: Final = 0.0004
"""Of messages at large that have a stem which few registries of the training had."""

SHARE_WEIGHT: Final = 60.0
"""Texts of the registry that count as much as what is known of messages at large."""

NUMBER_WEIGHT: Final = 0.5
"""Of a number: each message has others."""

WORD_CHARACTERS_MAX: Final = 24
WORDS_KEPT: Final = 8_192
"""Words whose closeness is kept: 4 MB for 21 agents."""

GiveWay = Callable[[], object]
_Postings = tuple["array[int]", "array[float]"]
_Spaces = tuple[_Postings, _Postings]


@dataclass(slots=True)
class Closeness:
    """The closeness of a text to each document, by space, before it is divided by the norm."""

    sums: tuple[list[float], list[float]]
    square: float

    def __add__(self, other: Closeness) -> Closeness:
        """Return that of both texts together."""
        return Closeness(
            (
                [a + b for a, b in zip(self.sums[0], other.sums[0], strict=True)],
                [a + b for a, b in zip(self.sums[1], other.sums[1], strict=True)],
            ),
            self.square + other.square,
        )

    def of(self, space: int, document: int) -> list[float]:
        """Return the cosine with one kind of document, by agent."""
        scale = 1 / math.sqrt(self.square) if self.square else 0.0
        return [scale * value for value in self.sums[space][document::DOCUMENTS]]


class RegistryWords:
    """The documents of one registry. Verdicts may share it between threads."""

    def __init__(
        self, agents: Sequence[AgentText], shares: Mapping[str, float], give_way: GiveWay
    ) -> None:
        """Read every text once.

        shares: of messages at large, by stem. give_way: called again and again.
        """
        self._shares = shares
        self._documents = DOCUMENTS * len(agents)
        self._texts = sum(len(agent.texts) for agent in agents)
        counted: list[Counter[str]] = []
        self._counts: Counter[str] = Counter()
        for agent in agents:
            described = _words_of(agent.description)
            shown = _words_of(agent.examples)
            both = described + shown
            counted += [described, shown, both]
            for text in agent.texts:
                self._counts.update({stem(word) for word in split(text)})
            give_way()
        self._weights: dict[str, float] = {}
        self._kept: dict[str, _Spaces] = {}
        stems: dict[str, dict[int, float]] = defaultdict(dict)
        pieces: dict[str, dict[int, float]] = defaultdict(dict)
        for number, words in enumerate(counted):
            by_stem: Counter[str] = Counter()
            by_piece: dict[str, float] = defaultdict(float)
            for word, count in words.items():
                by_stem[stem(word)] += count
                own = pieces_of(word)
                share = self.weight(stem(word)) * (1 + math.log(count)) / math.sqrt(len(own))
                for piece in own:
                    by_piece[piece] += share
            weighed = {each: self.weight(each) * (1 + math.log(n)) for each, n in by_stem.items()}
            _add(stems, number, weighed)
            _add(pieces, number, by_piece)
            give_way()
        self._stems, self._pieces = dict(stems), dict(pieces)

    def weight(self, stemmed: str) -> float:
        """Return what a stem weighs in any text."""
        found = self._weights.get(stemmed)
        if found is None:
            at_large = self._shares.get(stemmed, UNKNOWN_SHARE)
            here = self._counts.get(stemmed, 0)
            share = (here + SHARE_WEIGHT * at_large) / (self._texts + SHARE_WEIGHT)
            found = NUMBER_WEIGHT if stemmed == "#" else max(0.0, -math.log(share))
            if len(self._weights) >= WORDS_KEPT:
                self._weights = {}
            self._weights[stemmed] = found
        return found

    def square(self, stems: Iterable[str]) -> float:
        """Return the square of the norm of stems."""
        return sum([self.weight(each) ** 2 for each in stems])

    def closeness(self, words: Iterable[str]) -> Closeness:
        """Return how close words are to each document."""
        sums = [0.0] * self._documents, [0.0] * self._documents
        square = 0.0
        kept = self._kept
        for word in set(words):
            held = kept.get(word) or self._read(word)
            square += self.weight(stem(word)) ** 2
            for values, (numbers, shares) in zip(sums, held, strict=True):
                for number, share in zip(numbers, shares, strict=True):
                    values[number] += share
        return Closeness(sums, square)

    def _read(self, word: str) -> _Spaces:
        weight = self.weight(stem(word))
        own = pieces_of(word)
        close: dict[int, float] = defaultdict(float)
        for piece in own:
            for number, share in self._pieces.get(piece, {}).items():
                close[number] += share
        each = weight / math.sqrt(len(own))
        found = (
            _postings(self._stems.get(stem(word), {}), weight),
            _postings(close, each),
        )
        if len(self._kept) >= WORDS_KEPT:
            self._kept = {}
        self._kept[word] = found
        return found


def pieces_of(word: str) -> list[str]:
    """Return the different pieces of three to five characters of a word with its ends marked."""
    marked = f"<{word[:WORD_CHARACTERS_MAX]}>"
    found = {marked[at : at + size] for size in (3, 4, 5) for at in range(len(marked) - size + 1)}
    return sorted(found)


def _words_of(texts: Sequence[str]) -> Counter[str]:
    return Counter([word for text in texts for word in set(split(text))])


def _add(held: dict[str, dict[int, float]], number: int, weighed: Mapping[str, float]) -> None:
    norm = math.sqrt(sum(value * value for value in weighed.values())) or 1.0
    for token, value in weighed.items():
        held[token][number] = value / norm


def _postings(close: Mapping[int, float], weight: float) -> _Postings:
    return array("I", close.keys()), array("d", [weight * share for share in close.values()])
