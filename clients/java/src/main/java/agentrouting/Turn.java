package agentrouting;

import agentrouting.v1.Dispatch;
import agentrouting.v1.Reply;
import agentrouting.v1.RouteResponse;
import agentrouting.v1.Suggestion;
import java.util.Optional;

/**
 * Where a user's message goes. Show the reply if there is one; then, if there is a dispatch, send its
 * text to its agent and report the answer with {@link RoutingClient#completeTurn}.
 *
 * @param response the whole answer of the contract
 * @param degraded whether the client decided alone because the service could not be reached:
 * nothing is stored, and the service does not know this message until it is routed again, with the
 * same session_id, request_id and content. Commands in the text were not executed.
 * @param replayed whether this is the stored answer to an earlier call with this request_id
 * @param error why the decision is degraded, or null
 */
public record Turn(RouteResponse response, boolean degraded, boolean replayed, RoutingException error) {

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
