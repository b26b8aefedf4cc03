// Generated from error_reason.proto by scripts/make_errors.py. Do not edit.
//
// What can go wrong with a call. Catch a family or a reason, and never parse a message. A reason
// that this release does not know is thrown as the family of its code.
//
//   RoutingError
//     InvalidRequest         MalformedRequest  InvalidField
//     NotFound               UnknownSession  UnknownAgent  UnknownTask  UnknownRequest
//                            UnknownSuggestion  UnknownReplay
//     PreconditionFailed     HandoffRefused  RequestNotOpen  TaskNotPaused  TaskClosed  TaskOpen
//                            TurnOpen  AgentUnavailable  SessionErased  RegistryInvalid
//                            LeaseLost  StoreFormat  ApprovalDecided  Claimed  NothingToClaim
//                            TasksOpen  ReplayRunning  RegistryReadOnly
//     RevisionMismatch
//     StateChanged
//     RequestIdReused
//     DeadlineExceeded
//     Unauthenticated
//     PermissionDenied       OwnerMismatch  ScopeMissing  ApproverRefused
//     ResourceExhausted      Overloaded  TooLarge  WatchTooSlow
//     RevisionCompacted
//     Unavailable            StoreUnavailable  SchemaTooNew  ShuttingDown  SignInUnavailable
//     StateCorrupt
//     InternalError
//     Unimplemented

import { Code } from "@connectrpc/connect";
import { RoutingError, type RoutingErrorClass } from "./routingError.js";

export * from "./routingError.js";

/** INVALID_ARGUMENT: the same request can never succeed. */
export class InvalidRequest extends RoutingError {}

/**
 * The bytes are not a valid message of the request's type, or a text in it is not UTF-8.
 *
 * Code INVALID_ARGUMENT. Remedy: Generate the client from this contract, and send text as UTF-8.
 */
export class MalformedRequest extends InvalidRequest {}

/**
 * A field is missing, too long, out of range, or not in its format. BadRequest names every bad
 * field.
 *
 * Code INVALID_ARGUMENT. Remedy: Fix all the named fields. The same request can never succeed.
 */
export class InvalidField extends InvalidRequest {
  /** The paths of the bad fields, such as "task_id" or "items[2].uri". */
  get fields(): string[] {
    return this.violations.map((violation) => violation.name);
  }
}

/** NOT_FOUND: something that the request names does not exist. */
export class NotFound extends RoutingError {}

/**
 * The tenant has no such session, or the session was purged.
 *
 * Code NOT_FOUND. Remedy: Check the id and the tenant. A session begins with its first Route or
 * SetActiveAgent.
 */
export class UnknownSession extends NotFound {
  /** The session of the request. */
  override get sessionId(): string {
    return this.text("session_id");
  }
}

/**
 * The registry has no such agent.
 *
 * Code NOT_FOUND. Remedy: Use an id that ListAgents returns.
 */
export class UnknownAgent extends NotFound {
  /** The agent of the request. */
  get agentId(): string {
    return this.text("agent_id");
  }
}

/**
 * The session has no such task; if the request names no session, the tenant has none.
 *
 * Code NOT_FOUND. Remedy: Use a task_id from an answer of Route or from ListTasks.
 */
export class UnknownTask extends NotFound {
  /** The task of the request. */
  get taskId(): string {
    return this.text("task_id");
  }
}

/**
 * The session has dispatched no such request.
 *
 * Code NOT_FOUND. Remedy: Complete the request_id of a Dispatch of this session; Status lists the
 * open ones. If the client routed the message by itself while the service was away, route it again
 * under the same request_id, then complete it.
 */
export class UnknownRequest extends NotFound {}

/**
 * The suggestion or quick reply is not open. It was never made, it was accepted or declined, or it
 * ended when the active agent changed.
 *
 * Code NOT_FOUND. Remedy: Route the message without it.
 */
export class UnknownSuggestion extends NotFound {}

/**
 * This server has no such replay. It may have been restarted, or another replica has the replay.
 *
 * Code NOT_FOUND. Remedy: Ask the replica that started it, or start it again.
 */
export class UnknownReplay extends NotFound {}

/** FAILED_PRECONDITION: the session is in a state that does not allow the call. */
export class PreconditionFailed extends RoutingError {}

/**
 * Rules refused the handoff. PreconditionFailure names every rule that refused: type is the name of
 * the rule, subject the target's id. The turn stays open and the request_id is not used up. After
 * three refusals in a turn, the home agent is the only target left to that turn.
 *
 * Code FAILED_PRECONDITION. Remedy: Do what each violation says; or hand over to another agent, or
 * to the home agent, which is always a legal target.
 */
