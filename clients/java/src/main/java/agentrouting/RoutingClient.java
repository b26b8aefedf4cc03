package agentrouting;

import agentrouting.v1.AddNoteRequest;
import agentrouting.v1.AddNoteResponse;
import agentrouting.v1.CancelTaskRequest;
import agentrouting.v1.CancelTaskResponse;
import agentrouting.v1.ClaimTurnRequest;
import agentrouting.v1.ClaimTurnResponse;
import agentrouting.v1.ClearActiveAgentRequest;
import agentrouting.v1.ClearActiveAgentResponse;
import agentrouting.v1.CompleteTurnRequest;
import agentrouting.v1.CompleteTurnResponse;
import agentrouting.v1.KeepTurnRequest;
import agentrouting.v1.KeepTurnResponse;
import agentrouting.v1.ListAgentsRequest;
import agentrouting.v1.ListAgentsResponse;
import agentrouting.v1.ListApprovalsRequest;
import agentrouting.v1.ListApprovalsResponse;
import agentrouting.v1.ListNotesRequest;
import agentrouting.v1.ListNotesResponse;
import agentrouting.v1.ListTasksRequest;
import agentrouting.v1.ListTasksResponse;
import agentrouting.v1.ListTurnsRequest;
import agentrouting.v1.ListTurnsResponse;
import agentrouting.v1.ListWaitingRequest;
import agentrouting.v1.ListWaitingResponse;
import agentrouting.v1.ReleaseTurnRequest;
import agentrouting.v1.ReleaseTurnResponse;
import agentrouting.v1.ReportDegradedRequest;
import agentrouting.v1.ReportDegradedResponse;
import agentrouting.v1.ResumeTaskRequest;
import agentrouting.v1.ResumeTaskResponse;
import agentrouting.v1.RouteRequest;
import agentrouting.v1.RouteResponse;
import agentrouting.v1.RoutingServiceGrpc;
import agentrouting.v1.SetActiveAgentRequest;
import agentrouting.v1.SetActiveAgentResponse;
import agentrouting.v1.StatusRequest;
import agentrouting.v1.StatusResponse;
import agentrouting.v1.Task;
import agentrouting.v1.WaitingApproval;
import agentrouting.v1.WaitingConversation;
import agentrouting.v1.WatchApprovalsRequest;
import agentrouting.v1.WatchSessionRequest;
import com.google.protobuf.Message;
import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ChannelCredentials;
import io.grpc.ClientInterceptors;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannelBuilder;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.TlsChannelCredentials;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.MetadataUtils;
import java.io.File;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Consumer;
import java.util.function.Supplier;

/**
 * Calls the agent routing service. Safe in threads; close it when it is no longer needed.
 *
 * <pre>{@code
 * try (var client = RoutingClient.to("127.0.0.1:50051")) {
 *   RouteResult turn = client.route(
 *       RouteRequest.newBuilder().setSessionId("chat-42").setUserId("ana").setText("hello").build());
 * }
 * }</pre>
 *
 * <p>Requests and answers are the contract's messages. A missing request_id is generated
 * (UUIDv7), so that a repeat is the same request, which the service handles once. A missing
 * session_id is made by the service, from the request_id.
 * Unanswered calls are sent again within the timeout. Every failure is a {@link RoutingException}
 * of its reason's class.
 */
public final class RoutingClient implements AutoCloseable {
  /** The version of this client, sent as part of the user agent. Equal to the service's version. */
  public static final String VERSION = "0.2.0";

  /** How long a user waits for the routing decision, before the client decides alone. */
  public static final Duration TIMEOUT_DEFAULT = Duration.ofSeconds(5);

  private static final Metadata.Key<String> REPLAYED =
      Metadata.Key.of("agent-routing-replayed", Metadata.ASCII_STRING_MARSHALLER);
  private static final Metadata.Key<String> TENANT =
      Metadata.Key.of("agent-routing-tenant", Metadata.ASCII_STRING_MARSHALLER);

  final String target;
  final RetryPolicy retry;
  final RetryPolicy.Throttle throttle = new RetryPolicy.Throttle();
  final KnownAgents known; // null: no fallback
  final CallQueue queue = new CallQueue();
  private final Circuit circuit = new Circuit();
  private final Duration timeout;
  private final Wire wire;

