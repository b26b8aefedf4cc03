"""Deciding SetActiveAgent: a handoff by itself, inside an open turn or between messages.

Rule: inside a turn it moves that turn, under the same request id; outside, it sets the agent of the
next message, and moved_turn.py says what becomes of the turn that is live.
"""

from __future__ import annotations

from dataclasses import replace as replace_spec

from msgspec.structs import replace

from routing_service.core import ownership, suggestions
from routing_service.core.cancel_task import named_task
from routing_service.core.case import is_mid_task
from routing_service.core.claims import check_claimant
from routing_service.core.commands import (
    Decision,
    DispatchPlan,
    HandoffPlan,
    MovedTurn,
    RouteMessage,
    SetActiveAgent,
)
from routing_service.core.draft import Draft
from routing_service.core.errors import (
    invalid_field,
    unknown_agent,
    unknown_request,
    unknown_session,
)
from routing_service.core.events import MessageSaid
from routing_service.core.facts import Facts, PastTurn, RefusedHandoffs
from routing_service.core.handoff_rules import Attempt, judge
from routing_service.core.kept_moves import holds_meanwhile, settle_session
from routing_service.core.moved_turn import bring_paused, fate_of, let_go
from routing_service.core.refusals import refuse_handoff
from routing_service.core.route_message import accept_suggestion
from routing_service.core.session import OpenSuggestion, OpenTurn
from routing_service.core.strand_fold import apart_of, every_open_turn
from routing_service.core.turn_ids import child_request_id
from routing_service.core.vocabulary import HandoffMode, Initiator, TurnFate

_AS_AN_AGENT = (None, Initiator.AGENT, Initiator.SUPERVISOR)
"""Initiators of a handoff in an agent's name; users and operators move a claimed conversation."""


def decide_set_active(
    draft: Draft, command: SetActiveAgent, facts: Facts, *, is_new: bool
) -> Decision:
    """Decide a handoff. draft: the session, or one that begins with this.

    Raises RoutingError: UNKNOWN_AGENT, UNKNOWN_REQUEST, HANDOFF_REFUSED, UNKNOWN_SUGGESTION,
    INVALID_FIELD, CLAIMED; UNKNOWN_SESSION for an operator, who moves what is there.
    """
    registry = draft.registry
    if is_new and command.initiator is Initiator.OPERATOR:
        raise unknown_session(draft.state.session_id)
    target_id = registry.resolve(command.agent_id)
    if target_id is None:
        raise unknown_agent(command.agent_id, tuple(registry.agents))
    ownership.meet_user(draft, command.profile, is_new=is_new)
    ownership.expire_waits(draft)
    if command.stickiness_enabled:
        settle_session(draft)
    turn = _find_turn(draft, command, facts)
    if command.task_id:
        _check_task(draft, command, facts)
    if not command.turn_request_id:
        # Inside a turn the agent was answered in time, even if its time-out has passed since.
        ownership.expire_ownership(draft)
    offer = _offer(draft, command, target_id) if command.suggestion_id else None
    if offer is not None and not command.turn_request_id:
        return _accept(draft, command, offer, facts)
    attempt = _attempt(
        draft,
        command,
        turn,
        target_id,
        by_topic=offer is not None,
        refusals=facts.of(RefusedHandoffs),
    )
    fate = None
    if not command.turn_request_id:
        fate = fate_of(draft, command.open_turn, attempt.initiator, by=attempt.source)
        if fate is TurnFate.TAKE_ALONG and draft.state.live_turn is not None:
            turn = draft.state.live_turn
            attempt = _going_along(draft, command, attempt, turn)
    if command.initiator in _AS_AN_AGENT and attempt.source in registry.people:
        check_claimant(draft, command.subject)
    verdicts = judge(attempt)
    if not all(verdict.allowed for verdict in verdicts):
        raise refuse_handoff(attempt, verdicts)
    if offer is not None:
        suggestions.take(draft, offer)
    if fate is None:
        plan, moved, dispatch = _hand_off(draft, command, attempt), None, None
    else:
        plan, moved, dispatch = _move(draft, command, attempt, fate, facts)
    task = draft.state.task
    return Decision(
        events=tuple(draft.events),
        task_id=turn.task_id if turn else task.task_id if task else "",
        dispatch=dispatch,
        handoff=plan,
        verdicts=verdicts,
        agent_id=target_id,
        moved=moved,
    )


