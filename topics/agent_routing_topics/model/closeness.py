"""How close a text is to each text of an agent: by stems, and by pieces of words.

Owns the bags of texts, and an index of them by agent. Rule: what a token tells depends on this
registry alone, and an example is never compared by who wrote it.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Final, NamedTuple, Self

import msgspec

from agent_routing_topics.model.agent_index import EXAMPLES_MAX, AgentText
from agent_routing_topics.model.word_knowledge import WordKnowledge
from agent_routing_topics.model.words import split, stem

PIECE: Final = 4
"""Characters of a piece of a word: enough to find a word in its other forms, and in compounds."""

WORDS_MAX: Final = 48
"""Of a text, the first words: an answer's pieces take most of the time."""

SEGMENTS_MAX: Final = 4
_SEGMENT_WORDS_MIN: Final = 3
_SEGMENT_ENDS: Final = re.compile(r"[.!?;:,\n…]+|\s[-\u2013\u2014]\s")

_PIECE_WEIGHT: Final = 0.45
_REPEATED: Final = 0.5
_BEST_FEW: Final = 3
_FEW_WEIGHT: Final = 0.9
"""What the mean of an agent's examples counts for where it has fewer than three."""
_DIGITS: Final = 3

Bag = dict[str, float]
"""A text as its tokens with their weights; their squares add up to 1."""


@lru_cache(maxsize=16384)
def _pieces(word: str) -> tuple[str, ...]:
    """Return the stem of a word, and its pieces."""
    if len(word) < PIECE or word.isdigit():
        return (stem(word),)
    ended = f"<{word}>"
    return (stem(word), *(f"~{ended[at : at + PIECE]}" for at in range(len(ended) - PIECE + 1)))


def tokens_of(words: Iterable[str]) -> dict[str, int]:
    """Return the tokens of folded words, and how often each is there."""
    return Counter(chain.from_iterable(map(_pieces, words)))


def segments_of(text: str) -> list[str]:
    """Return the parts of a message that may ask for something each; none where there is one."""
    parts = [part.strip() for part in _SEGMENT_ENDS.split(text)]
    found = [part for part in parts if len(part.split()) >= _SEGMENT_WORDS_MIN]
    is_whole = len(found) == 1 and found[0] == text.strip()
    return [] if is_whole else found[-SEGMENTS_MAX:]


class Closest(NamedTuple):
    """How close a text is to one agent, from 0 to 1. examples: to each of them, in their order.

    best: to the closest text but the name.
    """

    described: float
    named: float
    examples: Sequence[float]
    best: float


class ByExamples(NamedTuple):
    """What examples say together. best, best_few, mean: 0 without any."""

    best: float
    best_few: float
    mean: float


def by_examples(found: Sequence[float]) -> ByExamples:
    """Return the best, the mean of the best three, and the mean of all."""
    if not found:
        return ByExamples(0.0, 0.0, 0.0)
    mean = sum(found) / len(found)
    best = sorted(found, reverse=True)[:_BEST_FEW]
    few = sum(best) / _BEST_FEW if len(best) == _BEST_FEW else mean * _FEW_WEIGHT
    return ByExamples(best[0], few, mean)


ByToken = dict[str, tuple[tuple[int, float], ...]]


class KeptCloseness(msgspec.Struct, frozen=True, array_like=True):
    """What was computed of a registry's texts, as a file keeps it; see ClosenessIndex.

    held: by token, how many agents have it. counts: texts of each agent. What is kept of single
    texts is apart from it, a part an agent.
    """

    held: dict[str, float]
    counts: tuple[int, ...]


