"""What a registry can learn from its own stored conversations: a calibration, and examples.

Rule: what is expected of it is measured on sessions that it was not learned from, before an
operator loads anything.
"""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from agent_routing_topics.backtest import LATER, Labelled, ShownBy
from agent_routing_topics.model.words import split
from routing_service.core.registry import Registry
from routing_service.topics.calibration import Calibration, Sample, fit, off_by, option_of

FOLDS: Final = 5
MESSAGES_MIN: Final = 40
"""Messages with a known owner below which nothing is learned: two numbers fit anything."""

ANSWER_WEIGHT: Final = 0.5
"""An agent that answers what was not for it counts as its owner: this favours staying."""

EXAMPLES_MAX: Final = 10
"""Proposed examples of an agent: an operator reads all of them."""

WORDS_MIN: Final = 3
WORDS_MAX: Final = 30
"""Of a proposed example. Shorter messages may be for any agent; longer ones tell a story."""

_SHOWN_BY_PEOPLE: Final = frozenset(
    {ShownBy.OFFER, ShownBy.COMMAND, ShownBy.ASKED, ShownBy.HANDOFF}
)


@dataclass(frozen=True, slots=True)
class Expected:
    """How messages are judged. right: of them; off_by: the expected calibration error, 0-1."""

    messages: int
    right: int
    off_by: float


@dataclass(frozen=True, slots=True)
class Learned:
    """What was learned of all messages. shown_by: how many of them each kind of act showed."""

    calibration: Calibration
    shown_by: Mapping[str, int]
    before: Expected
    after: Expected

    @property
    def helps(self) -> bool:
        """Tell whether it is expected to do better than what is in force."""
        if self.calibration.is_idle:
            return False
        gain = self.after.right - self.before.right
        return gain > 0 or (gain == 0 and self.after.off_by < self.before.off_by)


def evidence(labelled: Iterable[Labelled]) -> list[Labelled]:
    """Return each message once, with what was shown of it last; without the doubtful ones."""
    found: dict[tuple[str, str], Labelled] = {}
    for message in labelled:
        key = (message.session_id, message.message)
        if message.shown_by in LATER and key in found:
            # What a user said of a message outright, no later handoff puts in doubt.
            is_outright = found[key].shown_by in (ShownBy.OFFER, ShownBy.ASKED)
            if message.shown_by is ShownBy.DOUBTFUL and is_outright:
                continue
        found[key] = message
    return [one for one in found.values() if one.shown_by is not ShownBy.DOUBTFUL]


def fold_of(message: Labelled) -> int:
    """Return the fold of a message: that of its session, so that turns of one are together."""
    return zlib.crc32(message.session_id.encode()) % FOLDS


def learn(messages: Sequence[Labelled], in_force: Calibration) -> Learned:
    """Return the calibration of messages, and what to expect of it. messages: of evidence()."""
    samples = [(fold_of(message), _sample(message)) for message in messages]
    before = Counter[str]()
    after = Counter[str]()
    off_before, off_after = 0.0, 0.0
    for fold in range(FOLDS):
        held = [sample for place, sample in samples if place == fold]
        found = fit([sample for place, sample in samples if place != fold])
        before["right"] += sum(sample.is_right(in_force) for sample in held)
        after["right"] += sum(sample.is_right(found) for sample in held)
        off_before += len(held) * off_by(held, in_force)
        off_after += len(held) * off_by(held, found)
    count = max(1, len(samples))
    return Learned(
        fit([sample for _, sample in samples]),
        Counter(message.shown_by.value for message in messages),
        Expected(len(samples), before["right"], off_before / count),
        Expected(len(samples), after["right"], off_after / count),
    )


def proposed(messages: Iterable[Labelled], registry: Registry) -> dict[str, list[str]]:
    """Return messages that people showed to be an agent's, where the verdict was not that agent.

    Not those that two agents got, that an agent has already, or that are too short or too long.
    """
    held = {tuple(split(text)) for agent in registry.agents.values() for text in agent.examples}
    owners: dict[tuple[str, ...], set[str]] = defaultdict(set)
    texts: dict[tuple[str, ...], str] = {}
    for message in messages:
        words = tuple(split(message.text))
        if WORDS_MIN <= len(words) <= WORDS_MAX and words not in held:
            owners[words].add(message.owner)
            if message.shown_by in _SHOWN_BY_PEOPLE and not _went_there(message):
                texts.setdefault(words, " ".join(message.text.split()))
    specialists = {agent.agent_id for agent in registry.specialists}
    found: dict[str, list[str]] = {}
    for words, text in texts.items():
        (owner, *others) = owners[words]
        if not others and owner in specialists and len(found.get(owner, ())) < EXAMPLES_MAX:
            found.setdefault(owner, []).append(text)
    return found


def with_examples(registry: Registry, more: Mapping[str, Sequence[str]]) -> Registry:
    """Return the registry with more examples."""
    agents = dict(registry.agents)
    for agent_id, texts in more.items():
        agent = agents[agent_id]
        agents[agent_id] = replace(agent, examples=(*agent.examples, *texts))
    return replace(registry, agents=agents)


def expected(messages: Sequence[Labelled], by: Calibration) -> Expected:
    """Return how messages are judged as they are."""
    samples = [_sample(message) for message in messages]
    right = sum(sample.is_right(by) for sample in samples)
    return Expected(len(samples), right, off_by(samples, by))


def _went_there(message: Labelled) -> bool:
    if message.active and message.owner == message.active:
        return message.stay >= message.confidence
    return message.target == message.owner and message.confidence > message.stay


def _sample(message: Labelled) -> Sample:
    weight = ANSWER_WEIGHT if message.shown_by is ShownBy.ANSWER else 1.0
    option = option_of(message.ranked, message.active, message.owner)
    return Sample(message.ranked, message.stay, option, weight)
