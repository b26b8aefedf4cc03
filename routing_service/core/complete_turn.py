"""Deciding what an agent's answer moves.

Owns: who may move what with an answer, and each outcome. Must not know: stores, protobuf.
Rule: an agent's text is never lost; what cannot be done is done less, and the status says so.
"""

from __future__ import annotations

from typing import assert_never

import msgspec
from msgspec.structs import replace

from routing_service.core import events as ev
from routing_service.core import ownership
from routing_service.core.commands import (
    AskApproval,
    Complete,
    CompleteTurn,
    ConsultPlan,
    Decision,
    DispatchPlan,
    Fail,
    FollowUp,
    HandOff,
    HandoffPlan,
    Outcome,
    Proceed,
    Verdict,
)
from routing_service.core.draft import Draft
from routing_service.core.errors import unknown_agent, unknown_request
from routing_service.core.handoff_rules import Attempt, judge
from routing_service.core.markers import cut_markers
from routing_service.core.refusals import refuse_handoff
from routing_service.core.registry import Agent, AgentKind, OnComplete, Sticks
from routing_service.core.session import OpenTurn
from routing_service.core.turn_ids import child_request_id
from routing_service.core.vocabulary import (
    HandoffMode,
    Initiator,
    OutcomeKind,
    OutcomeStatus,
    RouteReason,
)

_KINDS: dict[type, OutcomeKind] = {
    AskApproval: OutcomeKind.APPROVAL_NEEDED,
    Proceed: OutcomeKind.PROCEED,
    FollowUp: OutcomeKind.FOLLOW_UP,
    Complete: OutcomeKind.COMPLETE,
    HandOff: OutcomeKind.HANDOFF,
    Fail: OutcomeKind.FAILURE,
}


class _Answer(msgspec.Struct, frozen=True):
    """One applied answer while it is being decided.

    moves: outcomes move active agent, lock and stack (stickiness is on). is_active: the holder is
    the active agent. stands_in: somebody else is active, whose place it only keeps.
    degraded_by: verdicts against what was asked for; a lesser outcome is applied.
    """

    draft: Draft
    command: CompleteTurn
    turn: OpenTurn
    agent: Agent
    text: str
    moves: bool
    is_active: bool
    stands_in: bool
    degraded_by: tuple[Verdict, ...] = ()

    @property
    def child_id(self) -> str:
        """The id of the request that follows, if one does."""
        return child_request_id(self.command.child_seed, self.draft.state.revision)


def decide_complete(draft: Draft, command: CompleteTurn) -> Decision:
    """Decide an agent's answer.

    Raises RoutingError: UNKNOWN_REQUEST, UNKNOWN_AGENT, HANDOFF_REFUSED.
    """
    ownership.expire_turns(draft)
    registry = draft.registry
    turn = draft.state.find_turn(command.request_id)
    # It may just have been closed, by its time-out.
    source = turn or draft.before.find_turn(command.request_id)
    agent_id = registry.resolve(command.agent_id) or command.agent_id
    agent = registry.agent(agent_id)
    if agent is None:
        if not _was_asked(command, agent_id, source):
            raise unknown_agent(command.agent_id, tuple(registry.agents))
        agent = draft.agent(agent_id)
    text, marker = command.text, ""
    if agent.markers and command.parse_markers is not False:
        text, marker = cut_markers(command.text)
    if turn is None or turn.holder != agent_id or not draft.state.is_live(turn):
        return _store_only(draft, command, agent_id, turn, source, text=text)
    active = draft.state.active
    is_active = active is not None and active.agent_id == agent_id
    answer = _Answer(
        draft=draft,
        command=command,
        turn=turn,
        agent=agent,
        text=text,
        moves=command.stickiness_enabled,
        is_active=is_active,
        stands_in=not is_active and active is not None,
    )
    if turn.asker:
        return _answer_consult(answer, marker)
    if draft.state.paused is not None:
        return _wait(answer, marker)
    if not marker or not isinstance(command.outcome, Proceed | FollowUp):
        return _apply(answer)
    by_marker, refused = _follow_marker(answer, marker)
    if by_marker is not None:
        return by_marker
    decision = _apply(replace(answer, degraded_by=refused))
    return replace(decision, status=OutcomeStatus.DEGRADED, verdicts=refused + decision.verdicts)


