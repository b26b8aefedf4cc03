"""Mapping between protobuf messages and the core's values.

Total in both directions for all values that the core can hold. Requests are checked before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from google.protobuf import duration_pb2, struct_pb2, timestamp_pb2
from msgspec.structs import replace

from agent_routing.v1 import (
    clear_scope_pb2,
    dispatch_pb2,
    handoff_pb2,
    item_pb2,
    moved_turn_pb2,
    route_reason_pb2,
    routing_service_pb2,
    session_event_pb2,
    task_pb2,
    turn_pb2,
)
from routing_service.core import commands as cmd
from routing_service.core import events as ev
from routing_service.core.history import TurnRecord
from routing_service.core.session import SessionState, Task, Tenure
from routing_service.core.suggestions import stay_option_id
from routing_service.core.vocabulary import (
    ApprovalDecision,
    ClearScope,
    HandoffMode,
    Initiator,
    OutcomeKind,
    OutcomeStatus,
    RouteReason,
    TaskStatus,
    TopicOutcome,
    TurnFate,
)
from routing_service.rpc.agent_cards import AgentCards
from routing_service.texts.suggestions import render_suggestion

US_PER_S: Final = 1_000_000

REASON_UNSPECIFIED: Final = route_reason_pb2.ROUTE_REASON_UNSPECIFIED
REASONS: Final = {
    reason: route_reason_pb2.RouteReason.Value(f"ROUTE_REASON_{reason.name}")
    for reason in RouteReason
}
INITIATORS: Final = {
    initiator: handoff_pb2.Initiator.Value(f"INITIATOR_{initiator.name}") for initiator in Initiator
}
CALLERS_INITIATORS: Final = {
    handoff_pb2.INITIATOR_UNSPECIFIED: None,
    handoff_pb2.INITIATOR_SUPERVISOR: Initiator.SUPERVISOR,
    handoff_pb2.INITIATOR_AGENT: Initiator.AGENT,
    handoff_pb2.INITIATOR_USER: Initiator.USER,
    handoff_pb2.INITIATOR_OPERATOR: Initiator.OPERATOR,
}
MODES: Final = {
    HandoffMode.TRANSFER: handoff_pb2.HANDOFF_MODE_TRANSFER,
    HandoffMode.INTERLUDE: handoff_pb2.HANDOFF_MODE_INTERLUDE,
    HandoffMode.RETURN: handoff_pb2.HANDOFF_MODE_RETURN,
    HandoffMode.HOP: handoff_pb2.HANDOFF_MODE_COMPLETION,
    HandoffMode.CONSULT: handoff_pb2.HANDOFF_MODE_CONSULT,
    HandoffMode.ANSWER: handoff_pb2.HANDOFF_MODE_CONSULT,
}
CALLERS_MODES: Final = {
    handoff_pb2.HANDOFF_MODE_UNSPECIFIED: HandoffMode.TRANSFER,
    handoff_pb2.HANDOFF_MODE_TRANSFER: HandoffMode.TRANSFER,
    handoff_pb2.HANDOFF_MODE_INTERLUDE: HandoffMode.INTERLUDE,
}
OUTCOME_MODES: Final = {**CALLERS_MODES, handoff_pb2.HANDOFF_MODE_CONSULT: HandoffMode.CONSULT}
DECISIONS: Final = {
    ApprovalDecision.APPROVE: dispatch_pb2.DECISION_APPROVE,
    ApprovalDecision.REJECT: dispatch_pb2.DECISION_REJECT,
}
OUTCOME_STATUSES: Final = {
    status: turn_pb2.OutcomeStatus.Value(f"OUTCOME_STATUS_{status.name}")
    for status in OutcomeStatus
}
OUTCOMES: Final = {
    kind: turn_pb2.TurnOutcome.Value(f"TURN_OUTCOME_{kind.name}") for kind in OutcomeKind
}
TASK_STATUSES: Final = {
    status: task_pb2.TaskStatus.Value(f"TASK_STATUS_{status.name}") for status in TaskStatus
}
TOPIC_OUTCOMES: Final = {
    outcome: routing_service_pb2.TopicOutcome.Value(f"TOPIC_OUTCOME_{outcome.name}")
    for outcome in TopicOutcome
}
CLEAR_SCOPES: Final = {
    clear_scope_pb2.CLEAR_SCOPE_UNSPECIFIED: ClearScope.ACTIVE_AGENT,
    clear_scope_pb2.CLEAR_SCOPE_ACTIVE_AGENT: ClearScope.ACTIVE_AGENT,
    clear_scope_pb2.CLEAR_SCOPE_SESSION: ClearScope.SESSION,
}


TURN_FATES: Final = {
    moved_turn_pb2.MovedTurn.OPEN_TURN_UNSPECIFIED: None,
    moved_turn_pb2.MovedTurn.OPEN_TURN_TAKE_ALONG: TurnFate.TAKE_ALONG,
    moved_turn_pb2.MovedTurn.OPEN_TURN_LEAVE: TurnFate.LEAVE,
    moved_turn_pb2.MovedTurn.OPEN_TURN_ABANDON: TurnFate.ABANDON,
}
_FATES: Final = {fate: number for number, fate in TURN_FATES.items() if fate is not None}
ABANDON_CAUSES: Final = {
    "limit": turn_pb2.ABANDON_CAUSE_OPEN_TURNS,
    "timeout": turn_pb2.ABANDON_CAUSE_TIMEOUT,
    "reset": turn_pb2.ABANDON_CAUSE_RESET,
    "clear": turn_pb2.ABANDON_CAUSE_CLEARED,
    "overtaken": turn_pb2.ABANDON_CAUSE_OVERTAKEN,
    "command": turn_pb2.ABANDON_CAUSE_COMMAND,
    "cancelled": turn_pb2.ABANDON_CAUSE_CANCELLED,
    "attempts": turn_pb2.ABANDON_CAUSE_ATTEMPTS,
}
"""By TurnAbandoned.shown_cause. An event's TurnAbandonCause has the same numbers."""


