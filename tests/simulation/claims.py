"""The invariants of claims: one claimant at most, only where people have the conversation.

They are written separately from the state machine, and read only states, events and the command.
A change with parked tasks is cut into parts first, so that each part is about one task.
"""

from __future__ import annotations

from routing_service.core import events as ev
from routing_service.core.commands import (
    AddNote,
    ClaimTurn,
    Command,
    Expire,
    PersonsAnswer,
    ReleaseTurn,
    Say,
)
from routing_service.core.events import MessageSaid, NoteAdded, WaitBegun
from routing_service.core.registry import AgentKind, Registry
from routing_service.core.session import OpenTurn, SessionState
from routing_service.core.unclaimed import REASON


def people_with(state: SessionState, registry: Registry) -> str:
    """Return the agent of kind human that is active, or else has the live turn; "" for none."""
    live = state.live_turn
    there = [] if state.meanwhile is not None else [state.active_id]
    there += [live.holder] if live is not None else []
    return next((agent_id for agent_id in there if is_human(agent_id, registry)), "")


def is_human(agent_id: str, registry: Registry) -> bool:
    """Say whether an agent stands for people."""
    agent = registry.agents.get(agent_id)
    return agent is not None and agent.kind is AgentKind.HUMAN


def check_place(state: SessionState, registry: Registry) -> None:
    """A claim is on a conversation that its agent's people have."""
    if state.claim is not None and state.claim.claimant:
        assert state.has_work, "a state of format 2 would be written as one of format 1"
        assert people_with(state, registry) == state.claim.agent_id, "a claim without people"


def check_events(
    before: SessionState | None, state: SessionState, events: tuple[ev.Event, ...]
) -> None:
    """Claims begin and end by events, one after the other, and a turn is answered once."""
    claimant = before.claim.claimant if before is not None and before.claim else ""
    open_turns = {turn.request_id: turn for turn in before.open_turns} if before else {}
    given_back = {
        event.child_request_id
        for event in events
        if isinstance(event, ev.AgentHandedOff) and event.reason == REASON
    }
    completed = {event.request_id for event in events if isinstance(event, ev.TurnCompleted)}
    for event in events:
        match event:
            case ev.Claimed():
                assert event.taken_from == claimant, "two people have claimed one conversation"
                assert event.expire_us > state.update_us
                claimant = event.claimant
            case ev.ClaimReleased():
                assert event.claimant == claimant, "a claim ended that was another person's"
                if event.cause == "timeout":
                    assert before is not None
                    assert before.claim is not None
                    assert state.update_us >= before.claim.expire_us, "a claim ended too early"
                claimant = ""
            case WaitBegun():
                assert claimant == "", "a conversation that is claimed does not wait"
                assert is_people(event.agent_id, before, state)
            case MessageSaid(request_id=request_id):
                assert not request_id or request_id in open_turns, "said in a turn that is closed"
            case ev.TurnAnswered():
                _check_answered(event, open_turns)
                # Given back, or moved along: its answer is still to come.
                goes_on = event.answered_by in given_back or state.find_turn(event.answered_by)
                assert goes_on or event.answered_by in completed, "answered without an answer"
                assert event.request_id not in completed, "a turn was answered twice"
                del open_turns[event.request_id]
            case ev.TurnAbandoned():
                open_turns.pop(event.request_id, None)
            case _:
                pass
    answered = {event.request_id for event in events if isinstance(event, ev.TurnAnswered)}
    assert not answered & {turn.request_id for turn in state.open_turns}, "answered, and open"
    assert claimant == (state.claim.claimant if state.claim else ""), "the events say otherwise"


def is_people(agent_id: str, before: SessionState | None, state: SessionState) -> bool:
    """Say whether people have had the conversation for an agent, by the states alone."""
    held = [state.claim, before.claim if before else None]
    held += [strand.claim for strand in (state.apart.parked if state.apart else ())]
    return any(claim is not None and claim.agent_id == agent_id for claim in held)


