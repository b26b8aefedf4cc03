"""The features of a first message: whether it is for the agent that it fits best.

A registry that training never saw is recognised by two things: how well its own examples can be
told apart, and how much of the message is known.
"""

from __future__ import annotations

import math
from typing import Final

from routing_service.topics.model.agent_index import FIT_FEATURES
from routing_service.topics.model.cues import CUES, cues_of
from routing_service.topics.model.dialogue_features import Reading, softmax

_SHOWN_FITS: Final = (
    *("examples", "nearest", "description", "concepts_described"),
    *("likelihood", "sense", "sense_described"),
)
_SHOWN_PLACES: Final = tuple(FIT_FEATURES.index(name) for name in _SHOWN_FITS)
_SENSE_SHARE: Final = FIT_FEATURES.index("sense_share")
_EXAMPLES: Final = FIT_FEATURES.index("examples")
_DESCRIPTION: Final = FIT_FEATURES.index("description")

OPENING_FEATURES: Final = (
    "fit_best",
    "share_best",
    "share_second",
    "lead",
    "entropy",  # of the shares, from 0 (all one agent's) to 1
    *(f"best_{name}" for name in _SHOWN_FITS),
    "sense_lead",  # of the best in what the message asks for, over the best other
    "sense_held",  # how much of what the message asks for is some agent's
    "trust",  # how well what messages ask for tells these agents apart
    *(f"says_{cue}" for cue in CUES),
    "words",
    "told",
    "is_short",
    "numbers",
    "fits_nothing",  # no word in common with any agent
    "known",  # how much of what the words tell is known to some agent
    "known_words",  # the same of the words themselves, to any agent or to no agent of this registry
    "agents",
)

_SHORT_WORDS: Final = 4
_CUE_MAX: Final = 2
_NO_SECOND: Final = 10.0
"""The lead of an agent that is the only one."""


def opening_features(reading: Reading, best: int) -> list[float]:
    """Return OPENING_FEATURES. best: the place of the agent that fits best."""
    message, fit, fits = reading.message, reading.fit, reading.fits
    words = message.whole
    shares = softmax(fit)
    others = [place for place in range(len(fit)) if place != best]
    second = max(others, key=fit.__getitem__, default=-1)
    senses = fits[_SENSE_SHARE]
    known = max(fits[_EXAMPLES])
    described = max(fits[_DESCRIPTION])
    entropy = -sum(share * math.log(share) for share in shares if share > 0)
    return [
        fit[best],
        shares[best],
        shares[second] if others else 0.0,
        fit[best] - fit[second] if others else _NO_SECOND,
        entropy / math.log(len(fit)) if others else 0.0,
        *(fits[place][best] for place in _SHOWN_PLACES),
        senses[best] - max((senses[place] for place in others), default=0.0),
        sum(senses),
        message.trust,
        *(min(count, _CUE_MAX) for count in cues_of(words)),
        math.log1p(len(words)),
        message.length,
        len(words) <= _SHORT_WORDS,
        sum(map(str.isdigit, words)) / (1 + len(words)),
        known + described <= 0,
        max(known, described),
        message.known,
        math.log(reading.agents),
    ]
