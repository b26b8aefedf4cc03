package agentrouting;

import java.time.Duration;

/**
 * The timeout of one call, and facts about it that are not in its answer. Pass a new one with each
 * call, and read it afterwards.
 */
public final class CallInfo {
  private Duration timeout;
  private volatile int attempts;
  private volatile boolean replayed;
  volatile long limitNanos = Long.MAX_VALUE; // of the circuit breaker, for a message

  /** Sets how long the call may take with all its attempts. Default: the client's timeout. */
  public CallInfo withTimeout(Duration timeout) {
    this.timeout = RoutingClient.positive("timeout", timeout);
    return this;
  }

  /** Returns how often the request was sent. */
  public int attempts() {
    return attempts;
  }

  /**
   * Returns whether the answer is the stored answer to an earlier request with this request_id;
   * this call then changed nothing.
   */
  public boolean replayed() {
    return replayed;
  }

  Duration timeoutOr(Duration otherwise) {
    Duration asked = timeout == null ? otherwise : timeout;
    return asked.toNanos() < limitNanos ? asked : Duration.ofNanos(limitNanos);
  }

  void set(int attempts, boolean replayed) {
    this.attempts = attempts;
    this.replayed = replayed;
  }
}