  private RoutingClient(Builder chosen) {
    target = chosen.target;
    timeout = chosen.timeout;
    retry = chosen.retry;
    known = chosen.fallback == null ? null : new KnownAgents(chosen.fallback);
    wire = new Wire(target, chosen.credentials, chosen.headers, chosen.tokens, chosen.channelSettings);
  }

  /** Returns a client with default settings, over plain text: for loopback and meshes. */
  public static RoutingClient to(String target) {
    return builder(target).build();
  }

  /**
   * Returns a builder. target: "HOST:PORT", or several replicas as "dns:///HOST:PORT", over which
   * calls are spread, except those that report themselves not ready.
   */
  public static Builder builder(String target) {
    return new Builder(target);
  }

  /** The settings of a client. */
  public static final class Builder {
    private final String target;
    private final Metadata headers = new Metadata();
    private Duration timeout = TIMEOUT_DEFAULT;
    private RetryPolicy retry = RetryPolicy.DEFAULT;
    private Fallback fallback = Fallback.DEFAULT;
    private ChannelCredentials credentials = InsecureChannelCredentials.create();
    private Tokens tokens;
    private Consumer<ManagedChannelBuilder<?>> channelSettings = builder -> {};

    private Builder(String target) {
      this.target = target;
    }

    /** Sets how long a call may take with all its attempts. Default: 5 s. */
    public Builder timeout(Duration timeout) {
      this.timeout = CallInfo.positive("timeout", timeout);
      return this;
    }

    /** Sets how often and when an unanswered call is sent again. */
    public Builder retry(RetryPolicy retry) {
      this.retry = retry;
      return this;
    }

    /** Sets what route() may decide while the service cannot be reached. */
    public Builder fallback(Fallback fallback) {
      this.fallback = fallback;
      return this;
    }

    /** Makes route() throw while the service cannot be reached. */
    public Builder withoutFallback() {
      this.fallback = null;
      return this;
    }

    /** Sets the tenant, for a service without sign-in. With sign-in the credential names it. */
    public Builder tenant(String tenant) {
      if (!tenant.isEmpty()) {
        headers.put(TENANT, tenant);
      }
      return this;
    }

    /** Sends a key and a value with every call. */
    public Builder header(String key, String value) {
      headers.put(Metadata.Key.of(key, Metadata.ASCII_STRING_MARSHALLER), value);
      return this;
    }

    /** Encrypts the connection, trusting the certificate authorities of this Java. */
    public Builder tls() {
      return credentials(TlsChannelCredentials.create());
    }

    /** Encrypts the connection, trusting only the certificate authorities of a PEM file. */
    public Builder tls(File authorities) {
      try {
        return credentials(TlsChannelCredentials.newBuilder().trustManager(authorities).build());
      } catch (IOException unreadable) {
        throw new UncheckedIOException(authorities + " cannot be read", unreadable);
      }
    }

    /** Sets gRPC's credentials of the channel, for example with a client certificate. */
    public Builder credentials(ChannelCredentials credentials) {
      this.credentials = credentials;
      return this;
    }

    /**
     * Signs in each call with a token, without "Bearer ", over TLS only. The source is called for
     * each attempt, so it can reuse a token while it is valid. Its exceptions fail the call as
     * UNAUTHENTICATED.
     */
    public Builder tokens(Supplier<String> source) {
      tokens = new Tokens(source, true);
      return this;
    }

    /**
     * Signs in over plain text too: for a mesh that encrypts the traffic, and for tests. Others
     * on the way can read the token.
     */
    public Builder insecureTokens(Supplier<String> source) {
      tokens = new Tokens(source, false);
      return this;
    }

    /** Changes gRPC's settings of the channel; they override the client's. */
    public Builder channel(Consumer<ManagedChannelBuilder<?>> settings) {
      channelSettings = settings;
      return this;
    }

    /** Returns the client. Its first call opens the connection. */
    public RoutingClient build() {
      return new RoutingClient(this);
    }
  }

  /** Closes the connection; calls, watches and streams on their way fail. */
  @Override
  public void close() {
    wire.close();
  }

  /**
   * Returns the client's channel, for calls without a method in the client, such as those of the
   * generated AdminServiceGrpc. Calls on it have no repeats and no deadline.
   */
  public Channel channel() {
    return wire.channel;
  }

