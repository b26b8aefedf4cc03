package agentrouting;

import agentrouting.v1.EndedApproval;
import agentrouting.v1.RoutingServiceGrpc;
import agentrouting.v1.WaitingApproval;
import agentrouting.v1.WatchApprovalsRequest;
import agentrouting.v1.WatchApprovalsResponse;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.Queue;
import java.util.Set;
import java.util.TreeSet;

/**
 * What waits for an approval, and then what begins, changes and ends: messages with waiting or ended.
 * After a lost connection it connects again, and returns only what is different from what it returned
 * before. {@link #hasNext} waits; it is false once the watch was closed. A refusal, or a service that
 * stays away, is thrown as a {@link RoutingException}. One thread reads; any thread may close.
 */
public final class ApprovalWatch
    implements Iterator<WatchApprovalsResponse>, Iterable<WatchApprovalsResponse>, AutoCloseable {
  private static final Duration LONG = Duration.ofDays(365);

  private final Connections<WatchApprovalsRequest, WatchApprovalsResponse> connections;
  private final Map<String, WaitingApproval> seen = new HashMap<>();
  // Seen before this connection, and not on it.
  private final Set<String> notAgain = new TreeSet<>();
  private final Queue<WatchApprovalsResponse> news = new ArrayDeque<>();

  ApprovalWatch(RoutingClient client, WatchApprovalsRequest request, Duration awayTimeout) {
    connections =
        new Connections<>(
            client, RoutingServiceGrpc.getWatchApprovalsMethod(), () -> request, awayTimeout);
  }

  @Override
  public Iterator<WatchApprovalsResponse> iterator() {
    return this;
  }

  @Override
  public boolean hasNext() {
    while (news.isEmpty() && !connections.isClosed()) {
      WatchApprovalsResponse response = connections.next(LONG);
      if (response != null) {
        received(response);
      }
    }
    return !news.isEmpty() && !connections.isClosed();
  }

  @Override
  public WatchApprovalsResponse next() {
    if (!hasNext()) {
      throw new NoSuchElementException("the watch was closed");
    }
    return news.remove();
  }

  /** Ends the watch; a thread that waits in hasNext() gets false. */
  @Override
  public void close() {
    connections.close();
  }

  private void received(WatchApprovalsResponse response) {
    if (connections.isFirst()) {
      notAgain.clear();
      notAgain.addAll(seen.keySet());
    }
    switch (response.getKindCase()) {
      case WAITING -> {
        WaitingApproval waiting = response.getWaiting();
        String key = key(waiting.getSessionId(), waiting.getApproval().getRequestId());
        notAgain.remove(key);
        if (!waiting.equals(seen.put(key, waiting))) {
          news.add(response);
        }
      }
      case ENDED -> {
        EndedApproval ended = response.getEnded();
        if (seen.remove(key(ended.getSessionId(), ended.getRequestId())) != null) {
          news.add(response);
        }
      }
      case HEARTBEAT -> {
        if (response.getHeartbeat().getIsComplete()) {
          endedMeanwhile();
        }
      }
      default -> {
        // A kind that this client does not know is skipped.
      }
    }
  }

  /** Reports what ended while there was no connection. */
  private void endedMeanwhile() {
    for (String key : notAgain) {
      WaitingApproval gone = seen.remove(key);
      EndedApproval ended =
          EndedApproval.newBuilder()
              .setSessionId(gone.getSessionId())
              .setRequestId(gone.getApproval().getRequestId())
              .build();
      news.add(WatchApprovalsResponse.newBuilder().setEnded(ended).build());
    }
    notAgain.clear();
  }

  /** Ids have no line breaks. */
  private static String key(String sessionId, String requestId) {
    return sessionId + "\n" + requestId;
  }
}
