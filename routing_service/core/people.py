"""Conversations that a person has: which turns wait for the person, and when a claim ends.

Rule: a person has the conversation while an agent of kind human is active, or while one holds the
live turn. The person's turns are the open ones that came since; no time-out closes them.
"""

from __future__ import annotations

from routing_service.core.draft import Draft
from routing_service.core.events import ClaimReleased
from routing_service.core.registry import Registry
from routing_service.core.session import Claim, OpenTurn, SessionState, Strand


def person_with(state: SessionState, registry: Registry) -> str:
    """Return the agent of kind human that has the conversation, "" if none has."""
    people = registry.people
    if not people:
        return ""  # Nearly always.
    if is_with_person(state, registry):
        return state.active_id
    live = state.live_turn
    return live.holder if live is not None and live.holder in people else ""


def is_with_person(state: SessionState, registry: Registry) -> bool:
    """Say whether the next message is for a person, whatever else a message goes by."""
    active = state.active
    return active is not None and active.agent_id in registry.people and state.meanwhile is None


def turns_of_person(state: SessionState, registry: Registry) -> tuple[OpenTurn, ...]:
    """Return the open turns that wait for a person, the oldest first."""
    agent_id = person_with(state, registry)
    if not agent_id:
        return ()
    if agent_id == state.active_id:
        return tuple(
            turn
            for turn in state.open_turns
            if turn.holder == agent_id and turn.epoch == state.epoch
        )
    live = state.live_turn
    return () if live is None else (live,)


def claim_of(state: SessionState) -> Claim | None:
    """Return the claim on the conversation; None = nobody has claimed it."""
    claim = state.claim
    return claim if claim is not None and claim.claimant else None


def unclaimed_turns(place: SessionState | Strand) -> tuple[OpenTurn, ...]:
    """Return the turns that wait for somebody to claim their conversation, the oldest first.

    () where a person has claimed it, where nothing waits, and while an approval is pending.
    """
    claim = place.claim
    if claim is None or claim.claimant or place.paused is not None:
        return ()
    active = place.active
    is_active = active is not None and active.agent_id == claim.agent_id and place.meanwhile is None
    return tuple(
        turn
        for turn in place.open_turns
        if turn.holder == claim.agent_id
        and turn.epoch == place.epoch
        and (is_active or turn.root_request_id == place.newest_turn)
    )


def unclaimed_due_us(place: SessionState | Strand, registry: Registry) -> int | None:
    """Return when a conversation that nobody has claimed goes back; None = it waits on."""
    if not registry.gives_back or place.claim is None:
        return None
    agent = registry.agent(place.claim.agent_id)
    timeout_us = agent.unclaimed_timeout_us if agent is not None else None
    turns = unclaimed_turns(place)
    if timeout_us is None or not turns:
        return None
    return max(place.claim.claimed_us, turns[0].dispatched_us) + timeout_us


def end_claim(draft: Draft) -> None:
    """End a claim whose time has passed, or whose conversation has left its agent.

    Called where the state has one.
    """
    state = draft.state
    claim = state.claim
    if claim is None:
        return
    if person_with(state, draft.registry) != claim.agent_id:
        draft.add(ClaimReleased(claim.agent_id, claim.claimant, "moved"))
    elif claim.claimant and draft.now_us >= claim.expire_us:
        draft.add(ClaimReleased(claim.agent_id, claim.claimant, "timeout"))
