// What can go wrong with a call, as classes.
//
// Owns: a class for each reason of the contract, in families by status code, and the tables that
// name them. Must not know: how a reason travels (failure.ts). Rule: catch a family or a reason,
// never parse a message; a reason that this release does not know is its code's family.
//
//   RoutingError
//     InvalidRequest         MalformedRequest  InvalidField
//     NotFound               UnknownSession  UnknownAgent  UnknownTask  UnknownRequest
//                            UnknownSuggestion
//     PreconditionFailed     HandoffRefused  RequestNotOpen  TaskNotPaused  TaskClosed  TaskOpen
//                            TurnOpen  AgentUnavailable  SessionErased  RegistryInvalid
//     RevisionMismatch
//     RequestIdReused
//     DeadlineExceeded
//     Unauthenticated
//     PermissionDenied       OwnerMismatch  ScopeMissing
//     ResourceExhausted      Overloaded  TooLarge  WatchTooSlow
//     RevisionCompacted
//     Unavailable            StoreUnavailable  SchemaTooNew  ShuttingDown  SignInUnavailable
//     StateCorrupt
//     InternalError
//     Unimplemented

import { Code } from "@connectrpc/connect";

/** One field that is bad, or one rule that refused. */
export interface Violation {
  /** The field's path ("items[2].uri") or the rule's name ("entitled"). */
  readonly name: string;
  /** What the rule refused, such as the target's agent id; empty for a field. */
  readonly subject: string;
  /** What is wrong, with which value, and what to do. */
  readonly detail: string;
}

/** What is known of a call that failed. */
export interface FailureFacts {
  code: Code;
  reason?: string;
  metadata?: Readonly<Record<string, string>>;
  violations?: readonly Violation[];
  retryAfterMs?: number | undefined;
  method?: string;
  requestId?: string;
  attempts?: number;
  cause?: unknown;
}

/** A call that failed: the base of all the errors here, and what an unknown code is. */
export class RoutingError extends Error {
  /** The gRPC status code. */
  readonly code: Code;
  /** The contract's reason, such as "HANDOFF_REFUSED"; empty where nobody of the service answered. */
  readonly reason: string;
  /** The message's values again, for programs; ErrorReason says which keys a reason has. */
  readonly metadata: Readonly<Record<string, string>>;
  /** Every bad field, or every rule that refused. */
  readonly violations: readonly Violation[];
  /** How long to wait before a repeat makes sense; undefined where the service did not say. */
  readonly retryAfterMs: number | undefined;
  /** Such as "Route". */
  readonly method: string;
  /** The request's, also where the client made it; empty for reads. */
  readonly requestId: string;
  /** How often the call was sent, 1 or more. */
  readonly attempts: number;

  constructor(message: string, facts: FailureFacts) {
    super(message, facts.cause === undefined ? undefined : { cause: facts.cause });
    this.name = new.target.name;
    this.code = facts.code;
    this.reason = facts.reason ?? "";
    this.metadata = { ...facts.metadata };
    this.violations = [...(facts.violations ?? [])];
    this.retryAfterMs = facts.retryAfterMs;
    this.method = facts.method ?? "";
    this.requestId = facts.requestId ?? "";
    this.attempts = facts.attempts ?? 1;
  }

  /** The code's name as gRPC has it, such as "FAILED_PRECONDITION". */
  get codeName(): string {
    return CODE_NAMES[this.code] ?? String(this.code);
  }

  protected text(key: string): string {
    return this.metadata[key] ?? "";
  }

  protected revisionAt(key: string): bigint | undefined {
    const value = this.text(key);
    return /^[0-9]+$/.test(value) ? BigInt(value) : undefined;
  }
}

/** INVALID_ARGUMENT: the same request can never succeed. */
export class InvalidRequest extends RoutingError {}
/** The bytes are no such request: client and server use different contracts. */
export class MalformedRequest extends InvalidRequest {}
/** Fields are missing, too long, out of range, or not of their form; violations has them all. */
export class InvalidField extends InvalidRequest {
  /** The paths of the bad fields, such as "task_id" or "items[2].uri". */
  get fields(): string[] {
    return this.violations.map((violation) => violation.name);
  }
}

