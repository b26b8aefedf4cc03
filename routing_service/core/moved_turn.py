"""What becomes of the turn that is live when the conversation is moved outside of it.

Rule: nobody waits for what cannot come. The turn goes along, or its agent may still answer it, or
it is abandoned in the same change, with its cause.
"""

from __future__ import annotations

from routing_service.core import approvals, ownership
from routing_service.core.claims import answer_with
from routing_service.core.commands import ClearActiveAgent, DispatchPlan, HandoffPlan, MovedTurn
from routing_service.core.draft import Draft
from routing_service.core.errors import invalid_field
from routing_service.core.facts import Facts, PausedMessage
from routing_service.core.inbox import is_in_inbox
from routing_service.core.route_message import Choice, send_again
from routing_service.core.session import OpenTurn
from routing_service.core.turn_ids import child_request_id
from routing_service.core.vocabulary import HandoffMode, Initiator, TurnFate

_BY_AGENTS = (Initiator.AGENT, Initiator.SUPERVISOR)


def fate_of(
    draft: Draft, asked: TurnFate | None, initiator: Initiator, *, by: str | frozenset[str]
) -> TurnFate:
    """Return what becomes of the live turn. by: the agents that move the conversation.

    Raises INVALID_FIELD where a turn in an inbox would be left.
    """
    live, registry = draft.state.live_turn, draft.registry
    if asked is TurnFate.LEAVE and live is not None and is_in_inbox(registry, live):
        raise invalid_field(
            "open_turn",
            f'is OPEN_TURN_LEAVE, and request "{live.request_id}" waits in the inbox of '
            f'"{live.holder}", where nobody would get it; let it go along, or abandon it',
        )
    if asked is not None:
        return asked
    if initiator is Initiator.USER:
        return TurnFate.ABANDON
    if initiator in _BY_AGENTS and live is not None:
        agents = frozenset((by,)) if isinstance(by, str) else by
        is_theirs = live.holder in agents or not agents.isdisjoint(registry.people)
        return TurnFate.TAKE_ALONG if is_theirs or is_in_inbox(registry, live) else TurnFate.LEAVE
    return TurnFate.LEAVE if initiator in _BY_AGENTS else TurnFate.TAKE_ALONG


def let_go(draft: Draft, fate: TurnFate, cause: str) -> MovedTurn | None:
    """Do what becomes of the live turn besides going along, before the conversation moves.

    cause: of turns that are abandoned. Returns what the answer says of it, None if none is live.
    """
    live = draft.state.live_turn
    if fate is TurnFate.ABANDON:
        ownership.abandon_all(draft, cause)
    if fate is TurnFate.TAKE_ALONG:
        if live is not None:
            answer_with(draft, live)
        live = live or draft.state.paused
    if live is None:
        return None
    agent_id = live.holder if fate is TurnFate.LEAVE else ""
    return MovedTurn(live.request_id, live.dispatched_us, agent_id, fate)


def bring_home(draft: Draft, turn: OpenTurn, command: ClearActiveAgent, facts: Facts) -> None:
    """Give the turn that waits to the home agent, after the conversation was cleared.

    turn: the live one, or that of a withdrawn approval.
    """
    is_open = draft.state.find_turn(turn.request_id) is not None
    plan = ownership.hand_off(
        draft,
        ownership.Move(
            source=turn.holder,
            target=draft.registry.home,
            initiator=command.initiator,
            mode=HandoffMode.TRANSFER,
            route_reason=ownership.handoff_reason(command.initiator, HandoffMode.TRANSFER),
            reason=command.reason,
            turn=turn if is_open else None,
            dispatches=is_open,
            moves=False,
            no_hop=True,
            along=is_open,
        ),
    )
    if not is_open:
        bring_paused(draft, turn, plan, command.child_seed, facts)


def bring_paused(
    draft: Draft, paused: OpenTurn, handoff: HandoffPlan, child_seed: str, facts: Facts
) -> DispatchPlan | None:
    """Give the message of a withdrawn approval to another agent, as a request of its own.

    handoff: that of this change, by which the agent gets it. None: the message cannot be read back.
    """
    message, dispatch = facts.of(PausedMessage), None
    if message is not None:
        child_id = child_request_id(child_seed, draft.state.revision)
        reason = ownership.handoff_reason(handoff.initiator, handoff.mode)
        choice = Choice(handoff.to_agent, reason, message.text, message.items, handoff)
        dispatch = send_again(draft, paused, choice, child_id)
    # Only now: a message of the user's would count as told.
    approvals.withdraw(draft, "handoff", paused)
    return dispatch
