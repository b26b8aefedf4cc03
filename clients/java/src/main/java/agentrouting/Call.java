package agentrouting;

import com.google.protobuf.Descriptors.FieldDescriptor;
import com.google.protobuf.Message;
import java.time.Duration;

/** One call on its way, over all its attempts. */
final class Call {
  final String method;
  final String target;
  final String requestId;
  final String sessionId;
  final long begunNanos = System.nanoTime();
  final long deadlineNanos;
  int attempts;
  boolean wasRefused; // unread, by the service

  Call(String method, String target, Message request, Duration timeout) {
    this.method = method;
    this.target = target;
    this.requestId = text(request, "request_id");
    this.sessionId = text(request, "session_id");
    this.deadlineNanos = begunNanos + timeout.toNanos();
  }

  long remainingNanos() {
    return deadlineNanos - System.nanoTime();
  }

  private static String text(Message request, String name) {
    FieldDescriptor field = request.getDescriptorForType().findFieldByName(name);
    return field == null ? "" : (String) request.getField(field);
  }
}
