"""Stand-ins for agents without scripts: enough to see where messages go.

Its rule: a stand-in shows that it is one, and the person who chats with it decides what it does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from agent_routing.v1.agent_pb2 import AGENT_KIND_SPECIALIST, Agent
from routing_service.examples.agent_reply import (
    AgentReply,
    AgentTurn,
    AskApproval,
    Complete,
    Fail,
    FollowUp,
    HandOff,
    Outcome,
    Proceed,
)

_WORD: Final = re.compile(r"\w+")
_WORD_LETTERS_MIN: Final = 4
"""Shorter words occur in every description."""

_ORDERED: Final = "the user said so"
"""The reason of a handoff by order. The order is for the first agent that gets the message, not for
the next one, which gets the same text."""

_ORDERS: Final[Mapping[str, Callable[[str], Outcome]]] = {
    "ask": lambda _: FollowUp(),
    "pause": lambda rest: AskApproval(rest or "May I go on?"),
    "done": lambda rest: Complete(summary=rest),
    "fail": Fail,
    "to": lambda rest: HandOff(rest.split()[0], reason=_ORDERED) if rest else Proceed(),
}


class StandInAgents:
    """One stand-in for every agent of a registry."""

    def __init__(self, agents: Iterable[Agent], home_agent_id: str) -> None:
        self._agents = {agent.agent_id: agent for agent in agents}
        self._home_agent_id = home_agent_id

    def answer(self, turn: AgentTurn) -> AgentReply:
        """See Agents.answer."""
        agent = self._agents.get(turn.agent_id)
        name = agent.display_name if agent else turn.agent_id
        if turn.refused_rules:
            return AgentReply(f"[{name}] I may not hand this over.", Proceed())
        if turn.decision:
            return AgentReply(f"[{name}] A person said: {turn.decision}.", Proceed())
        if turn.handoff_reason == _ORDERED:
            return AgentReply(f"[{name}] Here I am.", Proceed())
        order, _, rest = turn.text.removeprefix("!").partition(" ")
        if turn.text.startswith("!") and order in _ORDERS:
            outcome = _ORDERS[order](rest)
            return AgentReply(_words(name, outcome), outcome)
        if turn.agent_id == self._home_agent_id:
            target = self._find(turn.text)
            if target:
                return AgentReply("", HandOff(target, reason="its description has the same words"))
        return AgentReply(f"[{name}] I got: {turn.text}", Proceed())

    def _find(self, text: str) -> str:
        """Return the specialist whose name and description share most words with a text."""
        words = _long_words(text)
        shared = {
            agent_id: len(
                words & _long_words(f"{agent_id} {agent.display_name} {agent.description}")
            )
            for agent_id, agent in self._agents.items()
            if agent.kind == AGENT_KIND_SPECIALIST
            and agent.enabled
            and agent_id != self._home_agent_id
        }
        best = max(shared, key=lambda agent_id: shared[agent_id], default="")
        return best if best and shared[best] else ""


def _long_words(text: str) -> set[str]:
    words = _WORD.findall(text.casefold().replace("_", " "))
    return {word for word in words if len(word) >= _WORD_LETTERS_MIN}


def _words(name: str, outcome: Outcome) -> str:
    match outcome:
        case FollowUp():
            return f"[{name}] I ask you something. What do you say?"
        case AskApproval():
            return f"[{name}] I need an approval."
        case Complete():
            return f"[{name}] I am done."
        case Fail():
            return f"[{name}] I failed."
        case _:
            return f"[{name}] I hand over."
