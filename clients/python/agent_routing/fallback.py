"""Where a message goes while the service cannot be reached.

Owns the last known agent of each session, learnt from answers, and the decision made from it. Only
a call that was not decided falls back; a refusal is a decision and reaches the caller. A degraded
decision is always marked as such.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import Message

from agent_routing.errors import (
    DeadlineExceeded,
    Overloaded,
    RoutingError,
    SessionErased,
    Unavailable,
    UnknownSession,
)
from agent_routing.v1.agent_pb2 import AGENT_KIND_SUPERVISOR, Agent
from agent_routing.v1.dispatch_pb2 import Dispatch
from agent_routing.v1.route_reason_pb2 import (
    ROUTE_REASON_DEFAULT_AGENT,
    ROUTE_REASON_NO_ACTIVE_AGENT,
)
from agent_routing.v1.routing_service_pb2 import (
    ClearActiveAgentResponse,
    CompleteTurnResponse,
    ListAgentsResponse,
    ResumeTaskResponse,
    RouteRequest,
    RouteResponse,
    SetActiveAgentRequest,
    SetActiveAgentResponse,
    StatusResponse,
)

SESSIONS_MAX_DEFAULT: Final = 10_000
"""About 4 MB. A session that was evicted falls back to the supervisor."""

AGENT_TEXTS_MAX: Final = 1_000
"""Different descriptions of agents that are kept: agents times locales, over all sessions."""

_NOT_DECIDED: Final = (Unavailable, DeadlineExceeded, Overloaded)

_LEAVING_COMMANDS: Final = frozenset({"/supervisor", "/reset", "/agent"})
"""Commands that may have changed the active agent although the answer has a reply only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """What the client may decide alone while the service cannot be reached.

    supervisor_id: the agent for sessions without a known agent; empty: the home agent, once an
    answer has named it; until then route() raises. sessions_max: how many sessions are remembered,
    the last used ones.
    """

    supervisor_id: str = ""
    sessions_max: int = SESSIONS_MAX_DEFAULT

    def __post_init__(self) -> None:
        """Check the values. Raises ValueError."""
        if self.sessions_max < 1:
            raise ValueError(f"sessions_max is {self.sessions_max}; give 1 or more")