/** NOT_FOUND: what the request names is not there. */
export class NotFound extends RoutingError {}
/** The tenant has no such session; it begins with its first route() or setActiveAgent(). */
export class UnknownSession extends NotFound {
  get sessionId(): string {
    return this.text("session_id");
  }
}
/** The registry has no such agent; listAgents() names those it has. */
export class UnknownAgent extends NotFound {
  get agentId(): string {
    return this.text("agent_id");
  }
}
/** The session has no such task. */
export class UnknownTask extends NotFound {
  get taskId(): string {
    return this.text("task_id");
  }
}
/**
 * The session dispatched no such request: also what completing a degraded decision is. The service
 * never saw a message that was routed while it was away: route it again under the same request id,
 * then complete it.
 */
export class UnknownRequest extends NotFound {}
/** The suggestion or quick reply is not open any more; send the message without it. */
export class UnknownSuggestion extends NotFound {}

/** FAILED_PRECONDITION: the session does not stand so that this could be done. */
export class PreconditionFailed extends RoutingError {}
/** Handoff rules refused; violations names them all, with remedies. The turn stays open. */
export class HandoffRefused extends PreconditionFailed {
  /** The names of the rules that refused, in the order of their evaluation. */
  get rules(): string[] {
    return this.violations.map((violation) => violation.name);
  }
  /** The target that was refused. */
  get agentId(): string {
    return this.text("agent_id");
  }
  /** The agent that wanted to hand over. */
  get fromAgentId(): string {
    return this.text("from_agent_id");
  }
}
/** The request was already completed or decided otherwise; what came first stands. */
export class RequestNotOpen extends PreconditionFailed {}
/** The task does not wait for an approval; somebody else may have decided. */
export class TaskNotPaused extends PreconditionFailed {}
/** The task is completed, failed or cancelled; leave taskId out for a new one. */
export class TaskClosed extends PreconditionFailed {}
/** Another task of the session is open; leave taskId out to go on with it. */
export class TaskOpen extends PreconditionFailed {
  get openTaskId(): string {
    return this.text("open_task_id");
  }
}
/** The message before is not answered yet, and the registry rejects a second one. */
export class TurnOpen extends PreconditionFailed {
  get openRequestId(): string {
    return this.text("request_id");
  }
}
/** The agent that would have to act is missing, disabled, or not allowed to this user. */
export class AgentUnavailable extends PreconditionFailed {}
/** The session's data were erased, and its id is not used again. */
export class SessionErased extends PreconditionFailed {}
/** The registry file has mistakes; the registry in force stays. */
export class RegistryInvalid extends PreconditionFailed {}

/** ABORTED: other writers came first, nothing was written; read status() and decide again. */
export class RevisionMismatch extends RoutingError {
  /** The revision that the request expected; undefined where it expected none. */
  get expected(): bigint | undefined {
    return this.revisionAt("expected_revision");
  }
  /** The revision at which the session is. */
  get actual(): bigint | undefined {
    return this.revisionAt("revision");
  }
}
/** ALREADY_EXISTS: the request id was used for a request with other content. */
export class RequestIdReused extends RoutingError {}
/**
 * DEADLINE_EXCEEDED: the call happened whole or not at all. A repeat with the same request id, and
 * more time, says which.
 */
export class DeadlineExceeded extends RoutingError {}
/** UNAUTHENTICATED: no credential, or one that is malformed, expired, or for another service. */
export class Unauthenticated extends RoutingError {}

/** PERMISSION_DENIED: the credential does not reach so far. */
export class PermissionDenied extends RoutingError {}
/** The session or task belongs to another user. */
export class OwnerMismatch extends PermissionDenied {}
/** The credential lacks a scope. */
export class ScopeMissing extends PermissionDenied {
  get scope(): string {
    return this.text("scope");
  }
}