  /**
   * Routes a user's message: returns the agent that gets it, or a reply to show. Opens a turn,
   * which completeTurn ends. If the service cannot be reached, the turn is the last known agent of
   * the session, or else the supervisor, and is {@link RouteResult#degraded}.
   */
  public RouteResult route(RouteRequest request) {
    return route(request, new CallInfo());
  }

  /** See {@link #route(RouteRequest)}. */
  public RouteResult route(RouteRequest request, CallInfo info) {
    RouteRequest complete = withRequestId(request);
    boolean mayDecide = known != null && known.mayDecide(complete);
    info.limitNanos = mayDecide ? circuit.limitNanos() : Long.MAX_VALUE;
    try {
      if (info.limitNanos == 0) {
        throw Failure.notAsked(new Call("Route", target, complete, timeout));
      }
      RouteResponse answer = invoke(RoutingServiceGrpc.getRouteMethod(), complete, info);
      return RouteResult.decided(answer, info.replayed());
    } catch (RoutingException error) {
      return degraded(complete, error).orElseThrow(() -> error);
    }
  }

  /** Returns the client's own decision for a message; empty if it may not decide. */
  Optional<RouteResult> degraded(RouteRequest request, RoutingException error) {
    // Never beside a service that refuses this call for its load, and answers others.
    boolean isThere = error.wasRefusedUnread() && isAnswering();
    return known == null || isThere ? Optional.empty() : known.decided(request, error);
  }

  static RouteRequest withRequestId(RouteRequest request) {
    return request.getRequestId().isEmpty()
        ? request.toBuilder().setRequestId(Ids.newUuid7()).build()
        : request;
  }

  /**
   * Hands the conversation to an agent, if the rules allow it.
   *
   * @throws RoutingException.HandoffRefused with every rule that refused
   */
  public SetActiveAgentResponse setActiveAgent(SetActiveAgentRequest request) {
    return setActiveAgent(request, new CallInfo());
  }

  /** See {@link #setActiveAgent(SetActiveAgentRequest)}. */
  public SetActiveAgentResponse setActiveAgent(SetActiveAgentRequest request, CallInfo info) {
    if (request.getRequestId().isEmpty()) {
      request = request.toBuilder().setRequestId(Ids.newUuid7()).build();
    }
    return invoke(RoutingServiceGrpc.getSetActiveAgentMethod(), request, info);
  }

  /** Returns the conversation to the supervisor, or to a swarm's default agent. */
  public ClearActiveAgentResponse clearActiveAgent(ClearActiveAgentRequest request) {
    return clearActiveAgent(request, new CallInfo());
  }

  /** See {@link #clearActiveAgent(ClearActiveAgentRequest)}. */
  public ClearActiveAgentResponse clearActiveAgent(ClearActiveAgentRequest request, CallInfo info) {
    if (request.getRequestId().isEmpty()) {
      request = request.toBuilder().setRequestId(Ids.newUuid7()).build();
    }
    return invoke(RoutingServiceGrpc.getClearActiveAgentMethod(), request, info);
  }

  /**
   * Cancels an open task; its id alone is enough. Its open turns are abandoned, a pending approval
   * is withdrawn, and the next message goes to the home agent.
   */
  public CancelTaskResponse cancelTask(CancelTaskRequest request) {
    return cancelTask(request, new CallInfo());
  }

  /** See {@link #cancelTask(CancelTaskRequest)}. */
  public CancelTaskResponse cancelTask(CancelTaskRequest request, CallInfo info) {
    if (request.getRequestId().isEmpty()) {
      request = request.toBuilder().setRequestId(Ids.newUuid7()).build();
    }
    return invoke(RoutingServiceGrpc.getCancelTaskMethod(), request, info);
  }

  /** Returns the current state of a session. Changes nothing. */
  public StatusResponse status(StatusRequest request) {
    return status(request, new CallInfo());
  }

  /** See {@link #status(StatusRequest)}. */
  public StatusResponse status(StatusRequest request, CallInfo info) {
    return invoke(RoutingServiceGrpc.getStatusMethod(), request, info);
  }

