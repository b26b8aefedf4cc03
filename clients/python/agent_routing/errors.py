"""What can go wrong with a call, as exceptions.

Owns: an exception for each reason of the contract, in families by status code, and the tables that
name them. Must not know: how a reason travels (status_details.py). Rule: catch a family or a
reason, never parse a message; a reason that this release does not know is its code's family.

    RoutingError
      InvalidRequest         MalformedRequest  InvalidField
      NotFound               UnknownSession  UnknownAgent  UnknownTask  UnknownRequest
                             UnknownSuggestion
      PreconditionFailed     HandoffRefused  RequestNotOpen  TaskNotPaused  TaskClosed  TaskOpen
                             TurnOpen  AgentUnavailable  SessionErased  RegistryInvalid
      RevisionMismatch
      RequestIdReused
      DeadlineExceeded
      Unauthenticated
      PermissionDenied       OwnerMismatch  ScopeMissing
      ResourceExhausted      Overloaded  TooLarge  WatchTooSlow
      RevisionCompacted
      Unavailable            StoreUnavailable  SchemaTooNew  ShuttingDown  SignInUnavailable
      StateCorrupt
      InternalError
      Unimplemented
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import grpc


@dataclass(frozen=True, slots=True)
class Violation:
    """One field that is bad, or one rule that refused.

    name: the field's path ("items[2].uri") or the rule's name ("entitled").
    subject: what the rule refused, such as the target's agent id; empty for a field.
    detail: what is wrong, with which value, and what to do.
    """

    name: str
    subject: str
    detail: str


class RoutingError(Exception):
    """A call that failed: the base of all the errors here, and what an unknown code is.

    code: the gRPC status code. reason: the reason of the contract, such as "HANDOFF_REFUSED"; empty
    where the answer carried none, as when nobody answered. message: what, which value, what to do;
    its wording is not part of the contract. metadata: the message's values again, for programs;
    which keys each reason has is said in ErrorReason. violations: every bad field, or every rule
    that refused. retry_after: how long to wait before a repeat makes sense; None where the service
    did not say. method: such as "Route". request_id: the request's, also where the client made it;
    empty for reads. attempts: how often the call was sent, 1 or more.
    """

    def __init__(
        self,
        message: str,
        *,
        code: grpc.StatusCode,
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
        violations: Sequence[Violation] = (),
        retry_after: timedelta | None = None,
        method: str = "",
        request_id: str = "",
        attempts: int = 1,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.reason = reason
        self.metadata: Mapping[str, str] = dict(metadata or {})
        self.violations = tuple(violations)
        self.retry_after = retry_after
        self.method = method
        self.request_id = request_id
        self.attempts = attempts

    def __reduce__(self) -> tuple[Any, ...]:
        # By default only the positional arguments would be carried to another process.
        fields = {name: value for name, value in vars(self).items() if name != "message"}
        notes = fields.pop("__notes__", None)
        return _rebuilt, (type(self), self.message, fields, notes)

    def _number(self, key: str) -> int | None:
        """Return a whole number of the metadata, None where it is missing."""
        value = self.metadata.get(key, "")
        return int(value) if value.isascii() and value.isdecimal() else None


def _rebuilt(
    kind: type[RoutingError], message: str, fields: dict[str, Any], notes: list[str] | None
) -> RoutingError:
    """Return an error as it was before it was pickled or copied."""
    error = kind(message, **fields)
    for note in notes or ():
        error.add_note(note)
    return error


class InvalidRequest(RoutingError):
    """INVALID_ARGUMENT: the same request can never succeed."""


class MalformedRequest(InvalidRequest):
    """The bytes are no such request: client and server use different contracts."""


class InvalidField(InvalidRequest):
    """Fields are missing, too long, out of range, or not of their form; violations has them all."""

    @property
    def fields(self) -> tuple[str, ...]:
        """The paths of the bad fields, such as "task_id" or "items[2].uri"."""
        return tuple(violation.name for violation in self.violations)


class NotFound(RoutingError):
    """NOT_FOUND: what the request names is not there."""


class UnknownSession(NotFound):
    """The tenant has no such session; it begins with its first route() or set_active_agent()."""

    @property
    def session_id(self) -> str:
        """The session that was asked for."""
        return self.metadata.get("session_id", "")


class UnknownAgent(NotFound):
    """The registry has no such agent; list_agents() names those it has."""

    @property
    def agent_id(self) -> str:
        """The agent that was asked for."""
        return self.metadata.get("agent_id", "")


class UnknownTask(NotFound):
    """The session has no such task."""

    @property
    def task_id(self) -> str:
        """The task that was asked for."""
        return self.metadata.get("task_id", "")


class UnknownRequest(NotFound):
    """The session dispatched no such request: also what completing a degraded decision is.

    The service never saw a message that was routed while it was away: route it again under the same
    request_id, then complete it.
    """


class UnknownSuggestion(NotFound):
    """The suggestion or quick reply is not open any more; send the message without it."""


class PreconditionFailed(RoutingError):
    """FAILED_PRECONDITION: the session does not stand so that this could be done."""


class HandoffRefused(PreconditionFailed):
    """Handoff rules refused; violations names them all, with remedies. The turn stays open."""

    @property
    def rules(self) -> tuple[str, ...]:
        """The names of the rules that refused, in the order of their evaluation."""
        return tuple(violation.name for violation in self.violations)

    @property
    def agent_id(self) -> str:
        """The target that was refused."""
        return self.metadata.get("agent_id", "")

    @property
    def from_agent_id(self) -> str:
        """The agent that wanted to hand over."""
        return self.metadata.get("from_agent_id", "")


class RequestNotOpen(PreconditionFailed):
    """The request was already completed or decided otherwise; what came first stands."""


class TaskNotPaused(PreconditionFailed):
    """The task does not wait for an approval; somebody else may have decided."""


class TaskClosed(PreconditionFailed):
    """The task is completed, failed or cancelled; leave task_id empty for a new one."""


class TaskOpen(PreconditionFailed):
    """Another task of the session is open; leave task_id empty to go on with it."""

    @property
    def open_task_id(self) -> str:
        """The task that is open."""
        return self.metadata.get("open_task_id", "")


class TurnOpen(PreconditionFailed):
    """The message before is not answered yet, and the registry rejects a second one."""

    @property
    def open_request_id(self) -> str:
        """The request that is not answered yet."""
        return self.metadata.get("request_id", "")


class AgentUnavailable(PreconditionFailed):
    """The agent that would have to act is missing, disabled, or not allowed to this user."""


class SessionErased(PreconditionFailed):
    """The session's data were erased, and its id is not used again."""


