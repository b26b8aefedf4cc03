// Generated from error_reason.proto by scripts/make_errors.py. Do not edit.
package agentrouting;

import io.grpc.Status;
import java.util.List;
import java.util.OptionalLong;
import java.util.function.Function;

/**
 * A call that failed. Catch a family or a reason, and never parse a message. A reason that this
 * release does not know is thrown as the family of its code.
 *
 * <pre>
 * RoutingException
 *   InvalidRequest         MalformedRequest  InvalidField
 *   NotFound               UnknownSession  UnknownAgent  UnknownTask  UnknownRequest
 *                          UnknownSuggestion  UnknownReplay
 *   PreconditionFailed     HandoffRefused  RequestNotOpen  TaskNotPaused  TaskClosed  TaskOpen
 *                          TurnOpen  AgentUnavailable  SessionErased  RegistryInvalid
 *                          LeaseLost  StoreFormat  ApprovalDecided  Claimed  NothingToClaim
 *                          TasksOpen  ReplayRunning  RegistryReadOnly
 *   RevisionMismatch
 *   StateChanged
 *   RequestIdReused
 *   DeadlineExceeded
 *   Unauthenticated
 *   PermissionDenied       OwnerMismatch  ScopeMissing  ApproverRefused
 *   ResourceExhausted      Overloaded  TooLarge  WatchTooSlow
 *   RevisionCompacted
 *   Unavailable            StoreUnavailable  SchemaTooNew  ShuttingDown  SignInUnavailable
 *   StateCorrupt
 *   InternalError
 *   Unimplemented
 * </pre>
 */
public class RoutingException extends CallException {
  private static final long serialVersionUID = 1L;

  RoutingException(Failure failure) {
    super(failure);
  }

  /** Returns the constructor for a reason; null for a reason that is not known here. */
  static Function<Failure, RoutingException> byReason(String reason) {
    return switch (reason) {
      case "MALFORMED_REQUEST" -> MalformedRequest::new;
      case "INVALID_FIELD" -> InvalidField::new;
      case "UNKNOWN_SESSION" -> UnknownSession::new;
      case "UNKNOWN_AGENT" -> UnknownAgent::new;
      case "UNKNOWN_TASK" -> UnknownTask::new;
      case "UNKNOWN_REQUEST" -> UnknownRequest::new;
      case "UNKNOWN_SUGGESTION" -> UnknownSuggestion::new;
      case "HANDOFF_REFUSED" -> HandoffRefused::new;
      case "REQUEST_NOT_OPEN" -> RequestNotOpen::new;
      case "TASK_NOT_PAUSED" -> TaskNotPaused::new;
      case "TASK_CLOSED" -> TaskClosed::new;
      case "TASK_OPEN" -> TaskOpen::new;
      case "TURN_OPEN" -> TurnOpen::new;
      case "AGENT_UNAVAILABLE" -> AgentUnavailable::new;
      case "SESSION_ERASED" -> SessionErased::new;
      case "REVISION_MISMATCH" -> RevisionMismatch::new;
      case "REQUEST_ID_REUSED" -> RequestIdReused::new;
      case "DEADLINE" -> DeadlineExceeded::new;
      case "UNAUTHENTICATED" -> Unauthenticated::new;
      case "OWNER_MISMATCH" -> OwnerMismatch::new;
      case "SCOPE_MISSING" -> ScopeMissing::new;
      case "OVERLOADED" -> Overloaded::new;
      case "TOO_LARGE" -> TooLarge::new;
      case "WATCH_TOO_SLOW" -> WatchTooSlow::new;
      case "REVISION_COMPACTED" -> RevisionCompacted::new;
      case "STORE_UNAVAILABLE" -> StoreUnavailable::new;
      case "SCHEMA_TOO_NEW" -> SchemaTooNew::new;
      case "STATE_CORRUPT" -> StateCorrupt::new;
      case "INTERNAL" -> InternalError::new;
      case "NOT_IMPLEMENTED" -> Unimplemented::new;
      case "SHUTTING_DOWN" -> ShuttingDown::new;
      case "REGISTRY_INVALID" -> RegistryInvalid::new;
      case "SIGN_IN_UNAVAILABLE" -> SignInUnavailable::new;
      case "LEASE_LOST" -> LeaseLost::new;
      case "STORE_FORMAT" -> StoreFormat::new;
      case "APPROVAL_DECIDED" -> ApprovalDecided::new;
      case "APPROVER_REFUSED" -> ApproverRefused::new;
      case "CLAIMED" -> Claimed::new;
      case "NOTHING_TO_CLAIM" -> NothingToClaim::new;
      case "TASKS_OPEN" -> TasksOpen::new;
      case "REPLAY_RUNNING" -> ReplayRunning::new;
      case "UNKNOWN_REPLAY" -> UnknownReplay::new;
      case "REGISTRY_READ_ONLY" -> RegistryReadOnly::new;
      case "STATE_CHANGED" -> StateChanged::new;
      default -> null;
    };
  }

