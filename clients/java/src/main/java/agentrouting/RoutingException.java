package agentrouting;

import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.BadRequest;
import com.google.rpc.ErrorInfo;
import com.google.rpc.PreconditionFailure;
import com.google.rpc.RetryInfo;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.protobuf.StatusProto;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.function.Function;

/**
 * A call that failed. Catch the class of a reason ({@link HandoffRefused}), of a family ({@link
 * NotFound}), or this one; never parse a message. A reason that this release does not know is of the
 * class of its code.
 */
public class RoutingException extends RuntimeException {
  private static final long serialVersionUID = 1L;

  /** Of ErrorInfo: reasons of other domains are a proxy's, and not ours to name. */
  private static final String DOMAIN = "agent_routing";

  private final transient Failure failure;

  RoutingException(Failure failure) {
    super(failure.message, failure.cause);
    this.failure = failure;
  }

  /** Returns the gRPC status code. */
  public Status.Code code() {
    return failure.code;
  }

  /** Returns the reason of the contract, such as "HANDOFF_REFUSED"; empty where nobody answered. */
  public String reason() {
    return failure.reason;
  }

  /** Returns the message's values again, for programs; error_reason.proto says which. */
  public Map<String, String> metadata() {
    return failure.metadata;
  }

  /** Returns every bad field, or every rule that refused. */
  public List<Violation> violations() {
    return failure.violations;
  }

  /** Returns how long to wait before a repeat makes sense; empty where the service did not say. */
  public Optional<Duration> retryAfter() {
    return Optional.ofNullable(failure.retryAfter);
  }

  /** Returns the RPC, such as "Route". */
  public String method() {
    return failure.method;
  }

  /** Returns the request's id, also where the client made it; empty for reads. */
  public String requestId() {
    return failure.requestId;
  }

  /** Returns how often the call was sent. */
  public int attempts() {
    return failure.attempts;
  }

  /** Returns a whole number of the metadata; empty where it is missing. */
  OptionalLong number(String key) {
    String value = metadata().getOrDefault(key, "");
    return value.matches("\\d{1,18}") ? OptionalLong.of(Long.parseLong(value)) : OptionalLong.empty();
  }

  /**
   * Tells whether nobody decided about the call, so that it may be sent again. An OVERLOADED with its
   * reason is an answer: when to come back is for the caller to decide.
   */
  boolean wasUnanswered() {
    return this instanceof Unavailable || failure.isRefusedUnread && code() == Status.Code.CANCELLED;
  }

  /** Tells whether a message that failed so is the client's to decide about. */
  boolean mayFallBack() {
    return this instanceof Unavailable
        || this instanceof DeadlineExceeded
        || this instanceof Overloaded;
  }

  /** What is known of a failure. */
  static final class Failure {
    Status.Code code;
    String reason = "";
    String message = "";
    Map<String, String> metadata = Map.of();
    List<Violation> violations = new ArrayList<>();
    Duration retryAfter;
    String method = "";
    String requestId = "";
    int attempts = 1;
    Throwable cause;
    boolean isRefusedUnread;
  }

  /** Returns a failed call as the exception of its reason, else of its code. */
  static RoutingException of(Status status, Metadata trailers, Call call) {
    Failure failure = new Failure();
    failure.code = status.getCode();
    failure.message = status.getDescription() == null ? "" : status.getDescription();
    failure.method = call.method;
    failure.requestId = call.requestId;
    failure.attempts = Math.max(1, call.attempts);
    failure.cause = status.getCause();
    readDetails(failure, StatusProto.fromStatusAndTrailers(status, trailers).getDetailsList());
    boolean isOurs = !failure.reason.isEmpty();
    if (!isOurs) {
      describe(failure, call.target);
    }
    Function<Failure, RoutingException> make = byReason(failure.reason);
    if (make == null) {
      make = failure.isRefusedUnread ? Overloaded::new : byCode(failure.code);
    }
    failure.violations = List.copyOf(failure.violations);
    return make.apply(failure);
  }

