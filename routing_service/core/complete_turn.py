"""What an agent's answer moves: who may move anything with it, and what each outcome does.

Rule: an agent's text is never lost. An outcome that cannot be applied is downgraded to a lesser
one, with status DEGRADED and the verdicts that say why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from routing_service.core import approvals, ownership, strands
from routing_service.core import events as ev
from routing_service.core.agent_picks import find_by_name
from routing_service.core.answer_texts import without_markers
from routing_service.core.claims import take_persons_answer
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
from routing_service.core.errors import unknown_agent
from routing_service.core.facts import ConsultQuestion, Facts, RefusedHandoffs
from routing_service.core.handoff_rules import Attempt, judge, judge_step
from routing_service.core.kept_moves import holds_meanwhile, settle
from routing_service.core.people import end_claim
from routing_service.core.prose_questions import asks_user, last_text
from routing_service.core.refusals import refuse_handoff
from routing_service.core.registry import Agent, OnComplete, Sticks
from routing_service.core.session import OpenTurn
from routing_service.core.slash_commands import ReplySpec
from routing_service.core.stored_only import store_only, was_asked_before
from routing_service.core.turn_ids import child_request_id
from routing_service.core.vocabulary import (
    HandoffMode,
    Initiator,
    OutcomeKind,
    OutcomeStatus,
    RouteReason,
)

_COUNTED = (OutcomeKind.PROCEED, OutcomeKind.FOLLOW_UP)
"""Outcomes by which the active agent has had a turn of its own."""


class _Answer(msgspec.Struct, frozen=True):
    """One applied answer while it is being decided.

    moves: outcomes change active agent, lock and stack (stickiness is on). is_active: the holder is
    the active agent. stands_in: another agent is active; the holder answers in its place.
    degraded_by: verdicts against what was asked for; a lesser outcome is applied.
    """

    draft: Draft
    command: CompleteTurn
    facts: Facts
    turn: OpenTurn
    agent: Agent
    text: str
    moves: bool
    is_active: bool
    stands_in: bool
    degraded_by: tuple[Verdict, ...] = ()

    @property
    def child_id(self) -> str:
        """The id of the request that follows, if there is one."""
        return child_request_id(self.command.child_seed, self.draft.state.revision)


def decide_complete(draft: Draft, command: CompleteTurn, facts: Facts) -> Decision:
    """Decide an agent's answer.

    Raises RoutingError: UNKNOWN_REQUEST, UNKNOWN_AGENT, HANDOFF_REFUSED.
    """
    ownership.expire_turns(draft)
    registry = draft.registry
    state = draft.state
    turn = state.find_turn(command.request_id)
    agent_id = registry.resolve(command.agent_id) or command.agent_id
    agent = registry.agents.get(agent_id)
    if agent is None:
        if not was_asked_before(draft, command, facts, agent_id):
            raise unknown_agent(command.agent_id, tuple(registry.agents))
        agent = draft.agent(agent_id)
    marker = ""
    if agent.answers_are_read:
        if command.by_person:
            take_persons_answer(draft, command, turn, facts)
            state = draft.state
        elif command.parse_markers is not False:
            command, marker = without_markers(command, registry)
    if turn is None or turn.holder != agent_id or not state.is_live(turn):
        return store_only(draft, command, facts, agent_id, turn, text=command.text)
    if state.meanwhile is not None and command.stickiness_enabled:
        turn = settle(draft, turn)
        state = draft.state
    active = state.active
    is_active = active is not None and active.agent_id == agent_id
    answer = _Answer(
        draft=draft,
        command=command,
        facts=facts,
        turn=turn,
        agent=agent,
        text=command.text,
        moves=command.stickiness_enabled,
        is_active=is_active,
        stands_in=not (is_active or active is None),
    )
    if turn.asker:
        return _answer_consult(answer, marker)
    if state.paused is not None:
        approvals.expire(draft)
        if draft.state.paused is not None:
            return _wait(answer, marker)
    if not marker or not isinstance(command.outcome, Proceed | FollowUp):
        return _apply(answer)
    by_marker, refused = _follow_marker(answer, marker)
    if by_marker is not None:
        return by_marker
    decision = _apply(replace(answer, degraded_by=refused))
    return replace(decision, status=OutcomeStatus.DEGRADED, verdicts=refused + decision.verdicts)


def _apply(answer: _Answer) -> Decision:
    return OUTCOMES[type(answer.command.outcome)](answer, answer.command.outcome)


def _wait(answer: _Answer, marker: str) -> Decision:
    """Take an answer while an approval is pending: it is recorded and nothing moves."""
    outcome = answer.command.outcome
    if isinstance(outcome, HandOff):
        return _hand_off(answer, outcome)  # Refused: the approval is pending.
    task = answer.draft.state.open_task
    verdicts: tuple[Verdict, ...] = ()
    if marker or not isinstance(outcome, Proceed | Fail):
        detail = f'task "{task.task_id if task else ""}" waits for an approval; resume it first'
        verdicts = (Verdict("approval_pending", allowed=False, detail=detail),)
    status = OutcomeStatus.DEGRADED if verdicts else OutcomeStatus.APPLIED
    kept = replace(answer, moves=False)
    _record(kept, outcome.kind, status, closes=True)
    return _done(kept, status, verdicts=verdicts)


def _answer_consult(answer: _Answer, marker: str) -> Decision:
    """Bring the answer of a consulted agent to the agent that asked."""
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
        detail = f'agent "{turn.asker}", which asked, is not available'
        verdicts += (Verdict("enabled", allowed=False, detail=detail),)
    status = OutcomeStatus.DEGRADED if verdicts else OutcomeStatus.APPLIED
    kept = replace(answer, moves=False)
    _record(kept, outcome.kind, status, closes=not is_there, is_consult=True)
    brought = "" if isinstance(outcome, Fail) else answer.text
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
        consult=ConsultPlan(turn.asker, answer.facts.of(ConsultQuestion), brought),
    )
    # The text is for the agent that asked; the user gets that agent's answer.
    return replace(_done(kept, status, dispatch, verdicts), text="")


def _ask_approval(answer: _Answer, outcome: AskApproval) -> Decision:
    """Pause the task until a person has decided."""
    draft, turn = answer.draft, answer.turn
    task = draft.state.open_task
    if task is None or task.task_id != turn.task_id:
        detail = f'task "{turn.task_id}" is closed; there is nothing to pause'
        verdicts = (Verdict("task_open", allowed=False, detail=detail),)
        decision = _proceed(replace(answer, degraded_by=verdicts), outcome)
        return replace(decision, status=OutcomeStatus.DEGRADED, verdicts=verdicts)
    _record(answer, OutcomeKind.APPROVAL_NEEDED, OutcomeStatus.APPLIED, closes=False)
    approvals.request(draft, turn, outcome)
    if draft.state.claim is not None:
        end_claim(draft)  # A person who stood in waits as any agent does, without the conversation.
    if strands.may_park_paused(draft):
        strands.park(draft, "paused")
        return replace(_done(answer), reply=ReplySpec("", "parked", agent_id=turn.holder))
    return _done(answer)


def _record(
    answer: _Answer,
    kind: OutcomeKind,
    status: OutcomeStatus,
    *,
    closes: bool,
    is_consult: bool = False,
    kept: bool = False,
) -> None:
    """Add the answer itself; the events after it say what it moves."""
    command, turn = answer.command, answer.turn
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
            counts=answer.moves and answer.is_active and kind in _COUNTED,
            dispatched_us=turn.dispatched_us,
            detail=command.outcome.detail,
            is_consult=is_consult,
            message=command.outcome.said,
            kept=kept,
        )
    )


def _is_kept(answer: _Answer) -> bool:
    """Say whether what the agent does now counts once stickiness is on again."""
    return not answer.moves and holds_meanwhile(answer.draft.state, answer.turn.holder)


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


def _proceed(answer: _Answer, outcome: Outcome) -> Decision:
    """Let the answer stand by itself: a lock ends, an agent that does not stick leaves.

    outcome: what the agent gave, which may be one that is applied as a proceed.
    """
    agent = answer.agent
    if agent.asks_in_prose and outcome.kind is OutcomeKind.PROCEED and not answer.stands_in:
        asked = asks_user(answer.text or last_text(answer.command.items))
        if asked and answer.moves and not agent.never_locks:
            return _lock(answer, outcome.kind, ev.LockEngaged(agent.agent_id, soft=True))
    if not (answer.moves and answer.is_active):
        _record(answer, outcome.kind, OutcomeStatus.APPLIED, closes=True)
        return _done(answer)
    leaves = agent.sticks is not Sticks.SESSION
    if answer.draft.state.stack and (leaves or _is_spent(answer)):
        return _give_back(answer, outcome.kind)
    _record(answer, outcome.kind, OutcomeStatus.APPLIED, closes=True)
    if leaves:
        ownership.clear(answer.draft, "proceed")
    else:
        ownership.unlock(answer.draft, "answered")
    return _done(answer)


def _is_spent(answer: _Answer) -> bool:
    """Say whether an interlude has had as many turns as it may have, this one included."""
    active, turns_max = answer.draft.state.active, answer.agent.turns_max
    return bool(turns_max) and active is not None and active.turns_taken + 1 >= turns_max


def _follow_up(answer: _Answer, outcome: FollowUp) -> Decision:
    """Lock the agent: it asked something and gets the next message."""
    if answer.agent.never_locks or not answer.moves:
        return _proceed(answer, outcome)
    timeout_us = outcome.timeout_us
    expire_us = None if timeout_us is None else answer.draft.now_us + timeout_us
    return _lock(answer, OutcomeKind.FOLLOW_UP, ev.LockEngaged(answer.turn.holder, expire_us))


def _lock(answer: _Answer, kind: OutcomeKind, lock: ev.LockEngaged) -> Decision:
    _record(answer, kind, OutcomeStatus.APPLIED, closes=True)
    if answer.stands_in:
        # It takes over, so the question of the agent that it stood in for no longer waits.
        ownership.unlock(answer.draft, "handoff")
    answer.draft.add(replace(lock, root_request_id=answer.turn.root_request_id))
    return _done(answer)


def _complete(answer: _Answer, outcome: Complete) -> Decision:
    """End the agent's part: as on_complete says, or back to the agent that it interrupted."""
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
    if is_home:
        verdicts += judge_step(attempt)
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
        kept=_is_kept(answer),
    )
    return _go_on(answer, move, verdicts)