def _was_asked(command: CompleteTurn, agent_id: str, turn: OpenTurn | None) -> bool:
    """Say whether a turn was this agent's: a reload that drops it must not lose its answer."""
    if turn is not None:
        return agent_id in turn.path
    return command.known_turn is not None and agent_id == command.known_turn.holder


def _apply(answer: _Answer) -> Decision:
    match answer.command.outcome:
        case Proceed():
            return _proceed(answer, OutcomeKind.PROCEED)
        case FollowUp() as outcome:
            return _follow_up(answer, outcome)
        case Complete() as outcome:
            return _complete(answer, outcome)
        case HandOff() as outcome:
            return _hand_off(answer, outcome)
        case AskApproval() as outcome:
            return _ask_approval(answer, outcome)
        case Fail() as outcome:
            return _fail(answer, outcome)
        case _:
            assert_never(answer.command.outcome)


def _wait(answer: _Answer, marker: str) -> Decision:
    """Take an answer while a person's approval is awaited: it stands by itself, nothing moves."""
    outcome = answer.command.outcome
    if isinstance(outcome, HandOff):
        return _hand_off(answer, outcome)  # Refused: the approval is pending.
    task = answer.draft.state.open_task
    verdicts: tuple[Verdict, ...] = ()
    if marker or not isinstance(outcome, Proceed | Fail):
        waits_for = task.task_id if task else ""
        detail = f'task "{waits_for}" waits for an approval; resume it first'
        verdicts = (Verdict("approval_pending", allowed=False, detail=detail),)
    status = OutcomeStatus.DEGRADED if verdicts else OutcomeStatus.APPLIED
    kept = replace(answer, moves=False)
    _record(kept, _KINDS[type(outcome)], status, closes=True)
    return _done(kept, status, verdicts=verdicts)


def _answer_consult(answer: _Answer, marker: str) -> Decision:
    """Bring the answer of a consulted agent to the one that asked."""
    draft, turn = answer.draft, answer.turn
    outcome = answer.command.outcome
    if isinstance(outcome, HandOff):
        return _hand_off(answer, outcome)  # Refused: the turn is a question.
    verdicts: tuple[Verdict, ...] = ()
    if marker or not isinstance(outcome, Proceed | Fail):
        detail = f'the turn is a question of "{turn.asker}"; it can only be answered'
        verdicts = (Verdict("live_turn", allowed=False, detail=detail),)
    is_home = turn.asker == draft.registry.home_agent_id
    is_there = is_home or ownership.is_available(draft, turn.asker)
    if not is_there:
        detail = f'agent "{turn.asker}", which asked, is away'
        verdicts += (Verdict("enabled", allowed=False, detail=detail),)
    status = OutcomeStatus.DEGRADED if verdicts else OutcomeStatus.APPLIED
    kept = replace(answer, moves=False)
    _record(kept, _KINDS[type(outcome)], status, closes=not is_there, is_consult=True)
    told = "" if isinstance(outcome, Fail) else answer.text
    if not is_there:
        return replace(_done(kept, status, verdicts=verdicts), text="")
    previous_agent = draft.state.previous_agent
    plan = ownership.hand_off(
        draft,
        ownership.Move(
            source=turn.holder,
            target=draft.agent(turn.asker),
            initiator=Initiator.COMPLETION,
            mode=HandoffMode.ANSWER,
            route_reason=RouteReason.CONSULTED,
            turn=turn,
            child_request_id=answer.child_id,
            dispatches=True,
            moves=False,
        ),
    )
    dispatch = replace(
        _next_dispatch(answer, plan, RouteReason.CONSULTED, previous_agent),
        consult=ConsultPlan(turn.asker, answer.command.consult_question, told),
    )
    # The words are for the agent that asked; the user hears from that one.
    return replace(_done(kept, status, dispatch, verdicts), text="")


