"""How a message and the answer before it are worded, apart from their subject.

The features are phrases of everyday words. A word of the subject is left blank, because people
change the subject in the same way whatever the agents are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from agent_routing_topics.model.word_knowledge import WordKnowledge
from agent_routing_topics.model.words import split, stem

_EVERYDAY_WEIGHT_MAX: Final = 0.35
"""Words that tell more than this of what a text is about are blanks."""

WORDS_MAX: Final = 40
"""Of a text's words, the first ones: what is longer is no longer worded like a turn."""

_BLANK: Final = "*"
_BEGINNING: Final = "^"
_END: Final = "$"
_TAIL_CHARACTERS: Final = 600
"""Of an answer, its end: longer sentences ask nothing."""

_SENTENCE_ENDS: Final = re.compile(r"[.!?;\n]+")


def phrases_of(words: Sequence[str], knowledge: WordKnowledge) -> tuple[str, ...]:
    """Return the different phrases of folded words: of one word, of two and of three.

    The beginning and the end of the text are words too.
    """
    weights, concepts = knowledge.weights, knowledge.concepts
    said = [
        word
        if word == "#" or (weights.get(word, 1.0) <= _EVERYDAY_WEIGHT_MAX and word not in concepts)
        else _BLANK
        for word in map(stem, words[:WORDS_MAX])
    ]
    ended = [_BEGINNING, *said, _END]
    pairs = map(" ".join, pairwise(ended))
    threes = map(" ".join, zip(ended, said, said[1:], strict=False))
    return tuple(dict.fromkeys((*said, *pairs, *threes)))


def last_sentence(text: str) -> tuple[str, ...]:
    """Return the folded words of the last sentence of an answer: what it asks stands there."""
    for sentence in reversed(_SENTENCE_ENDS.split(text[-_TAIL_CHARACTERS:])):
        if words := split(sentence):
            return tuple(words)
    return ()


@dataclass(frozen=True, slots=True)
class Manner:
    """What phrases are worth, of a message and of the end of the answer before it."""

    said: Mapping[str, float]
    asked: Mapping[str, float]
    knowledge: WordKnowledge

    def of(self, words: Sequence[str], answer: str) -> tuple[float, float]:
        """Return how much the folded words of a message, and an answer, speak for staying.

        0 where nothing is known of their phrases; an answer of "" has none.
        """
        said = _worth(words, self.said, self.knowledge)
        asked = _worth(last_sentence(answer), self.asked, self.knowledge) if answer else 0.0
        return said, asked


def _worth(words: Sequence[str], worths: Mapping[str, float], knowledge: WordKnowledge) -> float:
    if not worths:
        return 0.0
    return sum(worths.get(phrase, 0.0) for phrase in phrases_of(words, knowledge))
