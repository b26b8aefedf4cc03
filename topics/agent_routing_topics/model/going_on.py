"""What tells that a message goes on with the active agent.

Its first words, its length, and what the agent said last.

Owns the tokens whose weights are learned. No token has an agent's name or subject: those that occur
in few registries of the training have no weight.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Final

from agent_routing_topics.model.words import ends_of, split, stem
from routing_service.topics.topic_detector import TopicQuestion

PARTS_MAX: Final = 4
WORDS_MAX: Final = 40
LENGTH_MAX: Final = 12
SHARED_CHARACTERS_MIN: Final = 4
SHARED_MAX: Final = 3

_ENDS: Final = re.compile(r"(?<=[.!?;:])\s+|\n+")


def parts_of(text: str) -> list[str]:
    """Return the sentences of a message; the first ones together where there are too many."""
    found, first = [], 0
    text = ends_of(text).strip()
    for cut in _ENDS.finditer(text):
        found.append(text[first : cut.start()])
        first = cut.end()
    found.append(text[first:])
    more = max(1, len(found) - PARTS_MAX + 1)
    return [" ".join(found[:more]), *found[more:]]


def tokens_of(question: TopicQuestion) -> set[str]:
    """Return the tokens of a message and of what was said last."""
    stems = [stem(word) for word in split(question.text)[:WORDS_MAX]]
    length = min(len(stems), LENGTH_MAX)
    tokens = {f"w:{each}" for each in stems}
    tokens |= {f"2:{one}_{two}" for one, two in pairwise(stems)}
    tokens |= {f"f:{'_'.join(stems[:count])}" for count in (1, 2) if len(stems) >= count}
    tokens |= {f"n:{length}", f"m:{'?' in question.text}"}
    if question.recent:
        last = question.recent[-1]
        answer = last.agent_text.strip()
        sentence = split(parts_of(answer)[-1])[:WORDS_MAX]
        tokens |= {f"a:{stem(word)}" for word in sentence}
        said = {stem(word) for word in split(answer)}
        shared = sum(each in said and len(each) >= SHARED_CHARACTERS_MIN for each in set(stems))
        tokens |= {f"o:{last.outcome}", f"on:{last.outcome}:{length}"}
        tokens |= {f"q:{answer.endswith('?')}", f"s:{min(shared, SHARED_MAX)}"}
    return tokens


def odds_of(question: TopicQuestion, weights: Mapping[str, float]) -> float:
    """Return the logarithm of the odds that a message goes on. weights: by token, "" for all."""
    get = weights.get
    return get("", 0.0) + sum([get(token, 0.0) for token in tokens_of(question)])