/** RESOURCE_EXHAUSTED: too much. */
export class ResourceExhausted extends RoutingError {}
/**
 * The server has more calls than it can answer, and did nothing; repeat after retryAfterMs. The code
 * is Canceled or ResourceExhausted, and the reason empty, where it refused the call unread.
 */
export class Overloaded extends ResourceExhausted {}
/** The request, or what it would make of the session, is larger than is ever accepted. */
export class TooLarge extends ResourceExhausted {}
/** A watcher read more slowly than changes came; watch again from the last revision seen. */
export class WatchTooSlow extends ResourceExhausted {
  /** The last revision that was sent. */
  get revision(): bigint | undefined {
    return this.revisionAt("revision");
  }
}
/** OUT_OF_RANGE: the watch was to begin before the oldest change that is kept. */
export class RevisionCompacted extends RoutingError {
  get oldestRevision(): bigint | undefined {
    return this.revisionAt("oldest_revision");
  }
}

/** UNAVAILABLE: nobody answered, after all attempts. A change may still have been made. */
export class Unavailable extends RoutingError {}
/** The service's store cannot be reached, is busy for too long, or is full. */
export class StoreUnavailable extends Unavailable {}
/** The session was written by a newer release than this replica's. */
export class SchemaTooNew extends Unavailable {}
/** The server is about to stop. */
export class ShuttingDown extends Unavailable {}
/** The server has no key of its identity provider yet, and cannot check any credential. */
export class SignInUnavailable extends Unavailable {}

/** DATA_LOSS: what the store holds of this session cannot be read; others are not affected. */
export class StateCorrupt extends RoutingError {
  /** The id under which the server's log has the cause. */
  get errorId(): string {
    return this.text("error_id");
  }
}
/** INTERNAL: a mistake in the service. */
export class InternalError extends RoutingError {
  /** The id under which the server's log has the cause. */
  get errorId(): string {
    return this.text("error_id");
  }
}
/** UNIMPLEMENTED: this server does not have the RPC, or the feature a field asks for. */
export class Unimplemented extends RoutingError {}

export type RoutingErrorClass = new (message: string, facts: FailureFacts) => RoutingError;

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
};

/** The family of a reason that is not known here. Codes that are not in it are RoutingError. */
export const ERRORS_BY_CODE: Readonly<Partial<Record<Code, RoutingErrorClass>>> = {
  [Code.InvalidArgument]: InvalidRequest,
  [Code.NotFound]: NotFound,
  [Code.FailedPrecondition]: PreconditionFailed,
  [Code.DeadlineExceeded]: DeadlineExceeded,
  [Code.Unauthenticated]: Unauthenticated,
  [Code.PermissionDenied]: PermissionDenied,
  [Code.ResourceExhausted]: ResourceExhausted,
  [Code.Unavailable]: Unavailable,
  [Code.Internal]: InternalError,
  [Code.Unimplemented]: Unimplemented,
};

const CODE_NAMES: Readonly<Record<Code, string>> = {
  [Code.Canceled]: "CANCELLED",
  [Code.Unknown]: "UNKNOWN",
  [Code.InvalidArgument]: "INVALID_ARGUMENT",
  [Code.DeadlineExceeded]: "DEADLINE_EXCEEDED",
  [Code.NotFound]: "NOT_FOUND",
  [Code.AlreadyExists]: "ALREADY_EXISTS",
  [Code.PermissionDenied]: "PERMISSION_DENIED",
  [Code.ResourceExhausted]: "RESOURCE_EXHAUSTED",
  [Code.FailedPrecondition]: "FAILED_PRECONDITION",
  [Code.Aborted]: "ABORTED",
  [Code.OutOfRange]: "OUT_OF_RANGE",
  [Code.Unimplemented]: "UNIMPLEMENTED",
  [Code.Internal]: "INTERNAL",
  [Code.Unavailable]: "UNAVAILABLE",
  [Code.DataLoss]: "DATA_LOSS",
  [Code.Unauthenticated]: "UNAUTHENTICATED",
};
