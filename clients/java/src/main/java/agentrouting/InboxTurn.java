package agentrouting;

import agentrouting.v1.Dispatch;
import agentrouting.v1.InboxItem;

/** A turn for an agent's function. */
public final class InboxTurn {
  private final InboxItem item;
  private volatile boolean isLost;

  InboxTurn(InboxItem item) {
    this.item = item;
  }

  /** Returns the generated message, with everything: session, user, items, history, attempt. */
  public InboxItem item() {
    return item;
  }

  /** Returns the whole dispatch: the handoff that led here, a decision, a question. */
  public Dispatch dispatch() {
    return item.getDispatch();
  }

  /** Returns the user's message, without its command. */
  public String text() {
    return dispatch().getText();
  }

  /** Returns the agent that must answer. */
  public String agentId() {
    return dispatch().getAgent().getAgentId();
  }

  /**
   * Returns the request to answer, the same in each attempt: the key of what must happen once, such
   * as a payment.
   */
  public String requestId() {
    return dispatch().getRequestId();
  }

  /** Returns 1 for the first delivery of this turn. */
  public int attempt() {
    return item.getAttempt();
  }

  /**
   * Says whether the turn is no longer this worker's, for a function that cannot be interrupted. An
   * answer is then dropped.
   */
  public boolean isLost() {
    return isLost;
  }

  void lose() {
    isLost = true;
  }

  /** Returns the settings of a call about this turn: its trace goes on. */
  CallInfo call() {
    CallInfo info = new CallInfo();
    String traceparent = dispatch().getTraceparent();
    return traceparent.isEmpty() ? info : info.withHeader("traceparent", traceparent);
  }
}
