package agentrouting;

import java.time.Duration;

/**
 * The circuit breaker of a client: an outage makes the first messages wait, and no others. It never
 * makes a call fail: it only lets route() decide at once what it would decide after waiting. Safe in
 * threads.
 */
public final class Circuit {
  /** CLOSED: calls are sent. OPEN: messages are decided here. HALF_OPEN: one is a probe. */
  public enum State {
    CLOSED,
    OPEN,
    HALF_OPEN
  }

  /**
   * Calls in a row without an answer, each with all its attempts, that open the circuit. One call
   * that fails may have met a restart.
   */
  private static final int FAILURES_MAX = 3;

  /** How long an open circuit waits before the next probe, doubled after each that fails. */
  private static final long OPEN_NANOS_FIRST = 1_000_000_000L;

  private static final long OPEN_NANOS_MAX = 8_000_000_000L;

  /** The time limit of a probe, which is a user's message. */
  private static final long PROBE_NANOS = 1_000_000_000L;

  private static final System.Logger LOG = System.getLogger("agentrouting");

  private long answeredAt = System.nanoTime() - Duration.ofDays(365).toNanos();
  private int failures;
  private long openNanos;
  private long probeAt;
  private long probeEnds;
  private long opened;
  private long skipped;

  Circuit() {}

  /** Returns whether messages are sent or decided at once. */
  public synchronized State state() {
    if (openNanos == 0) {
      return State.CLOSED;
    }
    return System.nanoTime() - probeEnds < 0 ? State.HALF_OPEN : State.OPEN;
  }

  /** Returns how often the circuit has opened. */
  public synchronized long opened() {
    return opened;
  }

  /** Returns how many messages were decided at once because the circuit was open. */
  public synchronized long skipped() {
    return skipped;
  }

  /** Returns how long a message may wait: a probe's time, 0 for not at all, or Long.MAX_VALUE. */
  synchronized long limitNanos() {
    if (openNanos == 0) {
      return Long.MAX_VALUE;
    }
    long now = System.nanoTime();
    if (now - probeAt < 0 || now - probeEnds < 0) {
      skipped++;
      return 0;
    }
    probeEnds = now + PROBE_NANOS;
    return PROBE_NANOS;
  }

  /** Counts an answer of any kind: the service is there. */
  synchronized void succeeded() {
    if (openNanos > 0) {
      LOG.log(System.Logger.Level.INFO, "circuit_closed skipped_total={0}", skipped);
    }
    answeredAt = System.nanoTime();
    failures = 0;
    openNanos = 0;
    probeEnds = System.nanoTime();
  }

  /** Tells whether the service has answered a call of this client in this time. */
  synchronized boolean answeredWithin(Duration time) {
    return System.nanoTime() - answeredAt <= time.toNanos();
  }

  /** Counts a call that failed, with all its attempts. */
  void count(RoutingException error) {
    if (!error.mayFallBack()) {
      if (!(error.getCause() instanceof InterruptedException)) {
        succeeded();
      }
    } else if (error.reason().isEmpty() || error.wasUnanswered()) {
      failed();
    }
  }

  /** Counts a call without an answer. */
  synchronized void failed() {
    failures++;
    long now = System.nanoTime();
    if (openNanos > 0) {
      if (now - probeAt < 0) {
        return; // It was sent before the circuit opened.
      }
      openNanos = Math.min(2 * openNanos, OPEN_NANOS_MAX);
    } else if (failures >= FAILURES_MAX) {
      openNanos = OPEN_NANOS_FIRST;
      opened++;
    } else {
      return;
    }
    probeAt = now + openNanos;
    probeEnds = now;
    LOG.log(System.Logger.Level.WARNING, "circuit_open failures={0}", failures);
  }
}