def _finish(
    answer: _Answer, outcome: Complete, status: OutcomeStatus, verdicts: tuple[Verdict, ...]
) -> Decision:
    """Complete without a hop: return to the interrupted agent, else close the task."""
    draft = answer.draft
    holds = answer.moves and answer.is_active
    if holds and draft.state.stack:
        return _give_back(answer, OutcomeKind.COMPLETE, status, verdicts, outcome.message)
    stays = answer.agent.on_complete is OnComplete.STAY and not draft.state.stack
    is_kept = not stays and _is_kept(answer)
    _record(answer, OutcomeKind.COMPLETE, status, closes=True, kept=is_kept)
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
    """Return to the interrupted agent.

    The message goes on to it at once if it was interrupted within this very turn.
    """
    draft = answer.draft
    state = draft.state
    assert state.active is not None
    frame = state.stack[-1]
    goes_on = state.active.entered_turn == answer.turn.root_request_id
    if goes_on:
        target = draft.agent(frame.agent_id)
        against = judge_step(_attempt(answer, target, Initiator.COMPLETION, HandoffMode.RETURN))
        if not ownership.is_available(draft, frame.agent_id):
            detail = f'agent "{frame.agent_id}" is not available'
            against += (Verdict("enabled", allowed=False, detail=detail),)
        if against:
            verdicts += against
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
    """Hand over if the rules allow it. Raises HANDOFF_REFUSED, UNKNOWN_AGENT."""
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
    """Try the handoff that a marker asks for; if it is refused, return only its verdicts."""
    draft = answer.draft
    target_id = find_by_name(draft.registry, marker)
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
    if ownership.hands_back(draft, answer.turn, target):
        mode = HandoffMode.ANSWER
    else:
        holder = answer.turn.holder
        mode = ownership.effective_mode(draft.state, draft.registry, holder, target, asked)
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
        # Refused handoffs do not count against a completion: a turn may always end by it.
        refusals=0 if initiator is Initiator.COMPLETION else answer.facts.of(RefusedHandoffs),
    )


