package agentrouting;

import agentrouting.v1.AgentKind;
import agentrouting.v1.Delivery;
import agentrouting.v1.Dispatch;
import agentrouting.v1.ListTurnsRequest;
import agentrouting.v1.RouteRequest;
import agentrouting.v1.RoutingServiceGrpc;
import agentrouting.v1.StatusRequest;
import agentrouting.v1.StatusResponse;
import agentrouting.v1.Turn;
import agentrouting.v1.TurnOrder;
import agentrouting.v1.TurnOutcome;
import agentrouting.v1.WatchInclude;
import agentrouting.v1.WatchSessionRequest;
import agentrouting.v1.WatchSessionResponse;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.function.Predicate;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/**
 * A message that was routed: what became of it so far, and how long that is waited for. What became of
 * it is read from Status and the history, never guessed from time; the watch only says when to look.
 */
final class Asking {
  /** How long one watch lasts before ask looks again. */
  private static final Duration WATCH = Duration.ofSeconds(20);

  /** Turns in a page that ask reads: a message passes through far fewer agents. */
  private static final int TURNS = 100;

  /** The shortest wait before ask tries again, whatever the retry policy says. */
  private static final Duration PAUSE_MIN = Duration.ofMillis(100);

  private final RoutingClient client;
  private final RouteResult routed;
  private final boolean replayed;
  private final Duration wait;
  private final long lateNanos;
  private final WatchSessionRequest.Builder watched;
  private final AnswerParts parts = new AnswerParts();
  private List<Turn> turns = List.of();
  // The result; null as long as an agent may still answer.
  private Asked asked;
  // When the present watch, or the time after a failure, is over by itself.
  private long watchLateNanos;
  private int attempts;

  private Asking(
      RoutingClient client, RouteRequest request, Duration wait, WatchInclude... include) {
    if (request.getSessionId().isEmpty()) {
      throw new IllegalArgumentException(
          "ask needs a session id, so that a repeat finds the session");
    }
    this.client = client;
    this.wait = wait;
    lateNanos = System.nanoTime() + CallInfo.positive("wait", wait).toNanos();
    CallInfo info = new CallInfo();
    routed = routed(client, RoutingClient.withRequestId(request), info);
    // An attempt of this very call may be the earlier one, so a repeat within it says nothing.
    replayed = routed.replayed() && info.attempts() == 1;
    watched =
        WatchSessionRequest.newBuilder()
            .setSessionId(routed.sessionId())
            .setUserId(request.getUserId())
            .setAfterRevision(routed.response().getRevision())
            .addAllInclude(List.of(include));
  }

  /** See {@link RoutingClient#ask(RouteRequest, Duration)}. */
  static Asked answer(RoutingClient client, RouteRequest request, Duration wait) {
    return new Asking(client, request, wait).answer(part -> {});
  }

  /** See {@link RoutingClient#askParts(RouteRequest, Duration, Consumer)}. */
  static Asked inParts(
      RoutingClient client, RouteRequest request, Duration wait, Consumer<AskedPart> reader) {
    return new Asking(
            client,
            request,
            wait,
            WatchInclude.WATCH_INCLUDE_DELTAS,
            WatchInclude.WATCH_INCLUDE_NOTES)
        .answer(reader);
  }

  private Asked answer(Consumer<AskedPart> reader) {
    String reply = routed.response().getReply().getText();
    if (!reply.isEmpty()) {
      reader.accept(new AskedPart(reply, "", routed.requestId(), false, false));
    }
    if (routed.dispatch().isEmpty() && !routed.response().getQueued()) {
      done(Asked.Outcome.NONE, false);
      return asked;
    }
    while (true) {
      try {
        look();
        if (asked == null) {
          watch(reader);
        }
      } catch (RoutingException error) {
        failed(error);
      }
      if (asked != null) {
        parts.rest(asked).forEach(reader);
        return asked;
      }
      pause();
    }
  }

  private void done(Asked.Outcome waitsFor, boolean claimed) {
    asked = new Asked(routed, turns, waitsFor, claimed, replayed);
  }