FALLBACK_DEFAULT: Final = Fallback()


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known about a session at a revision. agent: None: the home agent."""

    revision: int
    agent: Agent | None
    task_id: str


class KnownAgents:
    """The last known agent of each session. Safe in threads."""

    def __init__(self, fallback: Fallback) -> None:
        self._sessions_max = fallback.sessions_max
        self._home_id = fallback.supervisor_id
        self._lock = threading.Lock()
        self._sessions: OrderedDict[str, _Known] = OrderedDict()
        self._session_by_task: dict[str, str] = {}
        self._agents: dict[bytes, Agent] = {}

    def learn(self, request: Message, answer: Message) -> None:
        """Record what an answer says about its session, or about the home agent."""
        match answer:
            case RouteResponse() | SetActiveAgentResponse() if _is_dry_run(request):
                pass
            case RouteResponse():
                self._learn_route(answer)
            case CompleteTurnResponse():
                agent = None
                if answer.HasField("next"):
                    agent = answer.next.agent
                elif answer.HasField("active_agent"):
                    agent = answer.active_agent
                self._remember(answer.session_id, answer.revision, agent, answer.task_id)
            case SetActiveAgentResponse():
                self._remember(answer.session_id, answer.revision, answer.agent, answer.task_id)
            case ClearActiveAgentResponse():
                self._home_id = answer.agent.agent_id or self._home_id
                self._remember(answer.session_id, answer.revision, None, answer.task_id)
            case StatusResponse():
                self._remember(
                    answer.session_id, answer.revision, answer.next_agent, answer.task.task_id
                )
            case ResumeTaskResponse():
                self._remember(
                    answer.session_id, answer.revision, answer.dispatch.agent, answer.task_id
                )
            case ListAgentsResponse():
                self._home_id = answer.home_agent_id or self._home_id
            case _:
                pass

    def forget(self, session_id: str, error: RoutingError) -> None:
        """Drop a session that does not exist, or no longer exists, according to the service."""
        if isinstance(error, (UnknownSession, SessionErased)):
            with self._lock:
                self._drop(session_id)

    def degraded_answer(self, request: RouteRequest, error: RoutingError) -> RouteResponse | None:
        """Return the decision for a message that could not be routed.

        None: the client may not decide, because the failure was a decision, the call a dry run, or
        no agent is known.
        """
        if not isinstance(error, _NOT_DECIDED) or request.validate_only:
            return None
        with self._lock:
            session_id = request.session_id or self._session_by_task.get(request.task_id, "")
            known = self._sessions.get(session_id)
        agent = known.agent if known else None
        if agent is None and not self._home_id:
            return None
        task_id = request.task_id or (known.task_id if known else "")
        return RouteResponse(
            session_id=session_id,
            task_id=task_id,
            request_id=request.request_id,
            dispatch=Dispatch(
                request_id=request.request_id,
                task_id=task_id,
                agent=Agent(agent_id=self._home_id) if agent is None else agent,
                reason_detail=f"degraded: {error.message}",
                text=request.text,
                items=request.items,
            ),
            supervisor_bypassed=agent is not None and agent.agent_id != self._home_id,
        )

    def revision(self, session_id: str) -> int | None:
        """Return the last known revision of a session; None: it is not known."""
        with self._lock:
            known = self._sessions.get(session_id)
        return known.revision if known else None

    def _learn_route(self, answer: RouteResponse) -> None:
        if answer.HasField("dispatch"):
            dispatch = answer.dispatch
            if dispatch.agent.kind == AGENT_KIND_SUPERVISOR or dispatch.reason in (
                ROUTE_REASON_NO_ACTIVE_AGENT,
                ROUTE_REASON_DEFAULT_AGENT,
            ):
                self._home_id = dispatch.agent.agent_id
            self._remember(answer.session_id, answer.revision, dispatch.agent, answer.task_id)
        elif answer.reply.command in _LEAVING_COMMANDS:
            # The reply does not say which agent is active now. The home agent is always safe.
            self._remember(answer.session_id, answer.revision, None, answer.task_id)

    def _remember(self, session_id: str, revision: int, agent: Agent | None, task_id: str) -> None:
        """Store what is known about a session, unless newer information is stored."""
        with self._lock:
            known = self._sessions.get(session_id)
            # Answers of parallel calls arrive in any order, and a replayed one is old.
            if known is not None and revision < known.revision:
                self._sessions.move_to_end(session_id)
                return
            if known is not None and known.task_id != task_id:
                self._session_by_task.pop(known.task_id, None)
            if task_id:
                self._session_by_task[task_id] = session_id
            self._sessions[session_id] = _Known(revision, self._shared(agent), task_id)
            self._sessions.move_to_end(session_id)
            if len(self._sessions) > self._sessions_max:
                self._drop(next(iter(self._sessions)))

    def _drop(self, session_id: str) -> None:
        """Remove a session. The caller holds the lock."""
        known = self._sessions.pop(session_id, None)
        if known is not None:
            self._session_by_task.pop(known.task_id, None)

    def _shared(self, agent: Agent | None) -> Agent | None:
        """Return the shared copy of an agent's description. The caller holds the lock.

        It is a copy because a part of a message keeps the whole message in memory: here an answer
        with its history, for each session.
        """
        if agent is None or not agent.agent_id:
            return None
        key = agent.SerializeToString(deterministic=True)
        shared = self._agents.get(key)
        if shared is None:
            if len(self._agents) >= AGENT_TEXTS_MAX:
                self._agents.clear()
            shared = self._agents[key] = Agent.FromString(key)
        return shared


def _is_dry_run(request: Message) -> bool:
    """Tell whether the request was a dry run (validate_only)."""
    return isinstance(request, (RouteRequest, SetActiveAgentRequest)) and request.validate_only
