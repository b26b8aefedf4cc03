package agentrouting;

import agentrouting.v1.Dispatch;
import agentrouting.v1.InboxItem;
import agentrouting.v1.Step;

/** A turn for an agent's function. */
public final class InboxTurn {
  private final InboxItem item;
  private TurnReports reports; // set before the function begins
  private volatile boolean isLost;

  InboxTurn(InboxItem item) {
    this.item = item;
  }

  InboxTurn reportingTo(TurnReports reports) {
    this.reports = reports;
    return this;
  }

  TurnReports reports() {
    return reports;
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

  /**
   * Reports something that was done, for the history and for watchers that ask for it. It is sent
   * at once, or 5 s after the report before: what was sent survives a crash. Of a turn 256 steps are
   * kept. What could not be sent goes with the answer. A step without a kind is a "tool".
   */
  public void step(Step step) {
    reports.step(step);
  }

  /** See {@link #step(Step)}. */
  public void step(String name, String input, String output) {
    step(Step.newBuilder().setName(name).setInput(input).setOutput(output).build());
  }

  /**
   * Shows the user a line while they wait, such as "still looking". At most 1 KiB. It is stored
   * nowhere, and a note that cannot be sent is dropped.
   */
  public void note(String text) {
    reports.note(text);
  }

  /**
   * Shows the next part of the answer. It is stored nowhere: return the whole text as well, as
   * {@code Answers.say(turn.written())} does.
   */
  public void delta(String text) {
    reports.delta(text);
  }

  /** Returns the parts so far. */
  public String written() {
    return reports.written();
  }

  void lose() {
    isLost = true;
    reports.end();
  }

  /** Returns the settings of a call about this turn: its trace goes on. */
  CallInfo call() {
    CallInfo info = new CallInfo();
    String traceparent = dispatch().getTraceparent();
    return traceparent.isEmpty() ? info : info.withHeader("traceparent", traceparent);
  }
}