def _ask_approval(answer: _Answer, outcome: AskApproval) -> Decision:
    """Pause the task until a person has decided."""
    draft, turn = answer.draft, answer.turn
    task = draft.state.open_task
    if task is None or task.task_id != turn.task_id:
        detail = f'task "{turn.task_id}" is closed; there is nothing to pause'
        verdicts = (Verdict("task_open", allowed=False, detail=detail),)
        lesser = replace(answer, degraded_by=verdicts)
        decision = _proceed(lesser, OutcomeKind.APPROVAL_NEEDED)
        return replace(decision, status=OutcomeStatus.DEGRADED, verdicts=verdicts)
    _record(answer, OutcomeKind.APPROVAL_NEEDED, OutcomeStatus.APPLIED, closes=False)
    draft.add(
        ev.TaskPaused(
            task_id=task.task_id,
            request_id=turn.request_id,
            agent_id=turn.holder,
            prompt=outcome.prompt,
        )
    )
    return _done(answer)


def _store_only(
    draft: Draft,
    command: CompleteTurn,
    agent_id: str,
    turn: OpenTurn | None,
    source: OpenTurn | None,
    *,
    text: str,
) -> Decision:
    """Keep an answer that may not move anything: too late, or not the holder's.

    source: the turn as it is, or as it was before this change.
    """
    known = command.known_turn
    if source is not None:
        root_request_id, task_id = source.root_request_id, source.task_id
        # An overtaken turn no longer knows who held it before.
        has_entry = command.was_asked or source.was_held_by(agent_id)
    elif known is not None:
        root_request_id, task_id = known.root_request_id, known.task_id
        has_entry = command.was_asked or known.holder == agent_id
    else:
        raise unknown_request(draft.state.session_id, command.request_id)
    is_holder = source is not None and source.holder == agent_id
    # A question that was overtaken: the words are still for the agent that asked.
    is_consult = source is not None and is_holder and bool(source.asker)
    detail, said = _words(command.outcome)
    verdicts = _why_stored(agent_id, turn)
    draft.add(
        ev.TurnCompleted(
            request_id=command.request_id,
            root_request_id=root_request_id,
            task_id=task_id,
            agent_id=agent_id,
            outcome=_KINDS[type(command.outcome)],
            status=OutcomeStatus.STORED_ONLY,
            text=text,
            items=command.items,
            steps=command.steps,
            # A holder has answered, however late; anyone else leaves the request to its holder.
            closes=turn is not None and is_holder,
            own_entry=not has_entry,
            dispatched_us=source.dispatched_us if source and is_holder else None,
            detail=detail,
            is_consult=is_consult,
            message=said,
        )
    )
    return Decision(
        events=tuple(draft.events),
        task_id=task_id,
        status=OutcomeStatus.STORED_ONLY,
        verdicts=verdicts,
        text="" if is_consult else text,
    )


def _why_stored(agent_id: str, turn: OpenTurn | None) -> tuple[Verdict, ...]:
    """Say why an answer moved nothing."""
    if turn is None:
        return (Verdict("live_turn", allowed=False, detail="the request is open no longer"),)
    if turn.holder != agent_id:
        detail = f'the request is held by "{turn.holder}", not by "{agent_id}"'
        return (Verdict("from_agent", allowed=False, detail=detail),)
    detail = "a newer message or a change of the active agent has overtaken the turn"
    return (Verdict("live_turn", allowed=False, detail=detail),)


def _words(outcome: Outcome) -> tuple[str, str]:
    """Return what an outcome says for the record, and for the user about what follows."""
    match outcome:
        case Proceed():
            return "", ""
        case Complete(summary=summary, message=message):
            return summary, message
        case HandOff(reason=reason, message=message):
            return reason, message
        case Fail(message=message):
            return message, ""
        case _:
            return "", ""


