package agentrouting;

import java.math.BigDecimal;
import java.time.Duration;

/** Thrown by ask after its time. The turn goes on: ask again with the same request id. */
public final class NoAnswerYet extends RuntimeException {
  private static final long serialVersionUID = 1L;

  private final String requestId;
  private final String agentId;

  NoAnswerYet(String requestId, String agentId, Duration wait) {
    super(
        "no answer"
            + (agentId.isEmpty() ? "" : " from agent \"" + agentId + "\"")
            + " in "
            + BigDecimal.valueOf(wait.toMillis(), 3).stripTrailingZeros().toPlainString()
            + " s; "
            + (agentId.isEmpty() ? "it waits for the answer to the one before" : "its turn goes on")
            + ": ask again with request id "
            + requestId);
    this.requestId = requestId;
    this.agentId = agentId;
  }

  /** Returns the message's request id. */
  public String requestId() {
    return requestId;
  }

  /** Returns the agent that has the message; empty while it is queued. */
  public String agentId() {
    return agentId;
  }
}
