package agentrouting;

import java.security.SecureRandom;
import java.util.UUID;

/** New ids for requests without one. */
public final class Ids {
  private static final SecureRandom RANDOM = new SecureRandom();

  private Ids() {}

  /** Returns a UUID of version 7 (RFC 9562): milliseconds since 1970, then random bits. */
  public static String newUuid7() {
    long milliseconds = System.currentTimeMillis();
    long first = milliseconds << 16 | 0x7000 | RANDOM.nextInt(1 << 12);
    long second = RANDOM.nextLong() >>> 2 | 1L << 63;
    return new UUID(first, second).toString();
  }
}