  /** Returns the constructor for a code. */
  static Function<Failure, RoutingException> byCode(Status.Code code) {
    return switch (code) {
      case DEADLINE_EXCEEDED -> DeadlineExceeded::new;
      case FAILED_PRECONDITION -> PreconditionFailed::new;
      case INTERNAL -> InternalError::new;
      case INVALID_ARGUMENT -> InvalidRequest::new;
      case NOT_FOUND -> NotFound::new;
      case PERMISSION_DENIED -> PermissionDenied::new;
      case RESOURCE_EXHAUSTED -> ResourceExhausted::new;
      case UNAUTHENTICATED -> Unauthenticated::new;
      case UNAVAILABLE -> Unavailable::new;
      case UNIMPLEMENTED -> Unimplemented::new;
      default -> RoutingException::new;
    };
  }

  /** INVALID_ARGUMENT: the same request can never succeed. */
  public static class InvalidRequest extends RoutingException {
    InvalidRequest(Failure failure) {
      super(failure);
    }
  }

  /**
   * The bytes are not a valid message of the request's type, or a text in it is not UTF-8.
   *
   * <p>Code INVALID_ARGUMENT. Remedy: Generate the client from this contract, and send text as
   * UTF-8.
   */
  public static final class MalformedRequest extends InvalidRequest {
    MalformedRequest(Failure failure) {
      super(failure);
    }
  }

  /**
   * A field is missing, too long, out of range, or not in its format. BadRequest names every bad
   * field.
   *
   * <p>Code INVALID_ARGUMENT. Remedy: Fix all the named fields. The same request can never succeed.
   */
  public static final class InvalidField extends InvalidRequest {
    InvalidField(Failure failure) {
      super(failure);
    }

    /** Returns the paths of the bad fields, such as "task_id" or "items[2].uri". */
    public List<String> fields() {
      return violations().stream().map(Violation::name).toList();
    }
  }

  /** NOT_FOUND: something that the request names does not exist. */
  public static class NotFound extends RoutingException {
    NotFound(Failure failure) {
      super(failure);
    }
  }

  /**
   * The tenant has no such session, or the session was purged.
   *
   * <p>Code NOT_FOUND. Remedy: Check the id and the tenant. A session begins with its first Route
   * or SetActiveAgent.
   */
  public static final class UnknownSession extends NotFound {
    UnknownSession(Failure failure) {
      super(failure);
    }

    /** Returns the session of the request. */
    public String sessionId() {
      return metadata().getOrDefault("session_id", "");
    }
  }

  /**
   * The registry has no such agent.
   *
   * <p>Code NOT_FOUND. Remedy: Use an id that ListAgents returns.
   */
  public static final class UnknownAgent extends NotFound {
    UnknownAgent(Failure failure) {
      super(failure);
    }

    /** Returns the agent of the request. */
    public String agentId() {
      return metadata().getOrDefault("agent_id", "");
    }
  }

  /**
   * The session has no such task; if the request names no session, the tenant has none.
   *
   * <p>Code NOT_FOUND. Remedy: Use a task_id from an answer of Route or from ListTasks.
   */
  public static final class UnknownTask extends NotFound {
    UnknownTask(Failure failure) {
      super(failure);
    }

