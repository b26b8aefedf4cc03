package agentrouting;

import agentrouting.v1.Delivery;
import agentrouting.v1.Dispatch;
import agentrouting.v1.ListTurnsRequest;
import agentrouting.v1.RouteReason;
import agentrouting.v1.RouteRequest;
import agentrouting.v1.StatusRequest;
import agentrouting.v1.Turn;
import agentrouting.v1.TurnOrder;
import agentrouting.v1.WatchSessionRequest;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/**
 * The answer to a message.
 *
 * @param route what route returned
 * @param turns what the agents did, in order; empty for a command
 */
public record Asked(RouteResult route, List<Turn> turns) {
  /** How long ask waits: longer than a person does, shorter than the service's turn_timeout. */
  public static final Duration WAIT_DEFAULT = Duration.ofMinutes(5);

  /** How long one watch lasts before ask looks again. */
  private static final Duration WATCH = Duration.ofSeconds(20);

  /** Turns that ask reads: a message passes through far fewer agents. */
  private static final int TURNS = 100;

  /** Returns everything that the user should see, with an empty line between two agents' texts. */
  public String text() {
    if (turns.isEmpty()) {
      return route.response().getReply().getText();
    }
    return turns.stream()
        .filter(turn -> !isConsult(turn))
        .flatMap(turn -> Stream.of(turn.getAgentText(), turn.getHandoffMessage()))
        .filter(text -> !text.isEmpty())
        .collect(Collectors.joining("\n\n"));
  }

  /** Returns the agent that answered last; empty for a command. */
  public String agentId() {
    return turns.isEmpty() ? "" : turns.get(turns.size() - 1).getAgentId();
  }

  /** Says whether an answer was for the agent that asked, and not for the user. */
  private boolean isConsult(Turn turn) {
    return turn.getReason() == RouteReason.ROUTE_REASON_CONSULTED
        && turns.stream()
            .anyMatch(
                after ->
                    after.getParentRequestId().equals(turn.getRequestId())
                        && after.getReason() == RouteReason.ROUTE_REASON_CONSULTED
                        && after.getAgentId().equals(turn.getFromAgentId()));
  }

  /** See {@link RoutingClient#ask(RouteRequest, Duration)}. */
  static Asked by(RoutingClient client, RouteRequest request, Duration wait) {
    if (request.getSessionId().isEmpty()) {
      throw new IllegalArgumentException(
          "ask needs a session id, so that a repeat finds the session");
    }
    long lateNanos = System.nanoTime() + CallInfo.positive("wait", wait).toNanos();
    RouteResult routed = routed(client, RoutingClient.withRequestId(request));
    if (routed.degraded()) {
      throw routed.error();
    }
    // A queued message is dispatched later, so its agent is not known yet.
    if (!routed.response().getQueued()) {
      if (routed.dispatch().isEmpty()) {
        return new Asked(routed, List.of());
      }
      requireInbox(routed.dispatch().get());
    }
    WatchSessionRequest watched =
        WatchSessionRequest.newBuilder()
            .setSessionId(routed.sessionId())
            .setUserId(request.getUserId())
            .setAfterRevision(routed.response().getRevision())
            .build();
    while (true) {
      List<Turn> turns = new ArrayList<>();
      if (!isOpen(client, request, routed, turns)) {
        return new Asked(routed, List.copyOf(turns));
      }
      long leftNanos = lateNanos - System.nanoTime();
      if (leftNanos <= 0) {
        throw new NoAnswerYet(routed, wait);
      }
      watched = afterNextChange(client, watched, Duration.ofNanos(leftNanos));
    }
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

  private static RouteResult routed(RoutingClient client, RouteRequest request) {
    try {
      return client.route(request.toBuilder().setDeliver(Delivery.DELIVERY_INBOX).build());
    } catch (RoutingException.StoreFormat isOld) {
      // Agents with inboxes can be asked all the same.
      return client.route(request);
    }
  }

  /** Reads the turns that followed from a request; says whether one of them is open. */
  private static boolean isOpen(
      RoutingClient client, RouteRequest request, RouteResult routed, List<Turn> turns) {
    String session = routed.sessionId();
    String user = request.getUserId();
    // First: a turn that is open now is in the history that is read next.
    var state =
        client.status(StatusRequest.newBuilder().setSessionId(session).setUserId(user).build());
    var page =
        client.listTurns(
            ListTurnsRequest.newBuilder()
                .setSessionId(session)
                .setUserId(user)
                .setOrder(TurnOrder.TURN_ORDER_NEWEST_FIRST)
                .setPageSize(TURNS)
                .build());
    List<Turn> oldestFirst = new ArrayList<>(page.getTurnsList());
    Collections.reverse(oldestFirst);
    Set<String> known = new HashSet<>(Set.of(routed.requestId()));
    for (Turn turn : oldestFirst) {
      if (known.contains(turn.getRequestId()) || known.contains(turn.getParentRequestId())) {
        known.add(turn.getRequestId());
        turns.add(turn);
      }
    }
    return turns.isEmpty()
        || state.getOpenRequestsList().stream()
            .anyMatch(open -> known.contains(open.getRequestId()));
  }

  /** Waits for the session's next change, and returns the request for the one after it. */
  private static WatchSessionRequest afterNextChange(
      RoutingClient client, WatchSessionRequest watched, Duration left) {
    Duration timeout = left.compareTo(WATCH) < 0 ? left : WATCH;
    try (Watch watch = client.watchSession(watched, timeout)) {
      if (watch.hasNextWithin(timeout)) {
        long revision = watch.next().getRevision();
        return watched.toBuilder().setAfterRevision(revision).build();
      }
    } catch (RoutingException failed) {
      // The caller's next call shows what is wrong.
      client.throwIfClosed();
    }
    return watched;
  }
}
