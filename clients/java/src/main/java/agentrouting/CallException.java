package agentrouting;

import io.grpc.Status;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalLong;

/**
 * What every exception of a call offers. {@link RoutingException}, its only subclass, is generated
 * from the contract.
 */
abstract class CallException extends RuntimeException {
  private static final long serialVersionUID = 1L;

  private final transient Failure failure;

  CallException(Failure failure) {
    super(failure.message, failure.cause);
    this.failure = failure;
  }

  /** Returns the gRPC status code. */
  public Status.Code code() {
    return failure.code;
  }

  /** Returns the contract's reason, such as "HANDOFF_REFUSED"; empty if the answer had none. */
  public String reason() {
    return failure.reason;
  }

  /** Returns the message's values again, for programs; error_reason.proto documents the keys. */
  public Map<String, String> metadata() {
    return failure.metadata;
  }

  /** Returns every bad field, or every rule that refused. */
  public List<Violation> violations() {
    return failure.violations;
  }

  /** Returns how long to wait before a repeat; empty if the service did not say. */
  public Optional<Duration> retryAfter() {
    return Optional.ofNullable(failure.retryAfter);
  }

  /** Returns the RPC, such as "Route". */
  public String method() {
    return failure.method;
  }

  /** Returns the request's id, also if the client generated it; empty for reads. */
  public String requestId() {
    return failure.requestId;
  }

  /**
   * Returns the session of the request, or the one that the service names; empty if neither had
   * one, and then a repeat with requestId finds the session.
   */
  public String sessionId() {
    return failure.sessionId;
  }

  /** Returns how often the call was sent. */
  public int attempts() {
    return failure.attempts;
  }

  /** Names the message that a read was for. */
  void setRequestId(String requestId) {
    failure.requestId = requestId;
  }

  /** Returns a whole number of the metadata; empty if it is missing. */
  OptionalLong number(String key) {
    String value = metadata().getOrDefault(key, "");
    return value.matches("\\d{1,18}") ? OptionalLong.of(Long.parseLong(value)) : OptionalLong.empty();
  }

  /**
   * Tells whether the call was not decided, so that it may be sent again. An OVERLOADED with its
   * reason is an answer: the caller decides when to repeat.
   */
  boolean wasUnanswered() {
    return this instanceof RoutingException.Unavailable || failure.isRefusedUnread;
  }

  /** Tells whether an overloaded server refused the call before it read it. */
  boolean wasRefusedUnread() {
    return failure.isRefusedUnread;
  }

  /** Tells whether the client may decide about a message that failed with this error. */
  boolean mayFallBack() {
    return this instanceof RoutingException.DeadlineExceeded || wasUnanswered();
  }
}
