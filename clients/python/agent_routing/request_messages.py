"""The contract's requests from plain Python values.

Owns: one function for each RPC, with a parameter for each field of its request, and the ids that
the client makes. Must not know: how requests are sent. Rule: an empty value is an unset field; what
a field may hold is the service's to judge, and reaches the caller as InvalidField with every bad
field at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Literal, TypeAlias

from agent_routing.ids import new_uuid7
from agent_routing.outcomes import Outcome
from agent_routing.plain_values import Seconds, duration, enum_value, struct, timestamp
from agent_routing.v1.clear_scope_pb2 import ClearScope
from agent_routing.v1.dispatch_pb2 import Decision
from agent_routing.v1.handoff_pb2 import HandoffMode, Initiator
from agent_routing.v1.item_pb2 import Item
from agent_routing.v1.routing_service_pb2 import (
    ApprovalNeededOutcome,
    ClearActiveAgentRequest,
    CompleteOutcome,
    CompleteTurnRequest,
    FailureOutcome,
    FollowUpOutcome,
    HandoffOutcome,
    ListAgentsRequest,
    ListTasksRequest,
    ListTurnsRequest,
    ProceedOutcome,
    ResumeTaskRequest,
    RouteRequest,
    SetActiveAgentRequest,
    StatusRequest,
    TurnOrder,
    WatchSessionRequest,
)
from agent_routing.v1.task_pb2 import TaskStatus
from agent_routing.v1.turn_pb2 import Step

InitiatorName: TypeAlias = Literal["SUPERVISOR", "AGENT", "USER", "OPERATOR"] | Initiator.ValueType
HandoffModeName: TypeAlias = Literal["TRANSFER", "INTERLUDE"] | HandoffMode.ValueType
ClearScopeName: TypeAlias = Literal["ACTIVE_AGENT", "SESSION"] | ClearScope.ValueType
DecisionName: TypeAlias = Literal["APPROVE", "REJECT"] | Decision.ValueType
TurnOrderName: TypeAlias = Literal["OLDEST_FIRST", "NEWEST_FIRST"] | TurnOrder.ValueType
TaskStatusName: TypeAlias = (
    Literal["RUNNING", "PAUSED", "COMPLETED", "FAILED", "CANCELLED"] | TaskStatus.ValueType
)
"""Values of enums: by name without the prefix, or as the generated enum has them."""


def route(
    text: str,
    *,
    session_id: str,
    user_id: str,
    request_id: str,
    task_id: str,
    items: Iterable[Item],
    locale: str,
    channel: str,
    history_turns: int,
    expected_revision: int | None,
    entitlements: Iterable[str],
    quick_reply_id: str,
    literal_text: bool,
    validate_only: bool,
    explain_topic: bool,
    metadata: Mapping[str, str] | None,
    task_expire_time: datetime | None,
) -> RouteRequest:
    """Return the request. Both ids are made where they are missing, so that a repeat is the same.

    Save the session's where a task is given: the task finds it. Raises TypeError for entitlements
    that are one string.
    """
    if isinstance(entitlements, str):
        # It would be taken for as many entitlements as it has letters.
        raise TypeError(f"entitlements is the string {entitlements!r}; give a list of strings")
    request = RouteRequest(
        session_id=session_id or ("" if task_id else new_uuid7()),
        user_id=user_id,
        text=text,
        request_id=request_id or new_uuid7(),
        task_id=task_id,
        items=items,
        locale=locale,
        channel=channel,
        history_turns=history_turns,
        expected_revision=expected_revision,
        entitlements=entitlements,
        quick_reply_id=quick_reply_id,
        literal_text=literal_text,
        validate_only=validate_only,
        explain_topic=explain_topic,
        metadata=metadata,
    )
    if task_expire_time is not None:
        request.task_expire_time.CopyFrom(timestamp("task_expire_time", task_expire_time))
    return request


def set_active_agent(
    session_id: str,
    agent_id: str,
    *,
    user_id: str,
    request_id: str,
    turn_request_id: str,
    initiator: InitiatorName | None,
    from_agent_id: str,
    reason: str,
    context: Mapping[str, Any] | None,
    message: str,
    mode: HandoffModeName | None,
    suggestion_id: str,
    expected_revision: int | None,
    validate_only: bool,
) -> SetActiveAgentRequest:
    """Return the request. request_id is made where it is missing."""
    request = SetActiveAgentRequest(
        session_id=session_id,
        user_id=user_id,
        agent_id=agent_id,
        request_id=request_id or new_uuid7(),
        turn_request_id=turn_request_id,
        initiator=enum_value(Initiator, "INITIATOR_", "initiator", initiator),
        from_agent_id=from_agent_id,
        reason=reason,
        message=message,
        mode=enum_value(HandoffMode, "HANDOFF_MODE_", "mode", mode),
        suggestion_id=suggestion_id,
        expected_revision=expected_revision,
        validate_only=validate_only,
    )
    if context is not None:
        request.context.CopyFrom(struct("context", context))
    return request


def clear_active_agent(
    session_id: str,
    *,
    user_id: str,
    request_id: str,
    scope: ClearScopeName | None,
    reason: str,
    expected_revision: int | None,
) -> ClearActiveAgentRequest:
    """Return the request. request_id is made where it is missing."""
    return ClearActiveAgentRequest(
        session_id=session_id,
        user_id=user_id,
        request_id=request_id or new_uuid7(),
        scope=enum_value(ClearScope, "CLEAR_SCOPE_", "scope", scope),
        reason=reason,
        expected_revision=expected_revision,
    )


def status(session_id: str, *, user_id: str) -> StatusRequest:
    """Return the request."""
    return StatusRequest(session_id=session_id, user_id=user_id)


def complete_turn(
    session_id: str,
    request_id: str,
    agent_id: str,
    outcome: Outcome,
    *,
    text: str,
    user_id: str,
    items: Iterable[Item],
    steps: Iterable[Step],
    parse_markers: bool | None,
) -> CompleteTurnRequest:
    """Return the request. Raises TypeError for an outcome that is none."""
    request = CompleteTurnRequest(
        session_id=session_id,
        request_id=request_id,
        agent_id=agent_id,
        text=text,
        user_id=user_id,
        items=items,
        steps=steps,
        parse_markers=parse_markers,
    )
    match outcome:
        case ProceedOutcome():
            request.proceed.CopyFrom(outcome)
        case FollowUpOutcome():
            request.follow_up.CopyFrom(outcome)
        case CompleteOutcome():
            request.complete.CopyFrom(outcome)
        case HandoffOutcome():
            request.handoff.CopyFrom(outcome)
        case ApprovalNeededOutcome():
            request.approval_needed.CopyFrom(outcome)
        case FailureOutcome():
            request.failure.CopyFrom(outcome)
        case _:
            raise TypeError(
                f"outcome is {outcome!r}; make one with agent_routing.outcomes, such as"
                " outcomes.proceed()"
            )
    return request


def resume_task(
    task_id: str,
    request_id: str,
    decision: DecisionName,
    *,
    session_id: str,
    user_id: str,
    comment: str,
) -> ResumeTaskRequest:
    """Return the request."""
    return ResumeTaskRequest(
        session_id=session_id,
        user_id=user_id,
        task_id=task_id,
        request_id=request_id,
        decision=enum_value(Decision, "DECISION_", "decision", decision),
        comment=comment,
    )


def list_tasks(
    session_id: str,
    *,
    user_id: str,
    statuses: Iterable[TaskStatusName],
    page_size: int,
    page_token: str,
) -> ListTasksRequest:
    """Return the request for one page."""
    return ListTasksRequest(
        session_id=session_id,
        user_id=user_id,
        statuses=[enum_value(TaskStatus, "TASK_STATUS_", "status", each) for each in statuses],
        page_size=page_size,
        page_token=page_token,
    )


def list_turns(
    session_id: str,
    *,
    user_id: str,
    agent_id: str,
    task_id: str,
    order: TurnOrderName | None,
    page_size: int,
    page_token: str,
) -> ListTurnsRequest:
    """Return the request for one page."""
    return ListTurnsRequest(
        session_id=session_id,
        user_id=user_id,
        agent_id=agent_id,
        task_id=task_id,
        page_size=page_size,
        page_token=page_token,
        order=enum_value(TurnOrder, "TURN_ORDER_", "order", order),
    )


def list_agents(
    *,
    session_id: str,
    user_id: str,
    locale: str,
    from_agent_id: str,
    include_instructions: bool,
) -> ListAgentsRequest:
    """Return the request."""
    return ListAgentsRequest(
        session_id=session_id,
        user_id=user_id,
        locale=locale,
        from_agent_id=from_agent_id,
        include_instructions=include_instructions,
    )


def watch_session(
    session_id: str,
    *,
    user_id: str,
    after_revision: int | None,
    heartbeat_interval: Seconds | None,
) -> WatchSessionRequest:
    """Return the request for the first connection."""
    request = WatchSessionRequest(
        session_id=session_id, user_id=user_id, after_revision=after_revision
    )
    if heartbeat_interval is not None:
        request.heartbeat_interval.CopyFrom(duration(heartbeat_interval))
    return request