  /**
   * Reports what an agent answered and how its turn ended. Show the text of the answer first. If
   * next is set, then send the message to that agent, and complete it under the request_id of next.
   */
  public CompleteTurnResponse completeTurn(CompleteTurnRequest request) {
    return completeTurn(request, new CallInfo());
  }

  /** See {@link #completeTurn(CompleteTurnRequest)}. */
  public CompleteTurnResponse completeTurn(CompleteTurnRequest request, CallInfo info) {
    return invoke(RoutingServiceGrpc.getCompleteTurnMethod(), request, info);
  }

  /** Extends a lease or gives it back, as a {@link Worker} does; says if the turn is still its own. */
  public KeepTurnResponse keepTurn(KeepTurnRequest request) {
    return keepTurn(request, new CallInfo());
  }

  /** See {@link #keepTurn(KeepTurnRequest)}. */
  public KeepTurnResponse keepTurn(KeepTurnRequest request, CallInfo info) {
    return invoke(RoutingServiceGrpc.getKeepTurnMethod(), request, info);
  }

  /** As the next one, for {@link Asked#WAIT_DEFAULT}. */
  public Asked ask(RouteRequest request) {
    return ask(request, Asked.WAIT_DEFAULT);
  }

  /**
   * Routes a message to agents with inboxes, and returns what became of it. Waits as long as one of them
   * may still answer; after a handoff, for the next agent too. A command is answered at once. Returns
   * also as soon as no answer can come, or people have to act first: see {@link Asked.Outcome}. The
   * request needs a session id, so that a repeat finds the session; with the same request id a repeat
   * waits for the same turn. While the service is away, the client connects again and goes on waiting.
   *
   * @throws NoAnswerYet after the time: the turn goes on; ask again with the exception's request id
   * @throws NoInbox if the agent has no inbox: route the message with the exception's request id, and
   *     carry it
   * @throws RoutingException with the message's request id: a refusal; or Unavailable if the service
   *     cannot be reached at first, as an inbox needs it, or is away when the time is over
   */
  public Asked ask(RouteRequest request, Duration wait) {
    return Asking.answer(this, request, wait);
  }

  /** As the next one, for {@link Asked#WAIT_DEFAULT}. */
  public Asked askParts(RouteRequest request, Consumer<AskedPart> reader) {
    return askParts(request, Asked.WAIT_DEFAULT, reader);
  }

  /**
   * Asks as {@link #ask(RouteRequest, Duration)} does, and meanwhile gives the reader the answer as
   * it is written, with notes for the user, in this thread.
   *
   * <p>Parts are best effort: those of the whole answer that did not come before come at its end.
   * Agents that send no parts come as one part.
   */
  public Asked askParts(RouteRequest request, Duration wait, Consumer<AskedPart> reader) {
    return Asking.inParts(this, request, wait, reader);
  }

  /** Approves or rejects what a paused task is waiting for. */
  public ResumeTaskResponse resumeTask(ResumeTaskRequest request) {
    return resumeTask(request, new CallInfo());
  }

  /** See {@link #resumeTask(ResumeTaskRequest)}. */
  public ResumeTaskResponse resumeTask(ResumeTaskRequest request, CallInfo info) {
    return invoke(RoutingServiceGrpc.getResumeTaskMethod(), request, info);
  }

  /**
   * Reports 1-100 turns that were decided without the service, as {@link RouteResult#degradedTurn} makes
   * them; returns whether each is stored, or is a conflict. Nothing moves; a repeat is safe.
   */
  public ReportDegradedResponse reportDegraded(ReportDegradedRequest request) {
    return reportDegraded(request, new CallInfo());
  }

  /** See {@link #reportDegraded(ReportDegradedRequest)}. */
  public ReportDegradedResponse reportDegraded(ReportDegradedRequest request, CallInfo info) {
    return invoke(RoutingServiceGrpc.getReportDegradedMethod(), request, info);
  }

  /** Returns the state of the circuit breaker, for metrics. */
  public Circuit circuit() {
    return circuit;
  }

  /** Asks once for the home agent, as at a process's start: it gets unknown sessions' messages. */
  public String learnHome() {
    return listAgents(ListAgentsRequest.getDefaultInstance()).getHomeAgentId();
  }