    /** Returns the task of the request. */
    public String taskId() {
      return metadata().getOrDefault("task_id", "");
    }
  }

  /**
   * The session has dispatched no such request.
   *
   * <p>Code NOT_FOUND. Remedy: Complete the request_id of a Dispatch of this session; Status lists
   * the open ones. If the client routed the message by itself while the service was away, route it
   * again under the same request_id, then complete it.
   */
  public static final class UnknownRequest extends NotFound {
    UnknownRequest(Failure failure) {
      super(failure);
    }
  }

  /**
   * The suggestion or quick reply is not open. It was never made, it was accepted or declined, or
   * it ended when the active agent changed.
   *
   * <p>Code NOT_FOUND. Remedy: Route the message without it.
   */
  public static final class UnknownSuggestion extends NotFound {
    UnknownSuggestion(Failure failure) {
      super(failure);
    }
  }

  /**
   * This server has no such replay. It may have been restarted, or another replica has the replay.
   *
   * <p>Code NOT_FOUND. Remedy: Ask the replica that started it, or start it again.
   */
  public static final class UnknownReplay extends NotFound {
    UnknownReplay(Failure failure) {
      super(failure);
    }
  }

  /** FAILED_PRECONDITION: the session is in a state that does not allow the call. */
  public static class PreconditionFailed extends RoutingException {
    PreconditionFailed(Failure failure) {
      super(failure);
    }
  }

  /**
   * Rules refused the handoff. PreconditionFailure names every rule that refused: type is the name
   * of the rule, subject the target's id. The turn stays open and the request_id is not used up.
   * After three refusals in a turn, the home agent is the only target left to that turn.
   *
   * <p>Code FAILED_PRECONDITION. Remedy: Do what each violation says; or hand over to another
   * agent, or to the home agent, which is always a legal target.
   */
  public static final class HandoffRefused extends PreconditionFailed {
    HandoffRefused(Failure failure) {
      super(failure);
    }

    /** Returns the names of the rules that refused, in the order of their evaluation. */
    public List<String> rules() {
      return violations().stream().map(Violation::name).toList();
    }

    /** Returns the target of the handoff. */
    public String agentId() {
      return metadata().getOrDefault("agent_id", "");
    }

    /** Returns the agent that wanted to hand over. */
    public String fromAgentId() {
      return metadata().getOrDefault("from_agent_id", "");
    }
  }

  /**
   * The request was already completed with another answer, or decided the other way.
   *
   * <p>Code FAILED_PRECONDITION. Remedy: Nothing needs to be done: the first answer stands. Show
   * that one.
   */
  public static final class RequestNotOpen extends PreconditionFailed {
    RequestNotOpen(Failure failure) {
      super(failure);
    }
  }

  /**
   * The task is not waiting for an approval.
   *
   * <p>Code FAILED_PRECONDITION. Remedy: Read Status: another caller may have decided already.
   */
  public static final class TaskNotPaused extends PreconditionFailed {
    TaskNotPaused(Failure failure) {
      super(failure);
    }
  }

  /**
   * The task is completed, failed or cancelled.
   *
   * <p>Code FAILED_PRECONDITION. Remedy: Leave task_id empty, or send a new one.
   */
  public static final class TaskClosed extends PreconditionFailed {
    TaskClosed(Failure failure) {
      super(failure);
    }
  }

  /**
   * Another task of the session is open.
   *
   * <p>Code FAILED_PRECONDITION. Remedy: Leave task_id empty to continue the open task, or clear
   * with CLEAR_SCOPE_SESSION first.
   */
  public static final class TaskOpen extends PreconditionFailed {
    TaskOpen(Failure failure) {
      super(failure);
    }

    /** Returns the task that is open. */
    public String openTaskId() {
      return metadata().getOrDefault("open_task_id", "");
    }
  }

  /**
   * A message arrived while a turn is open. The registry rejects that (double_text: reject), too
   * many messages of the session wait, or too many turns of the user wait for agents.
   *
   * <p>Code FAILED_PRECONDITION. Remedy: Send the message after the answer to that turn.
   */
  public static final class TurnOpen extends PreconditionFailed {
    TurnOpen(Failure failure) {
      super(failure);
    }

