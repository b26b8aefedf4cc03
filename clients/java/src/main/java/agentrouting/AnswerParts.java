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
 * the whole. Parts of turns that are not known to follow from the message are kept back, so that what
 * an agent said before a handoff comes before the parts of the next agent.
 */
final class AnswerParts {
  /** Names a turn: agents between which an operator moved a message share its request. */
  private record Key(String requestId, String agentId) {}

  /** What came of one turn's answer. text: as the caller has it, after what is ready. */
  private static final class Written {
    private int attempt;
    private long end;
    private String text = "";
    private boolean isWhole;
    private final List<AskedPart> ready = new ArrayList<>();

    /** Adds what is missing of a whole answer. */
    private void complete(Turn turn, String whole) {
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

  private final Map<Key, Written> written = new HashMap<>();
  // Turns that are known to follow from the message, in order.
  private final Set<Key> chain = new LinkedHashSet<>();

  /**
   * Takes the turns that followed from the message so far; those that ended are whole.
   *
   * @param isDone all of them are, also those that are still open
   */
  void know(List<Turn> turns, boolean isDone) {
    for (Turn turn : turns) {
      Key key = new Key(turn.getRequestId(), turn.getAgentId());
      chain.add(key);
      if (isDone || turn.getOutcome() != TurnOutcome.TURN_OUTCOME_UNSPECIFIED) {
        of(key).complete(turn, Asked.shown(turn, turns));
      }
    }
  }

  /** Takes a message of the watch. */
  void take(WatchSessionResponse response) {
    if (response.hasNote()) {
      var note = response.getNote();
      of(new Key(note.getRequestId(), note.getAgentId()))
          .ready
          .add(
              new AskedPart(note.getText(), note.getAgentId(), note.getRequestId(), true, false));
    } else if (response.hasDelta()) {
      take(response.getDelta());
    }
  }

  private void take(TurnDelta delta) {
    Written own = of(new Key(delta.getRequestId(), delta.getAgentId()));
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
    for (Key key : chain) {
      Written own = of(key);
      parts.addAll(own.ready);
      own.ready.clear();
    }
    return parts;
  }

  /** Returns what is missing of the whole answers. */
  List<AskedPart> rest(Asked asked) {
    know(asked.turns(), true);
    return ready();
  }

  private Written of(Key key) {
    return written.computeIfAbsent(key, unseen -> new Written());
  }
}