def _hand_off(
    draft: Draft, command: SetActiveAgent, attempt: Attempt, *, brings_paused: bool = False
) -> HandoffPlan:
    """Carry out a handoff that the rules allow. brings_paused: see Move."""
    turn, target = attempt.turn, attempt.target
    is_back = attempt.mode is HandoffMode.ANSWER
    moves = (turn is None or attempt.along or command.stickiness_enabled) and not is_back
    if attempt.along and target.agent_id == draft.state.active_id:
        moves = False  # It has the conversation, and gets the turn too.
    if moves and attempt.mode is not HandoffMode.INTERLUDE:
        # An interrupted agent keeps its lock on the return stack; any other loses it.
        ownership.unlock(draft, "handoff")
    is_kept = not (moves or is_back or attempt.along)
    return ownership.hand_off(
        draft,
        ownership.Move(
            source=turn.holder if turn is not None and attempt.along else attempt.source,
            target=target,
            initiator=attempt.initiator,
            mode=attempt.mode,
            route_reason=ownership.hand_back_reason(draft.state)
            if is_back
            else ownership.handoff_reason(attempt.initiator, attempt.mode),
            reason=command.reason,
            context=command.context,
            message=command.message,
            turn=turn,
            dispatches=turn is not None,
            moves=moves,
            kept=is_kept and holds_meanwhile(draft.state, attempt.source),
            no_hop=attempt.along and attempt.initiator is Initiator.OPERATOR,
            along=attempt.along,
            brings_paused=brings_paused,
        ),
    )


def _going_along(
    draft: Draft, command: SetActiveAgent, attempt: Attempt, turn: OpenTurn
) -> Attempt:
    """Return the handoff of a conversation whose live turn goes along."""
    mode = ownership.effective_mode(
        draft.state, draft.registry, turn.holder, attempt.target, command.mode
    )
    if ownership.hands_back(draft, turn, attempt.target):
        mode = HandoffMode.ANSWER
    return replace_spec(attempt, turn=turn, along=True, mode=mode)


def _move(
    draft: Draft, command: SetActiveAgent, attempt: Attempt, fate: TurnFate, facts: Facts
) -> tuple[HandoffPlan, MovedTurn | None, DispatchPlan | None]:
    """Carry out a handoff outside a turn, and say what becomes of the one that is live."""
    state, target_id = draft.state, attempt.target.agent_id
    moved = let_go(draft, fate, "command")
    paused = state.paused if fate is TurnFate.TAKE_ALONG and attempt.turn is None else None
    plan = _hand_off(draft, command, attempt, brings_paused=paused is not None)
    dispatch = None
    if moved is not None and fate is TurnFate.TAKE_ALONG:
        moved = replace(moved, agent_id=target_id)
    if paused is not None:
        dispatch = bring_paused(draft, paused, plan, command.child_seed, facts)
    if command.message and attempt.turn is None:
        _say(draft, command, attempt)
    return plan, moved, dispatch


def _say(draft: Draft, command: SetActiveAgent, attempt: Attempt) -> None:
    """Say the message of a handoff outside a turn to the user.

    An operator's is never in the name of people.
    """
    registry, by_operator = draft.registry, attempt.initiator is Initiator.OPERATOR
    names = (attempt.source, registry.home_agent_id)
    agent_id = next((name for name in names if name not in registry.people), "")
    task = draft.state.task
    draft.add(
        MessageSaid(
            child_request_id(command.child_seed, draft.state.revision),
            "",
            task.task_id if task else "",
            agent_id if by_operator else attempt.source,
            command.message,
            command.subject,
            Initiator.OPERATOR if by_operator else None,
        )
    )


