"""The model that ships: word statistics, a few weights and a small forest.

Rule: a verdict does not depend on agents' ids, on the order of agents, on time or on chance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from agent_routing_topics.model.agent_index import (
    AgentIndex,
    AgentText,
    GiveWay,
    go_on,
    places_of_best,
)
from agent_routing_topics.model.choice_features import CHOICE_FEATURES, Options
from agent_routing_topics.model.closeness import ClosenessIndex
from agent_routing_topics.model.compiled_forest import Score, compiled
from agent_routing_topics.model.concepts import load_concepts
from agent_routing_topics.model.dialogue_features import Reading, softmax
from agent_routing_topics.model.manner import Manner
from agent_routing_topics.model.parameters import Parameters, Temperatures
from agent_routing_topics.model.reader import AGENTS_COMPARED, Reader
from agent_routing_topics.model.verbatim import Verbatim
from agent_routing_topics.model.word_knowledge import WordKnowledge
from routing_service.core.registry import AgentKind
from routing_service.topics.topic_detector import TopicDetector, TopicQuestion, TopicVerdict

if TYPE_CHECKING:
    from routing_service.core.registry import Registry

RANKED_MAX: Final = 5
"""Agents in a verdict: more are hardly ever above a hundredth."""

PROBABILITY_DIGITS: Final = 6

VERBATIM_SHARE: Final = 0.99
"""The probability of the agent whose example a message is, word for word."""

EXAMPLES_AT: Final = CHOICE_FEATURES.index("examples")
OPENING_AT: Final = CHOICE_FEATURES.index("is_opening")


Indexes = tuple[AgentIndex, ClosenessIndex]


class Kept(Protocol):
    """Where what is computed of registries is kept, by the version of the model's parameters."""

    def read(
        self,
        version: str,
        agents: Sequence[AgentText],
        knowledge: WordKnowledge,
        give_way: GiveWay,
    ) -> Indexes | None:
        """Return what was computed of agents, None where it is not kept."""
        ...

    def keep(self, version: str, agents: Sequence[AgentText], made: Indexes) -> None:
        """Keep what was computed of agents."""
        ...


def agent_texts(registry: Registry) -> list[AgentText]:
    """Return what the agents say of themselves that a conversation may be with."""
    return [
        AgentText(
            agent_id=agent.agent_id,
            names=tuple(dict.fromkeys(agent.name.values())),
            descriptions=tuple(dict.fromkeys(agent.description.values())),
            examples=agent.examples,
        )
        for agent in registry.agents.values()
        if agent.kind is AgentKind.SPECIALIST
    ]


class TrainedModel:
    """Makes detectors from parameters. Loaded once in a process."""

    def __init__(
        self,
        parameters: Parameters,
        concepts: Mapping[str, tuple[str, ...]] | None = None,
        give_way: GiveWay = go_on,
        *,
        agents_compared: int = AGENTS_COMPARED,
        kept: Kept | None = None,
    ) -> None:
        """Take over parameters that have been checked.

        concepts: those that ship unless given. give_way: called again and again while a detector is
        made. agents_compared: agents that a message is compared with in full. kept: what was
        computed before, with the concepts that ship.
        """
        self._kept = kept if concepts is None else None
        self._give_way = give_way
        self._agents_compared = agents_compared
        self.version = parameters.version
        self._parameters = parameters
        self._score = compiled(parameters.choice)
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
        return self.for_agents(agent_texts(registry))

    def for_agents(self, agents: Sequence[AgentText]) -> TrainedDetector:
        """Make the detector of agents, whose order does not matter."""
        in_order = sorted(agents, key=lambda agent: agent.agent_id)
        index, closeness = self._indexes(in_order)
        return TrainedDetector(
            self._parameters,
            self._score,
            Reader(
                index,
                closeness,
                Verbatim(in_order),
                self._manner,
                tuple(self._parameters.fit.values()),
                tuple(self._parameters.target.values()),
                self._agents_compared,
            ),
        )

    def _indexes(self, agents: Sequence[AgentText]) -> Indexes:
        """Return what is computed of agents: as it was kept, or new."""
        kept, version = self._kept, self.version
        found = kept.read(version, agents, self._knowledge, self._give_way) if kept else None
        if found is not None:
            return found
        made = (
            AgentIndex(agents, self._knowledge, self._give_way),
            ClosenessIndex(agents, self._knowledge, self._give_way),
        )
        if kept:
            kept.keep(version, agents, made)
        return made


class TrainedDetector:
    """The model for one registry."""

    def __init__(self, parameters: Parameters, score: Score, reader: Reader) -> None:
        """Take over what was computed of a registry. score: of an option's row."""
        self.reader = reader
        self._score = score
        self._temperatures = parameters.temperatures

    def judge(self, question: TopicQuestion) -> TopicVerdict:
        """Say for whom a message is."""
        if not self.reader.index.agent_ids:
            return TopicVerdict(stay=1.0 if question.active_agent_id else 0.0, sureness=1.0)
        owner = self.reader.verbatim.owner_of(question)
        if owner:
            return said_word_for_word(question, owner)
        return self.verdict(self.reader.read(question))

    def verdict(self, reading: Reading) -> TopicVerdict:
        """Say for whom a message is that was read."""
        options = self.reader.options(reading)
        return verdict_of(reading, options, self._score, self._temperatures)


def said_word_for_word(question: TopicQuestion, owner: str) -> TopicVerdict:
    """Return the verdict on an example of one agent alone, said word for word."""
    rest = round(1 - VERBATIM_SHARE, PROBABILITY_DIGITS)
    if owner == question.active_agent_id:
        return TopicVerdict(stay=VERBATIM_SHARE, sureness=1.0)
    stay = rest if question.active_agent_id else 0.0
    return TopicVerdict(((owner, VERBATIM_SHARE),), stay, sureness=1.0)


def shares_of(options: Options, score: Score, temperatures: Temperatures) -> list[float]:
    """Return the probability of each option."""
    names = EXAMPLES_AT
    rows = options.rows
    agents = rows[: len(options.places)]
    mean = sum(row[names] for row in agents) / len(agents)
    scale = 1 / temperatures.of(mean, is_opening=bool(rows[0][OPENING_AT]))
    return softmax([scale * score(row) for row in rows])


def verdict_of(
    reading: Reading, options: Options, score: Score, temperatures: Temperatures
) -> TopicVerdict:
    """Return what a model says of a question. Its sureness: the lead of the likeliest option."""
    question = reading.question
    shares = shares_of(options, score, temperatures)
    leads = sorted(shares, reverse=True)
    sureness = leads[0] - leads[1] if len(leads) > 1 else 1.0
    active, candidates = question.active_agent_id, question.candidate_ids
    ids = [reading.agent_ids[place] for place in options.places]
    places = [at for at, name in enumerate(ids) if name in candidates and name != active]
    # A tie goes to the first of its ids: agents are in their order, and so are places.
    best = [places[at] for at in places_of_best([shares[place] for place in places], RANKED_MAX)]
    stay = 0.0
    if active:
        # An agent that the registry says nothing of keeps what no other agent is likely to get.
        stay = shares[ids.index(active)] if active in ids else shares[-1]
    return TopicVerdict(
        ranked=tuple((ids[place], round(shares[place], PROBABILITY_DIGITS)) for place in best),
        stay=round(max(0.0, stay), PROBABILITY_DIGITS),
        sureness=round(sureness, PROBABILITY_DIGITS),
    )
