package agentrouting;

import agentrouting.v1.DegradedTurn;
import agentrouting.v1.Dispatch;
import agentrouting.v1.Reply;
import agentrouting.v1.RouteResponse;
import agentrouting.v1.Suggestion;
import com.google.protobuf.Timestamp;
import java.time.Instant;
import java.util.Optional;

/**
 * Where a user's message goes. Show the reply if there is one; then, if there is a dispatch, send its
 * text to its agent and report the answer with {@link RoutingClient#completeTurn}.
 *
 * @param response the whole answer of the contract
 * @param degraded whether the client decided alone because the service could not be reached:
 * nothing is stored, and the service does not know this message until it is routed again, with the
 * same session_id, request_id and content, or reported with reportDegraded.
 * @param replayed whether this is the stored answer to an earlier call with this request_id
 * @param error why the decision is degraded, or null
 * @param baseRevision of a degraded decision: the last revision of the session that the client knew,
 * or null
 * @param decideTime when the client decided alone, or null
 */
public record RouteResult(
    RouteResponse response,
    boolean degraded,
    boolean replayed,
    RoutingException error,
    Long baseRevision,
    Instant decideTime) {

  static RouteResult decided(RouteResponse response, boolean replayed) {
    return new RouteResult(response, false, replayed, null, null, null);
  }

  /**
   * Returns the report of a degraded decision, for {@link RoutingClient#reportDegraded}.
   *
   * @param agentText what the user was shown
   * @throws IllegalStateException if the service decided: there is nothing to report then
   */
  public DegradedTurn degradedTurn(String agentText, String userId) {
    if (!degraded) {
      throw new IllegalStateException("the service made this decision and knows it");
    }
    DegradedTurn.Builder made =
        DegradedTurn.newBuilder()
            .setSessionId(sessionId())
            .setRequestId(requestId())
            .setUserId(userId)
            .setAgentId(response.getDispatch().getAgent().getAgentId())
            .setText(response.getDispatch().getText())
            .addAllItems(response.getDispatch().getItemsList())
            .setAgentText(agentText)
            .setDecideTime(
                Timestamp.newBuilder()
                    .setSeconds(decideTime.getEpochSecond())
                    .setNanos(decideTime.getNano()));
    if (baseRevision != null) {
      made.setBaseRevision(baseRevision);
    }
    return made.build();
  }

  /** Returns the session: given, found, or made by the service. */
  public String sessionId() {
    return response.getSessionId();
  }

  /** Returns the request: given or generated; completeTurn takes it. */
  public String requestId() {
    return response.getRequestId();
  }

  /** Returns the dispatch; empty if no agent must act. */
  public Optional<Dispatch> dispatch() {
    return response.hasDispatch() ? Optional.of(response.getDispatch()) : Optional.empty();
  }

  /** Returns the agent to send the message to; empty if no agent must act. */
  public Optional<String> agentId() {
    return dispatch().map(dispatch -> dispatch.getAgent().getAgentId());
  }

  /** Returns the reply to a command, to show before an agent's answer. */
  public Optional<Reply> reply() {
    return response.hasReply() ? Optional.of(response.getReply()) : Optional.empty();
  }

  /** Returns the agent switch that is offered to the user, if there is one. */
  public Optional<Suggestion> suggestion() {
    return response.hasSuggestion() ? Optional.of(response.getSuggestion()) : Optional.empty();
  }

  /** Returns why this agent, such as "STICKY": a RouteReason without its prefix. */
  public String reason() {
    String name = response.getDispatch().getReason().name();
    return name.startsWith("ROUTE_REASON_") ? name.substring("ROUTE_REASON_".length()) : name;
  }
}
