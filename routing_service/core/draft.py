"""A change while it is being decided.

Rule: nothing is read from the old state once an event has changed it.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from routing_service.core.events import Event
from routing_service.core.evolve import evolve
from routing_service.core.registry import Agent, Registry
from routing_service.core.session import SessionState

NO_TURNS: Final[frozenset[str]] = frozenset()


class Draft:
    """Collects the events of one change and folds them as they come."""

    __slots__ = (
        "active_after",
        "before",
        "events",
        "leased",
        "now_us",
        "registry",
        "state",
    )

    def __init__(
        self, state: SessionState | None, session_id: str, registry: Registry, now_us: int
    ) -> None:
        """Begin a change on a session, or a session (state None).

        now_us: if it is before the session's last change, that change's time counts.
        """
        if state is None:
            state = SessionState(
                session_id=session_id, revision=0, create_us=now_us, update_us=now_us
            )
        self.now_us = max(now_us, state.update_us)
        self.before = state
        self.registry = registry
        # The requests that workers have under leases, as far as it was asked.
        self.leased = NO_TURNS
        self.events: list[Event] = []
        # The active agent after each event, so that readers of the log need not fold all of it.
        self.active_after: list[str] = []
        self.state = replace(
            state,
            revision=state.revision + 1,
            update_us=self.now_us,
            registry_version=registry.version,
            used_us=0,
        )

    @classmethod
    def standing(cls, state: SessionState, registry: Registry) -> Draft:
        """Return a draft without a change, to ask about a session as it stands."""
        draft = cls.__new__(cls)
        draft.now_us = state.update_us
        draft.before = draft.state = state
        draft.registry = registry
        draft.leased = NO_TURNS
        draft.events = []
        draft.active_after = []
        return draft

    def fork(self) -> Draft:
        """Return a draft that goes on from here by itself."""
        draft = Draft.standing(self.state, self.registry)
        draft.now_us = self.now_us
        draft.before = self.before
        draft.leased = self.leased
        draft.become(self)
        return draft

    def become(self, other: Draft) -> None:
        """Take over what another draft of the same change has decided."""
        self.state = other.state
        self.events = list(other.events)
        self.active_after = list(other.active_after)

    def add(self, event: Event) -> None:
        """Add an event and apply it."""
        self.events.append(event)
        self.state = state = evolve(self.state, event)
        active = state.active
        self.active_after.append("" if active is None else active.agent_id)

    def agent(self, agent_id: str) -> Agent:
        """Return a registered agent; for one that is no longer registered, a plain one."""
        return self.registry.agent(agent_id) or Agent(agent_id)
