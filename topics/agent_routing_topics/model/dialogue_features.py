"""The features that speak for staying with an agent, or for leaving it.

Rule: agents are compared by how they fit and by what they did in this dialogue, never by their ids.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from agent_routing_topics.model.agent_index import (
    FIT_FEATURES,
    AgentIndex,
    Message,
    places_of_best,
)
from agent_routing_topics.model.cues import CUES, cues_of
from agent_routing_topics.model.turn_reading import reading_of
from agent_routing_topics.model.words import stem
from routing_service.topics.topic_detector import RecentTurn, TopicQuestion

TARGET_FEATURES: Final = (
    *FIT_FEATURES,
    "was_last",  # it had the conversation just before
    "was_earlier",  # it had the conversation at some time
    "announced",  # the last answer speaks of what this agent is for
    "announced_accepted",  # the same where the message is a few words of agreement
    "remembered",  # the message has words of this agent's own turns
    "unanswered",  # what nobody has answered so far speaks of what this agent is for
)

_AFFIRMS: Final = CUES.index("affirms")
_ANNOUNCED_KEPT: Final = 4
"""Agents that are compared because the last answer speaks of them, where not all are."""
_SHORT_WORDS: Final = 4
BEGINNING_WORDS: Final = 6

# "Anything else?" and its like.
OFFERS_MORE: Final = frozenset(
    {"else", "further", "additional", "anything", "something", "assist"}
    | {"mas", "otra", "algo", "mais", "outra"}
)
NUMBER_WORDS: Final = frozenset(
    {"one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "am", "pm"}
    | {"uno", "dos", "tres", "cuatro", "cinco", "seis", "siete", "ocho", "nueve", "diez"}
)


@dataclass(frozen=True, slots=True)
class Reading:
    """A question as it is judged: among those agents that it is compared with in full.

    agent_ids: who they are, in the order of their ids; agents: how many the registry has. fits: for
    each of FIT_FEATURES, its value for each of them; targets: for the rest of TARGET_FEATURES. fit:
    the score of each by what it says of itself; target: by what the dialogue says too. present: the
    place among them of the agent who has the conversation, or had it last; -1 at an opening.
    """

    question: TopicQuestion
    message: Message
    agent_ids: Sequence[str]
    agents: int
    fits: list[list[float]]
    targets: list[list[float]]
    fit: list[float]
    target: list[float]
    present: int
    is_released: bool
    last_words: tuple[str, ...]


def read(
    question: TopicQuestion,
    index: AgentIndex,
    fit_weights: Sequence[float],
    target_weights: Sequence[float],
    most: int = 0,
) -> Reading:
    """Compare a question with agents.

    fit_weights: of FIT_WEIGHTS. target_weights: of TARGET_FEATURES; idle where nobody has, or had,
    the conversation. most: with how many in full, 0 = all. Those that have or had it, and
    those that the last answer speaks of, are among them whatever the message says.
    """
    message = index.message(question.text)
    last = question.recent[-1] if question.recent else None
    last_words = reading_of(last).agent if last else ()
    announced = index.mentions(last_words) if last_words else []
    place = index.place
    also: list[int] = []
    if 0 < most < len(place):
        known = (question.active_agent_id, *question.earlier_agent_ids)
        also = [place[agent_id] for agent_id in known if agent_id in place]
        also += places_of_best(announced, _ANNOUNCED_KEPT)
    fits = index.fits(message, most, also)
    agent_ids: Sequence[str] = index.agent_ids
    if len(fits.places) < len(agent_ids):
        announced = [announced[at] for at in fits.places] if announced else []
        agent_ids = [agent_ids[at] for at in fits.places]
        place = {agent_id: at for at, agent_id in enumerate(agent_ids)}
    present = place.get(question.active_agent_id, -1)
    is_released = False
    if present < 0 and not question.active_agent_id:
        for agent_id in reversed(question.earlier_agent_ids):
            if agent_id in place:
                present, is_released = place[agent_id], True
                break
    fit = target = weighted(fits.columns, index.weights_here(fit_weights))
    targets: list[list[float]] = []
    if present >= 0:
        # An open turn is no silence: the agent still works on it.
        silent = () if question.is_turn_open else question.recent
        unanswered = _unanswered(silent, index, fits.places)
        targets = _targets(question, place, message, announced, unanswered, present)
        target = weighted([*fits.columns, *targets], target_weights)
    return Reading(
        question=question,
        message=message,
        agent_ids=agent_ids,
        agents=len(index.agent_ids),
        fits=fits.columns,
        targets=targets,
        fit=fit,
        target=target,
        present=present,
        is_released=is_released,
        last_words=last_words,
    )


def _targets(  # noqa: PLR0917 - parts of one reading that is being made
    question: TopicQuestion,
    places: Mapping[str, int],
    message: Message,
    announced: list[float],
    unanswered: list[float],
    present: int,
) -> list[list[float]]:
    """Return TARGET_FEATURES of each agent, but for its fits."""
    count = len(unanswered)
    was_last, was_earlier = [0.0] * count, [0.0] * count
    others = [
        places[agent_id]
        for agent_id in question.earlier_agent_ids
        if places.get(agent_id, present) != present
    ]
    for place in others:
        was_earlier[place] = 1.0
    if others:
        was_last[others[-1]] = 1.0
    announced_accepted = [0.0] * count
    if not announced:
        announced = announced_accepted
    elif len(message.whole) <= _SHORT_WORDS and cues_of(message.whole)[_AFFIRMS]:
        announced_accepted = announced
    remembered = [0.0] * count
    for place, share in _remembered(question.recent, places, message).items():
        remembered[place] = share
    return [was_last, was_earlier, announced, announced_accepted, remembered, unanswered]


def _unanswered(
    recent: Sequence[RecentTurn], index: AgentIndex, places: Sequence[int]
) -> list[float]:
    """Return how much the latest messages without an answer speak of what each agent is for.

    An agent that has the conversation by mistake has nothing to say; what it was asked since may
    show together what one message did not. places: of the agents, in the index.
    """
    found = [0.0] * len(places)
    for turn in reversed(recent):
        if turn.is_answered:
            break
        said = index.mentions(reading_of(turn).user)
        found = [max(known, said[place]) for known, place in zip(found, places, strict=True)]
    return found


def _remembered(
    recent: Sequence[RecentTurn], places: Mapping[str, int], message: Message
) -> dict[int, float]:
    """Return by place how much of what the message tells was said in that agent's turns."""
    asked = frozenset(message.words)
    said: dict[int, set[str]] = {}
    for turn in recent:
        place = places.get(turn.agent_id)
        if place is not None:
            said.setdefault(place, set()).update(asked.intersection(reading_of(turn).stems))
    scale = 1 / (message.length * message.length + 0.5)
    return {
        place: scale
        * sum(
            weight * weight
            for word, weight in zip(message.words, message.weights, strict=True)
            if word in words
        )
        for place, words in said.items()
    }


