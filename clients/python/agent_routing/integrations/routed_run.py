"""Results of routed messages and of the framework's runs, as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from agent_routing.errors import RoutingError
from agent_routing.integrations.approvals import Approval
from agent_routing.v1.agent_pb2 import Agent
from agent_routing.v1.dispatch_pb2 import Dispatch, Suggestion
from agent_routing.v1.item_pb2 import Item
from agent_routing.v1.routing_service_pb2 import CompleteTurnResponse


@dataclass(frozen=True, slots=True)
class Shown:
    """Text for the user.

    agent_id: the agent that wrote it; empty: the service, for example the reply to a command.
    """

    agent_id: str
    text: str


@dataclass(slots=True)
class RoutedRun:
    """The result of a user's message.

    session_id: the session, given or generated. shown: the texts for the user, in order. agent_id:
    the agent that answered last; empty if none did. reason: why the message went to the first
    agent, such as "STICKY". next: the dispatch with which the run ended, if its agent runs
    elsewhere: pass it on to its program; workers and people have it already (delivery INBOX).
    approval: what the run waits for, if an agent needs an approval. suggestion: the agent switch
    offered to the user, if there is one. items: what agents answered besides text. answers: the
    service's response to each answer. results: what the framework returned for each of its runs.
    degraded: whether anything was decided without the service; error then says why.
    """

    session_id: str = ""
    shown: list[Shown] = field(default_factory=list)
    agent_id: str = ""
    reason: str = ""
    next: Dispatch | None = None
    approval: Approval | None = None
    suggestion: Suggestion | None = None
    items: list[Item] = field(default_factory=list)
    answers: list[CompleteTurnResponse] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)
    degraded: bool = False
    error: RoutingError | None = None

    @property
    def text(self) -> str:
        """All texts for the user, as one."""
        return "\n\n".join(each.text for each in self.shown)

    @property
    def locked(self) -> bool:
        """Whether the agent waits for the user's answer."""
        return bool(self.answers) and self.answers[-1].locked


Targets: TypeAlias = tuple[tuple[str, Agent], ...]
"""Agents, each with the name by which a model names it."""


@dataclass(frozen=True, slots=True)
class AgentView:
    """What an agent sees at the moment.

    targets: the agents and people to which it may hand over, each with its name in the program, or
    its id if it is not in the program. elsewhere: those of them that are not in the program.
    consultable: those that it may consult.
    """

    instructions: str
    targets: Targets
    elsewhere: Targets
    consultable: Targets


@dataclass(frozen=True, slots=True)
class Said:
    """The result of a run of the framework.

    text: the last agent's answer. result: what the framework returned.
    """

    text: str
    result: Any
