package chat;

import agentrouting.RoutingClient;
import agentrouting.RoutingException;
import agentrouting.Turn;
import agentrouting.v1.Agent;
import agentrouting.v1.CompleteTurnRequest;
import agentrouting.v1.CompleteTurnResponse;
import agentrouting.v1.Dispatch;
import agentrouting.v1.RouteRequest;

/**
 * One user's conversation, with whichever agent has it. What a frontend has to do, whatever it looks
 * like: route the message, show a command's reply, and run agent after agent while completeTurn names
 * a next one.
 */
final class Conversation {
  /** No message is handed on more often than the service itself allows, by far. */
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

  /** Sends what the user says, and shows what comes of it. */
  void say(String text) {
    Turn turn =
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
        // The service knows nothing of this message: there is nothing to complete.
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

  /** Reports an answer; where its handoff is refused, the agent answers by itself. */
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