def shared(message: Message, words: tuple[str, ...]) -> float:
    """Return how much of what a message tells stands in other words, from 0 to 1."""
    held = set(map(stem, words))
    shared = sum(
        weight * weight
        for word, weight in zip(message.words, message.weights, strict=True)
        if word in held
    )
    return shared / (message.length * message.length + 0.5)


def weighted(columns: Sequence[Sequence[float]], weights: Sequence[float]) -> list[float]:
    """Return for each agent the sum of its features, each times its weight."""
    scores = [0.0] * len(columns[0])
    # Some features are hardly ever there: no agent without examples, nobody announced.
    there = [pair for pair in zip(columns, weights, strict=True) if any(pair[0])]
    if len(there) % 2:
        column, weight = there.pop()
        scores = [weight * value for value in column]
    # Two at a time: it takes two thirds of the time of one after the other.
    for (one, one_weight), (two, two_weight) in zip(there[::2], there[1::2], strict=True):
        scores = [
            score + one_weight * first + two_weight * second
            for score, first, second in zip(scores, one, two, strict=True)
        ]
    return scores


def powers_of(scores: Sequence[float]) -> list[float]:
    """Return scores as shares of a whole that is their sum."""
    exp, best = math.exp, max(scores)
    return [exp(score - best) for score in scores]


def softmax(scores: Sequence[float]) -> list[float]:
    """Return scores as probabilities."""
    powers = powers_of(scores)
    whole = sum(powers)
    return [power / whole for power in powers]