class RegistryInvalid(PreconditionFailed):
    """The registry file has mistakes; the registry in force stays."""


class RevisionMismatch(RoutingError):
    """ABORTED: other writers came first, nothing was written; read status() and decide again."""

    @property
    def expected(self) -> int | None:
        """The revision that the request expected; None where it expected none."""
        return self._number("expected_revision")

    @property
    def actual(self) -> int | None:
        """The revision at which the session is."""
        return self._number("revision")


class RequestIdReused(RoutingError):
    """ALREADY_EXISTS: the request_id was used for a request with other content."""


class DeadlineExceeded(RoutingError):
    """DEADLINE_EXCEEDED: the call happened whole or not at all.

    A repeat with the same request_id, and more time, says which.
    """


class Unauthenticated(RoutingError):
    """UNAUTHENTICATED: no credential, or one that is malformed, expired, or for another service."""


class PermissionDenied(RoutingError):
    """PERMISSION_DENIED: the credential does not reach so far."""


class OwnerMismatch(PermissionDenied):
    """The session or task belongs to another user."""


class ScopeMissing(PermissionDenied):
    """The credential lacks a scope."""

    @property
    def scope(self) -> str:
        """The scope that is missing."""
        return self.metadata.get("scope", "")


class ResourceExhausted(RoutingError):
    """RESOURCE_EXHAUSTED: too much."""


class Overloaded(ResourceExhausted):
    """The server has more calls than it can answer, and did nothing; repeat after retry_after.

    code is CANCELLED or RESOURCE_EXHAUSTED, and reason empty, where it refused the call unread.
    """


