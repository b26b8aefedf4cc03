// The circuit breaker of a client: an outage makes the first messages wait, and no others.
//
// It never makes a call fail. It only lets route() decide at once what it would decide after waiting.

/**
 * Calls in a row without an answer, each with all its attempts, that open the circuit. One call that
 * fails may have met a restart.
 */
const FAILURES_MAX = 3;
/** How long an open circuit waits before the next probe, doubled after each that fails. */
const OPEN_MS_FIRST = 1_000;
const OPEN_MS_MAX = 8_000;
/** The time limit of a probe, which is a user's message. */
const PROBE_MS = 1_000;

/** closed: calls are sent. open: messages are decided here. half_open: one is a probe. */
export type CircuitState = "closed" | "open" | "half_open";

/** Whether the service is worth waiting for. */
export class Circuit {
  #failures = 0;
  #openMs = 0;
  #probeAtMs = 0;
  #probeEndsMs = 0;
  #answeredMs = Number.NEGATIVE_INFINITY;
  #openedTotal = 0;
  #skippedTotal = 0;

  get state(): CircuitState {
    if (this.#openMs === 0) return "closed";
    return performance.now() < this.#probeEndsMs ? "half_open" : "open";
  }
  /** How often the circuit has opened. */
  get openedTotal(): number {
    return this.#openedTotal;
  }
  /** How many messages were decided at once because the circuit was open. */
  get skippedTotal(): number {
    return this.#skippedTotal;
  }

  /** Returns how long a message may wait for the service: infinity, a probe's time, or 0. */
  limitMs(): number {
    if (this.#openMs === 0) return Number.POSITIVE_INFINITY;
    const nowMs = performance.now();
    if (nowMs < Math.max(this.#probeAtMs, this.#probeEndsMs)) {
      this.#skippedTotal++;
      return 0;
    }
    this.#probeEndsMs = nowMs + PROBE_MS;
    return PROBE_MS;
  }

  /** Tells whether the service has answered a call of this client in the last milliseconds. */
  answeredWithin(ms: number): boolean {
    return performance.now() - this.#answeredMs <= ms;
  }

  /** Counts an answer of any kind: the service is there. */
  succeeded(): void {
    this.#answeredMs = performance.now();
    this.#failures = 0;
    this.#openMs = 0;
    this.#probeEndsMs = 0;
  }

  /** Counts a call without an answer. */
  failed(): void {
    this.#failures++;
    const nowMs = performance.now();
    if (this.#openMs > 0) {
      if (nowMs < this.#probeAtMs) return; // It was sent before the circuit opened.
      this.#openMs = Math.min(2 * this.#openMs, OPEN_MS_MAX);
    } else if (this.#failures >= FAILURES_MAX) {
      this.#openMs = OPEN_MS_FIRST;
      this.#openedTotal++;
    } else {
      return;
    }
    this.#probeAtMs = nowMs + this.#openMs;
    this.#probeEndsMs = 0;
  }
}
