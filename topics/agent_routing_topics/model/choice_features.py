"""The options that a message has, and what speaks for each: a row of numbers an option.

Owns the shortlist and the rows. Rule: agents are told apart by how they fit and by what they did in
this dialogue, never by who they are; each is compared with the others of the shortlist.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from agent_routing_topics.model.agent_index import FIT_FEATURES, places_of_best
from agent_routing_topics.model.closeness import Closest, by_examples
from agent_routing_topics.model.cues import CUES, cues_of
from agent_routing_topics.model.dialogue_features import (
    BEGINNING_WORDS,
    NUMBER_WORDS,
    OFFERS_MORE,
    Reading,
    shared,
)
from agent_routing_topics.model.turn_reading import reading_of

SHORTLIST: Final = 8
"""Agents that fit best by words, which are options; so are those who had the conversation last."""

OPTIONS_MAX: Final = 12

_SHOWN_FITS: Final = (
    *("nearest_three", "pairs", "concepts_described", "likelihood"),
    *("description", "sense_described", "name", "sense"),
)
_FIT_PLACES: Final = tuple(FIT_FEATURES.index(name) for name in _SHOWN_FITS)

_TARGETS: Final = (
    *("was_last", "was_earlier", "announced", "announced_accepted", "remembered", "unanswered"),
)

_VIEW: Final = (
    "described",  # the message, to the description with the name
    "named",  # to the name
    "best",  # to the closest example
    "best_few",  # to the closest three
    "mean",  # to all examples
    "any",  # to the closest text
    "segment",  # the same of the message's parts, or its whole
    "last_segment",  # the same of its last part
    "said",  # to what the user said while the agent had the conversation
    "answered",  # to what the agent answered
    "answer_described",  # the last answer, to the description
    "answer_best",  # the last answer, to the closest example
    "before",  # the user's message before, to the closest text
)
_VIEW_ONCE: Final = (
    "to_answer",  # the message, to the last answer
    "to_before",  # to the user's message before
    "closest",  # to the closest example of all
    "closest_present",  # to the closest text of the present agent
    "closest_other",  # to that of the best other
    "lead_present",  # the one less the other
)

_ONCE: Final = (
    "is_opening",
    "is_released",  # nobody is active: the present agent is the last that was
    "is_locked",
    "turns",
    "turns_held",
    "earlier_agents",
    "follow_up",
    "complete",
    "failure",
    "is_silent",  # the present agent has not said anything
    "words",
    "characters",
    "told",
    "known",
    "numbers",
    "asks",
    "ends_asking",
    "exclaims",
    "begins_small",
    "was_asked",
    "was_asked_last",
    "was_offered_more",
    "words_answered",
    "repeats",
    "repeats_self",
    "manner",
    "manner_asked",
    "examples_mean",
    "agents",
    "trust",
    *(f"says_{cue}" for cue in CUES),
    *(f"begins_{cue}" for cue in CUES),
)

_EACH: Final = (
    "is_present",
    "ago",  # turns since it had the conversation
    "turns_of_its",
    "examples",
    "examples_lead",
)


def _compared(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(part for name in names for part in (name, f"{name}_lead", f"{name}_above_mean"))


def _view_names(view: str) -> tuple[str, ...]:
    return tuple(f"{view}_{name}" for name in (*_compared(_VIEW), *_VIEW_ONCE))


CHOICE_FEATURES: Final = (
    *(f"fits_{name}" for name in _compared(("fit", "target", *_SHOWN_FITS))),
    *_TARGETS,
    *_EACH,
    *_view_names("words"),
    *_ONCE,
)
"""Of the word model. What is the same for all options is in all rows."""

MEANING_FEATURES: Final = (
    *CHOICE_FEATURES,
    *_view_names("meaning"),
    "goes_on",  # how much message and answer speak for going on; nothing of the agents is in it
    "goes_on_present",  # the same for the present agent alone
)
"""Of the model with vectors."""

ABSENT: Final = -9.0
"""What the row of "no agent" has where an agent's has something of its own."""