  /** Returns one page of a session's tasks. */
  public ListTasksResponse listTasks(ListTasksRequest request) {
    return listTasks(request, new CallInfo());
  }

  /** See {@link #listTasks(ListTasksRequest)}. */
  public ListTasksResponse listTasks(ListTasksRequest request, CallInfo info) {
    return invoke(RoutingServiceGrpc.getListTasksMethod(), request, info);
  }

  /** Iterates over all tasks of a session; pages are fetched when needed. */
  public Iterable<Task> allTasks(ListTasksRequest request) {
    return () ->
        new Pages<>(
            token -> listTasks(request.toBuilder().setPageToken(token).build()),
            ListTasksResponse::getTasksList,
            ListTasksResponse::getNextPageToken);
  }

  /** Returns one page of a session's history. */
  public ListTurnsResponse listTurns(ListTurnsRequest request) {
    return listTurns(request, new CallInfo());
  }

  /** See {@link #listTurns(ListTurnsRequest)}. */
  public ListTurnsResponse listTurns(ListTurnsRequest request, CallInfo info) {
    return invoke(RoutingServiceGrpc.getListTurnsMethod(), request, info);
  }

  /** Iterates over the whole history of a session; pages are fetched when needed. */
  public Iterable<agentrouting.v1.Turn> allTurns(ListTurnsRequest request) {
    return () ->
        new Pages<>(
            token -> listTurns(request.toBuilder().setPageToken(token).build()),
            ListTurnsResponse::getTurnsList,
            ListTurnsResponse::getNextPageToken);
  }

  /** Returns the registry's agents as this caller may see them. */
  public ListAgentsResponse listAgents(ListAgentsRequest request) {
    return listAgents(request, new CallInfo());
  }

  /** See {@link #listAgents(ListAgentsRequest)}. */
  public ListAgentsResponse listAgents(ListAgentsRequest request, CallInfo info) {
    return invoke(RoutingServiceGrpc.getListAgentsMethod(), request, info);
  }

  /**
   * Iterates over a session's changes as they happen: each exactly once and in order, over any
   * number of connections. Without after_revision it returns new changes only. Close it to end it.
   */
  public Watch watchSession(WatchSessionRequest request) {
    return watchSession(request, Watch.AWAY_TIMEOUT_DEFAULT);
  }

  /**
   * See {@link #watchSession(WatchSessionRequest)}.
   *
   * @param awayTimeout how long the service may be away before the watch throws
   */
  public Watch watchSession(WatchSessionRequest request, Duration awayTimeout) {
    return new Watch(this, request, CallInfo.positive("awayTimeout", awayTimeout));
  }

  /** Returns one page of what waits for an approval in all sessions of the tenant, oldest first. */
  public ListApprovalsResponse listApprovals(ListApprovalsRequest request) {
    return invoke(RoutingServiceGrpc.getListApprovalsMethod(), request, new CallInfo());
  }

  /** Iterates over everything that waits for an approval. Needs the scope approve or admin. */
  public Iterable<WaitingApproval> allApprovals(ListApprovalsRequest request) {
    return () ->
        new Pages<>(
            token -> listApprovals(request.toBuilder().setPageToken(token).build()),
            ListApprovalsResponse::getApprovalsList,
            ListApprovalsResponse::getNextPageToken);
  }

  /** Watches what waits for an approval, and then what begins, changes and ends. Close it. */
  public ApprovalWatch watchApprovals(WatchApprovalsRequest request, Duration awayTimeout) {
    return new ApprovalWatch(this, request, CallInfo.positive("awayTimeout", awayTimeout));
  }

  /**
   * Returns one page of what waits in the inbox of an agent of kind human, the longest waiting
   * first. A page may be short while more follow.
   */
  public ListWaitingResponse listWaiting(ListWaitingRequest request) {
    return listWaiting(request, new CallInfo());
  }

  /** See {@link #listWaiting(ListWaitingRequest)}. */
  public ListWaitingResponse listWaiting(ListWaitingRequest request, CallInfo info) {
    return invoke(RoutingServiceGrpc.getListWaitingMethod(), request, info);
  }

