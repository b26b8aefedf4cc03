"""What a program remembers about its sessions, for use while the service is away."""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from agent_routing.v1.agent_pb2 import Agent
from agent_routing.v1.dispatch_pb2 import Dispatch
from agent_routing.v1.routing_service_pb2 import ListAgentsResponse
from agent_routing.v1.turn_pb2 import Turn

HISTORY_TURNS: Final = 20
"""How many past turns an agent gets: the service's default for a message."""

SESSIONS_MAX: Final = 1_000
"""Sessions whose last turns are kept."""


class LocalMemory:
    """What a program remembers about its sessions, for use while the service is away.

    Keeps the SESSIONS_MAX sessions that were used last. Safe in threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sessions: OrderedDict[str, _Session] = OrderedDict()

    def seed(self, session_id: str, dispatch: Dispatch) -> None:
        """Store what the service sent about a session. Ends the time without the service."""
        with self._lock:
            session = self._session(session_id)
            session.away_agent_id = ""
            session.turns = session.turns or list(dispatch.history)

    def fill(self, session_id: str, dispatch: Dispatch, home_id: str) -> Dispatch:
        """Return a dispatch that was made without the service, completed from memory."""
        filled = Dispatch()
        filled.CopyFrom(dispatch)
        with self._lock:
            agent_id = self._session(session_id).away_agent_id
        if agent_id:
            filled.agent.CopyFrom(Agent(agent_id=agent_id))
        filled.history.extend(self.turns(session_id, filled.agent.agent_id, home_id))
        return filled

    def turns(self, session_id: str, agent_id: str, home_id: str) -> list[Turn]:
        """Return the past turns that an agent may see: its own, or all for the home agent."""
        with self._lock:
            turns = list(self._session(session_id).turns)
        return [turn for turn in turns if agent_id in (turn.agent_id, home_id)]

    def moved_away(self, session_id: str, agent_id: str) -> None:
        """Record a handoff that the service does not know."""
        with self._lock:
            self._session(session_id).away_agent_id = agent_id

    def remember(self, session_id: str, dispatch: Dispatch, agent_id: str, text: str) -> None:
        """Store a turn."""
        turn = Turn(
            request_id=dispatch.request_id,
            agent_id=agent_id,
            user_text=dispatch.text,
            agent_text=text,
        )
        with self._lock:
            session = self._session(session_id)
            session.turns = [*session.turns, turn][-HISTORY_TURNS:]

    def instructions(
        self, session_id: str, agent_id: str, version: str = "", locale: str | None = None
    ) -> str:
        """Return an agent's instructions; empty if unknown, or of another registry or locale.

        version: of the registry; empty: any. locale: None: any.
        """
        with self._lock:
            session = self._session(session_id)
            if version and session.version != version:
                return ""
            if locale is not None and session.locale != locale:
                return ""
            return session.instructions.get(agent_id, "")

    def keep_instructions(self, session_id: str, locale: str, listed: ListAgentsResponse) -> None:
        """Store the instructions of all agents."""
        with self._lock:
            session = self._session(session_id)
            session.version, session.locale = listed.registry_version, locale
            # An agent's text is the same in most sessions: keep one copy.
            session.instructions = {
                agent_id: sys.intern(text) for agent_id, text in listed.instructions.items()
            }

    def _session(self, session_id: str) -> _Session:
        """Return the entry of a session. The caller holds the lock.

        A message that was decided without the service and named no session has none: what belongs
        to it is not kept, so that no other user's message finds it.
        """
        if not session_id:
            return _Session()
        session = self._sessions.setdefault(session_id, _Session())
        self._sessions.move_to_end(session_id)
        if len(self._sessions) > SESSIONS_MAX:
            self._sessions.popitem(last=False)
        return session


@dataclass(slots=True)
class _Session:
    """One session.

    turns: the last ones, oldest first. away_agent_id: the agent that took over while the service
    was away. version, locale: of the instructions.
    """

    turns: list[Turn] = field(default_factory=list)
    away_agent_id: str = ""
    version: str = ""
    locale: str = ""
    instructions: dict[str, str] = field(default_factory=dict)
