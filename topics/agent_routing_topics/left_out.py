"""How well a registry's own examples are told apart: each is judged by a detector without it.

Owns the groups that are left out together, and what their verdicts say of agents. Rule: the same
registry has the same figures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from routing_service.core.registry import AgentKind, Registry
from routing_service.topics.topic_detector import TopicDetector, TopicQuestion

GROUPS: Final = 8
"""Detectors that are made: each lacks an eighth of every agent's examples."""

PAIR_MIN: Final = 2
"""Examples of one agent that must go to another before the two are named."""

ENOUGH: Final = 12
"""Examples from which on another dozen gains less than a point (docs/topics_model_card.md)."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """An example that was judged as a first message. found: "" if no agent is likeliest."""

    agent_id: str
    text: str
    found: str
    sureness: float

    @property
    def is_right(self) -> bool:
        """Tell whether it went to its agent."""
        return self.found == self.agent_id


@dataclass(frozen=True, slots=True)
class WeakSpots:
    """What a registry's examples show. judged: how many; right: of them.

    right_at_fifth: if the least sure fifth were asked about. pairs: two agents and how many
    examples of one went to the other; few: agents with less than ENOUGH examples, with how many.
    """

    judged: int
    right: int
    right_at_fifth: int
    pairs: tuple[tuple[str, str, int], ...]
    few: tuple[tuple[str, int], ...]


def left_out(registry: Registry, detector_of: Callable[[Registry], TopicDetector]) -> list[LeftOut]:
    """Judge every example of the registry's specialists without it. One pass an eighth."""
    specialists = [
        agent
        for agent in registry.agents.values()
        if agent.kind is AgentKind.SPECIALIST and agent.enabled
    ]
    ids = frozenset(agent.agent_id for agent in specialists)
    judged: list[LeftOut] = []
    for group in range(GROUPS):
        held = {
            agent.agent_id: [text for at, text in enumerate(agent.examples) if at % GROUPS == group]
            for agent in specialists
        }
        if not any(held.values()):
            continue
        agents = {
            agent_id: replace(
                agent,
                examples=tuple(
                    text for at, text in enumerate(agent.examples) if at % GROUPS != group
                ),
            )
            for agent_id, agent in registry.agents.items()
        }
        detector = detector_of(replace(registry, agents=agents))
        for agent_id, texts in held.items():
            for text in texts:
                verdict = detector.judge(TopicQuestion(text=text, candidate_ids=ids))
                best, share = verdict.ranked[0] if verdict.ranked else ("", 0.0)
                none_of_them = 1 - sum(each for _, each in verdict.ranked)
                found = best if share >= none_of_them else ""
                judged.append(LeftOut(agent_id, text, found, verdict.how_sure()))
    return judged


def weak_spots(registry: Registry, judged: Sequence[LeftOut]) -> WeakSpots:
    """Return which agents cannot be told apart, which need examples, and what to expect."""
    mistaken = Counter(
        (min(one.agent_id, one.found), max(one.agent_id, one.found))
        for one in judged
        if one.found and not one.is_right
    )
    by_sureness = sorted(judged, key=lambda one: one.sureness)
    fifth = round(len(judged) / 5)
    return WeakSpots(
        judged=len(judged),
        right=sum(one.is_right for one in judged),
        right_at_fifth=fifth + sum(one.is_right for one in by_sureness[fifth:]),
        pairs=tuple(
            (one, other, count)
            for (one, other), count in mistaken.most_common()
            if count >= PAIR_MIN
        ),
        few=tuple(
            (agent.agent_id, len(agent.examples))
            for agent in registry.agents.values()
            if agent.kind is AgentKind.SPECIALIST and agent.enabled and len(agent.examples) < ENOUGH
        ),
    )