_OF_ALL: Final = frozenset(
    ("goes_on", *_ONCE, *(f"{view}_{name}" for view in ("words", "meaning") for name in _VIEW_ONCE))
)
_OF_ALL_PLACES: Final = tuple(at for at, name in enumerate(CHOICE_FEATURES) if name in _OF_ALL)
_OF_ALL_PLACES_WITH_MEANING: Final = tuple(
    at for at, name in enumerate(MEANING_FEATURES) if name in _OF_ALL
)
_NEVER: Final = 99.0
_CUE_MAX: Final = 2
_SINGLE_LEAD: Final = 1.0
"""The lead of an option that is the only one."""


@dataclass(frozen=True, slots=True)
class View:
    """How close a question is to the agents of a shortlist, by words or by meaning.

    message, segments, answer, before: to each of them, in their order; segments: a list a part;
    answer, before: of the last turn, empty without one. said, answered: to each agent's own turns.
    to_answer, to_before: of the message to the last turn.
    """

    message: Sequence[Closest]
    segments: Sequence[Sequence[Closest]]
    answer: Sequence[Closest]
    before: Sequence[Closest]
    said: Sequence[float]
    answered: Sequence[float]
    to_answer: float
    to_before: float


@dataclass(frozen=True, slots=True)
class Options:
    """What is chosen from: agents by their places in the reading, then nobody if has_nobody."""

    places: tuple[int, ...]
    rows: list[list[float]]
    has_nobody: bool


def shortlist(reading: Reading, also: Sequence[int] = ()) -> tuple[int, ...]:
    """Return the places of the agents that are options, in order. also: whatever the words say."""
    chosen = dict.fromkeys(places_of_best(reading.target, SHORTLIST))
    if reading.present >= 0:
        chosen[reading.present] = None
    chosen.update(dict.fromkeys(also))
    if reading.targets:
        # The agent that had the conversation before this one.
        chosen.update(dict.fromkeys(at for at, last in enumerate(reading.targets[0]) if last))
    return tuple(sorted(tuple(chosen)[: OPTIONS_MAX + 1]))


def options_of(  # noqa: PLR0917 - parts of one reading
    reading: Reading,
    places: tuple[int, ...],
    examples: Sequence[int],
    manner: tuple[float, float],
    words: View,
    meaning: View | None = None,
    goes_on: float = 0.0,
) -> Options:
    """Return the options of a question. places: of the shortlist; examples: how many each has."""
    columns: list[Sequence[float]] = []
    target = [reading.target[place] for place in places]
    _compare(columns, [reading.fit[place] for place in places])
    _compare(columns, target)
    for feature in _FIT_PLACES:
        column = reading.fits[feature]
        _compare(columns, [column[place] for place in places])
    if reading.targets:
        columns += [[column[place] for place in places] for column in reading.targets]
    else:
        columns += [[0.0] * len(places) for _ in _TARGETS]
    columns += _each(reading, places, examples)
    present = places.index(reading.present) if reading.present >= 0 else -1
    # What is the same for all options is added to each row at once, rather than as columns.
    tail = [*_look(columns, words, present), *map(float, _once(reading, examples, manner))]
    rows = [[*row, *tail] for row in zip(*columns, strict=True)]
    if meaning is not None:
        columns = []
        tail = [*_look(columns, meaning, present), goes_on]
        rows = [
            [*row, *more, *tail, goes_on if place == reading.present else 0.0]
            for row, more, place in zip(rows, zip(*columns, strict=True), places, strict=True)
        ]
    has_nobody = not reading.question.active_agent_id or reading.present < 0
    if has_nobody:
        nobodys = [ABSENT] * len(rows[0])
        for at in _OF_ALL_PLACES if meaning is None else _OF_ALL_PLACES_WITH_MEANING:
            nobodys[at] = rows[0][at]
        rows.append(nobodys)
    return Options(places, rows, has_nobody)


def _compare(columns: list[Sequence[float]], values: list[float]) -> None:
    """Add a column, then what each is above the best other, and above the mean."""
    count = len(values)
    columns.append(values)
    if count == 1:
        columns += [[_SINGLE_LEAD], [0.0]]
        return
    if not any(values):
        # Nothing was said of it, or nothing fits: most often no answer, or no examples.
        columns += [[0.0] * count, [0.0] * count]
        return
    second, best = sorted(values)[-2:]
    leads = [value - best for value in values]
    leads[values.index(best)] = best - second
    mean = sum(values) / count
    columns += [leads, [value - mean for value in values]]