def _record(
    answer: _Answer,
    kind: OutcomeKind,
    status: OutcomeStatus,
    *,
    closes: bool,
    is_consult: bool = False,
) -> None:
    """Add the answer itself; what it moves stands in the events after it."""
    command, turn = answer.command, answer.turn
    detail, said = _words(command.outcome)
    answer.draft.add(
        ev.TurnCompleted(
            request_id=turn.request_id,
            root_request_id=turn.root_request_id,
            task_id=turn.task_id,
            agent_id=turn.holder,
            outcome=kind,
            status=OutcomeStatus.DEGRADED if answer.degraded_by else status,
            text=answer.text,
            items=command.items,
            steps=command.steps,
            closes=closes,
            counts=(
                answer.moves
                and answer.is_active
                and kind in (OutcomeKind.PROCEED, OutcomeKind.FOLLOW_UP)
            ),
            dispatched_us=turn.dispatched_us,
            detail=detail,
            is_consult=is_consult,
            message=said,
        )
    )


def _done(
    answer: _Answer,
    status: OutcomeStatus = OutcomeStatus.APPLIED,
    dispatch: DispatchPlan | None = None,
    verdicts: tuple[Verdict, ...] = (),
) -> Decision:
    return Decision(
        events=tuple(answer.draft.events),
        task_id=answer.turn.task_id,
        dispatch=dispatch,
        status=status,
        text=answer.text,
        verdicts=verdicts,
        handoff=dispatch.handoff if dispatch else None,
    )


def _proceed(answer: _Answer, kind: OutcomeKind) -> Decision:
    """Let the answer stand by itself: a lock ends, an agent that does not stick leaves."""
    if not (answer.moves and answer.is_active):
        _record(answer, kind, OutcomeStatus.APPLIED, closes=True)
        return _done(answer)
    state = answer.draft.state
    active = state.active
    assert active is not None
    turns_taken = active.turns_taken + 1
    turns_max = answer.agent.turns_max
    is_spent = bool(turns_max) and turns_taken >= turns_max
    leaves = answer.agent.sticks is not Sticks.SESSION
    if state.stack and (leaves or is_spent):
        return _give_back(answer, kind)
    _record(answer, kind, OutcomeStatus.APPLIED, closes=True)
    if leaves:
        ownership.clear(answer.draft, "proceed")
    else:
        ownership.unlock(answer.draft, "answered")
    return _done(answer)


def _follow_up(answer: _Answer, outcome: FollowUp) -> Decision:
    """Give the agent, which asked something, the next message, whatever that says."""
    never_locks = answer.agent.kind is AgentKind.SUPERVISOR or answer.agent.sticks is Sticks.NEVER
    if never_locks or not answer.moves:
        return _proceed(answer, OutcomeKind.FOLLOW_UP)
    _record(answer, OutcomeKind.FOLLOW_UP, OutcomeStatus.APPLIED, closes=True)
    if answer.stands_in:
        # It takes over, and with that the question of whom it stood in for is off the table.
        ownership.unlock(answer.draft, "handoff")
    timeout_us = outcome.timeout_us
    answer.draft.add(
        ev.LockEngaged(
            agent_id=answer.turn.holder,
            expire_us=None if timeout_us is None else answer.draft.now_us + timeout_us,
            root_request_id=answer.turn.root_request_id,
        )
    )
    return _done(answer)


def _complete(answer: _Answer, outcome: Complete) -> Decision:
    """Give the session on: to the agent that follows, to the interrupted one, or to nobody."""
    agent = answer.agent
    hops = agent.on_complete is OnComplete.HOP and not (answer.moves and answer.stands_in)
    if not hops:
        return _finish(answer, outcome, OutcomeStatus.APPLIED, ())
    draft = answer.draft
    target = draft.agent(agent.on_complete_agent_id)
    is_home = target.agent_id == draft.registry.home_agent_id
    attempt = _attempt(
        answer,
        target,
        Initiator.COMPLETION,
        HandoffMode.TRANSFER if is_home else HandoffMode.HOP,
    )
    verdicts = judge(attempt)
    if is_home and answer.turn.hops >= draft.registry.limits.hops_per_message:
        verdicts += (Verdict("hop_limit", allowed=False, detail="the message has no hop left"),)
    if not all(verdict.allowed for verdict in verdicts):
        return _finish(answer, outcome, OutcomeStatus.DEGRADED, verdicts)
    _record(answer, OutcomeKind.COMPLETE, OutcomeStatus.APPLIED, closes=False)
    if answer.moves:
        ownership.unlock(draft, "answered")
    message = outcome.message or agent.completion_message(
        draft.state.locale, draft.registry.default_locale
    )
    move = ownership.Move(
        source=answer.turn.holder,
        target=target,
        initiator=Initiator.COMPLETION,
        mode=attempt.mode,
        route_reason=RouteReason.TASK_COMPLETED,
        reason=outcome.summary,
        message=message,
        turn=answer.turn,
        child_request_id=answer.child_id,
        dispatches=True,
        moves=answer.moves,
    )
    return _go_on(answer, move, verdicts)