  private static RouteResult routed(RoutingClient client, RouteRequest request, CallInfo info) {
    RouteResult routed;
    try {
      routed = client.route(request.toBuilder().setDeliver(Delivery.DELIVERY_INBOX).build(), info);
    } catch (RoutingException.StoreFormat isOld) {
      // Agents with inboxes can be asked all the same.
      routed = client.route(request, info);
    }
    if (routed.degraded()) {
      throw routed.error();
    }
    // A queued message is dispatched later, so its agent is not known yet.
    routed.dispatch().ifPresent(Asking::requireInbox);
    return routed;
  }

  private static void requireInbox(Dispatch dispatch) {
    if (dispatch.getDelivery() != Delivery.DELIVERY_INBOX) {
      throw new NoInbox(dispatch);
    }
  }

  /** Reads what became of the message. */
  private void look() {
    String session = watched.getSessionId();
    String user = watched.getUserId();
    // First: a turn that is open now is in the history that is read next.
    StatusResponse state =
        client.status(StatusRequest.newBuilder().setSessionId(session).setUserId(user).build());
    Optional<String> queue = queueOf(state);
    ListTurnsRequest.Builder page =
        ListTurnsRequest.newBuilder()
            .setSessionId(session)
            .setUserId(user)
            .setOrder(TurnOrder.TURN_ORDER_NEWEST_FIRST)
            .setPageSize(TURNS);
    List<Turn> oldestFirst = new ArrayList<>();
    boolean isFound = queue.isPresent();
    do {
      var answer = client.listTurns(page.build());
      oldestFirst.addAll(answer.getTurnsList());
      isFound |=
          answer.getTurnsList().stream()
              .anyMatch(turn -> turn.getRequestId().equals(routed.requestId()));
      page.setPageToken(answer.getNextPageToken());
    } while (!isFound && !page.getPageToken().isEmpty());
    Collections.reverse(oldestFirst);
    Set<String> chain = new HashSet<>(Set.of(routed.requestId()));
    turns = inReadingOrder(chainOf(chain, oldestFirst));
    parts.know(turns, false);
    if (state.getRevision() >= watched.getAfterRevision()) { // Of an up-to-date replica.
      judge(state, chain, queue);
    }
  }

  /** Finds out whether an agent may still answer one of the requests of the chain. */
  private void judge(StatusResponse state, Set<String> chain, Optional<String> queue) {
    Optional<Dispatch> waiting =
        lastOpen(state, open -> chain.contains(open.getRequestId()));
    if (waiting.isPresent()) {
      requireInbox(waiting.get());
      if (isWithPeople(waiting.get())) {
        // The claim of a parked task is not in its state.
        boolean isForeground = waiting.get().getTaskId().equals(state.getTask().getTaskId());
        done(Asked.Outcome.WITH_PEOPLE, state.hasClaim() && isForeground);
      }
    } else if (queue.isPresent()) {
      if (lastOpen(state, open -> open.getTaskId().equals(queue.get()))
          .filter(Asking::isWithPeople)
          .isPresent()) {
        done(Asked.Outcome.QUEUED, false);
      }
    } else {
      boolean isPaused =
          chain.contains(state.getPendingApproval().getRequestId())
              || state.getParkedTasksList().stream()
                  .anyMatch(task -> chain.contains(task.getPendingApproval().getRequestId()));
      done(isPaused ? Asked.Outcome.AWAITING_APPROVAL : Asked.Outcome.NONE, false);
    }
  }

  /** Returns the task in which the message is queued; empty if it is not. */
  private Optional<String> queueOf(StatusResponse state) {
    String requestId = routed.requestId();
    if (state.getQueuedRequestIdsList().contains(requestId)) {
      return Optional.of(state.getTask().getTaskId());
    }
    return state.getParkedTasksList().stream()
        .filter(task -> task.getQueuedRequestIdsList().contains(requestId))
        .map(task -> task.getTask().getTaskId())
        .findFirst();
  }