def timestamp(time_us: int) -> timestamp_pb2.Timestamp:
    """Return microseconds since 1970 as a Timestamp."""
    seconds, rest = divmod(time_us, US_PER_S)
    return timestamp_pb2.Timestamp(seconds=seconds, nanos=rest * 1000)


def time_us(value: timestamp_pb2.Timestamp) -> int:
    """Return a Timestamp as microseconds since 1970, rounded down."""
    return value.seconds * US_PER_S + value.nanos // 1000


def duration(length_us: int) -> duration_pb2.Duration:
    """Return microseconds as a Duration."""
    seconds, rest = divmod(length_us, US_PER_S)
    return duration_pb2.Duration(seconds=seconds, nanos=rest * 1000)


def duration_us(value: duration_pb2.Duration) -> int:
    """Return a Duration as microseconds, rounded down."""
    return value.seconds * US_PER_S + value.nanos // 1000


def items_in(items: Iterable[item_pb2.Item]) -> tuple[ev.Item, ...]:
    """Return a request's items for the core."""
    return tuple(
        ev.Item(
            item.content_type,
            text=item.text if item.HasField("text") else None,
            data=item.data if item.HasField("data") else None,
            uri=item.uri if item.HasField("uri") else None,
        )
        for item in items
    )


def items_out(items: Iterable[ev.Item]) -> list[item_pb2.Item]:
    """Return stored items as they were sent."""
    return [_item_out(item) for item in items]


def _item_out(item: ev.Item) -> item_pb2.Item:
    made = item_pb2.Item(content_type=item.content_type)
    if item.text is not None:
        made.text = item.text
    elif item.data is not None:
        made.data = item.data
    elif item.uri is not None:
        made.uri = item.uri
    return made


