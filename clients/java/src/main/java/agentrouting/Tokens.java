package agentrouting;

import io.grpc.CallCredentials;
import io.grpc.Metadata;
import io.grpc.SecurityLevel;
import io.grpc.Status;
import java.util.concurrent.Executor;
import java.util.function.Supplier;

/** Signs in each call with a token. */
final class Tokens extends CallCredentials {
  private static final Metadata.Key<String> AUTHORIZATION =
      Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);

  private final Supplier<String> source;
  private final boolean isTlsOnly;

  Tokens(Supplier<String> source, boolean isTlsOnly) {
    this.source = source;
    this.isTlsOnly = isTlsOnly;
  }

  @Override
  public void applyRequestMetadata(RequestInfo info, Executor executor, MetadataApplier applier) {
    if (isTlsOnly && info.getSecurityLevel() != SecurityLevel.PRIVACY_AND_INTEGRITY) {
      applier.fail(
          Status.UNAUTHENTICATED.withDescription(
              "the token is not sent over plain text; use tls(), or insecureTokens() in a mesh"));
      return;
    }
    // A source that asks a server must not block the connection's thread.
    executor.execute(
        () -> {
          try {
            Metadata headers = new Metadata();
            headers.put(AUTHORIZATION, "Bearer " + source.get());
            applier.apply(headers);
          } catch (RuntimeException failure) {
            applier.fail(
                Status.UNAUTHENTICATED
                    .withDescription("no token: " + failure.getMessage())
                    .withCause(failure));
          }
        });
  }
}