class TooLarge(ResourceExhausted):
    """The request, or what it would make of the session, is larger than is ever accepted."""


class WatchTooSlow(ResourceExhausted):
    """A watcher read more slowly than changes came; watch again from the last revision seen."""

    @property
    def revision(self) -> int | None:
        """The last revision that was sent; None where a cursor says it."""
        return self._number("revision")


class RevisionCompacted(RoutingError):
    """OUT_OF_RANGE: the watch was to begin before the oldest change that is kept."""

    @property
    def oldest_revision(self) -> int | None:
        """The oldest revision that is kept."""
        return self._number("oldest_revision")


class Unavailable(RoutingError):
    """UNAVAILABLE: nobody answered, after all attempts. A change may still have been made."""


class StoreUnavailable(Unavailable):
    """The service's store cannot be reached, is busy for too long, or is full."""


class SchemaTooNew(Unavailable):
    """The session was written by a newer release than this replica's."""


class ShuttingDown(Unavailable):
    """The server is about to stop."""


class SignInUnavailable(Unavailable):
    """The server has no key of its identity provider yet, and cannot check any credential."""


class StateCorrupt(RoutingError):
    """DATA_LOSS: what the store holds of this session cannot be read; others are not affected."""

    @property
    def error_id(self) -> str:
        """The id under which the server's log has the cause."""
        return self.metadata.get("error_id", "")


class InternalError(RoutingError):
    """INTERNAL: a mistake in the service."""

    @property
    def error_id(self) -> str:
        """The id under which the server's log has the cause."""
        return self.metadata.get("error_id", "")


class Unimplemented(RoutingError):
    """UNIMPLEMENTED: this server does not have the RPC, or the feature a field asks for."""


ERRORS_BY_REASON: Final[Mapping[str, type[RoutingError]]] = {
    "MALFORMED_REQUEST": MalformedRequest,
    "INVALID_FIELD": InvalidField,
    "UNKNOWN_SESSION": UnknownSession,
    "UNKNOWN_AGENT": UnknownAgent,
    "UNKNOWN_TASK": UnknownTask,
    "UNKNOWN_REQUEST": UnknownRequest,
    "UNKNOWN_SUGGESTION": UnknownSuggestion,
    "HANDOFF_REFUSED": HandoffRefused,
    "REQUEST_NOT_OPEN": RequestNotOpen,
    "TASK_NOT_PAUSED": TaskNotPaused,
    "TASK_CLOSED": TaskClosed,
    "TASK_OPEN": TaskOpen,
    "TURN_OPEN": TurnOpen,
    "AGENT_UNAVAILABLE": AgentUnavailable,
    "SESSION_ERASED": SessionErased,
    "REVISION_MISMATCH": RevisionMismatch,
    "REQUEST_ID_REUSED": RequestIdReused,
    "DEADLINE": DeadlineExceeded,
    "UNAUTHENTICATED": Unauthenticated,
    "OWNER_MISMATCH": OwnerMismatch,
    "SCOPE_MISSING": ScopeMissing,
    "OVERLOADED": Overloaded,
    "TOO_LARGE": TooLarge,
    "WATCH_TOO_SLOW": WatchTooSlow,
    "REVISION_COMPACTED": RevisionCompacted,
    "STORE_UNAVAILABLE": StoreUnavailable,
    "SCHEMA_TOO_NEW": SchemaTooNew,
    "STATE_CORRUPT": StateCorrupt,
    "INTERNAL": InternalError,
    "NOT_IMPLEMENTED": Unimplemented,
    "SHUTTING_DOWN": ShuttingDown,
    "REGISTRY_INVALID": RegistryInvalid,
    "SIGN_IN_UNAVAILABLE": SignInUnavailable,
}
"""Every reason of the contract."""

ERRORS_BY_CODE: Final[Mapping[grpc.StatusCode, type[RoutingError]]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.FAILED_PRECONDITION: PreconditionFailed,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDenied,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhausted,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.INTERNAL: InternalError,
    grpc.StatusCode.UNIMPLEMENTED: Unimplemented,
}
"""The family of a reason that is not known here. Codes that are not in it are RoutingError."""