def steps_in(steps: Iterable[turn_pb2.Step]) -> tuple[ev.Step, ...]:
    """Return a request's execution trace for the core."""
    return tuple(
        ev.Step(
            name=step.name,
            kind=step.kind,
            input=step.input,
            output=step.output,
            start_us=time_us(step.start_time) if step.HasField("start_time") else None,
            duration_us=duration_us(step.duration) if step.HasField("duration") else None,
        )
        for step in steps
    )


def steps_out(steps: Iterable[ev.Step], *, with_content: bool = True) -> list[turn_pb2.Step]:
    """Return a stored execution trace. with_content: with the input and output of all steps.

    Those that came with an answer have it anyway.
    """
    return [
        turn_pb2.Step(
            name=step.name,
            kind=step.kind,
            input=step.input if with_content or not step.attempt else "",
            output=step.output if with_content or not step.attempt else "",
            attempt=step.attempt,
            start_time=None if step.start_us is None else timestamp(step.start_us),
            duration=None if step.duration_us is None else duration(step.duration_us),
        )
        for step in steps
    ]


def context_in(value: struct_pb2.Struct) -> dict[str, object]:
    """Return a Struct as plain values."""
    return {key: _plain(entry) for key, entry in value.fields.items()}


def _plain(value: struct_pb2.Value) -> object:
    match value.WhichOneof("kind"):
        case "string_value":
            return value.string_value
        case "number_value":
            return value.number_value
        case "bool_value":
            return value.bool_value
        case "struct_value":
            return context_in(value.struct_value)
        case "list_value":
            return [_plain(entry) for entry in value.list_value.values]
        case _:
            return None


def context_out(value: Mapping[str, object]) -> struct_pb2.Struct:
    """Return plain values as a Struct."""
    struct = struct_pb2.Struct()
    for key, entry in value.items():
        _fill(struct.fields[key], entry)
    return struct


def _fill(target: struct_pb2.Value, entry: object) -> None:
    match entry:
        case None:
            target.null_value = struct_pb2.NULL_VALUE
        case bool():
            target.bool_value = entry
        case int() | float():
            target.number_value = entry
        case str():
            target.string_value = entry
        case list():
            # Without this an empty list would be null.
            target.list_value.SetInParent()
            for inner in entry:
                _fill(target.list_value.values.add(), inner)
        case dict():
            target.struct_value.SetInParent()
            for key, inner in entry.items():
                _fill(target.struct_value.fields[key], inner)
        case _:
            raise AssertionError(type(entry))


def verdicts_out(verdicts: Iterable[cmd.Verdict]) -> list[handoff_pb2.Verdict]:
    """Return the verdicts of the handoff rules."""
    return [
        handoff_pb2.Verdict(rule=verdict.rule, allowed=verdict.allowed, detail=verdict.detail)
        for verdict in verdicts
    ]


def handoff_out(plan: cmd.HandoffPlan, cards: AgentCards, locale: str) -> handoff_pb2.Handoff:
    """Return a handoff as frontends and agents see it."""
    handoff = handoff_pb2.Handoff(
        to=cards.card(plan.to_agent, locale),
        initiator=INITIATORS[plan.initiator],
        mode=MODES[plan.mode],
        reason=plan.reason,
        message=plan.message,
        context=None if plan.context is None else context_out(plan.context),
    )
    # "from" is a Python keyword.
    getattr(handoff, "from").CopyFrom(cards.card(plan.from_agent, locale))
    return handoff


