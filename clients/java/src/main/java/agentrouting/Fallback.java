package agentrouting;

import java.nio.file.Path;

/**
 * What a client may decide alone while the service cannot be reached.
 *
 * @param supervisorId the agent for sessions without a known agent; empty: the home agent, once an
 * answer has named it; until then route() throws
 * @param sessionsMax how many sessions are remembered, the last used ones
 * @param homeFile a small file in which the home agent's id is kept, so that a new process knows it;
 * null: none
 * @param commands whether commands in messages are understood while the service is away; switch it
 * off for lessons that users may not leave
 */
public record Fallback(String supervisorId, int sessionsMax, Path homeFile, boolean commands) {
  /** About 4 MB. A session that was evicted falls back to the supervisor. */
  public static final int SESSIONS_MAX_DEFAULT = 10_000;

  /** Returns a fallback without a file, that understands commands. */
  public Fallback(String supervisorId, int sessionsMax) {
    this(supervisorId, sessionsMax, null, true);
  }

  /** The default fallback: the supervisor is learnt from answers. */
  public static final Fallback DEFAULT = new Fallback("", SESSIONS_MAX_DEFAULT);

  /** Checks the values. */
  public Fallback {
    if (sessionsMax < 1) {
      throw new IllegalArgumentException("sessionsMax is " + sessionsMax + "; give 1 or more");
    }
  }

  /** Returns this fallback with a file for the home agent's id. */
  public Fallback withHomeFile(Path file) {
    return new Fallback(supervisorId, sessionsMax, file, commands);
  }

  /** Returns this fallback without commands. */
  public Fallback withoutCommands() {
    return new Fallback(supervisorId, sessionsMax, homeFile, false);
  }

  /** Returns a fallback that names the supervisor. */
  public static Fallback to(String supervisorId) {
    return new Fallback(supervisorId, SESSIONS_MAX_DEFAULT);
  }
}
