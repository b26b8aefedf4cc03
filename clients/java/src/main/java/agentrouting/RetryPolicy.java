package agentrouting;

import java.time.Duration;
import java.util.concurrent.ThreadLocalRandom;

/**
 * How often and when an unanswered call is sent again. The wait before attempt n+1 is drawn evenly
 * from 0 to backoffFirst * 2^(n-1), at most backoffMax, and comes after the delay that the service
 * asks for; all of it within the call's timeout. A repeat is the same request under the same
 * request_id, which the service handles once.
 *
 * @param attemptsMax including the first attempt; 1: no repeats
 * @param backoffFirst the maximum of the first wait
 * @param backoffMax the maximum of every wait
 */
public record RetryPolicy(int attemptsMax, Duration backoffFirst, Duration backoffMax) {
  /** The default policy. */
  public static final RetryPolicy DEFAULT =
      new RetryPolicy(4, Duration.ofMillis(200), Duration.ofSeconds(2));

  /** Limit of the exponent: by then any first wait has reached its maximum. */
  private static final int DOUBLINGS_MAX = 30;

  /** Checks the values. */
  public RetryPolicy {
    if (attemptsMax < 1) {
      throw new IllegalArgumentException(
          "attemptsMax is " + attemptsMax + "; give 1 or more");
    }
    if (backoffFirst.isNegative() || backoffMax.compareTo(backoffFirst) < 0) {
      throw new IllegalArgumentException(
          "backoffFirst " + backoffFirst + " and backoffMax " + backoffMax + ": 0 <= first <= max");
    }
  }

  /** Returns this policy with another number of attempts. */
  public RetryPolicy withAttemptsMax(int other) {
    return new RetryPolicy(other, backoffFirst, backoffMax);
  }

  /** Returns the nanoseconds to wait after this many attempts (1 or more), at random. */
  long backoffNanos(int attempts) {
    double ceiling =
        Math.min(
            backoffFirst.toNanos() * Math.pow(2, Math.min(attempts - 1, DOUBLINGS_MAX)),
            backoffMax.toNanos());
    return (long) (ThreadLocalRandom.current().nextDouble() * ceiling);
  }

  /** Stops a client's repeats while most of its calls fail, as gRPC's retryThrottling does. */
  static final class Throttle {
    /**
     * An unanswered attempt takes one, and a repeat needs more than half of them: fifty calls on
     * their way to a replica that died are all repeated, and an outage stops a client's repeats
     * after fifty attempts over all calls.
     */
    private static final double TOKENS_MAX = 100;

    private static final double TOKENS_PER_SUCCESS = 0.5;
    private double tokens = TOKENS_MAX;

    synchronized void succeeded() {
      tokens = Math.min(TOKENS_MAX, tokens + TOKENS_PER_SUCCESS);
    }

    /** Counts an unanswered attempt, and tells whether another may follow. */
    synchronized boolean mayRetry() {
      tokens = Math.max(0, tokens - 1);
      return tokens > TOKENS_MAX / 2;
    }
  }
}
