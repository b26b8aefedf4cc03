package agentrouting;

import agentrouting.v1.RouteRequest;
import agentrouting.v1.RouteResponse;
import agentrouting.v1.RouteStreamRequest;
import agentrouting.v1.RouteStreamResponse;
import agentrouting.v1.RoutingServiceGrpc;
import io.grpc.ClientCall;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.protobuf.StatusProto;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;

/**
 * Messages of many sessions over one stream. Any number of threads may use it; up to 128 of their
 * messages are on the way at once, the others wait. Answers come when they are ready; those of one
 * session come in the order of its messages. After a lost connection the stream connects again, and
 * sends what was not answered again, in the same order and under the same request ids: nothing
 * happens twice.
 */
public final class RouteStream implements AutoCloseable {
  /** The service takes as many from a stream, so more would only wait there. */
  private static final int IN_FLIGHT_MAX = 128;

  /** A message that waits for its answer. */
  private static final class Waiting {
    final Call call;
    final RouteRequest request;
    final CompletableFuture<RouteResult> future = new CompletableFuture<>();
    ScheduledFuture<?> lateness;

    Waiting(Call call, RouteRequest request) {
      this.call = call;
      this.request = request;
    }
  }

  private final RoutingClient client;
  private final Duration timeout;
  private final ScheduledExecutorService timer =
      Executors.newSingleThreadScheduledExecutor(
          task -> {
            Thread thread = new Thread(task, "agent-routing-stream");
            thread.setDaemon(true);
            return thread;
          });
  // All below is guarded by this. Only the timer's thread completes futures, so that their
  // callbacks run without the lock.
  private final Map<String, Waiting> onTheWay = new LinkedHashMap<>();
  private final Queue<Waiting> unsent = new ArrayDeque<>();
  private ClientCall<RouteStreamRequest, RouteStreamResponse> connection;
  private boolean isWaitingToConnect;
  private boolean isClosed;
  private int breaks;

  RouteStream(RoutingClient client, Duration timeout) {
    this.client = client;
    this.timeout = timeout;
  }

  /**
   * Sends a message, as {@link RoutingClient#route} does; messages go out in the order of the calls.
   * The future ends with the turn, or with a {@link RoutingException}. {@link RouteResult#replayed} is
   * always false: a stream does not show repeats.
   */
  public CompletableFuture<RouteResult> send(RouteRequest request) {
    RouteRequest complete = RoutingClient.withRequestId(request);
    Waiting waiting = new Waiting(new Call("RouteStream", client.target, complete, timeout), complete);
    synchronized (this) {
      if (isClosed || client.isClosed()) {
        waiting.future.completeExceptionally(client.closed());
        return waiting.future;
      }
      waiting.lateness =
          timer.schedule(() -> late(waiting), waiting.call.remainingNanos(), TimeUnit.NANOSECONDS);
      if (onTheWay.size() >= IN_FLIGHT_MAX) {
        client.queue.enter();
      }
      unsent.add(waiting);
      sendWhatMaySend();
    }
    return waiting.future;
  }

  /** Sends a message and waits for its turn. */
  public RouteResult route(RouteRequest request) {
    try {
      return send(request).get();
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
      throw new IllegalStateException("interrupted while waiting for a turn", interrupted);
    } catch (ExecutionException failure) {
      if (failure.getCause() instanceof RuntimeException cause) {
        throw cause;
      }
      throw new IllegalStateException(failure.getCause());
    }
  }

  /** Ends the stream; messages that wait for their answers fail. */
  @Override
  public void close() {
    List<Waiting> left = new ArrayList<>();
    synchronized (this) {
      isClosed = true;
      left.addAll(onTheWay.values());
      left.addAll(unsent);
      onTheWay.clear();
      unsent.clear();
      if (connection != null) {
        connection.cancel("the stream was closed", null);
        connection = null;
      }
    }
    left.forEach(waiting -> waiting.future.completeExceptionally(client.closed()));
    timer.shutdownNow();
  }

  /** Sends the waiting messages that have a place; connects if there is no connection. */
  private void sendWhatMaySend() {
    if (isClosed || isWaitingToConnect || unsent.isEmpty() && onTheWay.isEmpty()) {
      return;
    }
    if (connection == null) {
      connect();
      // Unanswered messages go first, in the order of their first attempt.
      onTheWay.values().forEach(this::sendNow);
    }
    // The same request_id twice: it identifies answers, so the second message waits for the first
    // answer.
    while (!unsent.isEmpty()
        && onTheWay.size() < IN_FLIGHT_MAX
        && !onTheWay.containsKey(unsent.element().call.requestId)) {
      Waiting waiting = unsent.remove();
      waiting.call.attempts++;
      onTheWay.put(waiting.call.requestId, waiting);
      sendNow(waiting);
    }
  }

  private void sendNow(Waiting waiting) {
    // Several answers in one message take both sides less time.
    connection.sendMessage(
        RouteStreamRequest.newBuilder().setRoute(waiting.request).setTakesMore(true).build());
  }

