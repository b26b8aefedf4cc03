package agentrouting;

import java.time.Duration;

/**
 * One call's own timeout, and what there is to know about it beside its answer. Pass a new one with a
 * call, and read it afterwards.
 */
public final class CallInfo {
  private Duration timeout;
  private volatile int attempts;
  private volatile boolean replayed;

  /** Sets how long the call may take with all its attempts; otherwise the client's timeout. */
  public CallInfo withTimeout(Duration timeout) {
    this.timeout = RoutingClient.positive("timeout", timeout);
    return this;
  }

  /** Returns how often the request was sent. */
  public int attempts() {
    return attempts;
  }

  /**
   * Returns whether the answer is the stored one of an earlier request with this request_id, so that
   * nothing was done this time.
   */
  public boolean replayed() {
    return replayed;
  }

  Duration timeoutOr(Duration otherwise) {
    return timeout == null ? otherwise : timeout;
  }

  void set(int attempts, boolean replayed) {
    this.attempts = attempts;
    this.replayed = replayed;
  }
}
