"""What nobody claims in time goes back to the agent that gave it to the people.

Rule: only the service's own change does it. Until then a person may still claim and answer.
"""

from __future__ import annotations

import uuid

from routing_service.core import ownership
from routing_service.core.draft import Draft
from routing_service.core.events import MessageSaid, TurnAnswered
from routing_service.core.kept_moves import holds_meanwhile
from routing_service.core.people import unclaimed_due_us, unclaimed_turns
from routing_service.core.registry import Agent, localised
from routing_service.core.session import OpenTurn
from routing_service.core.turn_ids import child_request_id
from routing_service.core.vocabulary import HandoffMode, Initiator, RouteReason

REASON = "unclaimed"
"""The reason of the handoff, as events and the next agent's dispatch have it."""


def give_back_unclaimed(
    draft: Draft, child_seed: str, number: int = 0, *, stickiness_enabled: bool
) -> None:
    """Give the conversation back once it has waited for its agent's unclaimed_timeout.

    What waits goes on as one turn: its newest message, under a request made from child_seed, ""
    = nothing is done. number: of the parked task that is decided about, 0 = the foreground.
    """
    due_us = unclaimed_due_us(draft.state, draft.registry)
    if due_us is None or draft.now_us < due_us or not child_seed:
        return
    state = draft.state
    claim = state.claim
    assert claim is not None
    *earlier, live = unclaimed_turns(state)
    if not state.is_live(live):
        return
    people = draft.agent(claim.agent_id)
    seed = str(uuid.UUID(int=uuid.UUID(child_seed).int ^ number))
    child_id = child_request_id(seed, state.revision)
    if not live.asker:
        _tell_user(draft, people, live, seed)
    for turn in earlier:
        closed = (turn.request_id, turn.root_request_id, turn.holder)
        draft.add(TurnAnswered(*closed, answered_by=child_id))
    if live.asker:
        move = _unanswered(draft, live, child_id)
    else:
        moves = stickiness_enabled and state.meanwhile is None
        if moves:
            ownership.unlock(draft, "handoff")
        move = _given_back(draft, live, child_id, claim.given_by, moves=moves)
    ownership.hand_off(draft, move)


def _tell_user(draft: Draft, people: Agent, live: OpenTurn, message_id: str) -> None:
    text = localised(people.unclaimed_message, draft.state.locale, draft.registry.default_locale)
    if text:
        draft.add(MessageSaid(message_id, live.request_id, live.task_id, people.agent_id, text))


def _unanswered(draft: Draft, live: OpenTurn, child_id: str) -> ownership.Move:
    """Bring a question that an agent asked the people back to it, without an answer."""
    is_home = live.asker == draft.registry.home_agent_id
    is_there = is_home or ownership.is_available(draft, live.asker)
    target = draft.agent(live.asker) if is_there else draft.registry.home
    return ownership.Move(
        source=live.holder,
        target=target,
        initiator=Initiator.COMPLETION,
        mode=HandoffMode.ANSWER,
        route_reason=RouteReason.CONSULTED,
        reason=REASON,
        turn=live,
        child_request_id=child_id,
        dispatches=True,
        moves=False,
        no_hop=True,
    )


def _given_back(
    draft: Draft, live: OpenTurn, child_id: str, given_by: str, *, moves: bool
) -> ownership.Move:
    state = draft.state
    home = draft.registry.home
    is_there = given_by != live.holder and ownership.is_available(draft, given_by)
    target = draft.agent(given_by) if is_there else home
    is_return = moves and bool(state.stack) and state.stack[-1].agent_id == target.agent_id
    return ownership.Move(
        source=live.holder,
        target=target,
        initiator=Initiator.COMPLETION,
        mode=HandoffMode.RETURN if is_return else HandoffMode.TRANSFER,
        route_reason=RouteReason.RETURNED,
        reason=REASON,
        turn=live,
        child_request_id=child_id,
        dispatches=True,
        moves=moves,
        kept=not moves and holds_meanwhile(state, live.holder),
        no_hop=True,
    )
