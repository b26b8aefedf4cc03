// Which failed calls are sent again, how often and when.
//
// Owns the policy, and the throttle that stops a client's repeats during an outage. A repeat is the
// same request under the same requestId, which the service handles once, so an unanswered call may
// be sent again.

import { Overloaded, type RoutingError, Unavailable } from "./errors.js";

/**
 * Of the throttle, as in gRPC's retryThrottling: an unanswered attempt takes one, and a repeat
 * needs more than half of them. So fifty calls on their way to a replica that died are all
 * repeated, and an outage stops a client's repeats after fifty attempts over all calls.
 */
const TOKENS_MAX = 100;
/** What a successful call returns: repeats resume a hundred successful calls after an outage. */
const TOKENS_PER_SUCCESS = 0.5;
/** Limit of the exponent: by then any first wait has reached its maximum. */
const DOUBLINGS_MAX = 30;

/**
 * How often and when an unanswered call is sent again.
 *
 * The wait before attempt n+1 is random between 0 and backoffFirstMs * 2**(n-1), at most
 * backoffMaxMs (full jitter). If the service gives a delay, it is added. All attempts are within
 * the call's time: a wait that would outlast it is not begun. A call that an overloaded service
 * refused unread is repeated until then, however often, unless attemptsMax is 1.
 */
export interface RetryPolicy {
  /** Including the first; 1: no repeats. Default 4. */
  readonly attemptsMax: number;
  /** Default 200. */
  readonly backoffFirstMs: number;
  /** Default 2,000. */
  readonly backoffMaxMs: number;
}

/** Returns a complete policy. Throws RangeError for invalid values. */
export function retryPolicy(given: Partial<RetryPolicy> = {}): RetryPolicy {
  const policy = { attemptsMax: 4, backoffFirstMs: 200, backoffMaxMs: 2_000, ...given };
  if (!(policy.attemptsMax >= 1)) {
    throw new RangeError(`attemptsMax is ${policy.attemptsMax}; give 1 or more`);
  }
  if (!(policy.backoffFirstMs >= 0 && policy.backoffFirstMs <= policy.backoffMaxMs)) {
    throw new RangeError(
      `backoffFirstMs ${policy.backoffFirstMs} and backoffMaxMs ${policy.backoffMaxMs}: give ` +
        "milliseconds, 0 <= first <= max",
    );
  }
  return policy;
}

/** Returns the milliseconds to wait after this many attempts (1 or more), at random. */
export function backoffMs(policy: RetryPolicy, attempts: number): number {
  const doublings = Math.min(attempts - 1, DOUBLINGS_MAX);
  return Math.random() * Math.min(policy.backoffFirstMs * 2 ** doublings, policy.backoffMaxMs);
}

/** Returns the milliseconds to wait before the next attempt; undefined: there is none. */
export function waitMs(
  policy: RetryPolicy,
  error: RoutingError,
  attempts: number,
  remainingMs: number,
): number | undefined {
  const isLimited = policy.attemptsMax === 1 || !wasRefusedUnread(error);
  if ((isLimited && attempts >= policy.attemptsMax) || !wasUnanswered(error)) return undefined;
  const wait = backoffMs(policy, attempts) + (error.retryAfterMs ?? 0);
  return wait < remainingMs ? wait : undefined;
}

/** Tells whether the call was not decided: UNAVAILABLE, or refused unread. */
export function wasUnanswered(error: RoutingError): boolean {
  return error instanceof Unavailable || wasRefusedUnread(error);
}

/**
 * Tells whether an overloaded server refused the call before it read it; the web listener says so.
 *
 * Any other Overloaded with a reason is an answer: the server asks for fewer calls, and the caller
 * decides when to repeat.
 */
export function wasRefusedUnread(error: RoutingError): boolean {
  if (!(error instanceof Overloaded)) return false;
  return error.reason === "" || error.metadata.limit === "pending_requests_max";
}

/** Stops a client's repeats while most of its calls fail. */
export class RetryThrottle {
  #tokens = TOKENS_MAX;

  /** Counts a call that succeeded. */
  succeeded(): void {
    this.#tokens = Math.min(TOKENS_MAX, this.#tokens + TOKENS_PER_SUCCESS);
  }

  /** Counts an unanswered attempt, and tells whether another may follow. */
  mayRetry(): boolean {
    this.#tokens = Math.max(0, this.#tokens - 1);
    return this.#tokens > TOKENS_MAX / 2;
  }
}
