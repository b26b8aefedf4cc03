package agentrouting;

import agentrouting.v1.Dispatch;

/**
 * Thrown by ask if the agent that has the turn has no inbox: the caller has to carry it. route with the
 * request id returns its dispatch.
 */
public final class NoInbox extends IllegalArgumentException {
  private static final long serialVersionUID = 1L;

  private final String requestId;
  private final String agentId;

  NoInbox(Dispatch dispatch) {
    super(
        "agent \""
            + dispatch.getAgent().getAgentId()
            + "\" has no inbox; carry request "
            + dispatch.getRequestId()
            + " to it, or set delivery: inbox for it in the registry");
    requestId = dispatch.getRequestId();
    agentId = dispatch.getAgent().getAgentId();
  }

  /** Returns the message's request id. */
  public String requestId() {
    return requestId;
  }

  /** Returns the agent. */
  public String agentId() {
    return agentId;
  }
}