  /** Iterates over everything that waits in the inbox of an agent of kind human. */
  public Iterable<WaitingConversation> allWaiting(ListWaitingRequest request) {
    return () ->
        new Pages<>(
            token -> listWaiting(request.toBuilder().setPageToken(token).build()),
            ListWaitingResponse::getEntriesList,
            ListWaitingResponse::getNextPageToken);
  }

  /**
   * Claims a conversation for the person who calls; with take_over also from another person.
   * claimant is required without sign-in.
   *
   * @throws RoutingException.Claimed if another person has claimed it
   */
  public ClaimTurnResponse claimTurn(ClaimTurnRequest request) {
    return claimTurn(request, new CallInfo());
  }

  /** See {@link #claimTurn(ClaimTurnRequest)}. */
  public ClaimTurnResponse claimTurn(ClaimTurnRequest request, CallInfo info) {
    if (request.getRequestId().isEmpty()) {
      request = request.toBuilder().setRequestId(Ids.newUuid7()).build();
    }
    return invoke(RoutingServiceGrpc.getClaimTurnMethod(), request, info);
  }

  /** Gives a claim up; the conversation waits again. claimant is required without sign-in. */
  public ReleaseTurnResponse releaseTurn(ReleaseTurnRequest request) {
    return releaseTurn(request, new CallInfo());
  }

  /** See {@link #releaseTurn(ReleaseTurnRequest)}. */
  public ReleaseTurnResponse releaseTurn(ReleaseTurnRequest request, CallInfo info) {
    if (request.getRequestId().isEmpty()) {
      request = request.toBuilder().setRequestId(Ids.newUuid7()).build();
    }
    return invoke(RoutingServiceGrpc.getReleaseTurnMethod(), request, info);
  }

  /**
   * Says something to the user without ending the turn: the field say, during the open request_id; a
   * person without one sets task_id. A missing message_id is generated, so that a repeat says nothing
   * twice. The status of the answer is REQUEST_NOT_OPEN if the turn is over, or the conversation is
   * with others.
   */
  public KeepTurnResponse say(KeepTurnRequest request) {
    return say(request, new CallInfo());
  }

  /** See {@link #say(KeepTurnRequest)}. */
  public KeepTurnResponse say(KeepTurnRequest request, CallInfo info) {
    if (request.getMessageId().isEmpty()) {
      request = request.toBuilder().setMessageId(Ids.newUuid7()).build();
    }
    return keepTurn(request, info);
  }

  /**
   * Notes something about a conversation for other people; users never get it. author is required
   * without sign-in.
   */
  public AddNoteResponse addNote(AddNoteRequest request) {
    return addNote(request, new CallInfo());
  }

  /** See {@link #addNote(AddNoteRequest)}. */
  public AddNoteResponse addNote(AddNoteRequest request, CallInfo info) {
    if (request.getRequestId().isEmpty()) {
      request = request.toBuilder().setRequestId(Ids.newUuid7()).build();
    }
    return invoke(RoutingServiceGrpc.getAddNoteMethod(), request, info);
  }

  /** Returns the latest notes about a conversation, at most 32, the oldest first. */
  public ListNotesResponse listNotes(ListNotesRequest request) {
    return listNotes(request, new CallInfo());
  }

  /** See {@link #listNotes(ListNotesRequest)}. */
  public ListNotesResponse listNotes(ListNotesRequest request, CallInfo info) {
    return invoke(RoutingServiceGrpc.getListNotesMethod(), request, info);
  }

  /** Opens a stream of messages. Its first message opens the connection. */
  public RouteStream stream() {
    return new RouteStream(this, timeout);
  }

  /** Makes a call with all its attempts, under one deadline; each sends the same request. */
  private <Q extends Message, A extends Message> A invoke(
      MethodDescriptor<Q, A> method, Q request, CallInfo info) {
    Call call = new Call(method.getBareMethodName(), target, request, info.timeoutOr(timeout));
    if (!queue.tryTake()) {
      waitInQueue(call, request);
    }
    try {
      return attempt(method, request, info, call);
    } finally {
      queue.release();
    }
  }

