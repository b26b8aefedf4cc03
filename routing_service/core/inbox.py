"""Which turn of a session waits in an inbox for a worker, and where.

Rule: it follows from the state and the registry alone. A task has at most one such turn, its live
one, so what an agent gets of one task is in order and one at a time. For a person it is the first
of the person's turns.
"""

from __future__ import annotations

from typing import NamedTuple

from routing_service.core.people import turns_of_person
from routing_service.core.registry import Registry
from routing_service.core.session import OpenTurn, SessionState, Strand
from routing_service.core.strand_fold import live_turn


class InboxPlace(NamedTuple):
    """A turn's place in an inbox: the agent, when it was dispatched, its request."""

    agent_id: str
    dispatched_us: int
    request_id: str


def place_of(turn: OpenTurn) -> InboxPlace:
    """Return the place of a turn in the inbox of its holder."""
    return InboxPlace(turn.holder, turn.dispatched_us, turn.request_id)


def live_turns(state: SessionState | None) -> list[OpenTurn]:
    """Return the live turn of each task, the foreground's first."""
    if state is None:
        return []
    parked = state.apart.parked if state.apart is not None else ()
    return [turn for turn in (state.live_turn, *map(live_turn, parked)) if turn is not None]


def find_live(state: SessionState | None, request_id: str) -> OpenTurn | None:
    """Return the live turn whose open request this is."""
    return next((turn for turn in live_turns(state) if turn.request_id == request_id), None)


def place_with(state: SessionState, turn: OpenTurn) -> SessionState | Strand:
    """Return the task of which a turn is the live one: a parked one, or the foreground."""
    parked = state.apart.parked if state.apart is not None else ()
    return next((each for each in parked if live_turn(each) is turn), state)


def waiting_places(state: SessionState | None, registry: Registry) -> list[InboxPlace]:
    """Return the places of the turns that wait for a worker."""
    if state is None:
        return []
    waiting = [turn for turn in live_turns(state) if is_in_inbox(registry, turn)]
    if not registry.people:
        return list(map(place_of, waiting))
    return [place_of(_first_of(state, turn, registry)) for turn in waiting]


def _first_of(state: SessionState, turn: OpenTurn, registry: Registry) -> OpenTurn:
    """Return the turn at whose place a live turn waits: the first of a person's.

    What waits for a person is the conversation: its place stays while the user writes on.
    """
    if turn.holder not in registry.people or turn is not state.live_turn:
        return turn
    held = (each for each in turns_of_person(state, registry) if each.holder == turn.holder)
    return next(held, turn)


def is_in_inbox(registry: Registry, turn: OpenTurn) -> bool:
    """Say whether a live turn waits for a worker rather than for its caller."""
    if turn.is_delivered:
        return True
    agent = registry.agent(turn.holder)
    return agent is not None and agent.has_inbox


def find_waiting(state: SessionState | None, place: InboxPlace) -> OpenTurn | None:
    """Return the turn at a place, if it is open, live and held by that agent.

    The registry does not count: a turn that was given to an inbox is carried to its end.
    """
    return next((turn for turn in live_turns(state) if place_of(turn) == place), None)
