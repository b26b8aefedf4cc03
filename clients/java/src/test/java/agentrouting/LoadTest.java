package agentrouting;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import agentrouting.v1.RouteRequest;
import agentrouting.v1.RouteResponse;
import agentrouting.v1.RoutingServiceGrpc;
import agentrouting.v1.WatchSessionRequest;
import agentrouting.v1.WatchSessionResponse;
import io.grpc.Attributes;
import io.grpc.Grpc;
import io.grpc.InsecureServerCredentials;
import io.grpc.Server;
import io.grpc.ServerTransportFilter;
import io.grpc.stub.StreamObserver;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.EnumMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** More calls and watches at once than a connection takes. */
class LoadTest {
  private enum Came {
    ROUTED,
    DEGRADED,
    OVERLOADED
  }

  private final AtomicInteger connections = new AtomicInteger();
  private final AtomicInteger calls = new AtomicInteger();
  private volatile boolean hangs;
  private Server server;
  private RoutingClient client;

  private final class Service extends RoutingServiceGrpc.RoutingServiceImplBase {
    @Override
    public void route(RouteRequest request, StreamObserver<RouteResponse> out) {
      calls.incrementAndGet();
      if (hangs) {
        return;
      }
      synchronized (this) { // One after the other.
        try {
          TimeUnit.MILLISECONDS.sleep(20);
        } catch (InterruptedException interrupted) {
          return;
        }
      }
      out.onNext(RouteResponse.newBuilder().setRequestId(request.getRequestId()).build());
      out.onCompleted();
    }

    @Override
    public void watchSession(WatchSessionRequest request, StreamObserver<WatchSessionResponse> out) {
      calls.incrementAndGet();
    }
  }

  @BeforeEach
  void serve() throws Exception {
    server =
        Grpc.newServerBuilderForPort(0, InsecureServerCredentials.create())
            .addService(new Service())
            .addTransportFilter(
                new ServerTransportFilter() {
                  @Override
                  public Attributes transportReady(Attributes attributes) {
                    connections.incrementAndGet();
                    return attributes;
                  }
                })
            .build()
            .start();
  }

  private void open(Duration timeout) {
    client =
        RoutingClient.builder("127.0.0.1:" + server.getPort())
            .timeout(timeout)
            .fallback(new Fallback("coordinator", 1_000))
            .build();
  }

  @AfterEach
  void stop() throws Exception {
    client.close();
    server.shutdownNow().awaitTermination(10, TimeUnit.SECONDS);
  }

  private Came route() {
    try {
      RouteRequest request = RouteRequest.newBuilder().setUserId("ana").setText("hello").build();
      return client.route(request).degraded() ? Came.DEGRADED : Came.ROUTED;
    } catch (RoutingException.Overloaded refused) {
      return Came.OVERLOADED;
    }
  }

  private Map<Came, Integer> routeAtOnce(int count) throws Exception {
    var threads = Executors.newFixedThreadPool(count);
    Callable<Came> one = this::route;
    Map<Came, Integer> counts = new EnumMap<>(Came.class);
    try {
      for (Future<Came> came : threads.invokeAll(Collections.nCopies(count, one))) {
        counts.merge(came.get(), 1, Integer::sum);
      }
    } finally {
      threads.shutdownNow();
    }
    return counts;
  }

  @Test
  void callBehindOthersIsNotDecidedByTheClient() throws Exception {
    open(Duration.ofSeconds(3));
    Map<Came, Integer> counts = routeAtOnce(300);
    assertEquals(Set.of(Came.ROUTED, Came.OVERLOADED), counts.keySet(), counts::toString);
    assertEquals(Circuit.State.CLOSED, client.circuit().state());
  }

  @Test
  void callsBehindOthersInAnOutageAreDecidedAtOnce() throws Exception {
    open(Duration.ofSeconds(1));
    hangs = true;
    assertEquals(Map.of(Came.DEGRADED, 200), routeAtOnce(200));
    assertTrue(calls.get() <= 110, calls::toString);
  }

  @Test
  void everyHundredWatchesHaveTheirOwnConnection() throws Exception {
    open(Duration.ofSeconds(10));
    List<Watch> watches = new ArrayList<>();
    for (int number = 0; number < 150; number++) {
      watches.add(
          client.watchSession(WatchSessionRequest.newBuilder().setSessionId("chat-1").build()));
    }
    while (calls.get() < 150) {
      TimeUnit.MILLISECONDS.sleep(10);
    }
    assertEquals(Came.ROUTED, route());
    assertEquals(3, connections.get());
    watches.forEach(Watch::close);
  }
}