class ClosenessIndex:
    """The texts of a registry's agents, ready to be compared. Immutable once made."""

    def __init__(
        self, agents: Sequence[AgentText], knowledge: WordKnowledge, give_way: Callable[[], None]
    ) -> None:
        """Read every text of every agent once. give_way: called after each agent."""
        self._knowledge = knowledge
        self._whole = math.log(1 + len(agents))
        self._agents = len(agents)
        tokens: list[list[dict[str, int]]] = []
        for agent in agents:
            texts = (" ".join((*agent.names[:1], *agent.descriptions)), " ".join(agent.names))
            examples = examples_of(agent)
            tokens.append([tokens_of(split(text)[:WORDS_MAX]) for text in (*texts, *examples)])
            give_way()
        agents_with: Counter[str] = Counter()
        for texts_of in tokens:
            # The name stands in the first text too.
            own = Counter(token for text in (texts_of[0], *texts_of[2:]) for token in text)
            least = max(3, len(texts_of) - 1)
            for token, count in own.items():
                agents_with[token] += min(1.0, 3 * count / least)  # type: ignore[assignment]
        self._held: dict[str, float] = dict(agents_with)
        self._weights: dict[str, float] = {}
        self._counts = tuple(len(texts_of) for texts_of in tokens)
        # What is equal is one object: there are few different pairs of a text and a weight.
        known: dict[tuple[int, float], tuple[int, float]] = {}
        self._index: list[ByToken] = []
        for texts_of in tokens:
            by_token: dict[str, list[tuple[int, float]]] = {}
            for number, text in enumerate(texts_of):
                for token, weight in self._bag(text).items():
                    held = (number, round(weight, _DIGITS))
                    by_token.setdefault(token, []).append(known.setdefault(held, held))
            self._index.append({token: tuple(held) for token, held in by_token.items()})
            give_way()

    @property
    def kept(self) -> tuple[KeptCloseness, Sequence[ByToken]]:
        """What of_kept() takes: the whole, and a part an agent."""
        return KeptCloseness(self._held, self._counts), self._index

    @classmethod
    def of_kept(
        cls, knowledge: WordKnowledge, kept: KeptCloseness, index: Sequence[ByToken]
    ) -> Self:
        """Return the index that was kept. knowledge: what it was made with."""
        made = cls.__new__(cls)
        made._take(knowledge, kept, index)  # noqa: SLF001 - its own
        return made

    def _take(
        self, knowledge: WordKnowledge, kept: KeptCloseness, index: Sequence[ByToken]
    ) -> None:
        """Begin with what was kept."""
        self._knowledge = knowledge
        self._agents = len(kept.counts)
        self._whole = math.log(1 + self._agents)
        self._held, self._counts = kept.held, kept.counts
        self._weights = {}
        self._index = list(index)

    def examples(self, place: int) -> int:
        """Return how many examples of an agent are compared."""
        return self._counts[place] - 2

    def bag(self, words: Iterable[str]) -> Bag:
        """Return the bag of folded words."""
        return self._bag(tokens_of(words))

    def closest(self, bag: Bag, place: int) -> Closest:
        """Compare a text with one agent. place: the agent's, in the order they were given."""
        found = [0.0] * self._counts[place]
        holders = self._index[place]
        for token in filter(holders.__contains__, bag):
            weight = bag[token]
            for number, held in holders[token]:
                found[number] += weight * held
        return closest_of(found)

    def _bag(self, tokens: dict[str, int]) -> Bag:
        known = self._weights
        found: Bag = {}
        squares = 0.0
        for token, count in tokens.items():
            weight = known.get(token)
            if weight is None:
                weight = self._weight(token)
                if token in self._held:
                    known[token] = weight
            if weight > 0:
                if count > 1:
                    weight *= 1 + _REPEATED * math.log(count)
                found[token] = weight
                squares += weight * weight
        if not squares:
            return found
        scale = 1 / math.sqrt(squares)
        return {token: weight * scale for token, weight in found.items()}

    def _weight(self, token: str) -> float:
        """Return how much a token tells in this registry: little where all agents have it."""
        held = self._held.get(token)
        rarity = 1.0
        if held is not None and self._whole:
            rarity = min(1.0, math.log(1 + self._agents / max(1.0, held)) / self._whole)
        known = _PIECE_WEIGHT if token[0] == "~" else self._knowledge.weight(token)
        return known * rarity


def closest_of(found: Sequence[float]) -> Closest:
    """Return how close a text is to an agent's texts: its description, its name, its examples."""
    examples = found[2:]
    return Closest(found[0], found[1], examples, max(found[0], max(examples, default=0.0)))


def closeness(one: Bag, other: Bag) -> float:
    """Return how close two texts are, from 0 to 1."""
    if len(other) < len(one):
        one, other = other, one
    find = other
    return sum([one[token] * find[token] for token in filter(find.__contains__, one)])


def examples_of(agent: AgentText) -> tuple[str, ...]:
    """Return EXAMPLES_MAX examples of an agent at most, evenly spread over all."""
    count = len(agent.examples)
    if count <= EXAMPLES_MAX:
        return agent.examples
    return tuple(agent.examples[number * count // EXAMPLES_MAX] for number in range(EXAMPLES_MAX))
