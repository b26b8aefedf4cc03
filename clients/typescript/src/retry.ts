// Which failed calls are sent again, how often and when.
//
// Owns: the policy, and the throttle that keeps a whole client from repeating into an outage. Must
// not know: how a call is made, or the clock. Rule: a repeat is the same request under the same
// requestId, which the service handles once; so what nobody answered may be sent again.

import { Code } from "@connectrpc/connect";
import { Overloaded, type RoutingError, Unavailable } from "./errors.js";

/**
 * Of the throttle, as in gRPC's retryThrottling: an attempt that nobody answered takes one, and a
 * repeat needs more than half of them. So fifty calls that were on their way to a replica that died
 * are all repeated, and an outage ends a client's repeats after fifty attempts over all calls.
 */
const TOKENS_MAX = 100;
/** What a successful call gives back: repeats are back a hundred successful calls after an outage. */
const TOKENS_PER_SUCCESS = 0.5;
/** Of the backoff: by then any first wait has long met its bound. */
const DOUBLINGS_MAX = 30;

/**
 * How often and when a call that nobody answered is sent again.
 *
 * The wait before attempt n+1 is drawn evenly from 0 to backoffFirstMs * 2**(n-1), at most
 * backoffMaxMs (full jitter); where the service says how long to wait, that comes before it. All of
 * it within the call's time: a wait that would outlast it is not begun.
 */
export interface RetryPolicy {
  /** The first one included; 1: never again. Default 4. */
  readonly attemptsMax: number;
  /** Default 200. */
  readonly backoffFirstMs: number;
  /** Default 2,000. */
  readonly backoffMaxMs: number;
}

/** Returns a whole policy. Throws RangeError for values that are none. */
export function retryPolicy(given: Partial<RetryPolicy> = {}): RetryPolicy {
  const policy = { attemptsMax: 4, backoffFirstMs: 200, backoffMaxMs: 2_000, ...given };
  if (!(policy.attemptsMax >= 1)) {
    throw new RangeError(`attemptsMax is ${policy.attemptsMax}; the first attempt counts: 1`);
  }
  if (!(policy.backoffFirstMs >= 0 && policy.backoffFirstMs <= policy.backoffMaxMs)) {
    throw new RangeError(
      `backoffFirstMs ${policy.backoffFirstMs} and backoffMaxMs ${policy.backoffMaxMs}: give ` +
        "milliseconds, 0 <= first <= max",
    );
  }
  return policy;
}

/** Returns milliseconds to wait after so many attempts, 1 or more, drawn anew each time. */
export function backoffMs(policy: RetryPolicy, attempts: number): number {
  const doublings = Math.min(attempts - 1, DOUBLINGS_MAX);
  return Math.random() * Math.min(policy.backoffFirstMs * 2 ** doublings, policy.backoffMaxMs);
}

/** Returns milliseconds to wait before a call is sent again; undefined: it is not. */
export function waitMs(
  policy: RetryPolicy,
  error: RoutingError,
  attempts: number,
  remainingMs: number,
): number | undefined {
  if (attempts >= policy.attemptsMax || !wasUnanswered(error)) return undefined;
  const wait = backoffMs(policy, attempts) + (error.retryAfterMs ?? 0);
  return wait < remainingMs ? wait : undefined;
}

/**
 * Tells whether nobody decided about the call: UNAVAILABLE, or refused unread.
 *
 * An Overloaded with a reason is an answer: the server asks for fewer calls, and when to come back
 * is for the caller to decide.
 */
export function wasUnanswered(error: RoutingError): boolean {
  if (error instanceof Overloaded) return error.code === Code.Canceled;
  return error instanceof Unavailable;
}

/** Stops a client's repeats while most of its calls fail. */
export class RetryThrottle {
  #tokens = TOKENS_MAX;

  /** Counts a call that succeeded. */
  succeeded(): void {
    this.#tokens = Math.min(TOKENS_MAX, this.#tokens + TOKENS_PER_SUCCESS);
  }

  /** Counts an attempt that nobody answered, and tells whether another may follow. */
  mayRetry(): boolean {
    this.#tokens = Math.max(0, this.#tokens - 1);
    return this.#tokens > TOKENS_MAX / 2;
  }
}
