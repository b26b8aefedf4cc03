package agentrouting;

import java.math.BigDecimal;
import java.time.Duration;

/** Thrown by ask after its time. The turn goes on: ask again with the same request id. */
public final class NoAnswerYet extends RuntimeException {
  private static final long serialVersionUID = 1L;

  private final String requestId;

  NoAnswerYet(RouteResult routed, Duration wait) {
    super(
        "no answer from agent \""
            + routed.agentId().orElse("")
            + "\" in "
            + BigDecimal.valueOf(wait.toMillis(), 3).stripTrailingZeros().toPlainString()
            + " s; its turn goes on: ask again with request id "
            + routed.requestId());
    requestId = routed.requestId();
  }

  /** Returns the message's request id. */
  public String requestId() {
    return requestId;
  }
}