def dispatch_out(
    plan: cmd.DispatchPlan,
    text: str,
    items: Iterable[ev.Item],
    cards: AgentCards,
    locale: str,
) -> dispatch_pb2.Dispatch:
    """Return a dispatch for an agent, without its history."""
    made = dispatch_pb2.Dispatch(
        request_id=plan.request_id,
        task_id=plan.task_id,
        agent=cards.card(plan.agent_id, locale),
        reason=REASONS[plan.reason],
        reason_detail=plan.reason_detail,
        text=text,
        items=items_out(items),
        locked=plan.locked,
        previous_agent_id=plan.previous_agent,
        handoff=handoff_out(plan.handoff, cards, locale) if plan.handoff else None,
        delivery=dispatch_pb2.DELIVERY_INBOX if plan.inbox else cards.delivery(plan.agent_id),
    )
    if plan.resume is not None:
        made.resume.decision = DECISIONS[plan.resume.decision]
        made.resume.comment = plan.resume.comment
    if plan.consult is not None:
        made.consult.asker.CopyFrom(cards.card(plan.consult.asker, locale))
        made.consult.question = plan.consult.question
        if plan.consult.answer is not None:
            made.consult.answer = plan.consult.answer
    made.candidates.extend(candidates_out(plan.candidates))
    return made


def suggestion_out(
    plan: cmd.SuggestionPlan, present: str, cards: AgentCards, locale: str, channel: str
) -> dispatch_pb2.Suggestion:
    """Return a suggestion for the user. present: the agent that the user talks to now."""
    rendered = render_suggestion(plan.agent_id, present, cards.registry, locale, channel=channel)
    return dispatch_pb2.Suggestion(
        suggestion_id=plan.suggestion_id,
        agent=cards.card(plan.agent_id, locale),
        confidence=plan.confidence,
        text=rendered.text,
        options=[
            dispatch_pb2.SuggestionOption(id=plan.suggestion_id, label=rendered.accept_label),
            dispatch_pb2.SuggestionOption(
                id=stay_option_id(plan.suggestion_id), label=rendered.stay_label
            ),
        ],
    )


def topic_trace_out(note: cmd.TopicNote) -> routing_service_pb2.TopicTrace:
    """Return what topic detection did with a message, and why."""
    opinion = note.opinion
    return routing_service_pb2.TopicTrace(
        outcome=TOPIC_OUTCOMES[note.outcome],
        model=opinion.model if opinion else "",
        candidates=[
            routing_service_pb2.TopicCandidate(agent_id=agent_id, confidence=confidence)
            for agent_id, confidence in (opinion.ranked if opinion else ())
        ],
        stay=opinion.stay if opinion else 0.0,
        threshold=note.threshold,
        verdicts=verdicts_out(note.verdicts),
        sureness=opinion.sureness if opinion else 0.0,
        bound=opinion.bound if opinion else 0.0,
        second_request_agent_id=opinion.second_request if opinion else "",
    )


def candidates_out(
    candidates: tuple[tuple[str, float], ...],
) -> list[dispatch_pb2.Dispatch.TopicCandidate]:
    """Return the agents that a message may be for."""
    return [
        dispatch_pb2.Dispatch.TopicCandidate(agent_id=agent_id, probability=probability)
        for agent_id, probability in candidates
    ]