  /** Details that cannot be read are left out: they never hide the failure itself. */
  private static void readDetails(Failure failure, List<Any> details) {
    for (Any detail : details) {
      try {
        if (detail.is(ErrorInfo.class)) {
          ErrorInfo info = detail.unpack(ErrorInfo.class);
          if (info.getDomain().equals(DOMAIN)) {
            failure.reason = info.getReason();
            failure.metadata = Map.copyOf(info.getMetadataMap());
          }
        } else if (detail.is(BadRequest.class)) {
          for (var each : detail.unpack(BadRequest.class).getFieldViolationsList()) {
            failure.violations.add(new Violation(each.getField(), "", each.getDescription()));
          }
        } else if (detail.is(PreconditionFailure.class)) {
          for (var each : detail.unpack(PreconditionFailure.class).getViolationsList()) {
            failure.violations.add(
                new Violation(each.getType(), each.getSubject(), each.getDescription()));
          }
        } else if (detail.is(RetryInfo.class)) {
          var delay = detail.unpack(RetryInfo.class).getRetryDelay();
          failure.retryAfter = Duration.ofSeconds(delay.getSeconds(), delay.getNanos());
        }
      } catch (InvalidProtocolBufferException | ArithmeticException unreadable) {
        continue;
      }
    }
  }

  /** Gives words to a failure of which the service itself said nothing. */
  private static void describe(Failure failure, String target) {
    String tried = failure.attempts > 1 ? ", after " + failure.attempts + " attempts" : "";
    String words = failure.message;
    if (failure.code == Status.Code.UNKNOWN && failure.cause instanceof IOException) {
      // What gRPC says where a connection went away while it was handing over a message: the service
      // said nothing, and the call is repeated as after any connection that is lost.
      failure.code = Status.Code.UNAVAILABLE;
    }
    boolean isByCaller = failure.cause instanceof InterruptedException;
    switch (failure.code) {
      case UNAVAILABLE ->
          failure.message =
              "\"%s\" cannot be reached%s; is it running there? (%s)".formatted(target, tried, words);
      case DEADLINE_EXCEEDED ->
          failure.message =
              "no answer from \"%s\" in time%s; a repeat with the same request_id says whether it happened"
                  .formatted(target, tried);
      case RESOURCE_EXHAUSTED, CANCELLED -> {
        if (words.contains("larger than max") || words.contains("exceeds maximum")) {
          // Said by gRPC itself, on either side, of a message above the limit of its channel.
          failure.reason = "TOO_LARGE";
          failure.message = words + "; send large items by uri";
        } else if (!isByCaller) {
          // A server over its limits refuses calls before it reads them: it resets the stream, which
          // arrives as CANCELLED, or says RESOURCE_EXHAUSTED and no more.
          failure.isRefusedUnread = true;
          failure.message =
              "\"%s\" has more calls than it can answer and refused this one%s; repeat it later with the same request_id"
                  .formatted(target, tried);
        }
      }
      default -> {}
    }
  }

