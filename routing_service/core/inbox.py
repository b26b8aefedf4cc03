"""Which turn of a session waits in an inbox for a worker, and where.

Rule: it follows from the state and the registry alone. A session has at most one such turn, its
live one, so what an agent gets of one session is in order and one at a time.
"""

from __future__ import annotations

from typing import NamedTuple

from routing_service.core.registry import Registry
from routing_service.core.session import OpenTurn, SessionState


class InboxPlace(NamedTuple):
    """A turn's place in an inbox: the agent, when it was dispatched, its request."""

    agent_id: str
    dispatched_us: int
    request_id: str


def place_of(turn: OpenTurn) -> InboxPlace:
    """Return the place of a turn in the inbox of its holder."""
    return InboxPlace(turn.holder, turn.dispatched_us, turn.request_id)


def waiting_place(state: SessionState | None, registry: Registry) -> InboxPlace | None:
    """Return the place of the turn that waits for a worker; None = no turn does."""
    turn = state.live_turn if state is not None else None
    if turn is None:
        return None
    if turn.is_delivered:
        return place_of(turn)
    agent = registry.agent(turn.holder)
    return place_of(turn) if agent is not None and agent.has_inbox else None


def find_waiting(state: SessionState | None, place: InboxPlace) -> OpenTurn | None:
    """Return the turn at a place, if it is open, live and held by that agent.

    The registry does not count: a turn that was given to an inbox is carried to its end.
    """
    turn = state.live_turn if state is not None else None
    return turn if turn is not None and place_of(turn) == place else None
