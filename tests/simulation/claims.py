"""The invariants of claims: one claimant at most, only where people have the conversation.

They are written separately from the state machine, and read only states, events and the command.
A change with parked tasks is cut into parts first, so that each part is about one task.
"""

from __future__ import annotations

from routing_service.core import events as ev
from routing_service.core.commands import ClaimTurn, Command, PersonsAnswer, ReleaseTurn
from routing_service.core.registry import AgentKind, Registry
from routing_service.core.session import OpenTurn, SessionState


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
            case ev.TurnAnswered():
                _check_answered(event, open_turns)
                assert event.answered_by in completed, "a turn was answered without an answer"
                assert event.request_id not in completed, "a turn was answered twice"
                del open_turns[event.request_id]
            case ev.TurnAbandoned():
                open_turns.pop(event.request_id, None)
            case _:
                pass
    answered = {event.request_id for event in events if isinstance(event, ev.TurnAnswered)}
    assert not answered & {turn.request_id for turn in state.open_turns}, "answered, and open"
    assert claimant == (state.claim.claimant if state.claim else ""), "the events say otherwise"


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
