package agentrouting;

import agentrouting.v1.RouteReason;
import agentrouting.v1.Turn;
import agentrouting.v1.TurnOutcome;
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

  /** Returns what to show after the text: that the task was parked until its approval; or "". */
  public String notice() {
    return turns.isEmpty() ? "" : turns.get(turns.size() - 1).getNotice();
  }

  /** Returns the agent that answered last; empty for a command. */
  public String agentId() {
    return turns.isEmpty() ? "" : turns.get(turns.size() - 1).getAgentId();
  }

  /**
   * Returns how the last agent ended its turn; TURN_OUTCOME_UNSPECIFIED for a command.
   *
   * <p>TURN_OUTCOME_ABANDONED: there is no answer, and none will come. A newer message may have
   * taken the turn's place, its time may have run out, or its workers may have died: ask as a new
   * request. TURN_OUTCOME_FAILURE and TURN_OUTCOME_APPROVAL_NEEDED usually have no text either.
   */
  public TurnOutcome outcome() {
    return turns.stream()
        .map(Turn::getOutcome)
        .filter(outcome -> outcome != TurnOutcome.TURN_OUTCOME_SAID)
        // The turn is not open: one whose time ran out may not be stored as abandoned yet.
        .map(
            outcome ->
                outcome == TurnOutcome.TURN_OUTCOME_UNSPECIFIED
                    ? TurnOutcome.TURN_OUTCOME_ABANDONED
                    : outcome)
        .reduce(TurnOutcome.TURN_OUTCOME_UNSPECIFIED, (before, after) -> after);
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