export class HandoffRefused extends PreconditionFailed {
  /** The names of the rules that refused, in the order of their evaluation. */
  get rules(): string[] {
    return this.violations.map((violation) => violation.name);
  }

  /** The target of the handoff. */
  get agentId(): string {
    return this.text("agent_id");
  }

  /** The agent that wanted to hand over. */
  get fromAgentId(): string {
    return this.text("from_agent_id");
  }
}

/**
 * The request was already completed with another answer, or decided the other way.
 *
 * Code FAILED_PRECONDITION. Remedy: Nothing needs to be done: the first answer stands. Show that
 * one.
 */
export class RequestNotOpen extends PreconditionFailed {}

/**
 * The task is not waiting for an approval.
 *
 * Code FAILED_PRECONDITION. Remedy: Read Status: another caller may have decided already.
 */
export class TaskNotPaused extends PreconditionFailed {}

/**
 * The task is completed, failed or cancelled.
 *
 * Code FAILED_PRECONDITION. Remedy: Leave task_id empty, or send a new one.
 */
export class TaskClosed extends PreconditionFailed {}

/**
 * Another task of the session is open.
 *
 * Code FAILED_PRECONDITION. Remedy: Leave task_id empty to continue the open task, or clear with
 * CLEAR_SCOPE_SESSION first.
 */
export class TaskOpen extends PreconditionFailed {
  /** The task that is open. */
  get openTaskId(): string {
    return this.text("open_task_id");
  }
}

/**
 * A message arrived while a turn is open. The registry rejects that (double_text: reject), too many
 * messages of the session wait, or too many turns of the user wait for agents.
 *
 * Code FAILED_PRECONDITION. Remedy: Send the message after the answer to that turn.
 */
export class TurnOpen extends PreconditionFailed {
  /** The request that is not answered. */
  get openRequestId(): string {
    return this.text("request_id");
  }
}

/**
 * The agent that must act is missing, disabled, or not allowed for this user.
 *
 * Code FAILED_PRECONDITION. Remedy: Enable the agent, or clear the session. A paused task stays
 * paused.
 */
export class AgentUnavailable extends PreconditionFailed {}

/**
 * The session's data were erased; its id is not used again.
 *
 * Code FAILED_PRECONDITION. Remedy: Begin a session with another id.
 */
export class SessionErased extends PreconditionFailed {}

/**
 * The registry file has mistakes; the registry in force stays. PreconditionFailure names every
 * mistake.
 *
 * Code FAILED_PRECONDITION. Remedy: Correct each mistake as its violation says, then reload.
 */
export class RegistryInvalid extends PreconditionFailed {}

/**
 * The lease on a turn from an inbox is another worker's by now, or the turn was moved.
 *
 * Code FAILED_PRECONDITION. Remedy: Stop working on the turn: another worker has it, or it needs no
 * answer any more.
 */
export class LeaseLost extends PreconditionFailed {}

/**
 * The store's format is too old for what was asked for: an older release may be serving. This
 * release stores everything in format 2, which it needs at start, so it does not answer this; 0.2
 * does.
 *
 * Code FAILED_PRECONDITION. Remedy: Raise the store's format once no older replica is left, or
 * leave the feature out.
 */
export class StoreFormat extends PreconditionFailed {}

/**
 * The approval was decided already, and the other way.
 *
 * Code FAILED_PRECONDITION. Remedy: Nothing needs to be done: show which decision stands.
 */
export class ApprovalDecided extends PreconditionFailed {}

/**
 * Another person has claimed the conversation.
 *
 * Code FAILED_PRECONDITION. Remedy: Leave the conversation to that person, or take it over:
 * ClaimTurn with take_over.
 */
export class Claimed extends PreconditionFailed {}

/**
 * The conversation is not with the agent for which it was to be claimed.
 *
 * Code FAILED_PRECONDITION. Remedy: Read the inbox again: the conversation was answered or handed
 * on.
 */
export class NothingToClaim extends PreconditionFailed {}

/**
 * As many tasks as can be are parked, and the message names one more (tasks: new).
 *
 * Code FAILED_PRECONDITION. Remedy: Finish or cancel a parked task first, or leave task_id empty to
 * join the open one.
 */
export class TasksOpen extends PreconditionFailed {}

/**
 * A replay of the tenant runs on this server already.
 *
 * Code FAILED_PRECONDITION. Remedy: Watch the replay, or cancel it and start again.
 */
export class ReplayRunning extends PreconditionFailed {}

/**
 * The server may not replace its registry file.
 *
 * Code FAILED_PRECONDITION. Remedy: Change the file where it comes from, such as a ConfigMap or a
 * repository, then reload.
 */
export class RegistryReadOnly extends PreconditionFailed {}