def _finish(
    answer: _Answer, outcome: Complete, status: OutcomeStatus, verdicts: tuple[Verdict, ...]
) -> Decision:
    """Complete without going on: return to whom was interrupted, else close the task."""
    draft = answer.draft
    holds = answer.moves and answer.is_active
    if holds and draft.state.stack:
        return _give_back(answer, OutcomeKind.COMPLETE, status, verdicts, outcome.message)
    _record(answer, OutcomeKind.COMPLETE, status, closes=True)
    task = draft.state.open_task
    if task is not None and task.task_id == answer.turn.task_id and not draft.state.stack:
        draft.add(
            ev.TaskCompleted(
                task_id=task.task_id, agent_id=answer.turn.holder, summary=outcome.summary
            )
        )
    if holds:
        if answer.agent.on_complete is OnComplete.STAY:
            ownership.unlock(draft, "answered")
        else:
            ownership.clear(draft, "complete", outcome.summary)
    return _done(answer, status, verdicts=verdicts)


def _give_back(
    answer: _Answer,
    kind: OutcomeKind,
    status: OutcomeStatus = OutcomeStatus.APPLIED,
    verdicts: tuple[Verdict, ...] = (),
    message: str = "",
) -> Decision:
    """Return to the interrupted agent; the message goes on to it if it was interrupted by it."""
    draft = answer.draft
    state = draft.state
    assert state.active is not None
    this_turn = state.active.entered_turn == answer.turn.root_request_id
    frame = state.stack[-1]
    goes_on = this_turn
    if this_turn:
        has_hops = answer.turn.hops < draft.registry.limits.hops_per_message
        if not has_hops:
            verdicts += (Verdict("hop_limit", allowed=False, detail="the message has no hop left"),)
        if not ownership.is_available(draft, frame.agent_id):
            verdicts += (
                Verdict("enabled", allowed=False, detail=f'agent "{frame.agent_id}" is away'),
            )
            has_hops = False
        if not has_hops:
            goes_on, status = False, OutcomeStatus.DEGRADED
    _record(answer, kind, status, closes=not goes_on)
    previous_agent = draft.state.previous_agent
    plan = ownership.give_back(
        draft,
        turn=answer.turn if goes_on else None,
        child_request_id=answer.child_id if goes_on else "",
        message=message,
    )
    if not goes_on:
        return _done(answer, status, verdicts=verdicts)
    dispatch = _next_dispatch(answer, plan, RouteReason.RETURNED, previous_agent)
    return _done(answer, status, dispatch, verdicts)


def _hand_off(answer: _Answer, outcome: HandOff) -> Decision:
    """Hand over: by the rules, or not at all."""
    draft = answer.draft
    target_id = draft.registry.resolve(outcome.agent_id)
    if target_id is None:
        raise unknown_agent(outcome.agent_id, tuple(draft.registry.agents))
    attempt = _handoff_attempt(answer, draft.agent(target_id), outcome.mode)
    verdicts = judge(attempt)
    if not all(verdict.allowed for verdict in verdicts):
        raise refuse_handoff(attempt, verdicts)
    return _go_on_by_handoff(answer, attempt, outcome, verdicts)


def _follow_marker(answer: _Answer, marker: str) -> tuple[Decision | None, tuple[Verdict, ...]]:
    """Try the handoff that a marker asks for; refused, it leaves only its verdicts."""
    draft = answer.draft
    target_id = draft.registry.resolve(marker)
    if target_id is None:
        detail = unknown_agent(marker, tuple(draft.registry.agents)).message
        return None, (Verdict("unknown_agent", allowed=False, detail=detail),)
    attempt = _handoff_attempt(answer, draft.agent(target_id), HandoffMode.TRANSFER)
    verdicts = judge(attempt)
    if not all(verdict.allowed for verdict in verdicts):
        return None, verdicts
    return _go_on_by_handoff(answer, attempt, HandOff(target_id, reason="marker"), verdicts), ()


