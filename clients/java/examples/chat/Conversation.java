package chat;

import agentrouting.RouteResult;
import agentrouting.RoutingClient;
import agentrouting.RoutingException;
import agentrouting.v1.Agent;
import agentrouting.v1.CompleteTurnRequest;
import agentrouting.v1.CompleteTurnResponse;
import agentrouting.v1.Dispatch;
import agentrouting.v1.RouteRequest;

/**
 * One user's conversation with the active agent. Every frontend does this: route the message, show
 * a command's reply, and run agents while completeTurn names a next one.
 */
final class Conversation {
  /** Limit of hops of a message, far above the service's own limit. */
  private static final int STEPS_MAX = 20;

  private final RoutingClient client;
  private final String sessionId;
  private final String userId;
  private final String locale;
  private final Screen screen;
  private Agent agent;

  Conversation(RoutingClient client, String sessionId, String userId, String locale, Screen screen) {
    this.client = client;
    this.sessionId = sessionId;
    this.userId = userId;
    this.locale = locale;
    this.screen = screen;
  }

  /** Sends the user's text, and shows the answers. */
  void say(String text) {
    RouteResult turn =
        client.route(
            RouteRequest.newBuilder()
                .setSessionId(sessionId)
                .setUserId(userId)
                .setLocale(locale)
                .setChannel("web")
                .setText(text)
                .build());
    turn.reply().ifPresent(reply -> screen.reply(reply.getText()));
    Dispatch dispatch = turn.dispatch().orElse(null);
    for (int step = 0; dispatch != null && step < STEPS_MAX; step++) {
      showHandoff(dispatch);
      CompleteTurnRequest.Builder answer = Agents.answer(dispatch);
      if (turn.degraded()) {
        // The service does not know this message: there is nothing to complete.
        screen.agent(dispatch, answer.getText(), true);
        return;
      }
      CompleteTurnResponse completed = complete(dispatch, answer);
      screen.agent(dispatch, completed.getText(), false);
      dispatch = completed.hasNext() ? completed.getNext() : null;
    }
    turn.suggestion().ifPresent(screen::suggestion);
  }

  private void showHandoff(Dispatch dispatch) {
    Agent before = dispatch.getHandoff().hasFrom() ? dispatch.getHandoff().getFrom() : agent;
    agent = dispatch.getAgent();
    if (before != null && !before.getAgentId().equals(agent.getAgentId())) {
      screen.handoff(before, agent, dispatch.getHandoff().getMessage());
    }
  }

  /** Reports an answer. If its handoff is refused, the agent answers itself. */
  private CompleteTurnResponse complete(Dispatch dispatch, CompleteTurnRequest.Builder answer) {
    try {
      return report(dispatch, answer);
    } catch (RoutingException.HandoffRefused refused) {
      return report(dispatch, Agents.afterRefusal(refused.rules()));
    }
  }

  private CompleteTurnResponse report(Dispatch dispatch, CompleteTurnRequest.Builder answer) {
    return client.completeTurn(
        answer
            .setSessionId(sessionId)
            .setUserId(userId)
            .setRequestId(dispatch.getRequestId())
            .setAgentId(dispatch.getAgent().getAgentId())
            .build());
  }
}