  private void connect() {
    client.connectAgainIfAway();
    Wire.Place place = client.takeStream();
    ClientCall<RouteStreamRequest, RouteStreamResponse> own =
        place.channel().newCall(RoutingServiceGrpc.getRouteStreamMethod(), client.callOptions());
    connection = own;
    own.start(
        new ClientCall.Listener<>() {
          @Override
          public void onMessage(RouteStreamResponse response) {
            onTimer(
                () -> {
                  received(response);
                  response.getMoreList().forEach(RouteStream.this::received);
                });
            own.request(1);
          }

          @Override
          public void onClose(Status status, Metadata trailers) {
            place.release().run();
            onTimer(() -> broken(own, status, trailers));
          }
        },
        new Metadata());
    own.request(IN_FLIGHT_MAX);
  }

  /** Runs a task after the earlier ones, and not at all after the stream was closed. */
  private void onTimer(Runnable task) {
    if (!timer.isShutdown()) {
      try {
        timer.execute(task);
      } catch (java.util.concurrent.RejectedExecutionException closedMeanwhile) {
        return;
      }
    }
  }

  private void received(RouteStreamResponse response) {
    Waiting found;
    synchronized (this) {
      breaks = 0;
      found = onTheWay.remove(response.getRequestId());
      sendWhatMaySend();
    }
    if (found == null) {
      return;
    }
    if (response.hasRoute()) {
      RouteResponse answer = response.getRoute();
      client.succeeded(found.request, answer);
      finish(found, RouteResult.decided(answer, false));
      return;
    }
    Status status =
        Status.UNKNOWN.withDescription("the answer is newer than this client; update it");
    Metadata trailers = new Metadata();
    if (response.hasError()) {
      var refused = StatusProto.toStatusException(response.getError());
      status = refused.getStatus();
      trailers = refused.getTrailers();
    }
    RoutingException error = Failure.exception(status, trailers, found.call);
    // A message that the service could not take is sent again, after others.
    long waitNanos = client.waitAfter(found.call, error);
    if (waitNanos < 0) {
      fail(found, error);
      return;
    }
    timer.schedule(() -> sendAgain(found), waitNanos, TimeUnit.NANOSECONDS);
  }

  private synchronized void sendAgain(Waiting waiting) {
    if (!waiting.future.isDone()) {
      unsent.add(waiting);
      sendWhatMaySend();
    }
  }

  /**
   * Decides about the messages whose connection ended before their answers. A message without
   * attempts or time left, or whose stream was refused, gets the error.
   */
  private void broken(Object which, Status ended, Metadata trailers) {
    if (client.isClosed()) {
      close();
      return;
    }
    Map<Waiting, RoutingException> failed = new LinkedHashMap<>();
    synchronized (this) {
      if (connection != which || isClosed) {
        return;
      }
      connection = null;
      breaks++;
      Status status =
          ended.isOk()
              ? Status.UNAVAILABLE.withDescription("the service ended the stream")
              : ended;
      boolean isCalm = onTheWay.isEmpty() || client.throttle.mayRetry();
      long waitNanos = client.retry.backoffNanos(breaks);
      for (Waiting waiting : List.copyOf(onTheWay.values())) {
        RoutingException error = Failure.exception(status, trailers, waiting.call);
        waitNanos =
            Math.max(waitNanos, error.retryAfter().map(Duration::toNanos).orElse(0L));
        boolean isSentAgain =
            isCalm
                && error.wasUnanswered()
                && waiting.call.attempts < client.retry.attemptsMax()
                && waitNanos < waiting.call.remainingNanos();
        if (isSentAgain) {
          waiting.call.attempts++;
        } else {
          onTheWay.remove(waiting.call.requestId);
          failed.put(waiting, error);
        }
      }
      client.wasAway();
      isWaitingToConnect = true;
      timer.schedule(this::connectAgain, waitNanos, TimeUnit.NANOSECONDS);
    }
    failed.forEach(this::fail);
  }

  private synchronized void connectAgain() {
    isWaitingToConnect = false;
    sendWhatMaySend();
  }

  private void late(Waiting waiting) {
    synchronized (this) {
      onTheWay.remove(waiting.call.requestId, waiting);
      unsent.remove(waiting);
      sendWhatMaySend();
    }
    RoutingException error =
        Failure.exception(Status.DEADLINE_EXCEEDED, new Metadata(), waiting.call);
    fail(waiting, client.heldUp(waiting.call, error));
  }

  private void fail(Waiting waiting, RoutingException error) {
    waiting.lateness.cancel(false);
    client
        .degraded(waiting.request, error)
        .ifPresentOrElse(
            turn -> finish(waiting, turn), () -> waiting.future.completeExceptionally(error));
  }

  private static void finish(Waiting waiting, RouteResult turn) {
    waiting.lateness.cancel(false);
    waiting.future.complete(turn);
  }
}
