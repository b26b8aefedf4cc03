// The base of all errors of a call: RoutingError, and the violations that it lists.
//
// The classes of the reasons are generated from the contract (errors.ts).

import { Code } from "@connectrpc/connect";

/** A bad field, or a rule that refused. */
export interface Violation {
  /** The field's path ("items[2].uri") or the rule's name ("entitled"). */
  readonly name: string;
  /** What the rule refused, such as the target's agent id; empty for a field. */
  readonly subject: string;
  /** What is wrong, with which value, and what to do. */
  readonly detail: string;
}

/** What is known about a call that failed. */
export interface FailureFacts {
  code: Code;
  reason?: string;
  metadata?: Readonly<Record<string, string>>;
  violations?: readonly Violation[];
  retryAfterMs?: number | undefined;
  method?: string;
  requestId?: string;
  sessionId?: string;
  attempts?: number;
  cause?: unknown;
}

/** A call that failed. The base of all error classes, and the class of an unknown code. */
export class RoutingError extends Error {
  /** The gRPC status code. */
  readonly code: Code;
  /** The contract's reason, such as "HANDOFF_REFUSED"; empty if the answer had none. */
  readonly reason: string;
  /** The values of the message again, for programs; ErrorReason documents their keys. */
  readonly metadata: Readonly<Record<string, string>>;
  /** Every bad field, or every rule that refused. */
  readonly violations: readonly Violation[];
  /** How long to wait before a repeat; undefined if the service did not say. */
  readonly retryAfterMs: number | undefined;
  /** The RPC, such as "Route". */
  readonly method: string;
  /** Of the request, also if the client made it; empty for reads. */
  readonly requestId: string;
  /** How often the call was sent, 1 or more. */
  readonly attempts: number;
  readonly #sessionId: string;

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
    this.#sessionId = facts.sessionId || (this.metadata.session_id ?? "");
  }

  /**
   * The session of the request, or the one that the service names; empty if neither had one, and
   * then a repeat with requestId finds the session.
   */
  get sessionId(): string {
    return this.#sessionId;
  }

  /** The name of the code in gRPC, such as "FAILED_PRECONDITION". */
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

/** A class of errors. */
export type RoutingErrorClass = new (message: string, facts: FailureFacts) => RoutingError;

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
