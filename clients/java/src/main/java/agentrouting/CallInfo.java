package agentrouting;

import io.grpc.Metadata;
import java.time.Duration;

/**
 * The timeout and headers of one call, and facts about it that are not in its answer. Pass a new one with each
 * call, and read it afterwards.
 */
public final class CallInfo {
  private Duration timeout;
  private volatile int attempts;
  private volatile boolean replayed;
  final Metadata headers = new Metadata();
  volatile long limitNanos = Long.MAX_VALUE; // of the circuit breaker, for a message

  /** Sets how long the call may take with all its attempts. Default: the client's timeout. */
  public CallInfo withTimeout(Duration timeout) {
    this.timeout = positive("timeout", timeout);
    return this;
  }

  /** Sends a key and a value with this call only, such as traceparent. */
  public CallInfo withHeader(String key, String value) {
    headers.put(Metadata.Key.of(key, Metadata.ASCII_STRING_MARSHALLER), value);
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

  static Duration positive(String name, Duration value) {
    if (value.isNegative() || value.isZero()) {
      throw new IllegalArgumentException(name + " is " + value + "; give more than zero");
    }
    return value;
  }
}
