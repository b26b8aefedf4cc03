package agentrouting;

import agentrouting.v1.Change;
import agentrouting.v1.RoutingServiceGrpc;
import agentrouting.v1.WatchSessionRequest;
import agentrouting.v1.WatchSessionResponse;
import java.time.Duration;
import java.util.Iterator;
import java.util.NoSuchElementException;

/**
 * A session's changes as they happen, each exactly once and in order. {@link #hasNext} waits for the
 * next one; it is false once the watch was closed. After a lost connection it connects again, from
 * the last revision that it returned. A refusal, or a service that stays away, is thrown as a
 * {@link RoutingException}. One thread reads; any thread may close.
 */
public final class Watch implements Iterator<Change>, Iterable<Change>, AutoCloseable {
  /** How long the service may be away: longer than a restart. No user is waiting. */
  public static final Duration AWAY_TIMEOUT_DEFAULT = Duration.ofSeconds(60);

  private static final Duration LONG = Duration.ofDays(365);

  private final WatchSessionRequest.Builder request;
  private final Connections<WatchSessionRequest, WatchSessionResponse> connections;
  private Change next;

  Watch(RoutingClient client, WatchSessionRequest request, Duration awayTimeout) {
    this.request = request.toBuilder();
    this.connections =
        new Connections<>(
            client, RoutingServiceGrpc.getWatchSessionMethod(), this.request::build, awayTimeout);
  }

  @Override
  public Iterator<Change> iterator() {
    return this;
  }

  @Override
  public boolean hasNext() {
    while (next == null && !connections.isClosed()) {
      WatchSessionResponse response = connections.next(LONG);
      if (response != null) {
        received(response);
      }
    }
    return next != null && !connections.isClosed();
  }

  @Override
  public Change next() {
    if (!hasNext()) {
      throw new NoSuchElementException("the watch was closed");
    }
    Change given = next;
    next = null;
    return given;
  }

  /** Ends the watch; a thread that waits in hasNext() gets false. */
  @Override
  public void close() {
    connections.close();
  }

  private void received(WatchSessionResponse response) {
    switch (response.getKindCase()) {
      case CHANGE -> {
        next = response.getChange();
        request.setAfterRevision(next.getRevision());
      }
      case HEARTBEAT -> {
        // The first heartbeat carries the session's revision, not the stream's position. The caller
        // starts there only if it did not ask for earlier changes.
        if (!connections.isFirst() || !request.hasAfterRevision()) {
          request.setAfterRevision(response.getHeartbeat().getRevision());
        }
      }
      default -> {
        // A kind that this client does not know is skipped.
      }
    }
  }
}