/**
 * The session is not at expected_revision, or other writers came first too often. Nothing was
 * written.
 *
 * Code ABORTED. Remedy: Read Status and decide again. A request without an expected_revision can be
 * repeated with the same request_id.
 */
export class RevisionMismatch extends RoutingError {
  /** The revision that the request expected; undefined if the error does not say. */
  get expected(): bigint | undefined {
    return this.revisionAt("expected_revision");
  }

  /** The revision of the session; undefined if the error does not say. */
  get actual(): bigint | undefined {
    return this.revisionAt("revision");
  }
}

/**
 * What an operator's act is about has changed since it was read. Nothing was done.
 *
 * Code ABORTED. Remedy: Read the state again, or try the act again with validate_only, and decide
 * again.
 */
export class StateChanged extends RoutingError {}

/**
 * The request_id was already used in this session for a request with other content.
 *
 * Code ALREADY_EXISTS. Remedy: Send new content under a new request_id, and the old content under
 * the old one.
 */
export class RequestIdReused extends RoutingError {}

/**
 * The caller's deadline passed, or was too near to begin. The call happened whole or not at all.
 *
 * Code DEADLINE_EXCEEDED, retryable. Remedy: Repeat with the same request_id and a longer deadline:
 * the answer says whether the call happened.
 */
export class DeadlineExceeded extends RoutingError {}

/**
 * The call has no credential, or one that is malformed, expired, or for another service. A watch or
 * stream also ends with this when its credential expires.
 *
 * Code UNAUTHENTICATED. Remedy: Sign in again, and send the token as authorization: Bearer.
 */
export class Unauthenticated extends RoutingError {}

/** PERMISSION_DENIED: the credential does not allow the call. */
export class PermissionDenied extends RoutingError {}

/**
 * The session or task belongs to another user, or user_id is not the credential's. The owner is not
 * named.
 *
 * Code PERMISSION_DENIED. Remedy: Sign in as the owner, or use one of your own sessions.
 */
export class OwnerMismatch extends PermissionDenied {}

/**
 * The credential lacks a scope: for an RPC, another tenant, another user, or an initiator.
 *
 * Code PERMISSION_DENIED. Remedy: Use a credential that has the scope.
 */
export class ScopeMissing extends PermissionDenied {
  /** The scope that the credential lacks. */
  get scope(): string {
    return this.text("scope");
  }
}

/**
 * The registry's rule for approvals does not let this caller decide.
 *
 * Code PERMISSION_DENIED. Remedy: Let another person decide, or sign in with a credential that has
 * the role.
 */
export class ApproverRefused extends PermissionDenied {}

/** RESOURCE_EXHAUSTED: a limit was exceeded. */
export class ResourceExhausted extends RoutingError {}

/**
 * The server has too many calls or streams, or this caller has more than its share. Nothing was
 * done. RetryInfo gives the delay. A call that was refused before it was read has only a code,
 * RESOURCE_EXHAUSTED or CANCELLED, and no details.
 *
 * Code RESOURCE_EXHAUSTED, retryable. Remedy: Repeat after the delay, with the same request_id.
 */
export class Overloaded extends ResourceExhausted {}

/**
 * The request, or the change that it would make, is larger than is ever accepted. Each field may be
 * within its limits.
 *
 * Code RESOURCE_EXHAUSTED. Remedy: Send less: move large items to a file store and send their uri.
 * Waiting does not help.
 */
export class TooLarge extends ResourceExhausted {}

/**
 * A watcher reads more slowly than changes arrive, and was disconnected. RetryInfo gives the delay.
 *
 * Code RESOURCE_EXHAUSTED, retryable. Remedy: Watch again from there.
 */
export class WatchTooSlow extends ResourceExhausted {
  /** The last revision sent; undefined if the error does not say. */
  get revision(): bigint | undefined {
    return this.revisionAt("revision");
  }
}

/**
 * The watch would begin before the oldest change that is kept.
 *
 * Code OUT_OF_RANGE. Remedy: Read Status, then watch from its revision.
 */
export class RevisionCompacted extends RoutingError {
  /** The oldest revision kept; undefined if the error does not say. */
  get oldestRevision(): bigint | undefined {
    return this.revisionAt("oldest_revision");
  }
}

/** UNAVAILABLE: the service did not answer. A change may still have been made. */
export class Unavailable extends RoutingError {}

/**
 * The store cannot be reached, is busy for too long, or is full. The change may have been stored
 * all the same. RetryInfo gives the delay.
 *
 * Code UNAVAILABLE, retryable. Remedy: Repeat with the same request_id.
 */
export class StoreUnavailable extends Unavailable {}

/**
 * The session was written by a newer release than this replica's.
 *
 * Code UNAVAILABLE, retryable. Remedy: Repeat: another replica may be newer. Finish the upgrade.
 */
