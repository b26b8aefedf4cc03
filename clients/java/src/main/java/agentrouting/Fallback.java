package agentrouting;

/**
 * What a client may decide alone while the service cannot be reached.
 *
 * @param supervisorId the agent for sessions without a known agent; empty: the home agent, once an
 * answer has named it; until then route() throws
 * @param sessionsMax how many sessions are remembered, the last used ones
 */
public record Fallback(String supervisorId, int sessionsMax) {
  /** About 4 MB. A session that was evicted falls back to the supervisor. */
  public static final int SESSIONS_MAX_DEFAULT = 10_000;

  /** The default fallback: the supervisor is learnt from answers. */
  public static final Fallback DEFAULT = new Fallback("", SESSIONS_MAX_DEFAULT);

  /** Checks the values. */
  public Fallback {
    if (sessionsMax < 1) {
      throw new IllegalArgumentException("sessionsMax is " + sessionsMax + "; give 1 or more");
    }
  }

  /** Returns a fallback that names the supervisor. */
  public static Fallback to(String supervisorId) {
    return new Fallback(supervisorId, SESSIONS_MAX_DEFAULT);
  }
}