  /** Returns the newest open request of a kind. */
  private static Optional<Dispatch> lastOpen(StatusResponse state, Predicate<Dispatch> isWanted) {
    return state.getOpenRequestsList().stream()
        .filter(isWanted)
        .reduce((before, after) -> after);
  }

  private static boolean isWithPeople(Dispatch dispatch) {
    return dispatch.getAgent().getKind() == AgentKind.AGENT_KIND_HUMAN;
  }

  /** Returns the turns that followed from a request, whose requests it adds to the chain. */
  private static List<Turn> chainOf(Set<String> chain, List<Turn> oldestFirst) {
    List<Turn> found = new ArrayList<>();
    for (Turn turn : oldestFirst) {
      if (chain.contains(turn.getRequestId()) || chain.contains(turn.getParentRequestId())) {
        chain.add(turn.getRequestId());
        found.add(turn);
      }
    }
    return found;
  }

  /** What an agent said in its turn was read before its answer, but its turn began earlier. */
  private static List<Turn> inReadingOrder(List<Turn> found) {
    Map<Boolean, List<Turn>> isSaid =
        found.stream()
            .collect(
                Collectors.partitioningBy(
                    turn -> turn.getOutcome() == TurnOutcome.TURN_OUTCOME_SAID));
    return isSaid.get(false).stream()
        .flatMap(
            turn ->
                Stream.concat(
                    isSaid.get(true).stream()
                        .filter(said -> said.getParentRequestId().equals(turn.getRequestId())),
                    Stream.of(turn)))
        .toList();
  }

  /** Watches for a while, or until the message is answered. */
  private void watch(Consumer<AskedPart> reader) {
    long now = System.nanoTime();
    if (now - lateNanos >= 0) {
      String agentId =
          turns.isEmpty()
              ? routed.agentId().orElse("")
              : turns.get(turns.size() - 1).getAgentId();
      throw new NoAnswerYet(routed.requestId(), agentId, wait);
    }
    attempts++;
    Duration timeout = Duration.ofNanos(Math.min(lateNanos - now, WATCH.toNanos()));
    watchLateNanos = now + timeout.toNanos();
    var connections =
        new Connections<>(
            client, RoutingServiceGrpc.getWatchSessionMethod(), watched::build, timeout);
    try {
      WatchSessionResponse response;
      while (asked == null && (response = next(connections)) != null) {
        attempts = 0;
        if (response.hasChange()) {
          watched.setAfterRevision(response.getChange().getRevision());
          // The stream stays open while this is read, so that no part is lost.
          look();
        }
        parts.take(response);
        parts.ready().forEach(reader);
      }
    } finally {
      connections.close();
    }
  }

  /** Returns the watch's next message; null at the end of its time, or if it failed. */
  private WatchSessionResponse next(
      Connections<WatchSessionRequest, WatchSessionResponse> connections) {
    try {
      return connections.next(Duration.ofNanos(Math.max(0, watchLateNanos - System.nanoTime())));
    } catch (RoutingException failed) {
      // The caller's next call shows what is wrong.
      client.throwIfClosed();
      return null;
    }
  }

  /** Goes on while the service is away. Throws the error if it is a refusal, or time is up. */
  private void failed(RoutingException error) {
    error.setRequestId(routed.requestId());
    boolean mayComeBack =
        error.mayFallBack()
            || error instanceof RoutingException.Overloaded
            || error instanceof RoutingException.WatchTooSlow;
    boolean isOver = System.nanoTime() - lateNanos >= 0 || Thread.currentThread().isInterrupted();
    if (!mayComeBack || isOver) {
      throw error;
    }
    attempts++;
    watchLateNanos = lateNanos;
  }

  /** Waits before the next look, after a watch or a failure. An interrupt ends it. */
  private void pause() {
    long pauseNanos =
        Math.max(PAUSE_MIN.toNanos(), client.retry.backoffNanos(Math.max(1, attempts)));
    try {
      TimeUnit.NANOSECONDS.sleep(Math.min(pauseNanos, watchLateNanos - System.nanoTime()));
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
    }
  }
}
