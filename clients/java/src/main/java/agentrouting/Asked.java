package agentrouting;

import agentrouting.v1.AbandonCause;
import agentrouting.v1.RouteReason;
import agentrouting.v1.Turn;
import agentrouting.v1.TurnOutcome;
import java.time.Duration;
import java.util.EnumSet;
import java.util.List;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/**
 * What became of a message: its answer, or why there is none yet or will be none.
 *
 * @param route what route returned
 * @param turns what the agents did, in order; empty for a command, and while the message is queued
 * @param waitsFor an outcome that is not the end of a turn: WITH_PEOPLE, AWAITING_APPROVAL or QUEUED;
 *     otherwise NONE
 * @param claimed with WITH_PEOPLE: whether a person has claimed the conversation
 * @param replayed whether an earlier call sent this request id, so that its caller gets the same
 *     answer
 */
public record Asked(
    RouteResult route, List<Turn> turns, Outcome waitsFor, boolean claimed, boolean replayed) {
  /** How long ask waits: longer than a person does, shorter than the service's turn_timeout. */
  public static final Duration WAIT_DEFAULT = Duration.ofMinutes(5);

  /**
   * What became of a message: how the last agent ended its turn, by the names of TurnOutcome, or why
   * there is no answer. With the same request id ask returns what has become of the message since,
   * and waits again if an agent has it.
   */
  public enum Outcome {
    /** A command: no agent was asked. */
    NONE,
    PROCEED,
    FOLLOW_UP,
    COMPLETE,
    HANDOFF,
    /** The agent asked for an approval, and it is no longer pending. */
    APPROVAL_NEEDED,
    FAILURE,
    /** The answer to a later message is for this one too. */
    ANSWERED,
    /** No answer will come; {@link Asked#cause()} says why. Ask as a new request. */
    ABANDONED,
    /** People have the message. A watch of the session shows what they write. */
    WITH_PEOPLE,
    /** A person has to decide first. */
    AWAITING_APPROVAL,
    /** The message waits behind one that people have. */
    QUEUED,
    /** An outcome that is newer than this client: see the last of turns. */
    UNRECOGNIZED;

    private static Outcome of(Turn turn) {
      if (turn.getOutcome() == TurnOutcome.TURN_OUTCOME_UNSPECIFIED || wasGivenUp(turn)) {
        return ABANDONED;
      }
      return turn.getOutcome() == TurnOutcome.UNRECOGNIZED
          ? UNRECOGNIZED
          : valueOf(turn.getOutcome().name().substring("TURN_OUTCOME_".length()));
    }
  }

  private static final Set<AbandonCause> GIVEN_UP =
      EnumSet.of(
          AbandonCause.ABANDON_CAUSE_RESET,
          AbandonCause.ABANDON_CAUSE_CLEARED,
          AbandonCause.ABANDON_CAUSE_COMMAND,
          AbandonCause.ABANDON_CAUSE_CANCELLED,
          AbandonCause.ABANDON_CAUSE_REPLACED,
          AbandonCause.ABANDON_CAUSE_ERASED);

  /**
   * Returns everything that the user should see: the service's reply, and what the agents wrote.
   * There is an empty line between two texts.
   */
  public String text() {
    Stream<String> texts = turns.stream().map(turn -> shown(turn, turns));
    return joined(Stream.concat(Stream.of(route.response().getReply().getText()), texts));
  }

  /** Returns what the user should see of a turn, one of those that followed from a message. */
  static String shown(Turn turn, List<Turn> turns) {
    if (isConsult(turn, turns) || wasGivenUp(turn)) {
      return "";
    }
    return joined(Stream.of(turn.getAgentText(), turn.getHandoffMessage()));
  }

  private static String joined(Stream<String> texts) {
    return texts.filter(text -> !text.isEmpty()).collect(Collectors.joining("\n\n"));
  }

  /** Returns what to show after the text: that the task was parked until its approval; or "". */
  public String notice() {
    return turns.isEmpty() ? "" : turns.get(turns.size() - 1).getNotice();
  }

  /** Returns the agent that answered last, or has the message; empty for a command. */
  public String agentId() {
    return turns.isEmpty() ? "" : turns.get(turns.size() - 1).getAgentId();
  }

  /** Returns what became of the message. */
  public Outcome outcome() {
    if (waitsFor != Outcome.NONE) {
      return waitsFor;
    }
    Outcome unanswered = route.response().getQueued() ? Outcome.ABANDONED : Outcome.NONE;
    return ends().map(Outcome::of).reduce(unanswered, (before, after) -> after);
  }

  /**
   * Returns why the turn was abandoned; ABANDON_CAUSE_UNSPECIFIED otherwise, and if the message was
   * still queued when the session was reset, and if the service is older than these causes.
   */
  public AbandonCause cause() {
    if (outcome() != Outcome.ABANDONED) {
      return AbandonCause.ABANDON_CAUSE_UNSPECIFIED;
    }
    return ends()
        .map(
            turn ->
                turn.getOutcome() == TurnOutcome.TURN_OUTCOME_UNSPECIFIED
                    ? AbandonCause.ABANDON_CAUSE_TIMEOUT // It is not stored as abandoned yet.
                    : turn.getAbandonCause())
        .reduce(AbandonCause.ABANDON_CAUSE_UNSPECIFIED, (before, after) -> after);
  }

  /** Returns the turns that are not only something that an agent said. */
  private Stream<Turn> ends() {
    return turns.stream().filter(turn -> turn.getOutcome() != TurnOutcome.TURN_OUTCOME_SAID);
  }

  /** Says whether the user, or somebody for them, gave a turn up: a late answer is not shown. */
  private static boolean wasGivenUp(Turn turn) {
    return GIVEN_UP.contains(turn.getAbandonCause());
  }

  /** Says whether an answer was for the agent that asked, and not for the user. */
  private static boolean isConsult(Turn turn, List<Turn> turns) {
    return turn.getReason() == RouteReason.ROUTE_REASON_CONSULTED
        && turns.stream()
            .anyMatch(
                after ->
                    after.getParentRequestId().equals(turn.getRequestId())
                        && after.getReason() == RouteReason.ROUTE_REASON_CONSULTED
                        && after.getAgentId().equals(turn.getFromAgentId()));
  }
}