def _check_task(draft: Draft, command: SetActiveAgent, facts: Facts) -> None:
    """Refuse a task that is not open, or not that of the turn."""
    task = named_task(draft, command.task_id, facts)
    aside = apart_of(draft.state).aside
    turns = (*every_open_turn(draft.state), *(aside.open_turns if aside else ()))
    for turn in turns:
        if turn.request_id == command.turn_request_id and turn.task_id != task.task_id:
            raise invalid_field(
                "task_id",
                f'is "{task.task_id}", and request "{turn.request_id}" is of task '
                f'"{turn.task_id}"; leave task_id out, or name that one',
            )


def _find_turn(draft: Draft, command: SetActiveAgent, facts: Facts) -> OpenTurn | None:
    """Return the open turn that the caller names; None if it names none, or one that is over."""
    if not command.turn_request_id:
        return None
    turn = draft.state.find_turn(command.turn_request_id)
    known = (
        facts.of(PastTurn) is not None
        or draft.before.find_turn(command.turn_request_id) is not None
    )
    if turn is None and not known:
        raise unknown_request(draft.state.session_id, command.turn_request_id)
    return turn


def _offer(draft: Draft, command: SetActiveAgent, target_id: str) -> OpenSuggestion:
    """Return the suggestion that the user accepts by this handoff."""
    offer = draft.state.suggestion
    if offer is None or offer.suggestion_id != command.suggestion_id:
        raise suggestions.unknown_suggestion(draft.state.session_id, command.suggestion_id)
    if offer.agent_id != target_id:
        raise invalid_field(
            "agent_id",
            f'is "{target_id}", and suggestion "{offer.suggestion_id}" is of '
            f'"{offer.agent_id}"; name that agent, or leave suggestion_id out',
        )
    return offer


def _accept(draft: Draft, command: SetActiveAgent, offer: OpenSuggestion, facts: Facts) -> Decision:
    """Accept outside a turn: the message that was asked about opens one, with the new agent."""
    message = RouteMessage(
        request_id=child_request_id(command.child_seed, draft.state.revision),
        text="",
        new_task_id=command.new_task_id,
    )
    decision, verdicts = accept_suggestion(
        draft, message, offer, facts, mid_task=is_mid_task(draft.state), mode=command.mode
    )
    assert decision.dispatch is not None
    return replace(
        decision,
        handoff=decision.dispatch.handoff,
        verdicts=verdicts,
        agent_id=offer.agent_id,
    )


def _attempt(
    draft: Draft,
    command: SetActiveAgent,
    turn: OpenTurn | None,
    target_id: str,
    *,
    by_topic: bool,
    refusals: int,
) -> Attempt:
    registry = draft.registry
    home_id = registry.home_agent_id
    claimed = registry.resolve(command.from_agent_id) or command.from_agent_id
    present = turn.holder if turn else draft.state.active_id or home_id
    # An operator does not act for an agent: the source is the agent that has the conversation.
    source = present if command.initiator is Initiator.OPERATOR else claimed or present
    # Accepting a suggestion is a handoff by topic, even if an agent or an operator reports it.
    initiator = Initiator.TOPIC if by_topic else command.initiator
    if initiator is None:
        initiator = ownership.initiator_of(registry, source)
    elif initiator is Initiator.SUPERVISOR and not claimed and turn is None:
        source = home_id
    target = draft.agent(target_id)
    # A handoff interrupts the present agent, even if another one asked for it.
    mode = ownership.effective_mode(draft.state, registry, present, target, command.mode)
    if source == home_id and not registry.is_swarm and mode is HandoffMode.INTERLUDE:
        mode = HandoffMode.TRANSFER
    if turn is not None and ownership.hands_back(draft, turn, target):
        mode = HandoffMode.ANSWER
    return Attempt(
        state=draft.state,
        registry=registry,
        initiator=initiator,
        target=target,
        source=source,
        claimed_source=claimed,
        mode=mode,
        turn=turn,
        turn_is_lost=bool(command.turn_request_id) and turn is None,
        mid_task=turn.mid_task if turn else draft.state.open_task is not None,
        refusals=refusals,
    )