    /** Returns the request that is not answered. */
    public String openRequestId() {
      return metadata().getOrDefault("request_id", "");
    }
  }

  /**
   * The agent that must act is missing, disabled, or not allowed for this user.
   *
   * <p>Code FAILED_PRECONDITION. Remedy: Enable the agent, or clear the session. A paused task
   * stays paused.
   */
  public static final class AgentUnavailable extends PreconditionFailed {
    AgentUnavailable(Failure failure) {
      super(failure);
    }
  }

  /**
   * The session's data were erased; its id is not used again.
   *
   * <p>Code FAILED_PRECONDITION. Remedy: Begin a session with another id.
   */
  public static final class SessionErased extends PreconditionFailed {
    SessionErased(Failure failure) {
      super(failure);
    }
  }

  /**
   * The registry file has mistakes; the registry in force stays. PreconditionFailure names every
   * mistake.
   *
   * <p>Code FAILED_PRECONDITION. Remedy: Correct each mistake as its violation says, then reload.
   */
  public static final class RegistryInvalid extends PreconditionFailed {
    RegistryInvalid(Failure failure) {
      super(failure);
    }
  }

  /**
   * The lease on a turn from an inbox is another worker's by now, or the turn was moved.
   *
   * <p>Code FAILED_PRECONDITION. Remedy: Stop working on the turn: another worker has it, or it
   * needs no answer any more.
   */
  public static final class LeaseLost extends PreconditionFailed {
    LeaseLost(Failure failure) {
      super(failure);
    }
  }

  /**
   * The store's format is too old for what was asked for: an older release may be serving. This
   * release stores everything in format 2, which it needs at start, so it does not answer this; 0.2
   * does.
   *
   * <p>Code FAILED_PRECONDITION. Remedy: Raise the store's format once no older replica is left, or
   * leave the feature out.
   */
  public static final class StoreFormat extends PreconditionFailed {
    StoreFormat(Failure failure) {
      super(failure);
    }
  }

  /**
   * The approval was decided already, and the other way.
   *
   * <p>Code FAILED_PRECONDITION. Remedy: Nothing needs to be done: show which decision stands.
   */
  public static final class ApprovalDecided extends PreconditionFailed {
    ApprovalDecided(Failure failure) {
      super(failure);
    }
  }

  /**
   * Another person has claimed the conversation.
   *
   * <p>Code FAILED_PRECONDITION. Remedy: Leave the conversation to that person, or take it over:
   * ClaimTurn with take_over.
   */
  public static final class Claimed extends PreconditionFailed {
    Claimed(Failure failure) {
      super(failure);
    }
  }

  /**
   * The conversation is not with the agent for which it was to be claimed.
   *
   * <p>Code FAILED_PRECONDITION. Remedy: Read the inbox again: the conversation was answered or
   * handed on.
   */
  public static final class NothingToClaim extends PreconditionFailed {
    NothingToClaim(Failure failure) {
      super(failure);
    }
  }

  /**
   * As many tasks as can be are parked, and the message names one more (tasks: new).
   *
   * <p>Code FAILED_PRECONDITION. Remedy: Finish or cancel a parked task first, or leave task_id
   * empty to join the open one.
   */
  public static final class TasksOpen extends PreconditionFailed {
    TasksOpen(Failure failure) {
      super(failure);
    }
  }

  /**
   * A replay of the tenant runs on this server already.
   *
   * <p>Code FAILED_PRECONDITION. Remedy: Watch the replay, or cancel it and start again.
   */
  public static final class ReplayRunning extends PreconditionFailed {
    ReplayRunning(Failure failure) {
      super(failure);
    }
  }

  /**
   * The server may not replace its registry file.
   *
   * <p>Code FAILED_PRECONDITION. Remedy: Change the file where it comes from, such as a ConfigMap
   * or a repository, then reload.
   */
  public static final class RegistryReadOnly extends PreconditionFailed {
    RegistryReadOnly(Failure failure) {
      super(failure);
    }
  }

