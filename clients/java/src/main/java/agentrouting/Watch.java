package agentrouting;

import agentrouting.v1.Change;
import agentrouting.v1.RoutingServiceGrpc;
import agentrouting.v1.WatchSessionRequest;
import agentrouting.v1.WatchSessionResponse;
import io.grpc.ClientCall;
import io.grpc.Metadata;
import io.grpc.Status;
import java.time.Duration;
import java.util.Iterator;
import java.util.NoSuchElementException;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/**
 * A session's changes as they happen, each exactly once and in order. {@link #hasNext} waits for the
 * next one; it is false once the watch was closed. After a lost connection it connects again, from
 * the last revision that it returned. A refusal, or a service that stays away, is thrown as a
 * {@link RoutingException}. One thread reads; any thread may close.
 */
public final class Watch implements Iterator<Change>, Iterable<Change>, AutoCloseable {
  /** How long the service may be away: longer than a restart. No user is waiting. */
  public static final Duration AWAY_TIMEOUT_DEFAULT = Duration.ofSeconds(60);

  /** A year: a watch has no deadline of its own. */
  private static final Duration NO_DEADLINE = Duration.ofDays(365);

  private record Ended(Status status, Metadata trailers) {}

  private static final Object CLOSED = new Object();

  private final RoutingClient client;
  private final Call call;
  private final long awayNanosMax;
  private final WatchSessionRequest.Builder request;
  // Messages of the current connection, its end, and the closing of the watch.
  private final BlockingQueue<Object> inbox = new LinkedBlockingQueue<>();
  private ClientCall<WatchSessionRequest, WatchSessionResponse> connection;
  private boolean isFirst;
  private boolean isAway;
  private long awaySinceNanos;
  private Change next;
  private volatile boolean isClosed;

  Watch(RoutingClient client, WatchSessionRequest request, Duration awayTimeout) {
    this.client = client;
    this.call = new Call("WatchSession", client.target, request, NO_DEADLINE);
    this.request = request.toBuilder();
    this.awayNanosMax = awayTimeout.toNanos();
    connect();
  }

  @Override
  public Iterator<Change> iterator() {
    return this;
  }

  @Override
  public boolean hasNext() {
    while (next == null && !isClosed) {
      Object came;
      try {
        came = inbox.take();
      } catch (InterruptedException interrupted) {
        Thread.currentThread().interrupt();
        close();
        return false;
      }
      if (came instanceof WatchSessionResponse response) {
        received(response);
      } else if (came instanceof Ended ended && !isClosed) {
        client.throwIfClosed();
        connectAgainAfter(ended);
      }
    }
    return next != null && !isClosed;
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
    isClosed = true;
    cancel();
    inbox.add(CLOSED);
  }

  private synchronized void cancel() {
    if (connection != null) {
      connection.cancel("the watch was closed", null);
      connection = null;
    }
  }

  private synchronized void connect() {
    if (isClosed) {
      return;
    }
    isFirst = true;
    call.attempts++;
    client.connectAgainIfAway();
    connection =
        client.channel().newCall(RoutingServiceGrpc.getWatchSessionMethod(), client.callOptions());
    ClientCall<WatchSessionRequest, WatchSessionResponse> own = connection;
    own.start(
        new ClientCall.Listener<>() {
          @Override
          public void onMessage(WatchSessionResponse response) {
            inbox.add(response);
          }

          @Override
          public void onClose(Status status, Metadata trailers) {
            inbox.add(new Ended(status, trailers));
          }
        },
        new Metadata());
    // One at a time: the service detects a slow reader.
    own.request(1);
    own.sendMessage(request.build());
    own.halfClose();
  }

  private void received(WatchSessionResponse response) {
    isAway = false;
    call.attempts = 0;
    switch (response.getKindCase()) {
      case CHANGE -> {
        next = response.getChange();
        request.setAfterRevision(next.getRevision());
      }
      case HEARTBEAT -> {
        // The first heartbeat carries the session's revision, not the stream's position. The caller
        // starts there only if it did not ask for earlier changes.
        if (!isFirst || !request.hasAfterRevision()) {
          request.setAfterRevision(response.getHeartbeat().getRevision());
        }
      }
      default -> {
        // A kind that this client does not know is skipped.
      }
    }
    isFirst = false;
    synchronized (this) {
      if (connection != null) {
        connection.request(1);
      }
    }
  }

  /** Waits and connects again. Throws a refusal, or if the service has been away for too long. */
  private void connectAgainAfter(Ended ended) {
    long now = System.nanoTime();
    if (!isAway) {
      isAway = true;
      awaySinceNanos = now;
    }
    call.attempts = Math.max(1, call.attempts);
    Status status =
        ended.status.isOk()
            // For example by a proxy that limits how long a connection may last.
            ? Status.UNAVAILABLE.withDescription("the service ended the watch; is there a proxy?")
            : ended.status;
    RoutingException error = Failure.exception(status, ended.trailers, call);
    long waitNanos =
        client.retry.backoffNanos(call.attempts)
            + error.retryAfter().map(Duration::toNanos).orElse(0L);
    boolean mayComeBack =
        error instanceof RoutingException.Unavailable
            || error instanceof RoutingException.Overloaded
            || error instanceof RoutingException.WatchTooSlow;
    if (!mayComeBack || now - awaySinceNanos + waitNanos > awayNanosMax) {
      close();
      throw error;
    }
    client.wasAway();
    try {
      // Closing the watch ends this wait.
      long lateNanos = now + waitNanos;
      while (!isClosed && System.nanoTime() < lateNanos) {
        TimeUnit.MILLISECONDS.sleep(
            Math.min(50, TimeUnit.NANOSECONDS.toMillis(lateNanos - System.nanoTime()) + 1));
      }
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
      close();
      return;
    }
    connect();
  }
}
