"""What a registry says of its agents, as the model reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from agent_routing_topics.model.words import split
from routing_service.core.registry import AgentKind

if TYPE_CHECKING:
    from routing_service.core.registry import Registry


VERBATIM_WORDS_MIN: Final = 3
"""Of an example that is one agent's alone. Shorter ones may be an answer to any agent."""


@dataclass(frozen=True, slots=True)
class AgentText:
    """One agent's texts: several names and descriptions where the registry has languages."""

    agent_id: str
    names: tuple[str, ...]
    descriptions: tuple[str, ...]
    examples: tuple[str, ...] = ()

    @property
    def description(self) -> tuple[str, ...]:
        """Return what the agent says of itself: names and descriptions."""
        return self.names + self.descriptions

    @property
    def texts(self) -> tuple[str, ...]:
        """Return all of it."""
        return self.description + self.examples


def agent_texts(registry: Registry) -> list[AgentText]:
    """Return the texts of the agents that a conversation may be with."""
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


def examples_of_one(agents: Sequence[AgentText]) -> dict[tuple[str, ...], str]:
    """Return the owners of examples that are one agent's alone, by their words."""
    holders: dict[tuple[str, ...], set[str]] = {}
    for agent in agents:
        for example in agent.examples:
            words = tuple(split(example))
            if len(words) >= VERBATIM_WORDS_MIN:
                holders.setdefault(words, set()).add(agent.agent_id)
    return {words: min(held) for words, held in holders.items() if len(held) == 1}
