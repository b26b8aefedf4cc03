"""The error reasons of the contract, as exceptions with a message and metadata.

Rule: a message says what is wrong, which value, and what to do; the metadata has the same values.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


class Reason(enum.Enum):
    """The reasons of google.rpc.ErrorInfo, as in error_reason.proto."""

    MALFORMED_REQUEST = "MALFORMED_REQUEST"
    INVALID_FIELD = "INVALID_FIELD"
    UNKNOWN_SESSION = "UNKNOWN_SESSION"
    UNKNOWN_AGENT = "UNKNOWN_AGENT"
    UNKNOWN_TASK = "UNKNOWN_TASK"
    UNKNOWN_REQUEST = "UNKNOWN_REQUEST"
    UNKNOWN_SUGGESTION = "UNKNOWN_SUGGESTION"
    HANDOFF_REFUSED = "HANDOFF_REFUSED"
    REQUEST_NOT_OPEN = "REQUEST_NOT_OPEN"
    TASK_NOT_PAUSED = "TASK_NOT_PAUSED"
    TASK_CLOSED = "TASK_CLOSED"
    TASK_OPEN = "TASK_OPEN"
    TURN_OPEN = "TURN_OPEN"
    AGENT_UNAVAILABLE = "AGENT_UNAVAILABLE"
    SESSION_ERASED = "SESSION_ERASED"
    REVISION_MISMATCH = "REVISION_MISMATCH"
    REQUEST_ID_REUSED = "REQUEST_ID_REUSED"
    DEADLINE = "DEADLINE"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    OWNER_MISMATCH = "OWNER_MISMATCH"
    SCOPE_MISSING = "SCOPE_MISSING"
    OVERLOADED = "OVERLOADED"
    TOO_LARGE = "TOO_LARGE"
    WATCH_TOO_SLOW = "WATCH_TOO_SLOW"
    REVISION_COMPACTED = "REVISION_COMPACTED"
    STORE_UNAVAILABLE = "STORE_UNAVAILABLE"
    SCHEMA_TOO_NEW = "SCHEMA_TOO_NEW"
    STATE_CORRUPT = "STATE_CORRUPT"
    SHUTTING_DOWN = "SHUTTING_DOWN"
    NOT_IMPLEMENTED = "NOT_IMPLEMENTED"
    INTERNAL = "INTERNAL"
    REGISTRY_INVALID = "REGISTRY_INVALID"
    SIGN_IN_UNAVAILABLE = "SIGN_IN_UNAVAILABLE"
    LEASE_LOST = "LEASE_LOST"
    STORE_FORMAT = "STORE_FORMAT"
    APPROVAL_DECIDED = "APPROVAL_DECIDED"
    APPROVER_REFUSED = "APPROVER_REFUSED"
    CLAIMED = "CLAIMED"
    NOTHING_TO_CLAIM = "NOTHING_TO_CLAIM"
    TASKS_OPEN = "TASKS_OPEN"
    REPLAY_RUNNING = "REPLAY_RUNNING"
    UNKNOWN_REPLAY = "UNKNOWN_REPLAY"
    REGISTRY_READ_ONLY = "REGISTRY_READ_ONLY"
    STATE_CHANGED = "STATE_CHANGED"


@dataclass(frozen=True, slots=True)
class Violation:
    """One rule that refused, or one field that is wrong.

    subject: the rule's name (handoff_to) or the field's path (items[2].uri).
    """

    subject: str
    detail: str


class RoutingError(Exception):
    """A call that was refused, with the reason a program reads and the message a person reads."""

    def __init__(
        self,
        reason: Reason,
        message: str,
        *,
        metadata: Mapping[str, str] | None = None,
        violations: Sequence[Violation] = (),
        retry_after_s: float | None = None,
    ) -> None:
        """Keep what the answer needs.

        metadata: the message's values again, for programs. violations: every field or rule.
        retry_after_s: seconds after which a repeat makes sense; None where it does not.
        """
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.metadata = dict(metadata or {})
        self.violations = tuple(violations)
        self.retry_after_s = retry_after_s


def invalid_field(field: str, detail: str) -> RoutingError:
    """Name one bad field found after the request checks."""
    return RoutingError(
        Reason.INVALID_FIELD,
        f"{field}: {detail}",
        metadata={"field": field},
        violations=(Violation(field, detail),),
    )


# An error's details stay under 4 KB on the wire, so a message names at most this many ids.
NAMED_IDS_MAX = 12


def unknown_agent(agent_id: str, registered: Sequence[str]) -> RoutingError:
    """Say which agent is unknown and which ones there are."""
    named = ", ".join(registered[:NAMED_IDS_MAX])
    if len(registered) > NAMED_IDS_MAX:
        named += f" and {len(registered) - NAMED_IDS_MAX} more"
    return RoutingError(
        Reason.UNKNOWN_AGENT,
        f'agent "{agent_id}" is not registered; registered agents: {named}',
        metadata={"agent_id": agent_id},
    )


def unknown_session(session_id: str) -> RoutingError:
    """Say that the session has no message yet."""
    return RoutingError(
        Reason.UNKNOWN_SESSION,
        f'session "{session_id}" is not known; send its first message with Route',
        metadata={"session_id": session_id},
    )


def unknown_task(session_id: str, task_id: str) -> RoutingError:
    """Say that the session has no such task."""
    return RoutingError(
        Reason.UNKNOWN_TASK,
        f'task "{task_id}" is not known in session "{session_id}"; list its tasks',
        metadata={"session_id": session_id, "task_id": task_id},
    )


def task_closed(session_id: str, task_id: str, status: str) -> RoutingError:
    """Say that nothing of a closed task can change."""
    return RoutingError(
        Reason.TASK_CLOSED,
        f'task "{task_id}" is {status}; leave task_id out to begin another',
        metadata={"session_id": session_id, "task_id": task_id, "status": status},
    )


def request_id_of_another(session_id: str, request_id: str) -> RoutingError:
    """Say that a message has the id of another request: an answer to one would close both."""
    return RoutingError(
        Reason.REQUEST_ID_REUSED,
        f'request id "{request_id}" is that of another request of this session; make a new id '
        "for a new message",
        metadata={"session_id": session_id, "request_id": request_id, "method": "Route"},
    )


def scope_missing(what: str, scope: str) -> RoutingError:
    """Say which right a credential would need. what: the beginning of the sentence."""
    return RoutingError(
        Reason.SCOPE_MISSING,
        f'{what} needs the scope "{scope}"; use a credential that has it',
        metadata={"scope": scope},
    )


def session_erased(session_id: str) -> RoutingError:
    """Say that the session's data were erased, and that its id is not used again."""
    return RoutingError(
        Reason.SESSION_ERASED,
        f'session "{session_id}" was erased; begin a new one',
        metadata={"session_id": session_id},
    )


def unknown_request(session_id: str, request_id: str) -> RoutingError:
    """Say that no dispatch of this session carries the request id."""
    return RoutingError(
        Reason.UNKNOWN_REQUEST,
        f'request "{request_id}" was never dispatched in session "{session_id}"; '
        "use the request_id of a Dispatch (Status lists the open ones)",
        metadata={"session_id": session_id, "request_id": request_id},
    )