  /**
   * The session is not at expected_revision, or other writers came first too often. Nothing was
   * written.
   *
   * <p>Code ABORTED. Remedy: Read Status and decide again. A request without an expected_revision
   * can be repeated with the same request_id.
   */
  public static final class RevisionMismatch extends RoutingException {
    RevisionMismatch(Failure failure) {
      super(failure);
    }

    /** Returns the revision that the request expected; empty if the error does not say. */
    public OptionalLong expected() {
      return number("expected_revision");
    }

    /** Returns the revision of the session; empty if the error does not say. */
    public OptionalLong actual() {
      return number("revision");
    }
  }

  /**
   * What an operator's act is about has changed since it was read. Nothing was done.
   *
   * <p>Code ABORTED. Remedy: Read the state again, or try the act again with validate_only, and
   * decide again.
   */
  public static final class StateChanged extends RoutingException {
    StateChanged(Failure failure) {
      super(failure);
    }
  }

  /**
   * The request_id was already used in this session for a request with other content.
   *
   * <p>Code ALREADY_EXISTS. Remedy: Send new content under a new request_id, and the old content
   * under the old one.
   */
  public static final class RequestIdReused extends RoutingException {
    RequestIdReused(Failure failure) {
      super(failure);
    }
  }

  /**
   * The caller's deadline passed, or was too near to begin. The call happened whole or not at all.
   *
   * <p>Code DEADLINE_EXCEEDED, retryable. Remedy: Repeat with the same request_id and a longer
   * deadline: the answer says whether the call happened.
   */
  public static final class DeadlineExceeded extends RoutingException {
    DeadlineExceeded(Failure failure) {
      super(failure);
    }
  }

  /**
   * The call has no credential, or one that is malformed, expired, or for another service. A watch
   * or stream also ends with this when its credential expires.
   *
   * <p>Code UNAUTHENTICATED. Remedy: Sign in again, and send the token as authorization: Bearer.
   */
  public static final class Unauthenticated extends RoutingException {
    Unauthenticated(Failure failure) {
      super(failure);
    }
  }

  /** PERMISSION_DENIED: the credential does not allow the call. */
  public static class PermissionDenied extends RoutingException {
    PermissionDenied(Failure failure) {
      super(failure);
    }
  }

  /**
   * The session or task belongs to another user, or user_id is not the credential's. The owner is
   * not named.
   *
   * <p>Code PERMISSION_DENIED. Remedy: Sign in as the owner, or use one of your own sessions.
   */
  public static final class OwnerMismatch extends PermissionDenied {
    OwnerMismatch(Failure failure) {
      super(failure);
    }
  }

  /**
   * The credential lacks a scope: for an RPC, another tenant, another user, or an initiator.
   *
   * <p>Code PERMISSION_DENIED. Remedy: Use a credential that has the scope.
   */
  public static final class ScopeMissing extends PermissionDenied {
    ScopeMissing(Failure failure) {
      super(failure);
    }

    /** Returns the scope that the credential lacks. */
    public String scope() {
      return metadata().getOrDefault("scope", "");
    }
  }

  /**
   * The registry's rule for approvals does not let this caller decide.
   *
   * <p>Code PERMISSION_DENIED. Remedy: Let another person decide, or sign in with a credential that
   * has the role.
   */
  public static final class ApproverRefused extends PermissionDenied {
    ApproverRefused(Failure failure) {
      super(failure);
    }
  }

  /** RESOURCE_EXHAUSTED: a limit was exceeded. */
  public static class ResourceExhausted extends RoutingException {
    ResourceExhausted(Failure failure) {
      super(failure);
    }
  }

  /**
   * The server has too many calls or streams, or this caller has more than its share. Nothing was
   * done. RetryInfo gives the delay. A call that was refused before it was read has only a code,
   * RESOURCE_EXHAUSTED or CANCELLED, and no details.
   *
   * <p>Code RESOURCE_EXHAUSTED, retryable. Remedy: Repeat after the delay, with the same
   * request_id.
   */
  public static final class Overloaded extends ResourceExhausted {
    Overloaded(Failure failure) {
      super(failure);
    }
  }

