"""Which turn of a session waits in an inbox for a worker, and where.

Rule: it follows from the state and the registry alone. A task has at most one such turn, its live
one, so what an agent gets of one task is in order and one at a time. For a person it is the first
of the person's turns. A turn that was overtaken keeps its place for the worker that has it, and is
open only for as long as one has it.
"""

from __future__ import annotations

from typing import NamedTuple

from routing_service.core.people import turns_of_person
from routing_service.core.registry import Registry
from routing_service.core.session import OpenTurn, SessionState, Strand
from routing_service.core.strand_fold import every_open_turn, live_turn


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
    if registry.people:
        waiting = [_first_of(state, turn, registry) for turn in waiting]
    kept = [turn for turn in overtaken_turns(state, registry) if turn.holder not in registry.people]
    return [*map(place_of, waiting), *map(place_of, kept)]


def overtaken_turns(state: SessionState, registry: Registry) -> list[OpenTurn]:
    """Return the turns in inboxes that can move nothing any more, those of parked tasks too."""
    parked = state.apart.parked if state.apart is not None else ()
    places: tuple[SessionState | Strand, ...] = (state, *parked)
    return [turn for place in places for turn in overtaken_of_task(place, registry)]


def find_worked(state: SessionState | None, request_id: str, registry: Registry) -> OpenTurn | None:
    """Return the turn of a request that an agent may still answer: live, or a worker's."""
    live = find_live(state, request_id)
    if live is not None or state is None:
        return live
    overtaken = (turn for turn in overtaken_turns(state, registry))
    return next((turn for turn in overtaken if turn.request_id == request_id), None)


def inbox_places(state: SessionState, registry: Registry) -> list[InboxPlace]:
    """Return the places of all open turns in inboxes of agents that are no people."""
    return [
        place_of(turn)
        for turn in every_open_turn(state)
        if turn.holder not in registry.people and is_in_inbox(registry, turn)
    ]


def overtaken_of_task(place: SessionState | Strand, registry: Registry) -> list[OpenTurn]:
    """Return those of one task. A person's earlier turns are none: people read all of them."""
    if not place.open_turns:
        return []
    live = place.live_turn if isinstance(place, SessionState) else live_turn(place)
    if len(place.open_turns) == 1 and live is not None:
        return []  # Nearly always.
    active = place.active
    person = ""
    if active is not None and active.agent_id in registry.people and place.meanwhile is None:
        person = active.agent_id
    return [
        turn
        for turn in place.open_turns
        if turn is not live
        and is_in_inbox(registry, turn)
        and not (person and turn.holder == person and turn.epoch == place.epoch)
    ]


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


def find_placed(state: SessionState | None, place: InboxPlace) -> OpenTurn | None:
    """Return the turn at a place, if it is open and held by that agent, live or overtaken."""
    if state is None:
        return None
    return next((turn for turn in every_open_turn(state) if place_of(turn) == place), None)
