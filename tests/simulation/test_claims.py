"""Every short sequence of what people, users and agents do about a conversation with people."""

from __future__ import annotations

from dataclasses import replace

import pytest

from routing_service.core.commands import (
    ClaimTurn,
    CompleteTurn,
    Expire,
    FollowUp,
    HandOff,
    Outcome,
    PersonsAnswer,
    Proceed,
    ReleaseTurn,
    Say,
)
from routing_service.core.errors import Reason
from routing_service.core.facts import NO_FACTS
from routing_service.core.registry import SECOND_US, Agent, AgentKind, WhilePaused
from routing_service.core.session import SessionState
from routing_service.core.vocabulary import ClearScope
from tests.simulation.conversation import registry_of
from tests.simulation.test_exhaustive import (
    LIMITS,
    Ids,
    Letter,
    Told,
    ask_approval,
    clear,
    hand_over,
    route,
    route_behind,
    route_to_parked,
    search,
)

PEOPLE = replace(
    registry_of(
        Agent("clerk"),
        Agent(
            "desk",
            kind=AgentKind.HUMAN,
            has_inbox=True,
            claim_timeout_us=50 * SECOND_US,
            unclaimed_timeout_us=25 * SECOND_US,
        ),
        limits=LIMITS,
    ),
    while_paused=WhilePaused.PARK,
)


def claim(who: str, *, take_over: bool = False) -> Letter:
    """A person claims the conversation."""

    def command(state: SessionState, ids: Ids) -> Told | None:
        if not state.revision:
            return None
        return ClaimTurn(ids(), "desk", who, take_over), NO_FACTS

    return f"{who} {'takes it over' if take_over else 'claims it'}", command


def release(who: str, *, is_operator: bool = False) -> Letter:
    """A person gives the claim up."""

    def command(state: SessionState, ids: Ids) -> ReleaseTurn | None:
        return ReleaseTurn(ids(), "desk", who, is_operator) if state.revision else None

    return f"{who} releases it", command


def answers(who: str, name: str, outcome: Outcome, *, place: int = -1) -> Letter:
    """The holder of the newest (-1) or the oldest (0) turn answers, at the desk a person."""

    def command(state: SessionState, ids: Ids) -> Told | None:
        if not state.open_turns or (place == 0 and len(state.open_turns) == 1):
            return None
        turn = state.open_turns[place]
        given = (turn.request_id, turn.holder, outcome, ids())
        facts = NO_FACTS
        if turn.holder != "desk":
            return CompleteTurn(*given), facts
        return PersonsAnswer(*given, subject=who), facts

    return f"{who} ends the {'older ' if place == 0 else ''}turn: {name}", command


def says(who: str) -> Letter:
    """A person of the desk says something within the newest turn, or between turns."""

    def command(state: SessionState, ids: Ids) -> Told | None:
        task = state.task
        turn = state.open_turns[-1] if state.open_turns else None
        if turn is not None:
            say = Say(ids(), turn.holder, "one moment", turn.request_id, "", who)
        elif task is not None:
            say = Say(ids(), "desk", "one moment", "", task.task_id, who)
        else:
            return None
        return say, NO_FACTS

    return f"{who} says something", command


def gives_back() -> Letter:
    """The service looks for what nobody has claimed."""

    def command(state: SessionState, ids: Ids) -> Told | None:
        return (Expire(ids()), NO_FACTS) if state.revision else None

    return "the service's own time-outs", command


def in_format_2(letter: Letter) -> Letter:
    """The same in a store that can hold for how long the conversation waits."""
    name, make = letter

    def command(state: SessionState, ids: Ids) -> Told | None:
        made = make(state, ids)
        assert not isinstance(made, tuple)
        return None if made is None else (made, NO_FACTS)

    return name, command


LETTERS = (
    route_behind(),
    in_format_2(route("/supervisor")),
    route_to_parked(),
    in_format_2(hand_over("desk", in_turn=True)),
    in_format_2(hand_over("clerk", in_turn=True)),
    claim("bea"),
    claim("cai"),
    claim("cai", take_over=True),
    release("bea"),
    release("olga", is_operator=True),
    answers("bea", "proceed", Proceed()),
    answers("cai", "proceed", Proceed()),
    answers("bea", "asks", FollowUp()),
    answers("bea", "hands to clerk", HandOff("clerk")),
    answers("bea", "proceed", Proceed(), place=0),
    ask_approval(),
    clear(ClearScope.ACTIVE_AGENT),
    gives_back(),
    says("bea"),
)


@pytest.mark.timeout(300)
def test_nothing_that_never_happens_is_a_few_claims_away():
    """Claims, releases and answers, among everything that moves the conversation meanwhile."""
    found = search(PEOPLE, 6, letters=LETTERS)
    reached = {key for key in found.seen if key is not None}
    claimants = {key[16][1] for key in reached if key[16] is not None}
    assert claimants == {"", "bea", "cai"}
    strands = [strand for key in reached for strand, _ in key[13]]
    assert any(strand[16] and strand[16][1] for strand in strands), "no claim was parked"
    givers = {key[16][3] for key in reached if key[16] is not None}
    assert givers == {"supervisor", "clerk"}
    given_back = {
        turn[1][-2:]
        for key in reached
        for turn in key[2]
        if turn[1][-2:-1] == ("desk",) and not turn[3]
    }
    assert given_back >= {("desk", "supervisor"), ("desk", "clerk")}, "nothing came back unclaimed"
    assert {Reason.CLAIMED, Reason.NOTHING_TO_CLAIM} <= set(found.refusals)
    assert len(reached) > 2000
