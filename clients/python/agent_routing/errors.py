"""What can go wrong with a call, as exceptions.

Generated from error_reason.proto by scripts/make_errors.py. Do not edit.

Catch a family or a reason, and never parse a message. A reason that this release does not know is
raised as the family of its code.

    RoutingError
      InvalidRequest         MalformedRequest  InvalidField
      NotFound               UnknownSession  UnknownAgent  UnknownTask  UnknownRequest
                             UnknownSuggestion  UnknownReplay
      PreconditionFailed     HandoffRefused  RequestNotOpen  TaskNotPaused  TaskClosed  TaskOpen
                             TurnOpen  AgentUnavailable  SessionErased  RegistryInvalid
                             LeaseLost  StoreFormat  ApprovalDecided  Claimed  NothingToClaim
                             TasksOpen  ReplayRunning  RegistryReadOnly
      RevisionMismatch
      StateChanged
      RequestIdReused
      DeadlineExceeded
      Unauthenticated
      PermissionDenied       OwnerMismatch  ScopeMissing  ApproverRefused
      ResourceExhausted      Overloaded  TooLarge  WatchTooSlow
      RevisionCompacted
      Unavailable            StoreUnavailable  SchemaTooNew  ShuttingDown  SignInUnavailable
      StateCorrupt
      InternalError
      Unimplemented
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import grpc

from agent_routing.routing_error import RoutingError, Violation

__all__ = [
    "ERRORS_BY_CODE",
    "ERRORS_BY_REASON",
    "AgentUnavailable",
    "ApprovalDecided",
    "ApproverRefused",
    "Claimed",
    "DeadlineExceeded",
    "HandoffRefused",
    "InternalError",
    "InvalidField",
    "InvalidRequest",
    "LeaseLost",
    "MalformedRequest",
    "NotFound",
    "NothingToClaim",
    "Overloaded",
    "OwnerMismatch",
    "PermissionDenied",
    "PreconditionFailed",
    "RegistryInvalid",
    "RegistryReadOnly",
    "ReplayRunning",
    "RequestIdReused",
    "RequestNotOpen",
    "ResourceExhausted",
    "RevisionCompacted",
    "RevisionMismatch",
    "RoutingError",
    "SchemaTooNew",
    "ScopeMissing",
    "SessionErased",
    "ShuttingDown",
    "SignInUnavailable",
    "StateChanged",
    "StateCorrupt",
    "StoreFormat",
    "StoreUnavailable",
    "TaskClosed",
    "TaskNotPaused",
    "TaskOpen",
    "TasksOpen",
    "TooLarge",
    "TurnOpen",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "UnknownAgent",
    "UnknownReplay",
    "UnknownRequest",
    "UnknownSession",
    "UnknownSuggestion",
    "UnknownTask",
    "Violation",
    "WatchTooSlow",
]


class InvalidRequest(RoutingError):
    """INVALID_ARGUMENT: the same request can never succeed."""


class MalformedRequest(InvalidRequest):
    """The bytes are not a valid message of the request's type, or a text in it is not UTF-8.

    Code INVALID_ARGUMENT. Remedy: Generate the client from this contract, and send text as UTF-8.
    """


class InvalidField(InvalidRequest):
    """A field is missing, too long, out of range, or not in its format.

    BadRequest names every bad field.

    Code INVALID_ARGUMENT. Remedy: Fix all the named fields. The same request can never succeed.
    """

    @property
    def fields(self) -> tuple[str, ...]:
        """The paths of the bad fields, such as "task_id" or "items[2].uri"."""
        return tuple(violation.name for violation in self.violations)


class NotFound(RoutingError):
    """NOT_FOUND: something that the request names does not exist."""


class UnknownSession(NotFound):
    """The tenant has no such session, or the session was purged.

    Code NOT_FOUND. Remedy: Check the id and the tenant. A session begins with its first Route or
    SetActiveAgent.
    """

    @property
    def session_id(self) -> str:
        """The session of the request."""
        return self.metadata.get("session_id", "")


class UnknownAgent(NotFound):
    """The registry has no such agent.

    Code NOT_FOUND. Remedy: Use an id that ListAgents returns.
    """

    @property
    def agent_id(self) -> str:
        """The agent of the request."""
        return self.metadata.get("agent_id", "")


class UnknownTask(NotFound):
    """The session has no such task; if the request names no session, the tenant has none.

    Code NOT_FOUND. Remedy: Use a task_id from an answer of Route or from ListTasks.
    """

    @property
    def task_id(self) -> str:
        """The task of the request."""
        return self.metadata.get("task_id", "")


class UnknownRequest(NotFound):
    """The session has dispatched no such request.

    Code NOT_FOUND. Remedy: Complete the request_id of a Dispatch of this session; Status lists the
    open ones. If the client routed the message by itself while the service was away, route it again
    under the same request_id, then complete it.
    """


class UnknownSuggestion(NotFound):
    """The suggestion or quick reply is not open.

    It was never made, it was accepted or declined, or it ended when the active agent changed.

    Code NOT_FOUND. Remedy: Route the message without it.
    """


class UnknownReplay(NotFound):
    """This server has no such replay.

    It may have been restarted, or another replica has the replay.

    Code NOT_FOUND. Remedy: Ask the replica that started it, or start it again.
    """


class PreconditionFailed(RoutingError):
    """FAILED_PRECONDITION: the session is in a state that does not allow the call."""


class HandoffRefused(PreconditionFailed):
    """Rules refused the handoff.

    PreconditionFailure names every rule that refused: type is the name of the rule, subject the
    target's id. The turn stays open and the request_id is not used up. After three refusals in a
    turn, the home agent is the only target left to that turn.

    Code FAILED_PRECONDITION. Remedy: Do what each violation says; or hand over to another agent, or
    to the home agent, which is always a legal target.
    """

    @property
    def rules(self) -> tuple[str, ...]:
        """The names of the rules that refused, in the order of their evaluation."""
        return tuple(violation.name for violation in self.violations)

    @property
    def agent_id(self) -> str:
        """The target of the handoff."""
        return self.metadata.get("agent_id", "")

    @property
    def from_agent_id(self) -> str:
        """The agent that wanted to hand over."""
        return self.metadata.get("from_agent_id", "")


class RequestNotOpen(PreconditionFailed):
    """The request was already completed with another answer, or decided the other way.

    Code FAILED_PRECONDITION. Remedy: Nothing needs to be done: the first answer stands. Show that
    one.
    """


class TaskNotPaused(PreconditionFailed):
    """The task is not waiting for an approval.

    Code FAILED_PRECONDITION. Remedy: Read Status: another caller may have decided already.
    """


class TaskClosed(PreconditionFailed):
    """The task is completed, failed or cancelled.

    Code FAILED_PRECONDITION. Remedy: Leave task_id empty, or send a new one.
    """


class TaskOpen(PreconditionFailed):
    """Another task of the session is open.

    Code FAILED_PRECONDITION. Remedy: Leave task_id empty to continue the open task, or clear with
    CLEAR_SCOPE_SESSION first.
    """

    @property
    def open_task_id(self) -> str:
        """The task that is open."""
        return self.metadata.get("open_task_id", "")


class TurnOpen(PreconditionFailed):
    """A message arrived while a turn is open.

    The registry rejects that (double_text: reject), too many messages of the session wait, or too
    many turns of the user wait for agents.

    Code FAILED_PRECONDITION. Remedy: Send the message after the answer to that turn.
    """

    @property
    def open_request_id(self) -> str:
        """The request that is not answered."""
        return self.metadata.get("request_id", "")


class AgentUnavailable(PreconditionFailed):
    """The agent that must act is missing, disabled, or not allowed for this user.

    Code FAILED_PRECONDITION. Remedy: Enable the agent, or clear the session. A paused task stays
    paused.
    """


class SessionErased(PreconditionFailed):
    """The session's data were erased; its id is not used again.

    Code FAILED_PRECONDITION. Remedy: Begin a session with another id.
    """


class RegistryInvalid(PreconditionFailed):
    """The registry file has mistakes; the registry in force stays.

    PreconditionFailure names every mistake.

    Code FAILED_PRECONDITION. Remedy: Correct each mistake as its violation says, then reload.
    """


class LeaseLost(PreconditionFailed):
    """The lease on a turn from an inbox is another worker's by now, or the turn was moved.

    Code FAILED_PRECONDITION. Remedy: Stop working on the turn: another worker has it, or it needs
    no answer any more.
    """


class StoreFormat(PreconditionFailed):
    """The store's format is too old for what was asked for: an older release may be serving.

    This release stores everything in format 2, which it needs at start, so it does not answer this;
    0.2 does.

    Code FAILED_PRECONDITION. Remedy: Raise the store's format once no older replica is left, or
    leave the feature out.
    """


class ApprovalDecided(PreconditionFailed):
    """The approval was decided already, and the other way.

    Code FAILED_PRECONDITION. Remedy: Nothing needs to be done: show which decision stands.
    """


class Claimed(PreconditionFailed):
    """Another person has claimed the conversation.

    Code FAILED_PRECONDITION. Remedy: Leave the conversation to that person, or take it over:
    ClaimTurn with take_over.
    """


class NothingToClaim(PreconditionFailed):
    """The conversation is not with the agent for which it was to be claimed.

    Code FAILED_PRECONDITION. Remedy: Read the inbox again: the conversation was answered or handed
    on.
    """


class TasksOpen(PreconditionFailed):
    """As many tasks as can be are parked, and the message names one more (tasks: new).

    Code FAILED_PRECONDITION. Remedy: Finish or cancel a parked task first, or leave task_id empty
    to join the open one.
    """


class ReplayRunning(PreconditionFailed):
    """A replay of the tenant runs on this server already.

    Code FAILED_PRECONDITION. Remedy: Watch the replay, or cancel it and start again.
    """


class RegistryReadOnly(PreconditionFailed):
    """The server may not replace its registry file.

    Code FAILED_PRECONDITION. Remedy: Change the file where it comes from, such as a ConfigMap or a
    repository, then reload.
    """


class RevisionMismatch(RoutingError):
    """The session is not at expected_revision, or other writers came first too often.

    Nothing was written.

    Code ABORTED. Remedy: Read Status and decide again. A request without an expected_revision can
    be repeated with the same request_id.
    """

    @property
    def expected(self) -> int | None:
        """The revision that the request expected; None if the error does not say."""
        return self._number("expected_revision")

    @property
    def actual(self) -> int | None:
        """The revision of the session; None if the error does not say."""
        return self._number("revision")


class StateChanged(RoutingError):
    """What an operator's act is about has changed since it was read.

    Nothing was done.

    Code ABORTED. Remedy: Read the state again, or try the act again with validate_only, and decide
    again.
    """


class RequestIdReused(RoutingError):
    """The request_id was already used in this session for a request with other content.

    Code ALREADY_EXISTS. Remedy: Send new content under a new request_id, and the old content under
    the old one.
    """


class DeadlineExceeded(RoutingError):
    """The caller's deadline passed, or was too near to begin.

    The call happened whole or not at all.

    Code DEADLINE_EXCEEDED, retryable. Remedy: Repeat with the same request_id and a longer
    deadline: the answer says whether the call happened.
    """


class Unauthenticated(RoutingError):
    """The call has no credential, or one that is malformed, expired, or for another service.

    A watch or stream also ends with this when its credential expires.

    Code UNAUTHENTICATED. Remedy: Sign in again, and send the token as authorization: Bearer.
    """


class PermissionDenied(RoutingError):
    """PERMISSION_DENIED: the credential does not allow the call."""


class OwnerMismatch(PermissionDenied):
    """The session or task belongs to another user, or user_id is not the credential's.

    The owner is not named.

    Code PERMISSION_DENIED. Remedy: Sign in as the owner, or use one of your own sessions.
    """


class ScopeMissing(PermissionDenied):
    """The credential lacks a scope: for an RPC, another tenant, another user, or an initiator.

    Code PERMISSION_DENIED. Remedy: Use a credential that has the scope.
    """

    @property
    def scope(self) -> str:
        """The scope that the credential lacks."""
        return self.metadata.get("scope", "")


class ApproverRefused(PermissionDenied):
    """The registry's rule for approvals does not let this caller decide.

    Code PERMISSION_DENIED. Remedy: Let another person decide, or sign in with a credential that has
    the role.
    """


class ResourceExhausted(RoutingError):
    """RESOURCE_EXHAUSTED: a limit was exceeded."""


class Overloaded(ResourceExhausted):
    """The server has too many calls or streams, or this caller has more than its share.

    Nothing was done. RetryInfo gives the delay. A call that was refused before it was read has only
    a code, RESOURCE_EXHAUSTED or CANCELLED, and no details.

    Code RESOURCE_EXHAUSTED, retryable. Remedy: Repeat after the delay, with the same request_id.
    """


class TooLarge(ResourceExhausted):
    """The request, or the change that it would make, is larger than is ever accepted.

    Each field may be within its limits.

    Code RESOURCE_EXHAUSTED. Remedy: Send less: move large items to a file store and send their uri.
    Waiting does not help.
    """


class WatchTooSlow(ResourceExhausted):
    """A watcher reads more slowly than changes arrive, and was disconnected.

    RetryInfo gives the delay.

    Code RESOURCE_EXHAUSTED, retryable. Remedy: Watch again from there.
    """

    @property
    def revision(self) -> int | None:
        """The last revision sent; None if the error does not say."""
        return self._number("revision")


class RevisionCompacted(RoutingError):
    """The watch would begin before the oldest change that is kept.

    Code OUT_OF_RANGE. Remedy: Read Status, then watch from its revision.
    """

    @property
    def oldest_revision(self) -> int | None:
        """The oldest revision kept; None if the error does not say."""
        return self._number("oldest_revision")


class Unavailable(RoutingError):
    """UNAVAILABLE: the service did not answer. A change may still have been made."""


class StoreUnavailable(Unavailable):
    """The store cannot be reached, is busy for too long, or is full.

    The change may have been stored all the same. RetryInfo gives the delay.

    Code UNAVAILABLE, retryable. Remedy: Repeat with the same request_id.
    """


class SchemaTooNew(Unavailable):
    """The session was written by a newer release than this replica's.

    Code UNAVAILABLE, retryable. Remedy: Repeat: another replica may be newer. Finish the upgrade.
    """


class ShuttingDown(Unavailable):
    """The server is about to stop.

    RetryInfo gives the delay.

    Code UNAVAILABLE, retryable. Remedy: Repeat on another replica, with the same request_id.
    """


class SignInUnavailable(Unavailable):
    """The server has no key of its identity provider yet, and cannot check credentials.

    RetryInfo gives the delay.

    Code UNAVAILABLE, retryable. Remedy: Repeat with the same request_id. The log tells the operator
    why the keys cannot be fetched.
    """


class StateCorrupt(RoutingError):
    """What the store holds of this session cannot be read.

    Other sessions are not affected.

    Code DATA_LOSS. Remedy: Restore the session from a backup, or begin another one.
    """

    @property
    def error_id(self) -> str:
        """The id under which the server's log has the cause."""
        return self.metadata.get("error_id", "")


