// A failed call as one of our errors.
//
// Owns: reading the details beside a status, and words for failures without them. Must not know:
// whether the call is repeated. Rule: what a newer or broken server sends never hides the failure
// itself: details that cannot be read are left out.

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

/** Of ErrorInfo: reasons of other domains are a proxy's, and not ours to name. */
const DOMAIN = "agent_routing";

/** What was asked, and of whom: for the words where the answer has none of its own. */
export interface Asked {
  method: string;
  target: string;
  requestId: string;
  timeoutMs: number;
  attempts: number;
  /** Whether its connection is no more. */
  wasCut: boolean;
}

/** Returns a failed call as the error of its reason, else of its code. */
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
 * Tells whether a connection ended or was never made, under whichever code the transport says so:
 * ABORTED, UNKNOWN or INTERNAL with the cause that Node or fetch gave, or a stream without an end.
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

/** All that fetch says, in each browser's words, of a service that is away or refuses the page. */
function isOfBrowser(words: string): boolean {
  return /^(Failed to fetch|NetworkError|Load failed)/.test(words);
}

const BROWSER_HINT = "is it running there, and does its web_origins name this page?";

/** Returns class, message and code of a failure of which the service itself said nothing. */
function withoutDetails(
  failure: ConnectError,
  { method, target, timeoutMs, attempts, wasCut }: Asked,
): { kind: RoutingErrorClass; message: string; code: Code } {
  const tried = attempts === 1 ? "" : `, after ${attempts} attempts`;
  const words = failure.rawMessage;
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
    // Said of a message above the limit of the connection, on either side.
    return { kind: TooLarge, code, message: `${method}: ${words}; send large items by uri` };
  }
  if (code === Code.Canceled || code === Code.ResourceExhausted) {
    // A server over its limits refuses calls before they are read.
    const message =
      `${method}: "${target}" has more calls than it can answer and refused this one${tried}; ` +
      "repeat it later with the same requestId";
    return { kind: Overloaded, code, message };
  }
  return { kind: ERRORS_BY_CODE[code] ?? RoutingError, code, message: `${method}: ${words}` };
}