def _go_on_by_handoff(
    answer: _Answer, attempt: Attempt, outcome: HandOff, verdicts: tuple[Verdict, ...]
) -> Decision:
    _record(answer, OutcomeKind.HANDOFF, OutcomeStatus.APPLIED, closes=False)
    is_consult = attempt.mode is HandoffMode.CONSULT
    is_back = attempt.mode is HandoffMode.ANSWER
    moves = answer.moves and not is_consult and not is_back
    if moves and attempt.mode is not HandoffMode.INTERLUDE:
        # An interrupted agent keeps its lock on the return stack; any other loses it.
        ownership.unlock(answer.draft, "handoff")
    if is_consult:
        reason = RouteReason.CONSULTED
    elif is_back:
        reason = ownership.hand_back_reason(answer.draft.state)
    else:
        reason = ownership.handoff_reason(attempt.initiator, attempt.mode)
    move = ownership.Move(
        source=answer.turn.holder,
        target=attempt.target,
        initiator=attempt.initiator,
        mode=attempt.mode,
        route_reason=reason,
        reason=outcome.reason,
        context=outcome.context,
        message=outcome.message,
        turn=answer.turn,
        child_request_id=answer.child_id,
        dispatches=True,
        moves=moves,
        kept=not (is_consult or is_back) and _is_kept(answer),
    )
    decision = _go_on(answer, move, verdicts)
    if is_back and decision.dispatch is not None:
        return replace(decision, dispatch=replace(decision.dispatch, handoff=None), handoff=None)
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
        inbox=answer.turn.is_delivered,
    )


def _fail(answer: _Answer, outcome: Fail) -> Decision:
    """Close the task as failed; the agent stays for another try.

    An agent that interrupted another gives the conversation back, and the task goes on.
    """
    draft = answer.draft
    if answer.moves and answer.is_active and draft.state.stack:
        return _give_back(answer, OutcomeKind.FAILURE)
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


OUTCOMES: dict[type, Callable[[_Answer, Any], Decision]] = {
    Proceed: _proceed,
    FollowUp: _follow_up,
    Complete: _complete,
    HandOff: _hand_off,
    AskApproval: _ask_approval,
    Fail: _fail,
}
"""What each outcome does, once the answer may move something. Its kind and what it says for the
record are on its class (commands.py); how it is checked and mapped, in rpc/outcomes.py."""