def _handoff_attempt(answer: _Answer, target: Agent, asked: HandoffMode) -> Attempt:
    draft = answer.draft
    mode = ownership.effective_mode(draft.state, draft.registry, answer.turn.holder, target, asked)
    return _attempt(
        answer, target, ownership.initiator_of(draft.registry, answer.turn.holder), mode
    )


def _attempt(answer: _Answer, target: Agent, initiator: Initiator, mode: HandoffMode) -> Attempt:
    return Attempt(
        state=answer.draft.state,
        registry=answer.draft.registry,
        initiator=initiator,
        target=target,
        source=answer.turn.holder,
        claimed_source=answer.turn.holder,
        mode=mode,
        turn=answer.turn,
        mid_task=answer.turn.mid_task,
        # A completion is one of the other outcomes that refused handoffs leave open.
        refusals=0 if initiator is Initiator.COMPLETION else answer.command.refusals,
    )


def _go_on_by_handoff(
    answer: _Answer, attempt: Attempt, outcome: HandOff, verdicts: tuple[Verdict, ...]
) -> Decision:
    _record(answer, OutcomeKind.HANDOFF, OutcomeStatus.APPLIED, closes=False)
    is_consult = attempt.mode is HandoffMode.CONSULT
    if answer.moves and attempt.mode not in (HandoffMode.INTERLUDE, HandoffMode.CONSULT):
        # An interrupted agent keeps its lock in its frame; anyone else has let go.
        ownership.unlock(answer.draft, "handoff")
    move = ownership.Move(
        source=answer.turn.holder,
        target=attempt.target,
        initiator=attempt.initiator,
        mode=attempt.mode,
        route_reason=RouteReason.CONSULTED
        if is_consult
        else ownership.handoff_reason(attempt.initiator, attempt.mode),
        reason=outcome.reason,
        context=outcome.context,
        message=outcome.message,
        turn=answer.turn,
        child_request_id=answer.child_id,
        dispatches=True,
        moves=answer.moves and not is_consult,
    )
    decision = _go_on(answer, move, verdicts)
    if not is_consult or decision.dispatch is None:
        return decision
    question = ConsultPlan(answer.turn.holder, outcome.message or outcome.reason)
    return replace(decision, dispatch=replace(decision.dispatch, consult=question))


def _go_on(answer: _Answer, move: ownership.Move, verdicts: tuple[Verdict, ...]) -> Decision:
    """Hand over and dispatch the message to the next holder."""
    previous_agent = answer.draft.state.previous_agent
    plan = ownership.hand_off(answer.draft, move)
    dispatch = _next_dispatch(answer, plan, move.route_reason, previous_agent)
    return _done(answer, dispatch=dispatch, verdicts=verdicts)


def _next_dispatch(
    answer: _Answer, plan: HandoffPlan, reason: RouteReason, previous_agent: str
) -> DispatchPlan:
    active = answer.draft.state.active
    return DispatchPlan(
        request_id=answer.child_id,
        task_id=answer.turn.task_id,
        agent_id=plan.to_agent,
        reason=reason,
        reason_detail=plan.reason,
        previous_agent=previous_agent,
        locked=active is not None and active.agent_id == plan.to_agent and active.locked,
        handoff=plan,
        message_revision=answer.turn.message_revision,
    )


def _fail(answer: _Answer, outcome: Fail) -> Decision:
    """Close the task as failed; the agent stays for another try."""
    draft = answer.draft
    _record(answer, OutcomeKind.FAILURE, OutcomeStatus.APPLIED, closes=True)
    task = draft.state.open_task
    if task is not None and task.task_id == answer.turn.task_id:
        draft.add(
            ev.TaskFailed(
                task_id=task.task_id, agent_id=answer.turn.holder, message=outcome.message
            )
        )
    if answer.moves and answer.is_active:
        ownership.unlock(draft, "failure")
    return _done(answer)
