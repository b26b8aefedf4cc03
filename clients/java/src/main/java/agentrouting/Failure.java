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
import java.util.function.Function;

/** A failed call as read from its status and details, and the exception that it becomes. */
final class Failure {
  /** Of ErrorInfo. A reason of another domain is a proxy's, and is not reported as ours. */
  private static final String DOMAIN = "agent_routing";

  /**
   * What gRPC says, under UNAVAILABLE, if every replica reports by its health service that it cannot
   * serve. No replica is asked then, so that none gives the reason.
   */
  private static final String UNHEALTHY = "Health-check service responded ";

  /** What the service asks for when its store is away. */
  private static final Duration UNHEALTHY_RETRY_AFTER = Duration.ofMillis(250);

  Status.Code code;
  String reason = "";
  String message = "";
  Map<String, String> metadata = Map.of();
  List<Violation> violations = new ArrayList<>();
  Duration retryAfter;
  String method = "";
  String requestId = "";
  String sessionId = "";
  int attempts = 1;
  Throwable cause;
  boolean isRefusedUnread;

  /** Returns a failed call as the exception of its reason, otherwise of its code. */
  static RoutingException exception(Status status, Metadata trailers, Call call) {
    Failure failure = new Failure();
    failure.code = status.getCode();
    failure.message = status.getDescription() == null ? "" : status.getDescription();
    failure.method = call.method;
    failure.requestId = call.requestId;
    failure.sessionId = call.sessionId;
    failure.attempts = Math.max(1, call.attempts);
    failure.cause = status.getCause();
    readDetails(failure, StatusProto.fromStatusAndTrailers(status, trailers).getDetailsList());
    if (failure.sessionId.isEmpty()) {
      failure.sessionId = failure.metadata.getOrDefault("session_id", "");
    }
    boolean isOurs = !failure.reason.isEmpty();
    if (!isOurs) {
      describe(failure, call.target);
    }
    Function<Failure, RoutingException> make = RoutingException.byReason(failure.reason);
    if (make == null) {
      make = failure.isRefusedUnread ? RoutingException.Overloaded::new : RoutingException.byCode(failure.code);
    }
    failure.violations = List.copyOf(failure.violations);
    return make.apply(failure);
  }

  /** Returns the exception of a message that was not sent, because of an outage. */
  static RoutingException notAsked(Call call) {
    Failure failure = new Failure();
    failure.code = Status.Code.UNAVAILABLE;
    failure.message =
        "\"%s\" has not answered for a while; the client decided at once".formatted(call.target);
    failure.method = call.method;
    failure.requestId = call.requestId;
    failure.sessionId = call.sessionId;
    failure.attempts = 0;
    return new RoutingException.Unavailable(failure);
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

  private static void refusedUnread(Failure failure, String target, String tried) {
    failure.isRefusedUnread = true;
    failure.message =
        "\"%s\" has more calls than it can answer and refused this one%s; repeat it later with the same request_id"
            .formatted(target, tried);
  }

  /** Returns the exception of a call that waited behind others, which the service answered. */
  static RoutingException heldUp(Call call) {
    Failure failure = new Failure();
    failure.code = Status.Code.RESOURCE_EXHAUSTED;
    failure.isRefusedUnread = true;
    failure.message =
        "\"%s\" did not get to this call in its time, because of other calls; repeat it later with the same request_id"
            .formatted(call.target);
    failure.method = call.method;
    failure.requestId = call.requestId;
    failure.sessionId = call.sessionId;
    failure.attempts = call.attempts;
    return new RoutingException.Overloaded(failure);
  }

  /** Sets reason and message of a failure without details from the service. */
  private static void describe(Failure failure, String target) {
    String tried = failure.attempts > 1 ? ", after " + failure.attempts + " attempts" : "";
    String words = failure.message;
    if (failure.code == Status.Code.UNKNOWN && failure.cause instanceof IOException) {
      // gRPC's error for a connection that was lost while a message was sent. The service did not
      // answer, and the call is repeated as after any lost connection.
      failure.code = Status.Code.UNAVAILABLE;
    }
    boolean wasCutShort = words.contains("unexpected EOS") || words.contains("Received Rst Stream");
    if (failure.code == Status.Code.INTERNAL && wasCutShort) {
      // A stream that ended without a status: a proxy whose server is gone ends it so, or resets it.
      failure.code = Status.Code.UNAVAILABLE;
    }
    if (failure.code == Status.Code.UNAVAILABLE && words.startsWith(UNHEALTHY)) {
      failure.reason = "STORE_UNAVAILABLE";
      failure.retryAfter = UNHEALTHY_RETRY_AFTER;
      failure.message =
          "every replica of \"%s\" reports that it cannot serve%s, as while its store is away; repeat with the same request_id"
              .formatted(target, tried);
      return;
    }
    if (words.contains("REFUSED_STREAM")) {
      // Never processed (RFC 9113, 8.7).
      failure.code = Status.Code.UNAVAILABLE;
      refusedUnread(failure, target, tried);
      return;
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
          // From gRPC itself, on either side: the message is above its channel's limit.
          failure.reason = "TOO_LARGE";
          failure.message = words + "; send large items by uri";
        } else if (!isByCaller) {
          // A server over its limits refuses calls unread. It resets the stream, which arrives as
          // CANCELLED, or sends RESOURCE_EXHAUSTED without details.
          refusedUnread(failure, target, tried);
        }
      }
      default -> {}
    }
  }
}
