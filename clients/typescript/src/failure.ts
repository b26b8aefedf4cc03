// Converts a failed call to a RoutingError.
//
// Reads the details of a status, and gives messages to failures without details. Details that
// cannot be read, from a newer or broken server, are left out: they never hide the failure itself.

import { durationMs } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError } from "@connectrpc/connect";
import {
  ERRORS_BY_CODE,
  ERRORS_BY_REASON,
  Overloaded,
  RoutingError,
  type RoutingErrorClass,
  TooLarge,
  Unavailable,
  type Violation,
} from "./errors.js";
import {
  BadRequestSchema,
  ErrorInfoSchema,
  PreconditionFailureSchema,
  RetryInfoSchema,
} from "./gen/google/rpc/error_details_pb.js";

/** Of ErrorInfo. A reason of another domain is a proxy's, and is not reported as ours. */
const DOMAIN = "agent_routing";

/** The call, for the message of a failure without details. */
export interface Asked {
  method: string;
  target: string;
  requestId: string;
  sessionId: string;
  timeoutMs: number;
  attempts: number;
  /** Whether its connection was lost. */
  wasCut: boolean;
}

/** Returns a failed call as the error of its reason, otherwise of its code. */
export function routingError(thrown: unknown, asked: Asked): RoutingError {
  if (thrown instanceof RoutingError) return thrown;
  const failure = ConnectError.from(thrown);
  const info = failure.findDetails(ErrorInfoSchema).find((each) => each.domain === DOMAIN);
  const violations: Violation[] = [
    ...failure
      .findDetails(BadRequestSchema)
      .flatMap((bad) => bad.fieldViolations)
      .map(({ field, description }) => ({ name: field, subject: "", detail: description })),
    ...failure
      .findDetails(PreconditionFailureSchema)
      .flatMap((refused) => refused.violations)
      .map(({ type, subject, description }) => ({ name: type, subject, detail: description })),
  ];
  const retry = failure.findDetails(RetryInfoSchema).at(-1)?.retryDelay;
  const facts = {
    code: failure.code,
    violations,
    retryAfterMs: retry === undefined ? undefined : durationMs(retry),
    method: asked.method,
    requestId: asked.requestId,
    sessionId: asked.sessionId,
    attempts: asked.attempts,
    cause: failure,
  };
  if (info === undefined) {
    const { kind, message, code } = withoutDetails(failure, asked);
    return new kind(message, { ...facts, code });
  }
  const kind = ERRORS_BY_REASON[info.reason] ?? ERRORS_BY_CODE[failure.code] ?? RoutingError;
  return new kind(failure.rawMessage, { ...facts, reason: info.reason, metadata: info.metadata });
}

/**
 * Tells whether a connection was lost or never made. Transports report this as ABORTED, as UNKNOWN
 * or INTERNAL with the cause from Node or fetch, or as a stream without an end.
 */
function isLostConnection({ code, cause, rawMessage }: ConnectError, wasCut: boolean): boolean {
  if (code === Code.Unavailable || code === Code.Aborted) return true;
  if (code === Code.Canceled) return wasCut;
  if (code !== Code.Internal && code !== Code.Unknown) return false;
  return (
    cause instanceof Error ||
    /^(http\/2 stream closed|missing (status|trailer|end)|premature|protocol error: missing)/i.test(
      rawMessage,
    )
  );
}

/** The text of fetch, in each browser, for a service that is away or refuses the page. */
function isOfBrowser(words: string): boolean {
  return /^(Failed to fetch|NetworkError|Load failed)/.test(words);
}

const BROWSER_HINT = "is it running there, and does its web_origins name this page?";

/** Returns class, message and code of a failure without details from the service. */
function withoutDetails(
  failure: ConnectError,
  { method, target, timeoutMs, attempts, wasCut }: Asked,
): { kind: RoutingErrorClass; message: string; code: Code } {
  const tried = attempts === 1 ? "" : `, after ${attempts} attempts`;
  const words = failure.rawMessage;
  const refused = {
    kind: Overloaded,
    code: failure.code,
    message:
      `${method}: "${target}" has more calls than it can answer and refused this one${tried}; ` +
      "repeat it later with the same requestId",
  };
  // Never processed (RFC 9113, 8.7).
  if (words.includes("REFUSED_STREAM")) return { ...refused, code: Code.Unavailable };
  if (isLostConnection(failure, wasCut)) {
    return {
      kind: Unavailable,
      code: Code.Unavailable,
      message: `${method}: "${target}" cannot be reached${tried}; ${isOfBrowser(words) ? BROWSER_HINT : "is it running there?"} (${words})`,
    };
  }
  const { code } = failure;
  if (code === Code.DeadlineExceeded) {
    const message =
      `${method}: no answer from "${target}" within ${timeoutMs / 1000} s${tried}; a repeat with ` +
      "the same requestId says whether it happened";
    return { kind: ERRORS_BY_CODE[code] ?? RoutingError, code, message };
  }
  if (code === Code.ResourceExhausted && /larger than/.test(words)) {
    // From either side: the message is above the connection's limit.
    return { kind: TooLarge, code, message: `${method}: ${words}; send large items by uri` };
  }
  // A server over its limits refuses calls unread.
  if (code === Code.Canceled || code === Code.ResourceExhausted) return refused;
  return { kind: ERRORS_BY_CODE[code] ?? RoutingError, code, message: `${method}: ${words}` };
}
