"""Where a message goes while the service cannot be reached.

Owns the last known agent of each session, learnt from answers, and the decision made from it. Only
a call that was not decided falls back; a refusal is a decision and reaches the caller. A degraded
decision is always marked as such.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from agent_routing.away_commands import LEADING_HOME, AwayCommand, parse, reply
from agent_routing.errors import (
    DeadlineExceeded,
    RoutingError,
    SessionErased,
    UnknownSession,
)
from agent_routing.messages import agent_pb2, dispatch_pb2, route_reason_pb2
from agent_routing.messages import routing_service_pb2 as pb
from agent_routing.retry import was_unanswered

if TYPE_CHECKING:
    from google.protobuf.message import Message

SESSIONS_MAX_DEFAULT: Final = 10_000
"""About 4 MB. A session that was evicted falls back to the supervisor."""

HOME_CHARACTERS_MAX: Final = 129
"""Of the file with the home agent: an id and the line's end."""

_log: Final = logging.getLogger("agent_routing")

AGENT_TEXTS_MAX: Final = 1_000
"""Different descriptions of agents that are kept: agents times locales, over all sessions."""

_LEAVING_COMMANDS: Final = frozenset({"/supervisor", "/reset", "/agent"})
"""Commands that may have changed the active agent although the answer has a reply only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """What the client may decide alone while the service cannot be reached.

    supervisor_id: the agent for sessions without a known agent; empty: the home agent, once an
    answer has named it; until then route() raises. sessions_max: how many sessions are remembered,
    the last used ones. home_file: a small file in which the home agent's id is kept, so that a new
    process knows it; empty: none. commands: whether commands in messages are understood while the
    service is away; switch it off for lessons that users may not leave.
    """

    supervisor_id: str = ""
    sessions_max: int = SESSIONS_MAX_DEFAULT
    home_file: str = ""
    commands: bool = True

    def __post_init__(self) -> None:
        """Check the values. Raises ValueError."""
        if self.sessions_max < 1:
            raise ValueError(f"sessions_max is {self.sessions_max}; give 1 or more")


FALLBACK_DEFAULT: Final = Fallback()


def is_undecided(error: RoutingError) -> bool:
    """Tell whether the service did not decide about a call, so that the client may."""
    return isinstance(error, DeadlineExceeded) or was_unanswered(error)


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known about a session at a revision. agent: None: the home agent."""

    revision: int
    agent: agent_pb2.Agent | None
    task_id: str