  /** Waits for a place among the client's calls. Throws if there is none in time. */
  private void waitInQueue(Call call, Message request) {
    boolean hasPlace;
    try {
      hasPlace = queue.take(call.remainingNanos());
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
      throw new IllegalStateException("interrupted while waiting for other calls", interrupted);
    }
    if (!hasPlace) {
      throw heldUp(call, Failure.exception(Status.DEADLINE_EXCEEDED, new Metadata(), call));
    }
    boolean mayDecide =
        known != null && request instanceof RouteRequest message && known.mayDecide(message);
    if (mayDecide && circuit.state() != Circuit.State.CLOSED) {
      queue.release();
      throw Failure.notAsked(call);
    }
  }

  /** Returns the error of a call whose time is over: of load, if others were answered meanwhile. */
  RoutingException heldUp(Call call, RoutingException error) {
    boolean isHeldUp = call.wasRefused || queue.wasUsedSince(call.begunNanos);
    boolean isLate = error instanceof RoutingException.DeadlineExceeded;
    return isLate && isHeldUp && isAnswering() ? Failure.heldUp(call) : error;
  }

  /** Tells whether the service has answered a call of this client within a call's time. */
  private boolean isAnswering() {
    return circuit.answeredWithin(timeout);
  }

  private <Q extends Message, A extends Message> A attempt(
      MethodDescriptor<Q, A> method, Q request, CallInfo info, Call call) {
    while (true) {
      throwIfClosed();
      call.attempts++;
      connectAgainIfAway();
      AtomicReference<Metadata> headers = new AtomicReference<>();
      AtomicReference<Metadata> trailers = new AtomicReference<>();
      Channel listening =
          ClientInterceptors.intercept(
              wire.channel,
              MetadataUtils.newAttachHeadersInterceptor(info.headers),
              MetadataUtils.newCaptureMetadataInterceptor(headers, trailers));
      CallOptions options =
          wire.callOptions.withDeadlineAfter(call.remainingNanos(), TimeUnit.NANOSECONDS);
      try {
        A answer = ClientCalls.blockingUnaryCall(listening, method, options, request);
        Metadata after = trailers.get();
        info.set(call.attempts, after != null && "true".equals(after.get(REPLAYED)));
        succeeded(request, answer);
        return answer;
      } catch (StatusRuntimeException failure) {
        info.set(call.attempts, false);
        throwIfClosed();
        RoutingException error =
            heldUp(call, Failure.exception(failure.getStatus(), failure.getTrailers(), call));
        long waitNanos = waitAfter(call, error);
        if (waitNanos < 0) {
          if (!error.wasRefusedUnread() || !isAnswering()) {
            circuit.count(error);
          }
          throw error;
        }
        try {
          TimeUnit.NANOSECONDS.sleep(waitNanos);
        } catch (InterruptedException interrupted) {
          Thread.currentThread().interrupt();
          throw error;
        }
      }
    }
  }

  /** Records an answer. */
  void succeeded(Message request, Message answer) {
    wire.isAway = false;
    throttle.succeeded();
    circuit.succeeded();
    if (known != null) {
      known.learn(request, answer);
    }
  }

  /** Returns the nanoseconds to wait before the next attempt; below zero: there is none. */
  long waitAfter(Call call, RoutingException error) {
    if (!error.wasUnanswered()) {
      if (known != null) {
        known.forget(call.sessionId, error);
      }
      return -1;
    }
    if (error.wasRefusedUnread()) {
      // Nothing happened, and the service is there: it is sent again until its deadline.
      call.wasRefused = true;
      if (retry.attemptsMax() == 1) {
        return -1;
      }
    } else {
      wire.isAway = true;
      if (!throttle.mayRetry() || call.attempts >= retry.attemptsMax()) {
        return -1;
      }
    }
    long waitNanos =
        retry.backoffNanos(call.attempts) + error.retryAfter().map(Duration::toNanos).orElse(0L);
    return waitNanos < call.remainingNanos() ? waitNanos : -1;
  }

  void connectAgainIfAway() {
    wire.connectAgainIfAway();
  }

  void wasAway() {
    wire.isAway = true;
  }

  void throwIfClosed() {
    if (wire.isClosed) {
      throw closed();
    }
  }

  boolean isClosed() {
    return wire.isClosed;
  }

  IllegalStateException closed() {
    return new IllegalStateException(
        "the client of \"" + target + "\" is closed; create another one");
  }

  Wire.Place takeStream() {
    return wire.takeStream();
  }

  CallOptions callOptions() {
    return wire.callOptions;
  }
}