def check_given_back(
    before: SessionState | None,
    command: Command,
    events: tuple[ev.Event, ...],
    now_us: int,
    registry: Registry,
) -> None:
    """What nobody has claimed goes back in time, once a wait, by the service, and is no hop."""
    places = [] if before is None else [before, *(before.apart.parked if before.apart else ())]
    for event in events:
        if not isinstance(event, ev.AgentHandedOff) or event.reason != REASON:
            continue
        assert isinstance(command, Expire), "a caller's change gave it back"
        assert event.to_person, "it was counted as a hop"
        (place, turn) = next(
            (place, turn)
            for place in places
            for turn in place.open_turns
            if turn.request_id == event.turn_request_id
        )
        claim, people = place.claim, registry.agents[event.from_agent]
        assert people.kind is AgentKind.HUMAN
        assert people.unclaimed_timeout_us is not None
        assert claim is not None
        first_us = min(
            t.dispatched_us
            for t in place.open_turns
            if (t.holder, t.epoch) == (turn.holder, turn.epoch)
        )
        # A claim that runs out in the same change begins another wait.
        assert not claim.claimant, "somebody had claimed it"
        since_us = max(first_us, claim.claimed_us)
        assert now_us >= since_us + people.unclaimed_timeout_us, "it went back too early"
        back_to = {claim.given_by, registry.home_agent_id}
        assert turn.asker or event.to_agent in back_to, "it went to another agent"
        left = [t for t in place.open_turns if t.holder == turn.holder and t.epoch == turn.epoch]
        closed = {e.request_id for e in events if isinstance(e, ev.TurnAnswered)}
        assert {t.request_id for t in left} <= closed | {turn.request_id}, "a message was left"


def _check_answered(event: ev.TurnAnswered, open_turns: dict[str, OpenTurn]) -> None:
    assert event.request_id in open_turns, "a turn was answered twice, or was never open"
    assert event.agent_id == open_turns[event.request_id].holder


def check_command(
    before: SessionState | None,
    command: Command,
    events: tuple[ev.Event, ...],
    now_us: int,
    registry: Registry,
) -> None:
    """A claim is changed by the people whom it is for, and only the claimant answers."""
    claimed = [event for event in events if isinstance(event, ev.Claimed)]
    given_up = [
        event
        for event in events
        if isinstance(event, ev.ClaimReleased) and event.cause == "released"
    ]
    assert bool(claimed) <= isinstance(command, ClaimTurn), "claimed by another command"
    assert bool(given_up) <= isinstance(command, ReleaseTurn), "released by another command"
    check_given_back(before, command, events, now_us, registry)
    if isinstance(command, Say | AddNote) and before is not None:
        _check_said(before, command, events, now_us)
    claim = before.claim if before is not None else None
    holds = claim.claimant if claim is not None and now_us < claim.expire_us else ""
    match command:
        case ClaimTurn():
            assert before is not None
            if claimed:
                assert claimed[0].claimant == command.claimant
            if holds not in ("", command.claimant):
                assert command.take_over, "taken from another person by accident"
        case ReleaseTurn():
            if given_up:
                assert command.is_operator or given_up[0].claimant == command.claimant
        case PersonsAnswer(subject=subject) if before is not None and subject and holds:
            turn = before.find_turn(command.request_id)
            if turn is not None and before.is_live(turn) and is_human(turn.holder, registry):
                assert subject == holds, "another person answered"
        case _:
            pass


def _check_said(
    before: SessionState, command: Say | AddNote, events: tuple[ev.Event, ...], now_us: int
) -> None:
    """Neither ends a turn nor moves the conversation; only the claimant speaks to the user."""
    said = [event for event in events if isinstance(event, MessageSaid)]
    noted = [event for event in events if isinstance(event, NoteAdded)]
    assert len(said) + len(noted) <= 1
    assert not any(isinstance(event, ev.TurnCompleted | ev.AgentHandedOff) for event in events)
    assert bool(noted) == isinstance(command, AddNote)
    claim = before.claim
    if said and isinstance(command, Say) and not before.apart and claim and claim.claimant:
        is_over = now_us >= claim.expire_us
        assert is_over or command.subject in ("", claim.claimant), "another person spoke"
