package agentrouting;

import agentrouting.v1.Delivery;
import agentrouting.v1.Dispatch;
import agentrouting.v1.ListTurnsRequest;
import agentrouting.v1.RouteRequest;
import agentrouting.v1.RoutingServiceGrpc;
import agentrouting.v1.StatusRequest;
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
import java.util.Set;
import java.util.function.Consumer;
import java.util.function.Predicate;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/** A message, and its answer by the workers of agents with inboxes. */
final class Asking {
  /** How long one watch lasts before ask looks again. */
  private static final Duration WATCH = Duration.ofSeconds(20);

  /** Turns that ask reads: a message passes through far fewer agents. */
  private static final int TURNS = 100;

  private final RoutingClient client;
  private final RouteResult routed;
  private final String userId;
  private final Duration wait;
  private final long lateNanos;
  private final WatchSessionRequest.Builder watched;
  private List<Turn> turns = List.of();
  private boolean isDone;

  private Asking(RoutingClient client, RouteRequest request, Duration wait) {
    if (request.getSessionId().isEmpty()) {
      throw new IllegalArgumentException(
          "ask needs a session id, so that a repeat finds the session");
    }
    this.client = client;
    this.wait = wait;
    userId = request.getUserId();
    lateNanos = System.nanoTime() + CallInfo.positive("wait", wait).toNanos();
    routed = routed(client, RoutingClient.withRequestId(request));
    watched =
        WatchSessionRequest.newBuilder()
            .setSessionId(routed.sessionId())
            .setUserId(userId)
            .setAfterRevision(routed.response().getRevision());
  }

  /** See {@link RoutingClient#ask(RouteRequest, Duration)}. */
  static Asked answer(RoutingClient client, RouteRequest request, Duration wait) {
    Asking asking = new Asking(client, request, wait);
    if (asking.isAnswered()) {
      return asking.asked();
    }
    while (true) {
      asking.read();
      if (asking.isDone) {
        return asking.asked();
      }
      asking.watch(WatchSessionResponse::hasChange);
    }
  }

  /** See {@link RoutingClient#askParts(RouteRequest, Duration, Consumer)}. */
  static Asked inParts(
      RoutingClient client, RouteRequest request, Duration wait, Consumer<AskedPart> reader) {
    Asking asking = new Asking(client, request, wait);
    if (asking.isAnswered()) {
      Asked asked = asking.asked();
      reader.accept(
          new AskedPart(asked.text(), "", asking.routed.requestId(), false, false));
      return asked;
    }
    asking.watched.addInclude(WatchInclude.WATCH_INCLUDE_DELTAS);
    asking.watched.addInclude(WatchInclude.WATCH_INCLUDE_NOTES);
    AnswerParts parts = new AnswerParts(asking.routed.requestId());
    asking.read();
    while (!asking.isDone) {
      asking.watch(
          response -> {
            if (response.hasChange()) {
              // The stream stays open while this is read, so that no part is lost.
              asking.read();
              parts.know(asking.asked());
            }
            parts.take(response);
            parts.ready().forEach(reader);
            return asking.isDone;
          });
      if (!asking.isDone) {
        asking.read();
      }
    }
    parts.rest(asking.asked()).forEach(reader);
    return asking.asked();
  }

  private Asked asked() {
    return new Asked(routed, turns);
  }

  /** Says whether no agent is asked: a command, with its reply. */
  private boolean isAnswered() {
    return routed.dispatch().isEmpty() && !routed.response().getQueued();
  }

  private static RouteResult routed(RoutingClient client, RouteRequest request) {
    RouteResult routed;
    try {
      routed = client.route(request.toBuilder().setDeliver(Delivery.DELIVERY_INBOX).build());
    } catch (RoutingException.StoreFormat isOld) {
      // Agents with inboxes can be asked all the same.
      routed = client.route(request);
    }
    if (routed.degraded()) {
      throw routed.error();
    }
    // A queued message is dispatched later, so its agent is not known yet.
    if (!routed.response().getQueued()) {
      routed.dispatch().ifPresent(Asking::requireInbox);
    }
    return routed;
  }

  private static void requireInbox(Dispatch dispatch) {
    if (dispatch.getDelivery() != Delivery.DELIVERY_INBOX) {
      throw new IllegalArgumentException(
          "agent \""
              + dispatch.getAgent().getAgentId()
              + "\" has no inbox; carry request "
              + dispatch.getRequestId()
              + " to it, or set delivery: inbox for it in the registry");
    }
  }

  /** Reads the turns that followed from the message, and whether all of them were answered. */
  private void read() {
    String session = routed.sessionId();
    // First: a turn that is open now is in the history that is read next.
    var state =
        client.status(StatusRequest.newBuilder().setSessionId(session).setUserId(userId).build());
    var page =
        client.listTurns(
            ListTurnsRequest.newBuilder()
                .setSessionId(session)
                .setUserId(userId)
                .setOrder(TurnOrder.TURN_ORDER_NEWEST_FIRST)
                .setPageSize(TURNS)
                .build());
    List<Turn> oldestFirst = new ArrayList<>(page.getTurnsList());
    Collections.reverse(oldestFirst);
    Set<String> known = new HashSet<>(Set.of(routed.requestId()));
    List<Turn> found = new ArrayList<>();
    for (Turn turn : oldestFirst) {
      if (known.contains(turn.getRequestId()) || known.contains(turn.getParentRequestId())) {
        known.add(turn.getRequestId());
        found.add(turn);
      }
    }
    turns = inReadingOrder(found);
    isDone =
        !turns.isEmpty()
            && state.getOpenRequestsList().stream()
                .noneMatch(open -> known.contains(open.getRequestId()));
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

  /** Watches for a while, or until the reader has seen enough. */
  private void watch(Predicate<WatchSessionResponse> isEnough) {
    Duration left = Duration.ofNanos(lateNanos - System.nanoTime());
    if (left.isNegative() || left.isZero()) {
      throw new NoAnswerYet(routed, wait);
    }
    Duration timeout = left.compareTo(WATCH) < 0 ? left : WATCH;
    long endNanos = System.nanoTime() + timeout.toNanos();
    var connections =
        new Connections<>(
            client, RoutingServiceGrpc.getWatchSessionMethod(), watched::build, timeout);
    try {
      while (true) {
        WatchSessionResponse response = next(connections, endNanos);
        if (response == null) {
          return;
        }
        if (response.hasChange()) {
          watched.setAfterRevision(response.getChange().getRevision());
        }
        if (isEnough.test(response)) {
          return;
        }
      }
    } finally {
      connections.close();
    }
  }

  /** Returns the watch's next message; null at the end of its time, or if it failed. */
  private WatchSessionResponse next(
      Connections<WatchSessionRequest, WatchSessionResponse> connections, long endNanos) {
    try {
      return connections.next(Duration.ofNanos(Math.max(0, endNanos - System.nanoTime())));
    } catch (RoutingException failed) {
      // The caller's next call shows what is wrong.
      client.throwIfClosed();
      return null;
    }
  }
}