  /**
   * The request, or the change that it would make, is larger than is ever accepted. Each field may
   * be within its limits.
   *
   * <p>Code RESOURCE_EXHAUSTED. Remedy: Send less: move large items to a file store and send their
   * uri. Waiting does not help.
   */
  public static final class TooLarge extends ResourceExhausted {
    TooLarge(Failure failure) {
      super(failure);
    }
  }

  /**
   * A watcher reads more slowly than changes arrive, and was disconnected. RetryInfo gives the
   * delay.
   *
   * <p>Code RESOURCE_EXHAUSTED, retryable. Remedy: Watch again from there.
   */
  public static final class WatchTooSlow extends ResourceExhausted {
    WatchTooSlow(Failure failure) {
      super(failure);
    }

    /** Returns the last revision sent; empty if the error does not say. */
    public OptionalLong revision() {
      return number("revision");
    }
  }

  /**
   * The watch would begin before the oldest change that is kept.
   *
   * <p>Code OUT_OF_RANGE. Remedy: Read Status, then watch from its revision.
   */
  public static final class RevisionCompacted extends RoutingException {
    RevisionCompacted(Failure failure) {
      super(failure);
    }

    /** Returns the oldest revision kept; empty if the error does not say. */
    public OptionalLong oldestRevision() {
      return number("oldest_revision");
    }
  }

  /** UNAVAILABLE: the service did not answer. A change may still have been made. */
  public static class Unavailable extends RoutingException {
    Unavailable(Failure failure) {
      super(failure);
    }
  }

  /**
   * The store cannot be reached, is busy for too long, or is full. The change may have been stored
   * all the same. RetryInfo gives the delay.
   *
   * <p>Code UNAVAILABLE, retryable. Remedy: Repeat with the same request_id.
   */
  public static final class StoreUnavailable extends Unavailable {
    StoreUnavailable(Failure failure) {
      super(failure);
    }
  }

  /**
   * The session was written by a newer release than this replica's.
   *
   * <p>Code UNAVAILABLE, retryable. Remedy: Repeat: another replica may be newer. Finish the
   * upgrade.
   */
  public static final class SchemaTooNew extends Unavailable {
    SchemaTooNew(Failure failure) {
      super(failure);
    }
  }

  /**
   * The server is about to stop. RetryInfo gives the delay.
   *
   * <p>Code UNAVAILABLE, retryable. Remedy: Repeat on another replica, with the same request_id.
   */
  public static final class ShuttingDown extends Unavailable {
    ShuttingDown(Failure failure) {
      super(failure);
    }
  }

  /**
   * The server has no key of its identity provider yet, and cannot check credentials. RetryInfo
   * gives the delay.
   *
   * <p>Code UNAVAILABLE, retryable. Remedy: Repeat with the same request_id. The log tells the
   * operator why the keys cannot be fetched.
   */
  public static final class SignInUnavailable extends Unavailable {
    SignInUnavailable(Failure failure) {
      super(failure);
    }
  }

  /**
   * What the store holds of this session cannot be read. Other sessions are not affected.
   *
   * <p>Code DATA_LOSS. Remedy: Restore the session from a backup, or begin another one.
   */
  public static final class StateCorrupt extends RoutingException {
    StateCorrupt(Failure failure) {
      super(failure);
    }

    /** Returns the id under which the server's log has the cause. */
    public String errorId() {
      return metadata().getOrDefault("error_id", "");
    }
  }

  /**
   * The service made a mistake.
   *
   * <p>Code INTERNAL. Remedy: Report it with its error id.
   */
  public static final class InternalError extends RoutingException {
    InternalError(Failure failure) {
      super(failure);
    }

    /** Returns the id under which the server's log has the cause. */
    public String errorId() {
      return metadata().getOrDefault("error_id", "");
    }
  }

  /**
   * This server does not have the RPC, or the feature that a field asks for.
   *
   * <p>Code UNIMPLEMENTED. Remedy: Use a server that has it.
   */
  public static final class Unimplemented extends RoutingException {
    Unimplemented(Failure failure) {
      super(failure);
    }
  }
}
