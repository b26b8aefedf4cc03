"""Errors that only a stored session can cause, and the audit entry of a refused handoff."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import msgspec

from routing_service.core import events as ev
from routing_service.core.access import owner_mismatch
from routing_service.core.commands import (
    Command,
    CompleteTurn,
    HandOff,
    ResumeTask,
    SetActiveAgent,
)
from routing_service.core.errors import Reason, RoutingError, invalid_field
from routing_service.core.refusals import HandoffRefused
from routing_service.core.session import SessionState
from routing_service.core.vocabulary import ApprovalDecision, HandoffMode
from routing_service.sessions.calls import Call
from routing_service.sessions.turn_history import COMPLETE_TURN
from routing_service.storage.event_codec import StoredEvents, decode_change
from routing_service.storage.store import AuditEntry, Change, TaskRow

HANDOFF_REFUSED: Final = "handoff_refused"
"""The kind of the audit entries of refused handoffs."""


def audit_entry(
    call: Call, command: Command, state: SessionState | None, error: HandoffRefused, now_us: int
) -> AuditEntry:
    """Return the record of a refused handoff, which takes no revision of the session."""
    turn_id = command.turn_request_id if isinstance(command, SetActiveAgent) else ""
    data = {
        "method": call.method,
        "metadata": error.metadata,
        "verdicts": [[v.rule, v.allowed, v.detail] for v in error.verdicts],
    }
    optional = {
        "actor": call.subject,
        "user": call.access.user_id,
        "reason": _reason_of(command),
        "mode": _mode_of(command),
        "trace_id": call.trace_id,
    }
    data |= {name: value for name, value in optional.items() if value}
    return AuditEntry(
        time_us=now_us,
        tenant=call.key.tenant,
        session_id=call.key.session_id,
        revision=state.revision if state else 0,
        kind=HANDOFF_REFUSED,
        request_id=turn_id or call.request_id,
        # The one whose data it is: it goes when this user is erased.
        user_id=(state.owner if state else "") or call.access.user_id,
        data=msgspec.json.encode(data),
    )


def _reason_of(command: Command) -> str:
    """Return the reason that the caller gave for a handoff."""
    match command:
        case SetActiveAgent():
            return command.reason
        case CompleteTurn(outcome=HandOff() as outcome):
            return outcome.reason
        case _:
            return ""


def _mode_of(command: Command) -> str:
    """Return the mode of a refused handoff whose reason is not for the user; "" for any other."""
    match command:
        case CompleteTurn(outcome=HandOff(mode=HandoffMode.CONSULT)):
            return HandoffMode.CONSULT.value
        case _:
            return ""


def task_of_another(call: Call, task_id: str, session_id: str, row: TaskRow | None) -> RoutingError:
    """Refuse a task of another session; that session's id is shown to the task's own user only."""
    if row is None or row.user_id not in ("", call.access.user_id):
        return owner_mismatch("task", task_id)
    return invalid_field(
        "task_id",
        f'task "{task_id}" belongs to session "{session_id}"; name that session, '
        "or leave session_id out",
    )


def check_revision(call: Call, state: SessionState | None) -> None:
    """Raise REVISION_MISMATCH if the session is not at the revision that the caller expects."""
    actual = state.revision if state else 0
    expected = call.expected_revision
    assert expected is not None
    if expected != actual:
        raise revision_mismatch(call.key.session_id, expected, actual)


def revision_mismatch(session_id: str, expected: int, actual: int) -> RoutingError:
    """Say that a session has changed since the revision that was expected."""
    return RoutingError(
        Reason.REVISION_MISMATCH,
        f'session "{session_id}" is at revision {actual}, the request expected {expected}; '
        "read the session and retry",
        metadata={
            "session_id": session_id,
            "expected_revision": str(expected),
            "revision": str(actual),
        },
    )


def check_same_decision(call: Call, command: ResumeTask, change: Change) -> None:
    """Raise APPROVAL_DECIDED if a request was decided otherwise; a comment makes no difference.

    change: of the decision that counts, or of this person's vote. Raises also for another task's
    id, and StoreCorrupt, SchemaTooNew.
    """
    stored = decode_change(change.events)
    for event in stored.events:
        match event:
            case ev.TaskResumed():
                decision = event.decision
            case ev.ApprovalVoted():
                decision = ApprovalDecision.APPROVE
            case _:
                continue
        if event.task_id != command.task_id:
            raise reused(call)
        if decision is not command.decision:
            raise _decided_otherwise(call, command, decision, stored, change.time_us)
        return


def _decided_otherwise(
    call: Call,
    command: ResumeTask,
    decision: ApprovalDecision,
    stored: StoredEvents,
    time_us: int,
) -> RoutingError:
    """Say which decision stands, whose it is and since when."""
    decider = stored.actor or stored.user_id
    time_text = datetime.fromtimestamp(time_us / 1e6, UTC).isoformat(timespec="milliseconds")
    by = f' by "{decider}"' if decider else ""
    return RoutingError(
        Reason.APPROVAL_DECIDED,
        f'request "{call.request_id}" was decided already: {decision.value}{by} at {time_text}; '
        "that decision stands",
        metadata={
            "session_id": call.key.session_id,
            "task_id": command.task_id,
            "request_id": call.request_id,
            "decision": decision.value,
            "decider": decider,
            "time": time_text,
        },
    )


def reused(call: Call) -> RoutingError:
    """Say that a request id was used before, for something else."""
    metadata = {
        "session_id": call.key.session_id,
        "request_id": call.request_id,
        "method": call.method,
    }
    if call.method == "ResumeTask":
        return RoutingError(
            Reason.REQUEST_NOT_OPEN,
            f'request "{call.request_id}" was decided for another task already; name that task',
            metadata=metadata,
        )
    if call.method == COMPLETE_TURN:
        return RoutingError(
            Reason.REQUEST_NOT_OPEN,
            f'agent "{call.actor}" has answered request "{call.request_id}" already, with '
            "something else; its first answer stands",
            metadata={**metadata, "agent_id": call.actor},
        )
    return RoutingError(
        Reason.REQUEST_ID_REUSED,
        f'request id "{call.request_id}" was used in this session for a {call.method} with other '
        "content; make a new id for a new request",
        metadata=metadata,
    )
