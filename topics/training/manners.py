"""Learning how a change of topic is worded, independent of its subject.

Owns the weights of phrases. Rule: the weight of a phrase in a training turn is learned from other
dialogues; otherwise it would be trusted too much.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression

from agent_routing_topics.model.manner import Manner, last_sentence, phrases_of
from agent_routing_topics.model.word_knowledge import WordKnowledge

_HELD_BY_MIN: Final = 15
_STRENGTH: Final = 0.05
"""The inverse of the penalty: there are thousands of phrases, and most carry no information."""
_WORTH_MIN: Final = 0.02


@dataclass(frozen=True, slots=True)
class Wording:
    """A message's folded terms and the answer before it.

    dialogue: "" if it was made up. teaches: phrases are learned from it; a message that is asked of
    several registries teaches once.
    """

    words: tuple[str, ...]
    answer: str
    dialogue: str
    stays: bool
    teaches: bool = True


def learn_manner(
    wordings: Sequence[Wording], knowledge: WordKnowledge
) -> tuple[Manner, list[tuple[float, float]]]:
    """Return the weights of phrases, and each wording's scores by weights of other dialogues.

    Only real messages count: sentences that were made up for training would be memorised.
    """
    said, said_each = _learn(wordings, lambda one: phrases_of(one.words, knowledge))
    asked, asked_each = _learn(
        wordings, lambda one: phrases_of(last_sentence(one.answer), knowledge) if one.answer else ()
    )
    manner = Manner(said, asked, knowledge)
    return manner, list(zip(said_each, asked_each, strict=True))


def _learn(
    wordings: Sequence[Wording], phrases: Callable[[Wording], Sequence[str]]
) -> tuple[dict[str, float], list[float]]:
    found = [phrases(one) for one in wordings]
    stays = np.array([one.stays for one in wordings])
    halves = [zlib.crc32(one.dialogue.encode()) % 2 if one.dialogue else -1 for one in wordings]
    teach = [one.teaches for one in wordings]
    whole = _worths(
        found, stays, [half >= 0 and it for half, it in zip(halves, teach, strict=True)]
    )
    by_half = [
        _worths(
            found, stays, [half == other and it for half, it in zip(halves, teach, strict=True)]
        )
        for other in (1, 0)
    ]
    each = [
        sum((whole if half < 0 else by_half[half]).get(phrase, 0.0) for phrase in held)
        for half, held in zip(halves, found, strict=True)
    ]
    return whole, each


def _worths(
    found: Sequence[Sequence[str]], stays: NDArray[np.bool_], is_seen: Sequence[bool]
) -> dict[str, float]:
    seen = [number for number, one in enumerate(is_seen) if one]
    counts = Counter(phrase for number in seen for phrase in found[number])
    known = sorted(phrase for phrase, count in counts.items() if count >= _HELD_BY_MIN)
    column = {phrase: number for number, phrase in enumerate(known)}
    columns: list[int] = []
    ends = [0]
    for number in seen:
        columns += [column[phrase] for phrase in found[number] if phrase in column]
        ends.append(len(columns))
    table = csr_matrix((np.ones(len(columns)), columns, ends), shape=(len(seen), len(known)))
    model = LogisticRegression(C=_STRENGTH, max_iter=200).fit(table, stays[seen])
    return {
        phrase: round(float(value), 2)
        for phrase, value in zip(known, model.coef_[0], strict=True)
        if abs(value) >= _WORTH_MIN
    }
