package agentrouting;

import agentrouting.v1.Turn;
import agentrouting.v1.TurnDelta;
import agentrouting.v1.TurnOutcome;
import agentrouting.v1.WatchSessionResponse;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * Puts the parts of a message's answers together: repeats are dropped, and after a gap it waits for
 * the whole. Parts of requests that are not known to follow from the message are kept back, so that
 * what an agent said before a handoff comes before the parts of the next agent.
 */
final class AnswerParts {
  /** What came of one request's answer. text: as the caller has it, after what is ready. */
  private static final class Written {
    private int attempt;
    private long end;
    private String text = "";
    private boolean isWhole;
    private final List<AskedPart> ready = new ArrayList<>();

    /** Adds what is missing of a whole answer. */
    private void complete(Turn turn) {
      String whole = Asked.shown(turn);
      if (!whole.equals(text)) {
        boolean replaces = !whole.startsWith(text);
        String missing = replaces ? whole : whole.substring(text.length());
        ready.add(
            new AskedPart(missing, turn.getAgentId(), turn.getRequestId(), false, replaces));
      }
      text = whole;
      isWhole = true;
    }
  }

  private final Map<String, Written> written = new HashMap<>();
  // Requests that are known to follow from the message, in order.
  private final Set<String> chain = new LinkedHashSet<>();

  AnswerParts(String requestId) {
    chain.add(requestId);
  }

  /** Takes the turns that followed from the message so far; those that ended are whole. */
  void know(Asked asked) {
    know(asked, false);
  }

  private void know(Asked asked, boolean isDone) {
    for (Turn turn : asked.turns()) {
      chain.add(turn.getRequestId());
      boolean hasEnded = isDone || turn.getOutcome() != TurnOutcome.TURN_OUTCOME_UNSPECIFIED;
      if (hasEnded && !asked.isConsult(turn)) {
        of(turn.getRequestId()).complete(turn);
      }
    }
  }

  /** Takes a message of the watch. */
  void take(WatchSessionResponse response) {
    if (response.hasNote()) {
      var note = response.getNote();
      of(note.getRequestId())
          .ready
          .add(
              new AskedPart(note.getText(), note.getAgentId(), note.getRequestId(), true, false));
    } else if (response.hasDelta()) {
      take(response.getDelta());
    }
  }

  private void take(TurnDelta delta) {
    Written own = of(delta.getRequestId());
    boolean startsAgain = delta.getAttempt() > own.attempt;
    long begin = startsAgain ? 0 : own.end;
    if (own.isWhole
        || delta.getAttempt() < own.attempt
        || delta.getEnd() <= begin
        || delta.getBegin() != begin) {
      return;
    }
    boolean replaces = startsAgain && !own.text.isEmpty();
    own.attempt = delta.getAttempt();
    own.end = delta.getEnd();
    own.text = startsAgain ? delta.getText() : own.text + delta.getText();
    own.ready.add(
        new AskedPart(
            delta.getText(), delta.getAgentId(), delta.getRequestId(), false, replaces));
  }

  /** Returns the parts to show, and forgets them. */
  List<AskedPart> ready() {
    List<AskedPart> parts = new ArrayList<>();
    for (String requestId : chain) {
      Written own = of(requestId);
      parts.addAll(own.ready);
      own.ready.clear();
    }
    return parts;
  }

  /** Returns what is missing of the whole answers. */
  List<AskedPart> rest(Asked asked) {
    know(asked, true); // Also those that were abandoned.
    return ready();
  }

  private Written of(String requestId) {
    return written.computeIfAbsent(requestId, unseen -> new Written());
  }
}