class KnownAgents:
    """The last known agent of each session. Safe in threads."""

    def __init__(self, fallback: Fallback) -> None:
        self._sessions_max = fallback.sessions_max
        self._home_file = fallback.home_file
        self._understands_commands = fallback.commands
        self._home_id = fallback.supervisor_id or _read_home(fallback.home_file)
        self._lock = threading.Lock()
        self._sessions: OrderedDict[str, _Known] = OrderedDict()
        self._session_by_task: dict[str, str] = {}
        self._agents: dict[bytes, agent_pb2.Agent] = {}

    def learn(self, request: Message, answer: Message) -> None:
        """Record what an answer says about its session, or about the home agent."""
        match answer:
            case _ if _is_dry_run(request):
                pass
            case pb.RouteResponse():
                self._learn_route(answer)
            case pb.CompleteTurnResponse():
                agent = None
                if answer.HasField("next"):
                    agent = answer.next.agent
                elif answer.HasField("active_agent"):
                    agent = answer.active_agent
                self._remember(answer.session_id, answer.revision, agent, answer.task_id)
            case pb.SetActiveAgentResponse():
                self._remember(answer.session_id, answer.revision, answer.agent, answer.task_id)
            case pb.ClearActiveAgentResponse() | pb.CancelTaskResponse():
                self._learn_home(answer.agent.agent_id)
                self._remember(answer.session_id, answer.revision, None, answer.task_id)
            case pb.StatusResponse():
                self._remember(
                    answer.session_id, answer.revision, answer.next_agent, answer.task.task_id
                )
            case pb.ResumeTaskResponse():
                self._remember(
                    answer.session_id, answer.revision, answer.dispatch.agent, answer.task_id
                )
            case pb.ListAgentsResponse():
                self._learn_home(answer.home_agent_id)
            case _:
                pass

    def forget(self, session_id: str, error: RoutingError) -> None:
        """Drop a session that does not exist, or no longer exists, according to the service."""
        if isinstance(error, (UnknownSession, SessionErased)):
            with self._lock:
                self._drop(session_id)

    def degraded_answer(
        self, request: pb.RouteRequest, error: RoutingError
    ) -> pb.RouteResponse | None:
        """Return the decision for a message that could not be routed.

        None: the client may not decide, because the failure was a decision, the call a dry run, or
        no agent is known.
        """
        if not is_undecided(error) or request.validate_only:
            return None
        command = self._command_in(request)
        with self._lock:
            session_id = request.session_id or self._session_by_task.get(request.task_id, "")
            known = self._sessions.get(session_id)
            if known and command and command.name in LEADING_HOME:
                known = self._sessions[session_id] = replace(known, agent=None)
        text = request.text if command is None else command.rest
        is_for_agent = command is None or (
            command.name in LEADING_HOME and bool(command.rest or request.items)
        )
        agent = known.agent if known else None
        if is_for_agent and agent is None and not self._home_id:
            return None
        task_id = request.task_id or (known.task_id if known else "")
        answer = pb.RouteResponse(
            session_id=session_id, task_id=task_id, request_id=request.request_id
        )
        if command is not None:
            shown, language = reply(command, request.locale)
            answer.reply.MergeFrom(
                dispatch_pb2.Reply(command=f"/{command.name}", text=shown, locale=language)
            )
        if is_for_agent:
            answer.supervisor_bypassed = agent is not None and agent.agent_id != self._home_id
            answer.dispatch.MergeFrom(
                dispatch_pb2.Dispatch(
                    request_id=request.request_id,
                    task_id=task_id,
                    agent=agent_pb2.Agent(agent_id=self._home_id) if agent is None else agent,
                    reason=route_reason_pb2.ROUTE_REASON_DEGRADED,
                    reason_detail=f"degraded: {error.message}",
                    text=text,
                    items=request.items,
                )
            )
        return answer

    def may_decide(self, request: pb.RouteRequest) -> bool:
        """Tell whether a message could be decided without the service."""
        if request.validate_only:
            return False
        if self._home_id:
            return True
        with self._lock:
            session_id = request.session_id or self._session_by_task.get(request.task_id, "")
            known = self._sessions.get(session_id)
        return known is not None and known.agent is not None and self._command_in(request) is None

    def _command_in(self, request: pb.RouteRequest) -> AwayCommand | None:
        """Return the command of a message, if commands are understood."""
        if request.literal_text or not self._understands_commands:
            return None
        return parse(request.text)

    def _learn_home(self, agent_id: str) -> None:
        """Record the home agent, in the file too."""
        if not agent_id or agent_id == self._home_id:
            return
        self._home_id = agent_id
        if self._home_file:
            _write_home(self._home_file, agent_id)

    def revision(self, session_id: str) -> int | None:
        """Return the last known revision of a session; None: it is not known."""
        with self._lock:
            known = self._sessions.get(session_id)
        return known.revision if known else None

    def _learn_route(self, answer: pb.RouteResponse) -> None:
        if answer.HasField("dispatch"):
            dispatch = answer.dispatch
            if dispatch.agent.kind == agent_pb2.AGENT_KIND_SUPERVISOR or dispatch.reason in (
                route_reason_pb2.ROUTE_REASON_NO_ACTIVE_AGENT,
                route_reason_pb2.ROUTE_REASON_DEFAULT_AGENT,
            ):
                self._learn_home(dispatch.agent.agent_id)
            self._remember(answer.session_id, answer.revision, dispatch.agent, answer.task_id)
        elif answer.reply.command in _LEAVING_COMMANDS:
            # The reply does not say which agent is active now. The home agent is always safe.
            self._remember(answer.session_id, answer.revision, None, answer.task_id)

    def _remember(
        self, session_id: str, revision: int, agent: agent_pb2.Agent | None, task_id: str
    ) -> None:
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

    def _shared(self, agent: agent_pb2.Agent | None) -> agent_pb2.Agent | None:
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
            shared = self._agents[key] = agent_pb2.Agent.FromString(key)
        return shared


def _read_home(path: str) -> str:
    """Return the id in a file; empty if there is none."""
    if not path:
        return ""
    try:
        # Without pathlib: importing it takes a third as long as importing the clients.
        with open(path, encoding="ascii") as file:  # noqa: PTH123
            return file.read(HOME_CHARACTERS_MAX).strip()
    except (OSError, ValueError):
        return ""


def _write_home(path: str, agent_id: str) -> None:
    """Replace the id in a file. A file that cannot be written is no reason to fail a call."""
    import tempfile  # noqa: PLC0415 - once for each change of the home agent
    from pathlib import Path  # noqa: PLC0415

    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="ascii", dir=Path(path).parent, delete=False
        ) as file:
            file.write(f"{agent_id}\n")
        Path(file.name).replace(path)
    except OSError as error:
        _log.warning("home_file_not_written path=%s error=%s", path, error)


def _is_dry_run(request: Message) -> bool:
    """Tell whether the request was a dry run (validate_only)."""
    return bool(getattr(request, "validate_only", False))
