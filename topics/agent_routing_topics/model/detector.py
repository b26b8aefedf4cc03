"""Judges messages for one registry: words first, and meaning where words are not sure.

Rule: a verdict depends on the parameters, the registry and the question, and not on agents' ids,
their order, time or chance. Until a registry's vectors are there, words judge alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from agent_routing_topics.model.agent_text import AgentText, examples_of_one
from agent_routing_topics.model.forest import Score
from agent_routing_topics.model.option_rows import NONE, OptionReader, Reading
from agent_routing_topics.model.parameters import EXAMPLES_MANY, Parameters
from agent_routing_topics.model.registry_words import GiveWay, RegistryWords
from agent_routing_topics.model.words import split
from routing_service.topics.topic_detector import TopicQuestion, TopicVerdict

RANKED_MAX: Final = 5
"""Agents in a verdict: more are hardly ever above a hundredth."""

DIGITS: Final = 6

VERBATIM_SHARE: Final = 0.99
"""The probability of the agent whose example a message is, word for word."""

WORDS_SURE: Final = 0.9
STAY_SURE: Final = 0.98
"""Where words are so sure of an option, no vector is made. The second is of staying where the agent
asked nothing: words take a new matter after a first answer for more of the same. In field dialogues
words end 37 % of the messages, of which 99 % are right."""


@dataclass(frozen=True, slots=True)
class Known:
    """What detectors of all registries share. by_words, by_meaning: the trees, compiled.

    encode: makes vectors of texts; None = words alone.
    """

    parameters: Parameters
    by_words: Score
    by_meaning: Score | None = None
    encode: Callable[[Sequence[str]], Any] | None = None


class Detector:
    """The model for one registry."""

    def __init__(self, known: Known, agents: Sequence[AgentText], give_way: GiveWay) -> None:
        """Begin with words alone. agents: in the order of their ids."""
        self._known = known
        self._agents = agents
        parameters = known.parameters
        words = RegistryWords(agents, parameters.shares, give_way)
        self.reader = OptionReader(agents, words, parameters.goes_on)
        self._verbatim = examples_of_one(agents)
        self._meaning: Any = None
        self._goes_on: Any = None

    @property
    def is_ready(self) -> bool:
        """Tell whether the registry's vectors are there, if the model uses vectors."""
        return self._meaning is not None or self._known.encode is None

    @property
    def prior(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """How sure verdicts will be: shares of messages by bin, and how many of each are right."""
        forest = self._known.parameters.words
        if self._meaning is not None:
            forest = self._known.parameters.meaning
        prior = forest.priors[self.reader.examples_mean >= EXAMPLES_MANY]
        return prior.shares, prior.right

    def take(self, vectors: Any) -> None:
        """Judge by meaning from now on. vectors: a row a text of all agents, in order."""
        import numpy as np  # noqa: PLC0415 - there are vectors, so it is there

        from agent_routing_topics.model.registry_meaning import RegistryMeaning  # noqa: PLC0415

        self._goes_on = np.asarray(self._known.parameters.goes_on_meaning)
        self._meaning = RegistryMeaning(self._agents, np.asarray(vectors))

    def judge(self, question: TopicQuestion) -> TopicVerdict:
        """Say for whom a message is."""
        active = question.active_agent_id
        owner = self._verbatim.get(tuple(split(question.text)), "") if self._verbatim else ""
        if owner and owner == active:
            return TopicVerdict(stay=VERBATIM_SHARE, sureness=1.0)
        if owner and owner in question.candidate_ids:
            stay = round(1 - VERBATIM_SHARE, DIGITS) if active else 0.0
            return TopicVerdict(((owner, VERBATIM_SHARE),), stay, sureness=1.0)
        reading = self.reader.read(question)
        if reading.ids in ([], [NONE], [active]):
            return TopicVerdict(stay=1.0 if active else 0.0, sureness=1.0)
        known = self._known
        heat = known.parameters.words.temperatures[reading.kind]
        shares = shares_of(reading.rows(), known.by_words, heat)
        if self._meaning is not None and not is_sure(reading, shares):
            shares = self._shares_by_meaning(reading)
        return verdict_of(reading, shares)

    def _shares_by_meaning(self, reading: Reading) -> list[float]:
        from agent_routing_topics.model.registry_meaning import columns_of  # noqa: PLC0415

        known = self._known
        assert known.encode is not None
        more = columns_of(self.reader, self._meaning, reading, known.encode, self._goes_on)
        assert known.by_meaning is not None
        heat = known.parameters.meaning.temperatures[reading.kind]
        return shares_of(reading.rows(*more), known.by_meaning, heat)


def is_sure(reading: Reading, shares: Sequence[float]) -> bool:
    """Tell whether words need no vectors."""
    best = max(shares)
    stays = reading.ids[shares.index(best)] == reading.question.active_agent_id
    return best >= (STAY_SURE if stays and not reading.question.is_locked else WORDS_SURE)


def shares_of(rows: Sequence[Sequence[float]], score: Score, heat: float) -> list[float]:
    """Return the probability of each option. heat: the temperature."""
    scores = [score(row) / heat for row in rows]
    best = max(scores)
    powers = [math.exp(each - best) for each in scores]
    whole = sum(powers)
    return [power / whole for power in powers]


def verdict_of(reading: Reading, shares: Sequence[float]) -> TopicVerdict:
    """Return the verdict that goes with the options' probabilities."""
    active, candidates = reading.question.active_agent_id, reading.question.candidate_ids
    ordered = sorted(shares, reverse=True)
    by_id = dict(zip(reading.ids, shares, strict=True))
    none = by_id.pop(NONE, 0.0)
    stay = by_id.pop(active, none) if active else 0.0
    # A tie goes to the first of its ids: agents are in their order.
    ranked = sorted(by_id.items(), key=lambda option: -option[1])
    return TopicVerdict(
        ranked=tuple((name, round(share, DIGITS)) for name, share in ranked if name in candidates)[
            :RANKED_MAX
        ],
        stay=round(stay, DIGITS),
        sureness=round(ordered[0] - ordered[1], DIGITS) if len(ordered) > 1 else 1.0,
    )
