"""Which messages are an agent's own examples, word for word.

Rule: an example that two agents have, or that may answer any question, decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from agent_routing_topics.model.agent_index import AgentText
from agent_routing_topics.model.words import split
from routing_service.topics.topic_detector import TopicQuestion

WORDS_MIN: Final = 3
"""Shorter examples may be an answer to any agent."""


class Verbatim:
    """The examples of a registry that are one agent's alone. Immutable once made."""

    def __init__(self, agents: Sequence[AgentText]) -> None:
        """Read every example once."""
        holders: dict[tuple[str, ...], set[str]] = {}
        for agent in agents:
            for example in agent.examples:
                words = tuple(split(example))
                if len(words) >= WORDS_MIN:
                    holders.setdefault(words, set()).add(agent.agent_id)
        self._owners = {words: min(held) for words, held in holders.items() if len(held) == 1}

    def owner_of(self, question: TopicQuestion) -> str:
        """Return the agent whose example a message is, if the user may have it; else ""."""
        if not self._owners:
            return ""
        owner = self._owners.get(tuple(split(question.text)), "")
        is_possible = owner in question.candidate_ids or owner == question.active_agent_id
        return owner if is_possible else ""