export class SchemaTooNew extends Unavailable {}

/**
 * The server is about to stop. RetryInfo gives the delay.
 *
 * Code UNAVAILABLE, retryable. Remedy: Repeat on another replica, with the same request_id.
 */
export class ShuttingDown extends Unavailable {}

/**
 * The server has no key of its identity provider yet, and cannot check credentials. RetryInfo gives
 * the delay.
 *
 * Code UNAVAILABLE, retryable. Remedy: Repeat with the same request_id. The log tells the operator
 * why the keys cannot be fetched.
 */
export class SignInUnavailable extends Unavailable {}

/**
 * What the store holds of this session cannot be read. Other sessions are not affected.
 *
 * Code DATA_LOSS. Remedy: Restore the session from a backup, or begin another one.
 */
export class StateCorrupt extends RoutingError {
  /** The id under which the server's log has the cause. */
  get errorId(): string {
    return this.text("error_id");
  }
}

/**
 * The service made a mistake.
 *
 * Code INTERNAL. Remedy: Report it with its error id.
 */
export class InternalError extends RoutingError {
  /** The id under which the server's log has the cause. */
  get errorId(): string {
    return this.text("error_id");
  }
}

/**
 * This server does not have the RPC, or the feature that a field asks for.
 *
 * Code UNIMPLEMENTED. Remedy: Use a server that has it.
 */
export class Unimplemented extends RoutingError {}

/** Every reason of the contract. */
export const ERRORS_BY_REASON: Readonly<Record<string, RoutingErrorClass>> = {
  MALFORMED_REQUEST: MalformedRequest,
  INVALID_FIELD: InvalidField,
  UNKNOWN_SESSION: UnknownSession,
  UNKNOWN_AGENT: UnknownAgent,
  UNKNOWN_TASK: UnknownTask,
  UNKNOWN_REQUEST: UnknownRequest,
  UNKNOWN_SUGGESTION: UnknownSuggestion,
  HANDOFF_REFUSED: HandoffRefused,
  REQUEST_NOT_OPEN: RequestNotOpen,
  TASK_NOT_PAUSED: TaskNotPaused,
  TASK_CLOSED: TaskClosed,
  TASK_OPEN: TaskOpen,
  TURN_OPEN: TurnOpen,
  AGENT_UNAVAILABLE: AgentUnavailable,
  SESSION_ERASED: SessionErased,
  REVISION_MISMATCH: RevisionMismatch,
  REQUEST_ID_REUSED: RequestIdReused,
  DEADLINE: DeadlineExceeded,
  UNAUTHENTICATED: Unauthenticated,
  OWNER_MISMATCH: OwnerMismatch,
  SCOPE_MISSING: ScopeMissing,
  OVERLOADED: Overloaded,
  TOO_LARGE: TooLarge,
  WATCH_TOO_SLOW: WatchTooSlow,
  REVISION_COMPACTED: RevisionCompacted,
  STORE_UNAVAILABLE: StoreUnavailable,
  SCHEMA_TOO_NEW: SchemaTooNew,
  STATE_CORRUPT: StateCorrupt,
  INTERNAL: InternalError,
  NOT_IMPLEMENTED: Unimplemented,
  SHUTTING_DOWN: ShuttingDown,
  REGISTRY_INVALID: RegistryInvalid,
  SIGN_IN_UNAVAILABLE: SignInUnavailable,
  LEASE_LOST: LeaseLost,
  STORE_FORMAT: StoreFormat,
  APPROVAL_DECIDED: ApprovalDecided,
  APPROVER_REFUSED: ApproverRefused,
  CLAIMED: Claimed,
  NOTHING_TO_CLAIM: NothingToClaim,
  TASKS_OPEN: TasksOpen,
  REPLAY_RUNNING: ReplayRunning,
  UNKNOWN_REPLAY: UnknownReplay,
  REGISTRY_READ_ONLY: RegistryReadOnly,
  STATE_CHANGED: StateChanged,
};

/** The class of an unknown reason, by code; RoutingError for other codes. */
export const ERRORS_BY_CODE: Readonly<Partial<Record<Code, RoutingErrorClass>>> = {
  [Code.DeadlineExceeded]: DeadlineExceeded,
  [Code.FailedPrecondition]: PreconditionFailed,
  [Code.Internal]: InternalError,
  [Code.InvalidArgument]: InvalidRequest,
  [Code.NotFound]: NotFound,
  [Code.PermissionDenied]: PermissionDenied,
  [Code.ResourceExhausted]: ResourceExhausted,
  [Code.Unauthenticated]: Unauthenticated,
  [Code.Unavailable]: Unavailable,
  [Code.Unimplemented]: Unimplemented,
};
