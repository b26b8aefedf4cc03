"""The model that ships: word statistics, a few weights and two small forests.

Rule: a verdict does not depend on agents' ids, on the order of agents, on time or on chance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from routing_service.core.registry import AgentKind
from routing_service.topics.model.agent_index import (
    AgentIndex,
    AgentText,
    GiveWay,
    go_on,
    places_of_best,
)
from routing_service.topics.model.compiled_forest import Probability, compiled
from routing_service.topics.model.concepts import load_concepts
from routing_service.topics.model.dialogue_features import (
    Reading,
    best_other,
    powers_of,
    read,
    softmax,
    stay_features,
)
from routing_service.topics.model.manner import Manner
from routing_service.topics.model.opening_features import opening_features
from routing_service.topics.model.parameters import Parameters
from routing_service.topics.model.word_knowledge import WordKnowledge
from routing_service.topics.topic_detector import TopicDetector, TopicQuestion, TopicVerdict

if TYPE_CHECKING:
    from routing_service.core.registry import Registry

RANKED_MAX: Final = 5
"""Agents in a verdict: more are hardly ever above a hundredth."""

AGENTS_COMPARED: Final = 32
"""Agents that a message is compared with in full: those that share most with it, and those that
the dialogue speaks for. The others get no share of the probability."""

_PROBABILITY_DIGITS: Final = 6


class TrainedModel:
    """Makes detectors from parameters. Loaded once in a process."""

    def __init__(
        self,
        parameters: Parameters,
        concepts: Mapping[str, tuple[str, ...]] | None = None,
        give_way: GiveWay = go_on,
        *,
        agents_compared: int = AGENTS_COMPARED,
    ) -> None:
        """Take over parameters that have been checked.

        concepts: those that ship unless given. give_way: called again and again while a detector is
        made. agents_compared: agents that a message is compared with in full.
        """
        self._give_way = give_way
        self._agents_compared = agents_compared
        self.version = parameters.version
        self._parameters = parameters
        self._forests = compiled(parameters.stay), compiled(parameters.opening)
        self._knowledge = WordKnowledge(
            weights=parameters.words,
            groups=parameters.groups,
            concepts=load_concepts() if concepts is None else concepts,
        )
        self._manner = Manner(parameters.manner, parameters.manner_asked, self._knowledge)

    def has_seen(self, corpus: str, agent_id: str) -> bool:
        """Tell whether an agent of a corpus was in what the model was trained on."""
        trained = self._parameters
        is_held_out = trained.agents and f"{corpus}:{agent_id}" not in trained.agents
        return corpus in trained.trained_on and not is_held_out

    def for_registry(self, registry: Registry) -> TopicDetector:
        """Make the detector of a registry: of those agents that a conversation may be with."""
        return self.for_agents(
            [
                AgentText(
                    agent_id=agent.agent_id,
                    names=tuple(dict.fromkeys(agent.name.values())),
                    descriptions=tuple(dict.fromkeys(agent.description.values())),
                    examples=agent.examples,
                )
                for agent in registry.agents.values()
                if agent.kind is AgentKind.SPECIALIST
            ]
        )

    def for_agents(self, agents: Sequence[AgentText]) -> TopicDetector:
        """Make the detector of agents, whose order does not matter."""
        in_order = sorted(agents, key=lambda agent: agent.agent_id)
        return TrainedDetector(
            self._parameters,
            self._forests,
            self._manner,
            AgentIndex(in_order, self._knowledge, self._give_way),
            self._agents_compared,
        )


class TrainedDetector:
    """The model for one registry."""

    def __init__(
        self,
        parameters: Parameters,
        forests: tuple[Probability, Probability],
        manner: Manner,
        index: AgentIndex,
        agents_compared: int,
    ) -> None:
        """Take over what was computed of a registry. forests: of staying, and of openings."""
        self._index = index
        self._agents_compared = agents_compared
        self._fit_weights = tuple(parameters.fit.values())
        self._target_weights = tuple(parameters.target.values())
        self._stay, self._opening = forests
        self._manner = manner

    def judge(self, question: TopicQuestion) -> TopicVerdict:
        """Say for whom a message is."""
        index = self._index
        if not index.agent_ids:
            return TopicVerdict(stay=1.0 if question.active_agent_id else 0.0)
        reading = read(
            question, index, self._fit_weights, self._target_weights, self._agents_compared
        )
        shares = self._opening_shares(reading) if reading.present < 0 else self._shares(reading)
        active = question.active_agent_id
        candidates, ids = question.candidate_ids, reading.agent_ids
        places = [
            place
            for place, agent_id in enumerate(ids)
            if agent_id in candidates and agent_id != active
        ]
        # A tie goes to the first of its ids: agents are in their order, and so are places.
        best = [
            places[at] for at in places_of_best([shares[place] for place in places], RANKED_MAX)
        ]
        stay = 0.0
        if active:
            # An agent that the registry says nothing of keeps what nobody else is likely to get.
            stay = shares[reading.present] if reading.present >= 0 else 1.0 - sum(shares)
        return TopicVerdict(
            ranked=tuple((ids[place], round(shares[place], _PROBABILITY_DIGITS)) for place in best),
            stay=round(max(0.0, stay), _PROBABILITY_DIGITS),
        )

    def _shares(self, reading: Reading) -> list[float]:
        """Return each agent's probability where somebody has, or last had, the conversation."""
        present, other = reading.present, best_other(reading)
        if other < 0:
            return [1.0]
        recent = reading.question.recent
        manner = self._manner.of(reading.message.whole, recent[-1].agent_text if recent else "")
        stay = self._stay(stay_features(reading, other, *manner))
        of_others = reading.target.copy()
        of_others[present] = -math.inf
        powers = powers_of(of_others)
        leaves = (1 - stay) / sum(powers)
        shares = [leaves * power for power in powers]
        shares[present] = stay
        return shares

    def _opening_shares(self, reading: Reading) -> list[float]:
        """Return each agent's probability at the beginning of a conversation."""
        places = range(len(reading.fit))
        best = max(places, key=reading.fit.__getitem__)
        right = self._opening(opening_features(reading, best))
        by_fit = softmax(reading.fit)
        rest = 1 - by_fit[best]
        # The others share what the best leaves, but for what is nobody's: out of scope is likelier
        # where the best is unlikely.
        left = (1 - right) * right
        return [
            right if place == best else left * by_fit[place] / rest if rest > 0 else 0.0
            for place in places
        ]