class InternalError(RoutingError):
    """The service made a mistake.

    Code INTERNAL. Remedy: Report it with its error id.
    """

    @property
    def error_id(self) -> str:
        """The id under which the server's log has the cause."""
        return self.metadata.get("error_id", "")


class Unimplemented(RoutingError):
    """This server does not have the RPC, or the feature that a field asks for.

    Code UNIMPLEMENTED. Remedy: Use a server that has it.
    """


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
    "LEASE_LOST": LeaseLost,
    "STORE_FORMAT": StoreFormat,
    "APPROVAL_DECIDED": ApprovalDecided,
    "APPROVER_REFUSED": ApproverRefused,
    "CLAIMED": Claimed,
    "NOTHING_TO_CLAIM": NothingToClaim,
    "TASKS_OPEN": TasksOpen,
    "REPLAY_RUNNING": ReplayRunning,
    "UNKNOWN_REPLAY": UnknownReplay,
    "REGISTRY_READ_ONLY": RegistryReadOnly,
    "STATE_CHANGED": StateChanged,
}
"""Every reason of the contract."""

ERRORS_BY_CODE: Final[Mapping[grpc.StatusCode, type[RoutingError]]] = {
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.FAILED_PRECONDITION: PreconditionFailed,
    grpc.StatusCode.INTERNAL: InternalError,
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDenied,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhausted,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.UNIMPLEMENTED: Unimplemented,
}
"""The class of an unknown reason, by code; RoutingError for other codes."""