  private static Function<Failure, RoutingException> byReason(String reason) {
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
      case "REGISTRY_INVALID" -> RegistryInvalid::new;
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
      case "SHUTTING_DOWN" -> ShuttingDown::new;
      case "SIGN_IN_UNAVAILABLE" -> SignInUnavailable::new;
      case "STATE_CORRUPT" -> StateCorrupt::new;
      case "INTERNAL" -> InternalError::new;
      case "NOT_IMPLEMENTED" -> Unimplemented::new;
      default -> null;
    };
  }

  private static Function<Failure, RoutingException> byCode(Status.Code code) {
    return switch (code) {
      case INVALID_ARGUMENT -> InvalidRequest::new;
      case NOT_FOUND -> NotFound::new;
      case FAILED_PRECONDITION -> PreconditionFailed::new;
      case DEADLINE_EXCEEDED -> DeadlineExceeded::new;
      case UNAUTHENTICATED -> Unauthenticated::new;
      case PERMISSION_DENIED -> PermissionDenied::new;
      case RESOURCE_EXHAUSTED -> ResourceExhausted::new;
      case UNAVAILABLE -> Unavailable::new;
      case INTERNAL -> InternalError::new;
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

  /** The bytes are no such request: client and server use different contracts. */
  public static final class MalformedRequest extends InvalidRequest {
    MalformedRequest(Failure failure) {
      super(failure);
    }
  }

  /** Fields are bad; violations has them all. */
  public static final class InvalidField extends InvalidRequest {
    InvalidField(Failure failure) {
      super(failure);
    }
    /** Returns the paths of the bad fields, such as "task_id" or "items[2].uri". */
    public List<String> fields() {
      return violations().stream().map(Violation::name).toList();
    }
  }

  /** NOT_FOUND: what the request names is not there. */
  public static class NotFound extends RoutingException {
    NotFound(Failure failure) {
      super(failure);
    }
  }

  /** The tenant has no such session. */
  public static final class UnknownSession extends NotFound {
    UnknownSession(Failure failure) {
      super(failure);
    }
  }

  /** The registry has no such agent. */
  public static final class UnknownAgent extends NotFound {
    UnknownAgent(Failure failure) {
      super(failure);
    }
  }

  /** There is no such task. */
  public static final class UnknownTask extends NotFound {
    UnknownTask(Failure failure) {
      super(failure);
    }
  }

  /** The session dispatched no such request; also a degraded decision's. */
  public static final class UnknownRequest extends NotFound {
    UnknownRequest(Failure failure) {
      super(failure);
    }
  }

  /** The suggestion is not open. */
  public static final class UnknownSuggestion extends NotFound {
    UnknownSuggestion(Failure failure) {
      super(failure);
    }
  }

  /** FAILED_PRECONDITION: not as things stand. */
  public static class PreconditionFailed extends RoutingException {
    PreconditionFailed(Failure failure) {
      super(failure);
    }
  }

  /** Rules refused the handoff; violations has them all. */
  public static final class HandoffRefused extends PreconditionFailed {
    HandoffRefused(Failure failure) {
      super(failure);
    }
    /** Returns the names of the rules that refused, in the order in which they are evaluated. */
    public List<String> rules() {
      return violations().stream().map(Violation::name).toList();
    }

    /** Returns the target of the handoff. */
    public String agentId() {
      return metadata().getOrDefault("agent_id", "");
    }
  }

  /** It was answered otherwise; what came first stands. */
  public static final class RequestNotOpen extends PreconditionFailed {
    RequestNotOpen(Failure failure) {
      super(failure);
    }
  }

  /** The task does not wait for an approval. */
  public static final class TaskNotPaused extends PreconditionFailed {
    TaskNotPaused(Failure failure) {
      super(failure);
    }
  }

  /** The task is completed, failed or cancelled. */
  public static final class TaskClosed extends PreconditionFailed {
    TaskClosed(Failure failure) {
      super(failure);
    }
  }

  /** Another task of the session is open. */
  public static final class TaskOpen extends PreconditionFailed {
    TaskOpen(Failure failure) {
      super(failure);
    }
    /** Returns the task that is open. */
    public String openTaskId() {
      return metadata().getOrDefault("open_task_id", "");
    }
  }

  /** A turn is open, and the registry wants one message at a time. */
  public static final class TurnOpen extends PreconditionFailed {
    TurnOpen(Failure failure) {
      super(failure);
    }
    /** Returns the request that waits for its answer. */
    public String openRequestId() {
      return metadata().getOrDefault("request_id", "");
    }
  }

  /** The agent that would have to act is away. */
  public static final class AgentUnavailable extends PreconditionFailed {
    AgentUnavailable(Failure failure) {
      super(failure);
    }
  }

  /** The session's data were erased. */
  public static final class SessionErased extends PreconditionFailed {
    SessionErased(Failure failure) {
      super(failure);
    }
  }

  /** The registry file has mistakes; the one in force stays. */
  public static final class RegistryInvalid extends PreconditionFailed {
    RegistryInvalid(Failure failure) {
      super(failure);
    }
  }

  /** ABORTED: the session is not at the expected revision. */
  public static final class RevisionMismatch extends RoutingException {
    RevisionMismatch(Failure failure) {
      super(failure);
    }
    /** Returns the session's revision; empty where the answer does not say. */
    public OptionalLong actual() {
      return number("revision");
    }

    /** Returns the revision that the request expected; empty where it expected none. */
    public OptionalLong expected() {
      return number("expected_revision");
    }
  }

  /** ALREADY_EXISTS: the request id was used for another content. */
  public static final class RequestIdReused extends RoutingException {
    RequestIdReused(Failure failure) {
      super(failure);
    }
  }

  /** DEADLINE_EXCEEDED: the call happened whole or not at all; a repeat with the same request_id says which. */
  public static final class DeadlineExceeded extends RoutingException {
    DeadlineExceeded(Failure failure) {
      super(failure);
    }
  }

  /** UNAUTHENTICATED: no credential, or a bad or expired one. */
  public static final class Unauthenticated extends RoutingException {
    Unauthenticated(Failure failure) {
      super(failure);
    }
  }

  /** PERMISSION_DENIED: not with this credential. */
  public static class PermissionDenied extends RoutingException {
    PermissionDenied(Failure failure) {
      super(failure);
    }
  }

  /** It belongs to another user. */
  public static final class OwnerMismatch extends PermissionDenied {
    OwnerMismatch(Failure failure) {
      super(failure);
    }
  }

  /** The credential lacks a scope. */
  public static final class ScopeMissing extends PermissionDenied {
    ScopeMissing(Failure failure) {
      super(failure);
    }
    /** Returns the scope that the credential lacks. */
    public String scope() {
      return metadata().getOrDefault("scope", "");
    }
  }

  /** RESOURCE_EXHAUSTED: too much. */
  public static class ResourceExhausted extends RoutingException {
    ResourceExhausted(Failure failure) {
      super(failure);
    }
  }

  /** More calls than can be answered; nothing was done. */
  public static final class Overloaded extends ResourceExhausted {
    Overloaded(Failure failure) {
      super(failure);
    }
  }

  /** Larger than is ever accepted. */
  public static final class TooLarge extends ResourceExhausted {
    TooLarge(Failure failure) {
      super(failure);
    }
  }

  /** The watcher read more slowly than changes came. */
  public static final class WatchTooSlow extends ResourceExhausted {
    WatchTooSlow(Failure failure) {
      super(failure);
    }
  }

  /** OUT_OF_RANGE: changes of this revision are not kept any more. */
  public static final class RevisionCompacted extends RoutingException {
    RevisionCompacted(Failure failure) {
      super(failure);
    }
    /** Returns the oldest revision that is kept; empty where the answer does not say. */
    public OptionalLong oldestRevision() {
      return number("oldest_revision");
    }
  }

  /** UNAVAILABLE: nobody answered, or could not at the moment. */
  public static class Unavailable extends RoutingException {
    Unavailable(Failure failure) {
      super(failure);
    }
  }

  /** The store is away or busy. */
  public static final class StoreUnavailable extends Unavailable {
    StoreUnavailable(Failure failure) {
      super(failure);
    }
  }

  /** A newer release wrote the session. */
  public static final class SchemaTooNew extends Unavailable {
    SchemaTooNew(Failure failure) {
      super(failure);
    }
  }

  /** The server is about to stop. */
  public static final class ShuttingDown extends Unavailable {
    ShuttingDown(Failure failure) {
      super(failure);
    }
  }

  /** The server has no key of its identity provider yet, and cannot check credentials. */
  public static final class SignInUnavailable extends Unavailable {
    SignInUnavailable(Failure failure) {
      super(failure);
    }
  }

  /** DATA_LOSS: what is stored of the session cannot be read. */
  public static final class StateCorrupt extends RoutingException {
    StateCorrupt(Failure failure) {
      super(failure);
    }
  }

  /** INTERNAL: a mistake in the service; metadata has the error_id under which its log has the cause. */
  public static final class InternalError extends RoutingException {
    InternalError(Failure failure) {
      super(failure);
    }
  }

  /** UNIMPLEMENTED: this server does not have it. */
  public static final class Unimplemented extends RoutingException {
    Unimplemented(Failure failure) {
      super(failure);
    }
  }
}
