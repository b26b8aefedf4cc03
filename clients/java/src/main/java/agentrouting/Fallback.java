package agentrouting;

/**
 * What a client may decide by itself while the service cannot be reached.
 *
 * @param supervisorId where messages go of sessions of which no agent is known; empty: the home agent,
 *     as soon as an answer has named it, and until then route() throws
 * @param sessionsMax how many sessions are remembered, those used last
 */
public record Fallback(String supervisorId, int sessionsMax) {
  /** Some 4 MB. A session that was pushed out falls back to the supervisor. */
  public static final int SESSIONS_MAX_DEFAULT = 10_000;

  /** The fallback of a client that is given none: the supervisor is learnt from answers. */
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
