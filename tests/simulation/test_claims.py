"""Every short sequence of what people, users and agents do about a conversation with people."""

from __future__ import annotations

from dataclasses import replace

import pytest

from routing_service.core.commands import (
    ClaimTurn,
    CompleteTurn,
    FollowUp,
    HandOff,
    Outcome,
    PersonsAnswer,
    Proceed,
    ReleaseTurn,
)
from routing_service.core.errors import Reason
from routing_service.core.facts import Facts, StoreFormat
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
    sweep,
)

PEOPLE = replace(
    registry_of(
        Agent("clerk"),
        Agent("desk", kind=AgentKind.HUMAN, has_inbox=True, claim_timeout_us=50 * SECOND_US),
        limits=LIMITS,
    ),
    while_paused=WhilePaused.PARK,
)


def claim(who: str, *, take_over: bool = False) -> Letter:
    """A person claims the conversation."""

    def command(state: SessionState, ids: Ids) -> Told | None:
        if not state.revision:
            return None
        return ClaimTurn(ids(), "desk", who, take_over), Facts({StoreFormat: 2})

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
        facts = Facts({StoreFormat: 2})
        if turn.holder != "desk":
            return CompleteTurn(*given), facts
        return PersonsAnswer(*given, subject=who), facts

    return f"{who} ends the {'older ' if place == 0 else ''}turn: {name}", command


LETTERS = (
    route_behind(),
    route("/supervisor"),
    route_to_parked(),
    hand_over("desk", in_turn=True),
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
    sweep(),
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
    assert {Reason.CLAIMED, Reason.NOTHING_TO_CLAIM} <= set(found.refusals)
    assert len(reached) > 2000
