package agentrouting;

import agentrouting.v1.RouteReason;
import agentrouting.v1.Turn;
import java.time.Duration;
import java.util.List;
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

  /** Returns everything that the user should see, with an empty line between two agents' texts. */
  public String text() {
    if (turns.isEmpty()) {
      return route.response().getReply().getText();
    }
    return turns.stream()
        .filter(turn -> !isConsult(turn))
        .map(Asked::shown)
        .filter(text -> !text.isEmpty())
        .collect(Collectors.joining("\n\n"));
  }

  /** Returns what the user should see of a turn. */
  static String shown(Turn turn) {
    return Stream.of(turn.getAgentText(), turn.getHandoffMessage())
        .filter(text -> !text.isEmpty())
        .collect(Collectors.joining("\n\n"));
  }

  /** Returns the agent that answered last; empty for a command. */
  public String agentId() {
    return turns.isEmpty() ? "" : turns.get(turns.size() - 1).getAgentId();
  }

  /** Says whether an answer was for the agent that asked, and not for the user. */
  boolean isConsult(Turn turn) {
    return turn.getReason() == RouteReason.ROUTE_REASON_CONSULTED
        && turns.stream()
            .anyMatch(
                after ->
                    after.getParentRequestId().equals(turn.getRequestId())
                        && after.getReason() == RouteReason.ROUTE_REASON_CONSULTED
                        && after.getAgentId().equals(turn.getFromAgentId()));
  }
}
