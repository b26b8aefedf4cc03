package agentrouting;

import com.google.protobuf.Message;
import io.grpc.ClientCall;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import java.time.Duration;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;

/**
 * A stream of the service over its connections: when to connect again, and when to give up. One
 * thread reads; any thread may close.
 */
final class Connections<Q extends Message, A> {
  /** A year: a watch has no deadline of its own. */
  private static final Duration NO_DEADLINE = Duration.ofDays(365);

  private record Ended(Status status, Metadata trailers) {}

  private static final Object CLOSED = new Object();

  private final RoutingClient client;
  private final MethodDescriptor<Q, A> method;
  private final Supplier<Q> request;
  private final Call call;
  private final long awayNanosMax;
  // Messages of the current connection, its end, and the closing of the stream.
  private final BlockingQueue<Object> inbox = new LinkedBlockingQueue<>();
  private ClientCall<Q, A> connection;
  private boolean isNew;
  private boolean isFirst;
  private boolean isAway;
  private long awaySinceNanos;
  private volatile boolean isClosed;

  /**
   * Opens the first connection.
   *
   * @param request returns the request of each connection, from where the last one ended
   */
  Connections(
      RoutingClient client, MethodDescriptor<Q, A> method, Supplier<Q> request, Duration awayTimeout) {
    this.client = client;
    this.method = method;
    this.request = request;
    this.call = new Call(method.getBareMethodName(), client.target, request.get(), NO_DEADLINE);
    this.awayNanosMax = awayTimeout.toNanos();
    connect();
  }

  /**
   * Returns the next message; null if none came in time, or once the stream was closed. An
   * interrupt closes it. Throws a refusal, or that the service has been away for too long.
   */
  A next(Duration timeout) {
    long lateNanos = System.nanoTime() + timeout.toNanos();
    while (!isClosed) {
      Object came;
      try {
        came = inbox.poll(lateNanos - System.nanoTime(), TimeUnit.NANOSECONDS);
      } catch (InterruptedException interrupted) {
        Thread.currentThread().interrupt();
        close();
        return null;
      }
      if (came == null) {
        return null;
      }
      if (came instanceof Ended ended) {
        if (!isClosed) {
          client.throwIfClosed();
          connectAgainAfter(ended);
        }
      } else if (came != CLOSED) {
        return received(came);
      }
    }
    return null;
  }

  @SuppressWarnings("unchecked") // Only messages and the two other kinds are put into the queue.
  private A received(Object message) {
    isAway = false;
    call.attempts = 0;
    isFirst = isNew;
    isNew = false;
    synchronized (this) {
      if (connection != null) {
        connection.request(1);
      }
    }
    return (A) message;
  }

  /** Says whether the message that was returned last is the first of its connection. */
  boolean isFirst() {
    return isFirst;
  }

  boolean isClosed() {
    return isClosed;
  }

  /** Ends the stream; a thread that waits in next() gets null. */
  void close() {
    isClosed = true;
    synchronized (this) {
      if (connection != null) {
        connection.cancel("the watch was closed", null);
        connection = null;
      }
    }
    inbox.add(CLOSED);
  }

  private synchronized void connect() {
    if (isClosed) {
      return;
    }
    isNew = true;
    call.attempts++;
    client.connectAgainIfAway();
    Wire.Place place = client.takeStream();
    connection = place.channel().newCall(method, client.callOptions());
    ClientCall<Q, A> own = connection;
    own.start(
        new ClientCall.Listener<>() {
          @Override
          public void onMessage(A response) {
            inbox.add(response);
          }

          @Override
          public void onClose(Status status, Metadata trailers) {
            place.release().run();
            inbox.add(new Ended(status, trailers));
          }
        },
        new Metadata());
    // One at a time: the service detects a slow reader.
    own.request(1);
    own.sendMessage(request.get());
    own.halfClose();
  }

  /** Waits and connects again. Throws a refusal, or if the service has been away for too long. */
  private void connectAgainAfter(Ended ended) {
    long now = System.nanoTime();
    if (!isAway) {
      isAway = true;
      awaySinceNanos = now;
    }
    boolean wasAlive = call.attempts == 0;
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
    // A watch whose token expired under way continues with another token.
    boolean mayRenew =
        wasAlive
            && client.callOptions().getCredentials() != null
            && error instanceof RoutingException.Unauthenticated;
    boolean mayComeBack =
        mayRenew
            || error instanceof RoutingException.Unavailable
            || error instanceof RoutingException.Overloaded
            || error instanceof RoutingException.WatchTooSlow;
    if (!mayComeBack || now - awaySinceNanos + waitNanos > awayNanosMax) {
      close();
      throw error;
    }
    client.wasAway();
    try {
      // Closing ends this wait.
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
