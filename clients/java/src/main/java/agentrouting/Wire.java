package agentrouting;

import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ChannelCredentials;
import io.grpc.ClientInterceptors;
import io.grpc.Grpc;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.grpc.Metadata;
import io.grpc.stub.MetadataUtils;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Consumer;

/** A client's connections: how they are made, made again at once after an outage, and closed. */
final class Wire {
  /**
   * Calls, or long streams, at a time on one connection: what every server allows, as HTTP/2
   * recommends. More would wait behind streams that do not end, or be refused.
   */
  static final int PLACES_MAX = 100;

  /** A place for a stream that stays open, on a connection on which no call waits behind it. */
  record Place(Channel channel, Runnable release) {}

  private static final class Connection {
    final ManagedChannel own;
    final Channel channel;
    int streams;

    Connection(ManagedChannel own, Metadata headers) {
      this.own = own;
      channel =
          ClientInterceptors.intercept(own, MetadataUtils.newAttachHeadersInterceptor(headers));
    }
  }

  /** Error details are at most 4 KB, and the message next to them is percent-encoded. */
  private static final int METADATA_BYTES_MAX = 32 * 1024;

  /** The service accepts pings on an idle connection at most every 30 s. */
  private static final long KEEPALIVE_S = 60;

  private static final long KEEPALIVE_TIMEOUT_S = 20;

  /** gRPC itself waits 1 s to two minutes before it connects again, while a user waits. */
  private static final long RECONNECT_NANOS_MIN = TimeUnit.MILLISECONDS.toNanos(100);

  final Channel channel;
  final CallOptions callOptions;
  volatile boolean isAway;
  volatile boolean isClosed;
  private final ManagedChannelBuilder<?> builder;
  private final Metadata headers;
  private final Connection calls;
  // Guarded by itself. gRPC closes a connection that stays unused.
  private final List<Connection> streams = new ArrayList<>();
  private final AtomicLong lastReconnectNanos = new AtomicLong(System.nanoTime());

  /**
   * Makes the connection; the first call opens it.
   *
   * @param tokens null: calls are not signed in
   */
  Wire(
      String target,
      ChannelCredentials credentials,
      Metadata headers,
      Tokens tokens,
      Consumer<ManagedChannelBuilder<?>> settings) {
    this.headers = headers;
    builder =
        Grpc.newChannelBuilder(target, credentials)
            .userAgent("agent-routing-java/" + RoutingClient.VERSION)
            .keepAliveTime(KEEPALIVE_S, TimeUnit.SECONDS)
            .keepAliveTimeout(KEEPALIVE_TIMEOUT_S, TimeUnit.SECONDS)
            .maxInboundMetadataSize(METADATA_BYTES_MAX)
            // The client repeats calls itself: it knows which are safe, and the service's delays.
            .disableRetry();
    if (target.startsWith("dns:")) {
      // Spreads calls over the replicas that report themselves ready.
      builder.defaultServiceConfig(
          Map.of(
              "loadBalancingConfig",
              List.of(Map.of("round_robin", Map.of())),
              "healthCheckConfig",
              Map.of("serviceName", agentrouting.v1.RoutingServiceGrpc.SERVICE_NAME)));
    }
    settings.accept(builder);
    calls = new Connection(builder.build(), headers);
    channel = calls.channel;
    callOptions =
        tokens == null ? CallOptions.DEFAULT : CallOptions.DEFAULT.withCallCredentials(tokens);
  }

  /** Makes gRPC connect at once, without its own wait, if the service was away. */
  void connectAgainIfAway() {
    long last = lastReconnectNanos.get();
    long now = System.nanoTime();
    if (isAway && now - last >= RECONNECT_NANOS_MIN && lastReconnectNanos.compareAndSet(last, now)) {
      calls.own.resetConnectBackoff();
      synchronized (streams) {
        streams.forEach(each -> each.own.resetConnectBackoff());
      }
    }
  }

  /** Returns a place for a stream. Release it once the stream has ended. */
  Place takeStream() {
    synchronized (streams) {
      if (isClosed) {
        return new Place(channel, () -> {}); // Its calls fail.
      }
      Connection found =
          streams.stream().filter(each -> each.streams < PLACES_MAX).findFirst().orElse(null);
      if (found == null) {
        found = new Connection(builder.build(), headers);
        streams.add(found);
      }
      Connection taken = found;
      taken.streams++;
      return new Place(taken.channel, () -> released(taken));
    }
  }

  private void released(Connection taken) {
    synchronized (streams) {
      taken.streams--;
    }
  }

  /** Calls, watches and streams on their way fail. */
  void close() {
    isClosed = true;
    List<Connection> all = new ArrayList<>(List.of(calls));
    synchronized (streams) {
      all.addAll(streams);
    }
    all.forEach(each -> each.own.shutdownNow());
    try {
      for (Connection each : all) {
        each.own.awaitTermination(1, TimeUnit.SECONDS);
      }
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
    }
  }
}
