"""Deciding who of the people of an agent has a conversation, and what a person's answer closes.

Rule: a claim is of one person, and only by that person is the conversation answered, until it is
released, taken over, runs out, or the conversation leaves the agent.
"""

from __future__ import annotations

from routing_service.core.commands import (
    ClaimTurn,
    CompleteTurn,
    Decision,
    HandOff,
    PersonsAnswer,
    ReleaseTurn,
)
from routing_service.core.draft import Draft
from routing_service.core.errors import Reason, RoutingError, invalid_field, unknown_agent
from routing_service.core.events import Claimed, ClaimReleased, TurnAnswered
from routing_service.core.facts import Facts, PastTurn
from routing_service.core.ownership import expire_waits
from routing_service.core.people import claim_of, person_with, turns_of_person
from routing_service.core.registry import CLAIM_TIMEOUT_DEFAULT_US
from routing_service.core.session import Claim, OpenTurn, SessionState, Strand
from routing_service.core.vocabulary import HandoffMode


def decide_claims(draft: Draft, command: ClaimTurn | ReleaseTurn) -> Decision:
    """Claim a conversation, or give a claim up. Raises what the two do."""
    if isinstance(command, ClaimTurn):
        return decide_claim(draft, command)
    return decide_release(draft, command)


def decide_claim(draft: Draft, command: ClaimTurn) -> Decision:
    """Claim a conversation for a person; no events if the person has claimed it already.

    Raises CLAIMED, NOTHING_TO_CLAIM, INVALID_FIELD, UNKNOWN_AGENT.
    """
    agent_id = _person(draft, command.agent_id)
    expire_waits(draft)
    state = draft.state
    if person_with(state, draft.registry) != agent_id:
        raise RoutingError(
            Reason.NOTHING_TO_CLAIM,
            f'session "{state.session_id}" is not with agent "{agent_id}"; it was answered or '
            "handed on",
            metadata={"session_id": state.session_id, "agent_id": agent_id},
        )
    claim = claim_of(state)
    taken_from = ""
    timeout_us = draft.agent(agent_id).claim_timeout_us or CLAIM_TIMEOUT_DEFAULT_US
    if claim is not None:
        taken_from = claim.claimant
        if claim.claimant == command.claimant:
            if claim.expire_us - draft.now_us >= timeout_us // 2:
                return _decided(draft)
        elif not command.take_over:
            raise _claimed(state.session_id, claim)
    expire_us = draft.now_us + timeout_us
    draft.add(Claimed(agent_id, command.claimant, expire_us, taken_from, command.reason))
    return _decided(draft)


def decide_release(draft: Draft, command: ReleaseTurn) -> Decision:
    """Give a claim up; no events if there is none.

    Raises CLAIMED if it is another person's, INVALID_FIELD, UNKNOWN_AGENT.
    """
    agent_id = _person(draft, command.agent_id)
    expire_waits(draft)
    claim = claim_of(draft.state)
    if claim is None or claim.agent_id != agent_id:
        return _decided(draft)
    if claim.claimant != command.claimant and not command.is_operator:
        raise _claimed(draft.state.session_id, claim)
    draft.add(ClaimReleased(agent_id, claim.claimant, "released"))
    return _decided(draft)


def take_persons_answer(
    draft: Draft, command: CompleteTurn, turn: OpenTurn | None, facts: Facts
) -> None:
    """Do what comes with a person's answer to the live turn.

    An answer to an earlier one is only stored, but the user sees it: the claim counts for it too.
    turn: the open turn of its request, if there is one. Raises CLAIMED.
    """
    assert isinstance(command, PersonsAnswer)
    if turn is None or turn.holder not in draft.registry.people:
        if turn is None and _is_of_claim(draft, command, facts):
            check_claimant(draft, command.subject)
        return
    is_live = draft.state.is_live(turn)
    claim = claim_of(draft.state)
    if is_live or (claim is not None and claim.agent_id == turn.holder):
        check_claimant(draft, command.subject)
    if is_live:
        answer_earlier(draft, command, turn)


def _is_of_claim(draft: Draft, command: PersonsAnswer, facts: Facts) -> bool:
    """Say whether a request that is no longer open is of a task that one of its people has claimed.

    Such a request has been answered with a later one, for example.
    """
    claim, task = claim_of(draft.state), draft.state.task
    if claim is None or task is None or draft.registry.resolve(command.agent_id) != claim.agent_id:
        return False
    known = draft.before.find_turn(command.request_id) or facts.of(PastTurn)
    return known is not None and known.task_id == task.task_id


def check_claimant(draft: Draft, subject: str) -> None:
    """Raise CLAIMED if another person has claimed the conversation that a person moves.

    subject: the signed-in caller; "" = callers do not sign in, so nothing is checked.
    """
    check_claim(draft.state, draft.state.session_id, subject, draft.now_us)


def check_claim(place: SessionState | Strand, session_id: str, subject: str, now_us: int) -> None:
    """Raise CLAIMED if another person has claimed the conversation of a task.

    place: the session for the task in the foreground, or a parked task. subject: as above.
    """
    claim = place.claim
    if claim is None or not claim.claimant or not subject or claim.claimant == subject:
        return
    if now_us < claim.expire_us:
        raise _claimed(session_id, claim)


def check_runtime(draft: Draft, speaks_for: frozenset[str] | None, subject: str) -> None:
    """Raise CLAIMED if a runtime takes away what another person of its agents has claimed.

    speaks_for: the runtime's agents; None = the caller is not a runtime. The home agent's may take
    any conversation away.
    """
    claim = draft.state.claim
    if claim is None or speaks_for is None or draft.registry.home_agent_id in speaks_for:
        return
    if claim.agent_id in speaks_for:
        check_claimant(draft, subject)


def answer_earlier(draft: Draft, command: CompleteTurn, turn: OpenTurn) -> None:
    """Close the turns before the live one, which a person answers.

    A question to another agent answers none.
    """
    outcome = command.outcome
    if not (isinstance(outcome, HandOff) and outcome.mode is HandoffMode.CONSULT):
        answer_with(draft, turn)


def answer_with(draft: Draft, turn: OpenTurn) -> None:
    """Close the turns of a person before the live one: what becomes of that is for them too."""
    in_hand = turns_of_person(draft.state, draft.registry)
    for earlier in in_hand if turn in in_hand else ():
        if earlier is turn:
            continue
        closed = (earlier.request_id, earlier.root_request_id, earlier.holder)
        draft.add(TurnAnswered(*closed, answered_by=turn.request_id))


def _person(draft: Draft, name: str) -> str:
    """Return the id of an agent of kind human. Raises UNKNOWN_AGENT, INVALID_FIELD."""
    registry = draft.registry
    agent_id = registry.resolve(name)
    if agent_id is None:
        raise unknown_agent(name, tuple(registry.agents))
    if agent_id not in registry.people:
        raise invalid_field("agent_id", f'"{agent_id}" is not of kind human, so nobody claims it')
    return agent_id


def _claimed(session_id: str, claim: Claim) -> RoutingError:
    return RoutingError(
        Reason.CLAIMED,
        f'session "{session_id}" was claimed by "{claim.claimant}"; take it over to act in it',
        metadata={
            "session_id": session_id,
            "agent_id": claim.agent_id,
            "claimant": claim.claimant,
        },
    )


def _decided(draft: Draft) -> Decision:
    task = draft.state.task
    return Decision(events=tuple(draft.events), task_id=task.task_id if task else "")