def _each(
    reading: Reading, places: tuple[int, ...], examples: Sequence[int]
) -> list[Sequence[float]]:
    recent = reading.question.recent
    ids = [reading.agent_ids[place] for place in places]
    ago, turns = dict.fromkeys(ids, _NEVER), dict.fromkeys(ids, 0.0)
    for back, turn in enumerate(reversed(recent)):
        if turn.agent_id in turns:
            turns[turn.agent_id] += 1
            ago[turn.agent_id] = min(ago[turn.agent_id], float(back))
    mean = sum(examples) / len(examples)
    return [
        [float(place == reading.present) for place in places],
        list(ago.values()),
        list(turns.values()),
        [float(count) for count in examples],
        [count - mean for count in examples],
    ]


def _look(columns: list[Sequence[float]], view: View, present: int) -> tuple[float, ...]:
    """Add what one view shows, _VIEW, and return _VIEW_ONCE."""
    count = len(view.message)
    nothing = [0.0] * count
    of_examples = [by_examples(found.examples) for found in view.message]
    best = [found.best for found in view.message]
    parts, last = best, best
    if view.segments:
        by_part = [[found.best for found in segment] for segment in view.segments]
        parts = [max(values) for values in zip(best, *by_part, strict=True)]
        last = by_part[-1]
    shown = (
        [found.described for found in view.message],
        [found.named for found in view.message],
        [found.best for found in of_examples],
        [found.best_few for found in of_examples],
        [found.mean for found in of_examples],
        best,
        parts,
        last,
        list(view.said),
        list(view.answered),
        [found.described for found in view.answer] or nothing,
        [max(found.examples, default=0.0) for found in view.answer] or nothing,
        [found.best for found in view.before] or nothing,
    )
    for values in shown:
        _compare(columns, values)
    of_present = best[present] if present >= 0 else 0.0
    of_other = max((value for at, value in enumerate(best) if at != present), default=0.0)
    return (
        view.to_answer,
        view.to_before,
        max(found.best for found in of_examples),
        of_present,
        of_other,
        of_present - of_other if present >= 0 else 0.0,
    )


def _once(
    reading: Reading, examples: Sequence[int], manner: tuple[float, float]
) -> tuple[float, ...]:
    """Return what is the same for all options."""
    question, message = reading.question, reading.message
    # Composed: the same character counts as one however it was typed.
    text, words = unicodedata.normalize("NFC", question.text.strip()), message.whole
    last = question.recent[-1] if question.recent else None
    answer = last.agent_text.strip() if last else ""
    outcome = last.outcome if last else ""
    present = question.active_agent_id
    if not present and question.earlier_agent_ids:
        present = question.earlier_agent_ids[-1]
    held = 0
    for turn in reversed(question.recent):
        if turn.agent_id != present:
            break
        held += 1
    said_before = reading_of(last).user if last else ()
    return (
        reading.present < 0,
        reading.is_released,
        question.is_locked,
        len(question.recent),
        held,
        len(set(question.earlier_agent_ids)),
        outcome == "follow_up",
        outcome == "complete",
        outcome == "failure",
        not (question.is_turn_open or (last and last.is_answered)),
        math.log1p(len(words)),
        math.log1p(len(text)),
        message.length,
        message.known,
        sum(word.isdigit() or word in NUMBER_WORDS for word in words) / (1 + len(words)),
        "?" in text,
        text.endswith("?"),
        "!" in text,
        text[:1].islower(),
        "?" in answer,
        answer.endswith("?"),
        bool(OFFERS_MORE.intersection(reading.last_words)) and "?" in answer,
        math.log1p(len(reading.last_words)),
        shared(message, reading.last_words),
        shared(message, said_before),
        *manner,
        sum(examples) / len(examples),
        math.log(reading.agents),
        message.trust,
        *(min(count, _CUE_MAX) for count in cues_of(words)),
        *(min(count, 1) for count in cues_of(words[:BEGINNING_WORDS])),
    )
