package agentrouting;

import agentrouting.v1.ApprovalNeededOutcome;
import agentrouting.v1.CompleteOutcome;
import agentrouting.v1.CompleteTurnRequest;
import agentrouting.v1.FailureOutcome;
import agentrouting.v1.FollowUpOutcome;
import agentrouting.v1.HandoffOutcome;
import agentrouting.v1.ProceedOutcome;
import com.google.protobuf.Struct;
import java.time.Duration;

/**
 * What a worker's function returns: how the turn ended, with the agent's text. Add items and steps to
 * the builder; the worker fills in the ids.
 */
public final class Answers {
  private Answers() {}

  /** Returns an answer: the agent keeps the conversation as its stickiness says. */
  public static CompleteTurnRequest.Builder say(String text) {
    return CompleteTurnRequest.newBuilder()
        .setText(text)
        .setProceed(ProceedOutcome.getDefaultInstance());
  }

  /** Returns a question to the user: the next message goes to this agent. */
  public static CompleteTurnRequest.Builder followUp(String text) {
    return CompleteTurnRequest.newBuilder()
        .setText(text)
        .setFollowUp(FollowUpOutcome.getDefaultInstance());
  }

  /** Returns a question of an agent that waits for its answer for at most so long. */
  public static CompleteTurnRequest.Builder followUp(String text, Duration timeout) {
    var limit =
        com.google.protobuf.Duration.newBuilder()
            .setSeconds(timeout.getSeconds())
            .setNanos(timeout.getNano());
    return CompleteTurnRequest.newBuilder()
        .setText(text)
        .setFollowUp(FollowUpOutcome.newBuilder().setTimeout(limit));
  }

  /**
   * Returns that the agent completed its task; the registry names the next agent.
   *
   * @param summary what was done, for the audit and the next agent, at most 4 KiB
   */
  public static CompleteTurnRequest.Builder complete(String text, String summary) {
    return CompleteTurnRequest.newBuilder()
        .setText(text)
        .setComplete(CompleteOutcome.newBuilder().setSummary(summary));
  }

  /**
   * Returns a handoff to another agent; the message goes there next. Set context, message and mode
   * in a HandoffOutcome instead.
   *
   * @param reason at most 1 KiB
   */
  public static CompleteTurnRequest.Builder handOff(String agentId, String reason) {
    return CompleteTurnRequest.newBuilder()
        .setHandoff(HandoffOutcome.newBuilder().setAgentId(agentId).setReason(reason));
  }

  /** Returns that the agent needs an approval of the prompt: the task pauses until resumeTask. */
  public static CompleteTurnRequest.Builder approvalNeeded(String prompt) {
    return CompleteTurnRequest.newBuilder()
        .setApprovalNeeded(ApprovalNeededOutcome.newBuilder().setPrompt(prompt));
  }

  /**
   * Returns that the agent needs an approval.
   *
   * @param fields the same for programs, such as the amount, at most 4 KiB
   */
  public static CompleteTurnRequest.Builder approvalNeeded(String prompt, Struct fields) {
    return CompleteTurnRequest.newBuilder()
        .setApprovalNeeded(ApprovalNeededOutcome.newBuilder().setPrompt(prompt).setFields(fields));
  }

  /**
   * Returns that the agent and its task failed; the agent stays active. To have the turn tried
   * again, throw instead.
   *
   * @param message for the audit and not for the user, at most 4 KiB
   */
  public static CompleteTurnRequest.Builder failed(String message) {
    return CompleteTurnRequest.newBuilder()
        .setFailure(FailureOutcome.newBuilder().setMessage(message));
  }
}
