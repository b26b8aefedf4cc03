package agentrouting;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import agentrouting.v1.Agent;
import agentrouting.v1.Change;
import agentrouting.v1.Dispatch;
import agentrouting.v1.RouteRequest;
import agentrouting.v1.RouteResponse;
import agentrouting.v1.RouteStreamRequest;
import agentrouting.v1.RouteStreamResponse;
import agentrouting.v1.RoutingServiceGrpc;
import agentrouting.v1.WatchSessionRequest;
import agentrouting.v1.WatchSessionResponse;
import com.google.protobuf.Any;
import com.google.rpc.ErrorInfo;
import com.google.rpc.RetryInfo;
import io.grpc.Grpc;
import io.grpc.InsecureServerCredentials;
import io.grpc.Metadata;
import io.grpc.Server;
import io.grpc.ServerCall;
import io.grpc.ServerCallHandler;
import io.grpc.ServerInterceptor;
import io.grpc.Status;
import io.grpc.TlsServerCredentials;
import io.grpc.health.v1.HealthCheckResponse.ServingStatus;
import io.grpc.protobuf.StatusProto;
import io.grpc.protobuf.services.HealthStatusManager;
import io.grpc.stub.StreamObserver;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.TimeUnit;
import java.util.function.IntFunction;
import javax.net.ssl.KeyManagerFactory;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** The client against a scripted service. */
@Timeout(60)
class RoutingClientTest {
  private static final RetryPolicy QUICK =
      new RetryPolicy(4, Duration.ofMillis(1), Duration.ofMillis(1));
  private static final RouteRequest HELLO = RouteRequest.newBuilder().setText("hello").build();
  private static final Metadata.Key<String> AUTHORIZATION =
      Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);

  private final Scripted service = new Scripted();
  private final List<AutoCloseable> opened = new ArrayList<>();
  private Server server;

  /** attempt: which message this is, from 1. What script returns: null: an answer. */
  private static final class Scripted extends RoutingServiceGrpc.RoutingServiceImplBase
      implements ServerInterceptor {
    final List<RouteRequest> requests = Collections.synchronizedList(new ArrayList<>());
    final List<String> tokens = Collections.synchronizedList(new ArrayList<>());
    final List<Long> watchedAfter = Collections.synchronizedList(new ArrayList<>());
    volatile IntFunction<Throwable> script = attempt -> null;
    /** Answers in one message of a stream, for clients that take more. */
    volatile int together;

    @Override
    public <Q, A> ServerCall.Listener<Q> interceptCall(
        ServerCall<Q, A> call, Metadata headers, ServerCallHandler<Q, A> next) {
      tokens.add(String.valueOf(headers.get(AUTHORIZATION)));
      return next.startCall(call, headers);
    }

    @Override
    public void route(RouteRequest request, StreamObserver<RouteResponse> out) {
      Throwable failure = take(request);
      if (failure == null) {
        out.onNext(echo(request));
        out.onCompleted();
      } else if (failure != HANGS) {
        out.onError(failure);
      }
    }

    private synchronized Throwable take(RouteRequest request) {
      requests.add(request);
      return script.apply(requests.size());
    }

    @Override
    public StreamObserver<RouteStreamRequest> routeStream(StreamObserver<RouteStreamResponse> out) {
      return new StreamObserver<>() {
        private final List<RouteStreamResponse> held = new ArrayList<>();

        @Override
        public void onNext(RouteStreamRequest message) {
          RouteRequest request = message.getRoute();
          Throwable failure = take(request);
          var answer = RouteStreamResponse.newBuilder().setRequestId(request.getRequestId());
          if (failure == null) {
            held.add(answer.setRoute(echo(request)).build());
          } else if (Status.fromThrowable(failure).getCode() == Status.Code.ABORTED) {
            out.onError(failure);
            return;
          } else {
            held.add(answer.setError(StatusProto.fromThrowable(failure)).build());
          }
          if (!message.getTakesMore() || held.size() >= together) {
            RouteStreamResponse first = held.remove(0);
            out.onNext(first.toBuilder().addAllMore(held).build());
            held.clear();
          }
        }

        @Override
        public void onError(Throwable gone) {}

        @Override
        public void onCompleted() {
          out.onCompleted();
        }
      };
    }

    @Override
    public void watchSession(
        WatchSessionRequest request, StreamObserver<WatchSessionResponse> out) {
      watchedAfter.add(request.getAfterRevision());
      if (watchedAfter.size() == 1) {
        // A kind that is newer than the client: it is skipped.
        out.onNext(WatchSessionResponse.getDefaultInstance());
        Change change = Change.newBuilder().setRevision(7).build();
        out.onNext(WatchSessionResponse.newBuilder().setChange(change).build());
      }
      Throwable failure = script.apply(watchedAfter.size());
      if (failure != null) {
        out.onError(failure);
      }
    }
  }

  private static final Throwable HANGS = new Throwable("never answers");

  private static RouteResponse echo(RouteRequest request) {
    return RouteResponse.newBuilder()
        .setSessionId(request.getSessionId())
        .setRequestId(request.getRequestId())
        .setRevision(1)
        .setDispatch(
            Dispatch.newBuilder()
                .setAgent(Agent.newBuilder().setAgentId("billing"))
                .setText(request.getText()))
        .build();
  }

  private static Throwable refusal(
      Status.Code code, String reason, Map<String, String> metadata, Duration retryAfter) {
    var info =
        ErrorInfo.newBuilder()
            .setReason(reason)
            .setDomain("agent_routing")
            .putAllMetadata(metadata)
            .build();
    var status =
        com.google.rpc.Status.newBuilder()
            .setCode(code.value())
            .setMessage("no")
            .addDetails(Any.pack(info));
    if (retryAfter != null) {
      var delay =
          com.google.protobuf.Duration.newBuilder().setNanos((int) retryAfter.toNanos()).build();
      status.addDetails(Any.pack(RetryInfo.newBuilder().setRetryDelay(delay).build()));
    }
    return StatusProto.toStatusRuntimeException(status.build());
  }

  @BeforeEach
  void serve() throws Exception {
    server =
        Grpc.newServerBuilderForPort(0, InsecureServerCredentials.create())
            .addService(service)
            .intercept(service)
            .build()
            .start();
  }

  @AfterEach
  void stop() throws Exception {
    for (AutoCloseable each : opened) {
      each.close();
    }
    server.shutdownNow().awaitTermination(10, TimeUnit.SECONDS);
  }

  private RoutingClient.Builder builder() {
    return RoutingClient.builder("127.0.0.1:" + server.getPort())
        .retry(QUICK)
        .timeout(Duration.ofSeconds(30));
  }

  private RoutingClient open(RoutingClient.Builder builder) {
    RoutingClient client = builder.build();
    opened.add(client);
    return client;
  }

  @Test
  void aRepeatIsTheSameRequest() {
    service.script =
        attempt ->
            attempt < 4
                ? refusal(Status.Code.UNAVAILABLE, "STORE_UNAVAILABLE", Map.of(), Duration.ofMillis(1))
                : null;
    CallInfo info = new CallInfo();
    RouteResult turn = open(builder()).route(HELLO, info);
    assertFalse(turn.degraded());
    assertEquals(4, info.attempts());
    assertEquals(1, service.requests.stream().distinct().count());
    assertEquals(7, UUID.fromString(turn.requestId()).version());
    assertEquals(2, UUID.fromString(turn.requestId()).variant());
  }

  @Test
  void replicasThatCannotServeKeepTheReason() throws Exception {
    var health = new HealthStatusManager();
    health.setStatus(RoutingServiceGrpc.SERVICE_NAME, ServingStatus.NOT_SERVING);
    Server away =
        Grpc.newServerBuilderForPort(0, InsecureServerCredentials.create())
            .addService(service)
            .addService(health.getHealthService())
            .build()
            .start();
    opened.add(away::shutdownNow);
    var client =
        open(RoutingClient.builder("dns:///127.0.0.1:" + away.getPort()).retry(QUICK).fallback(null));
    var error =
        assertThrows(RoutingException.StoreUnavailable.class, () -> client.route(HELLO));
    assertEquals(Duration.ofMillis(250), error.retryAfter().orElseThrow());
    assertTrue(error.getMessage().contains("repeat with the same request_id"), error.getMessage());
    assertEquals(0, service.requests.size());
  }

  @Test
  void eachCallIsARequestOfItsOwn() {
    RoutingClient client = open(builder());
    assertNotEquals(client.route(HELLO).requestId(), client.route(HELLO).requestId());
  }

  @Test
  void aCallRefusedUnreadIsSentAgain() {
    service.script =
        attempt -> attempt == 1 ? Status.CANCELLED.withDescription("reset").asException() : null;
    assertFalse(open(builder()).route(HELLO).degraded());
    assertEquals(2, service.requests.size());
  }

  /** As gRPC says it of a proxy whose server was killed. */
  @Test
  void aCallWhoseStreamEndedWithoutAStatusIsSentAgain() {
    service.script =
        attempt ->
            attempt == 1
                ? Status.INTERNAL
                    .withDescription("Received unexpected EOS on empty DATA frame from server")
                    .asException()
                : null;
    assertFalse(open(builder()).route(HELLO).degraded());
    assertEquals(2, service.requests.size());
  }

  @Test
  void anOverloadWithItsReasonIsAnAnswer() {
    service.script =
        attempt ->
            refusal(
                Status.Code.RESOURCE_EXHAUSTED, "OVERLOADED", Map.of(), Duration.ofMillis(500));
    RoutingClient client = open(builder().withoutFallback());
    var error = assertThrows(RoutingException.Overloaded.class, () -> client.route(HELLO));
    assertEquals(Duration.ofMillis(500), error.retryAfter().orElseThrow());
    assertEquals(1, service.requests.size());
  }

  @Test
  void errorsAreOfTheClassOfTheirReasonElseOfTheirCode() {
    service.script =
        attempt ->
            attempt == 1
                ? refusal(
                    Status.Code.ABORTED,
                    "REVISION_MISMATCH",
                    Map.of("revision", "18", "expected_revision", "17"),
                    null)
                : refusal(Status.Code.NOT_FOUND, "UNKNOWN_PLANET", Map.of(), null);
    RoutingClient client = open(builder());
    var mismatch =
        assertThrows(RoutingException.RevisionMismatch.class, () -> client.route(HELLO));
    assertEquals(18, mismatch.actual().orElseThrow());
    assertEquals(17, mismatch.expected().orElseThrow());
    var newer = assertThrows(RoutingException.NotFound.class, () -> client.route(HELLO));
    assertEquals("UNKNOWN_PLANET", newer.reason());
  }

  @Test
  void everyReasonOfTheContractHasAClass() {
    for (var reason : agentrouting.v1.ErrorReason.values()) {
      if (reason.name().endsWith("_UNSPECIFIED") || reason.name().equals("UNRECOGNIZED")) {
        continue;
      }
      String name = reason.name().replace("ERROR_REASON_", "");
      service.script = attempt -> refusal(Status.Code.OUT_OF_RANGE, name, Map.of(), null);
      RoutingClient client = open(builder().withoutFallback().retry(QUICK.withAttemptsMax(1)));
      var error = assertThrows(RoutingException.class, () -> client.route(HELLO));
      assertNotEquals(RoutingException.class, error.getClass(), name);
    }
  }

  @Test
  void aDeadlineThatPassesFallsBack() {
    service.script = attempt -> attempt > 1 ? HANGS : null;
    RoutingClient client = open(builder());
    RouteRequest request = HELLO.toBuilder().setSessionId("chat-1").build();
    client.route(request);
    RouteResult turn = client.route(request, new CallInfo().withTimeout(Duration.ofMillis(100)));
    assertTrue(turn.degraded());
    assertEquals("billing", turn.agentId().orElseThrow());
    assertInstanceOf(RoutingException.DeadlineExceeded.class, turn.error());
  }

  @Test
  void whoIsInterruptedGetsNoDecision() throws Exception {
    service.script = attempt -> HANGS;
    RoutingClient client = open(builder().fallback(Fallback.to("chief")));
    CompletableFuture<Object> came = new CompletableFuture<>();
    Thread caller =
        new Thread(
            () -> {
              try {
                came.complete(client.route(HELLO));
              } catch (RoutingException error) {
                came.complete(error.code() + " " + Thread.currentThread().isInterrupted());
              }
            });
    caller.start();
    while (service.requests.isEmpty()) {
      TimeUnit.MILLISECONDS.sleep(5);
    }
    caller.interrupt();
    assertEquals("CANCELLED true", came.get(30, TimeUnit.SECONDS));
  }

  @Test
  void anOutageEndsTheRepeatsOfAllCalls() {
    service.script = attempt -> Status.UNAVAILABLE.asException();
    RoutingClient client = open(builder().withoutFallback());
    for (int call = 0; call < 30; call++) {
      assertThrows(RoutingException.Unavailable.class, () -> client.route(HELLO));
    }
    // About 13 calls of four attempts each, until half of the tokens are gone; then one a call.
    int attempts = service.requests.size();
    assertTrue(attempts >= 50 && attempts <= 75, attempts + " attempts of 30 calls");
  }

  @Test
  void sessionsAreForgottenFromTheOldest() {
    RoutingClient client = open(builder().fallback(new Fallback("chief", 2)));
    for (String session : List.of("a", "b", "a", "c")) {
      client.route(HELLO.toBuilder().setSessionId(session).build());
    }
    service.script = attempt -> Status.UNAVAILABLE.asException();
    Map.of("a", "billing", "b", "chief", "c", "billing")
        .forEach(
            (session, agent) -> {
              RouteResult turn = client.route(HELLO.toBuilder().setSessionId(session).build());
              assertTrue(turn.degraded());
              assertEquals(agent, turn.agentId().orElseThrow(), session);
            });
  }

  @Test
  void aTokenIsAskedForEachCallAndNotSentOverPlainText() {
    int[] count = {0};
    RoutingClient client = open(builder().insecureTokens(() -> "token-" + ++count[0]));
    client.route(HELLO);
    client.route(HELLO);
    assertEquals(List.of("Bearer token-1", "Bearer token-2"), service.tokens);
    RoutingClient careless = open(builder().tokens(() -> "secret"));
    assertThrows(RoutingException.Unauthenticated.class, () -> careless.route(HELLO));
    RoutingClient locked =
        open(
            builder()
                .insecureTokens(
                    () -> {
                      throw new IllegalStateException("the vault is locked");
                    }));
    var error = assertThrows(RoutingException.Unauthenticated.class, () -> locked.route(HELLO));
    assertTrue(error.getMessage().contains("the vault is locked"));
    assertEquals(2, service.requests.size());
  }

  @Test
  void aTokenTravelsOverTls(@TempDir Path folder) throws Exception {
    Path store = folder.resolve("keys.p12");
    String keytool = Path.of(System.getProperty("java.home"), "bin", "keytool").toString();
    String[] made =
        ("-genkeypair -alias own -keyalg EC -dname CN=test -ext san=ip:127.0.0.1 -storetype PKCS12"
                + " -storepass secret -validity 2 -keystore "
                + store)
            .split(" ");
    var command = new ArrayList<>(List.of(keytool));
    command.addAll(List.of(made));
    assertEquals(0, new ProcessBuilder(command).inheritIO().start().waitFor());
    KeyStore keys = KeyStore.getInstance(store.toFile(), "secret".toCharArray());
    var factory = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
    factory.init(keys, "secret".toCharArray());
    String body = Base64.getMimeEncoder().encodeToString(keys.getCertificate("own").getEncoded());
    Path authority = folder.resolve("ca.pem");
    Files.writeString(
        authority, "-----BEGIN CERTIFICATE-----\n" + body + "\n-----END CERTIFICATE-----\n");
    stop();
    server =
        Grpc.newServerBuilderForPort(
                0, TlsServerCredentials.newBuilder().keyManager(factory.getKeyManagers()).build())
            .addService(service)
            .intercept(service)
            .build()
            .start();
    RoutingClient client = open(builder().tls(authority.toFile()).tokens(() -> "secret"));
    assertFalse(client.route(HELLO).degraded());
    assertEquals(List.of("Bearer secret"), service.tokens);
    // Whom this Java does not know is not talked to.
    RoutingClient wary = open(builder().tls().withoutFallback());
    assertThrows(RoutingException.Unavailable.class, () -> wary.route(HELLO));
  }

  @Test
  void manyMessagesShareAStream() {
    RoutingClient client = open(builder());
    try (RouteStream stream = client.stream()) {
      List<CompletableFuture<RouteResult>> coming = new ArrayList<>();
      for (int number = 0; number < 500; number++) {
        coming.add(stream.send(HELLO.toBuilder().setText("message " + number).build()));
      }
      for (int number = 0; number < 500; number++) {
        String text = coming.get(number).join().dispatch().orElseThrow().getText();
        assertEquals("message " + number, text);
      }
    }
    assertEquals(500, service.requests.size());
    assertEquals("message 499", service.requests.get(499).getText());
  }

  @Test
  void answersThatComeTogetherGoEachToItsMessage() {
    service.together = 6;
    service.script =
        attempt ->
            attempt == 4
                ? refusal(Status.Code.INVALID_ARGUMENT, "INVALID_FIELD", Map.of(), null)
                : null;
    try (RouteStream stream = open(builder()).stream()) {
      List<CompletableFuture<RouteResult>> coming = new ArrayList<>();
      for (int number = 0; number < 6; number++) {
        coming.add(stream.send(HELLO.toBuilder().setText("message " + number).build()));
      }
      for (int number = 0; number < 6; number++) {
        CompletableFuture<RouteResult> one = coming.get(number);
        if (number == 3) {
          var failure = assertThrows(CompletionException.class, one::join);
          assertEquals(RoutingException.InvalidField.class, failure.getCause().getClass());
        } else {
          assertEquals("message " + number, one.join().dispatch().orElseThrow().getText());
        }
      }
    }
    assertEquals(6, service.requests.size());
  }

  @Test
  void aMessageOnAStreamIsSentAgainAndAStreamMadeAgain() {
    service.script =
        attempt ->
            switch (attempt) {
              case 1 -> refusal(Status.Code.UNAVAILABLE, "STORE_UNAVAILABLE", Map.of(), null);
              case 3 -> refusal(Status.Code.ABORTED, "REVISION_MISMATCH", Map.of(), null);
              default -> null;
            };
    try (RouteStream stream = open(builder()).stream()) {
      assertFalse(stream.route(HELLO).degraded());
      // The scripted service ends the stream with it: what was refused is not sent again.
      assertThrows(RoutingException.RevisionMismatch.class, () -> stream.route(HELLO));
      assertFalse(stream.route(HELLO).degraded());
    }
    assertEquals(4, service.requests.size());
  }

  @Test
  void theSameMessageTwiceOnAStreamIsAnsweredTwice() {
    RouteRequest same = HELLO.toBuilder().setRequestId(Ids.newUuid7()).build();
    try (RouteStream stream = open(builder()).stream()) {
      var first = stream.send(same);
      var second = stream.send(same);
      assertEquals(first.join().requestId(), second.join().requestId());
    }
  }

  @Test
  void whatIsClosedSaysSo() {
    service.script = attempt -> HANGS;
    RoutingClient client = builder().build();
    RouteStream stream = client.stream();
    stream.close();
    var failure = assertThrows(CompletionException.class, () -> stream.send(HELLO).join());
    assertInstanceOf(IllegalStateException.class, failure.getCause());
    client.close();
    assertThrows(IllegalStateException.class, () -> client.route(HELLO));
    assertThrows(IllegalStateException.class, () -> client.stream().route(HELLO));
  }

  @Test
  void aWatchThatIsClosedEnds() throws Exception {
    Watch watch = open(builder()).watchSession(WatchSessionRequest.newBuilder().build());
    assertEquals(7, watch.next().getRevision());
    var more = CompletableFuture.supplyAsync(watch::hasNext);
    watch.close();
    assertFalse(more.get(30, TimeUnit.SECONDS));
  }

  @Test
  void aWatchGivesUpWhenTheServiceStaysAway() {
    service.script = attempt -> Status.UNAVAILABLE.asException();
    Watch watch =
        open(builder())
            .watchSession(WatchSessionRequest.newBuilder().build(), Duration.ofMillis(200));
    assertEquals(7, watch.next().getRevision());
    assertThrows(RoutingException.Unavailable.class, watch::hasNext);
    assertTrue(service.watchedAfter.size() >= 3);
    assertEquals(7, service.watchedAfter.get(1));
  }

  @Test
  void settingsThatCannotBe() {
    assertThrows(IllegalArgumentException.class, () -> builder().timeout(Duration.ZERO));
    assertThrows(IllegalArgumentException.class, () -> QUICK.withAttemptsMax(0));
    assertThrows(IllegalArgumentException.class, () -> new Fallback("", 0));
  }
}