def turn_out(
    record: TurnRecord, *, with_steps: bool = True, with_content: bool = True
) -> turn_pb2.Turn:
    """Return one turn. with_steps: with its execution trace, which agents' histories omit.

    with_content: see steps_out().
    """
    create_us, complete_us = record.create_us, record.complete_us
    outcome = turn_pb2.TURN_OUTCOME_UNSPECIFIED
    if record.outcome is not None:
        outcome = OUTCOMES[record.outcome]
    elif record.abandoned:
        outcome = turn_pb2.TURN_OUTCOME_ABANDONED
    elif record.is_said:
        outcome = turn_pb2.TURN_OUTCOME_SAID
    elif record.answered_by:
        # By itself: every dispatch pays for each field of its history.
        plain = replace(record, answered_by="")
        made = turn_out(plain, with_steps=with_steps, with_content=with_content)
        made.outcome, made.answered_by = turn_pb2.TURN_OUTCOME_ANSWERED, record.answered_by
        return made
    return turn_pb2.Turn(
        request_id=record.request_id,
        parent_request_id=record.parent_request_id,
        task_id=record.task_id,
        agent_id=record.agent_id,
        from_agent_id=record.from_agent_id,
        reason=REASONS[record.reason] if record.reason else REASON_UNSPECIFIED,
        user_text=record.user_text,
        user_items=items_out(record.user_items) if record.user_items else None,
        agent_text=record.agent_text,
        agent_items=items_out(record.agent_items) if record.agent_items else None,
        handoff_message=record.handoff_message,
        steps=steps_out(record.steps, with_content=with_content) if with_steps else None,
        outcome=outcome,
        outcome_status=OUTCOME_STATUSES[record.status]
        if record.status
        else turn_pb2.OUTCOME_STATUS_UNSPECIFIED,
        create_time=timestamp(create_us),
        complete_time=None if complete_us is None else timestamp(complete_us),
        response_duration=None
        if complete_us is None
        else duration(max(0, complete_us - create_us)),
        revision=record.revision,
    )


def listed_turn_out(record: TurnRecord, *, with_content: bool = True) -> turn_pb2.Turn:
    """Return one turn for a reader of the history, who is also told why it was abandoned."""
    made = turn_out(record, with_content=with_content)
    if record.abandoned:
        made.abandon_cause = ABANDON_CAUSES[record.abandoned]
    return made


def abandon_cause_out(cause: str) -> session_event_pb2.TurnAbandonCause.ValueType:
    """Return why a turn was abandoned, by TurnAbandoned.shown_cause."""
    return session_event_pb2.TurnAbandonCause.ValueType(ABANDON_CAUSES[cause])


def moved_turn_out(
    moved: cmd.MovedTurn | None, cards: AgentCards, locale: str
) -> moved_turn_pb2.MovedTurn | None:
    """Return what became of the turn that was live when a conversation was moved."""
    if moved is None:
        return None
    return moved_turn_pb2.MovedTurn(
        request_id=moved.request_id,
        waiting_since=timestamp(moved.waiting_us),
        agent=cards.card(moved.agent_id, locale) if moved.agent_id else None,
        open_turn=_FATES[moved.fate],
    )


def task_out(task: Task, metadata: Mapping[str, str], session_id: str, owner: str) -> task_pb2.Task:
    """Return a task with its metadata."""
    return task_pb2.Task(
        task_id=task.task_id,
        status=TASK_STATUSES[task.status],
        create_time=timestamp(task.create_us),
        update_time=timestamp(task.update_us),
        expire_time=None if task.expire_us is None else timestamp(task.expire_us),
        metadata=metadata,
        session_id=session_id,
        owner=owner,
    )


def frame_out(frame: Tenure, cards: AgentCards, locale: str) -> routing_service_pb2.Frame:
    """Return an interrupted agent of the return stack."""
    return routing_service_pb2.Frame(
        agent=cards.card(frame.agent_id, locale),
        locked=frame.locked,
        lock_expire_time=None if frame.lock_expire_us is None else timestamp(frame.lock_expire_us),
        turn_request_id=frame.entered_turn,
        turns_taken=frame.turns_taken,
    )


def locale_of(state: SessionState | None, asked: str = "") -> str:
    """Return the locale of a session's user; "" for the registry's default."""
    return asked or (state.locale if state else "")


def expected_revision(
    request: routing_service_pb2.RouteRequest
    | routing_service_pb2.SetActiveAgentRequest
    | routing_service_pb2.ClearActiveAgentRequest
    | routing_service_pb2.CancelTaskRequest
    | routing_service_pb2.ClaimTurnRequest
    | routing_service_pb2.ReleaseTurnRequest,
) -> int | None:
    """Return the revision that a request is conditional on; None if it has no condition."""
    return request.expected_revision if request.HasField("expected_revision") else None
