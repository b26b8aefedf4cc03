package agentrouting;

import agentrouting.v1.CompleteTurnRequest;
import agentrouting.v1.InboxItem;
import agentrouting.v1.KeepTurnRequest;
import agentrouting.v1.KeepTurnResponse;
import agentrouting.v1.KeepTurnStatus;
import agentrouting.v1.ProceedOutcome;
import agentrouting.v1.RoutingServiceGrpc;
import agentrouting.v1.Step;
import agentrouting.v1.WatchInboxRequest;
import agentrouting.v1.WatchInboxResponse;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Consumer;

/**
 * Runs functions on the turns of their agents, from their inboxes.
 *
 * <pre>{@code
 * Worker worker = new Worker(client);
 * worker.agent("vat", turn -> Answers.followUp("Monthly or quarterly?"));
 * worker.run();
 * }</pre>
 *
 * <p>A turn is answered under its lease. The worker extends the lease while the function runs, and
 * interrupts the function when the turn is no longer its own. A worker that crashes lets the lease
 * lapse, and the turn is delivered again: so a function may run more than once for a turn, and one
 * answer counts.
 */
public final class Worker {
  /** Turns at a time: agents wait for models most of the time. */
  public static final int CONCURRENCY_DEFAULT = 10;

  /** After a crash a turn waits this long for another worker. */
  public static final Duration LEASE_DEFAULT = Duration.ofSeconds(30);

  /**
   * How often a function that throws is tried, before its turn ends with a failure. The service
   * abandons a turn after five leases without an answer.
   */
  public static final int ATTEMPTS_DEFAULT = 3;

  /**
   * How long running functions may take to end when the worker stops; then their turns are given
   * back. Kubernetes kills a process after 30 s.
   */
  public static final Duration STOP_TIMEOUT_DEFAULT = Duration.ofSeconds(20);

  /** The longest pause before a function that threw is tried again; the first is a second. */
  private static final Duration RETRY_MAX = Duration.ofSeconds(30);

  /** By then the pause has reached its maximum. */
  private static final int DOUBLINGS_MAX = 5;

  /** How often a lease is extended while it runs, so that one lost call does not lose it. */
  private static final int KEEPS_PER_LEASE = 3;

  /** Between two reports of an answer while the service is away. */
  private static final Duration REPORT_PAUSE = Duration.ofSeconds(1);

  /** A service that is away is waited for, however long: a hundred years. */
  private static final Duration FOREVER = Duration.ofDays(36_500);

  /** What the history says of a turn whose function threw each time. The log has the error. */
  private static final String FAILED_MESSAGE = "the agent failed";

  /** How long stop() may go unnoticed by the thread that reads the inbox. */
  private static final Duration LOOK = Duration.ofSeconds(30);

  /** Of the host's name in a worker's own name, which has 128 characters at most. */
  private static final int HOST_CHARACTERS_MAX = 96;

  private static final System.Logger LOG = System.getLogger("agentrouting.worker");

  /** Answers a turn of an agent. After an exception the turn is tried again. */
  @FunctionalInterface
  public interface AgentFunction {
    /**
     * Returns the answer, made with {@link Answers}. The thread is interrupted when the turn is lost
     * or the worker ends; an answer that comes later is dropped.
     */
    CompleteTurnRequest.Builder answer(InboxTurn turn) throws Exception;
  }

  private final RoutingClient client;
  private final Map<String, AgentFunction> functions = new ConcurrentHashMap<>();
  private final Map<String, Thread> running = new ConcurrentHashMap<>(); // by lease token
  private String workerId = ownName();
  private int concurrency = CONCURRENCY_DEFAULT;
  private Duration lease = LEASE_DEFAULT;
  private int attempts = ATTEMPTS_DEFAULT;
  private Duration stopTimeout = STOP_TIMEOUT_DEFAULT;
  private int historyTurns;
  private volatile boolean isStopping;
  private volatile Connections<WatchInboxRequest, WatchInboxResponse> inbox;

  /** Makes a worker. The client stays the caller's to close. */
  public Worker(RoutingClient client) {
    this.client = client;
  }

  /** Sets what operators see. 1-128 characters. Default: host and process. */
  public Worker workerId(String workerId) {
    this.workerId = workerId;
    return this;
  }

  /** Sets how many turns run at a time, 1-1,000. */
  public Worker concurrency(int concurrency) {
    this.concurrency = concurrency;
    return this;
  }

  /** Sets how long a crash keeps a turn back, 1 s to 1 h. */
  public Worker lease(Duration lease) {
    this.lease = CallInfo.positive("lease", lease);
    return this;
  }

  /** Sets how often a function that throws is tried. */
  public Worker attempts(int attempts) {
    this.attempts = attempts;
    return this;
  }

  /** Sets how long functions may take to end when the worker stops. */
  public Worker stopTimeout(Duration stopTimeout) {
    this.stopTimeout = CallInfo.positive("stopTimeout", stopTimeout);
    return this;
  }

  /** Sets how many past turns are sent along with each turn, as in route. */
  public Worker historyTurns(int historyTurns) {
    this.historyTurns = historyTurns;
    return this;
  }

  /** Registers the function of an agent, by its id, before it runs. */
  public Worker agent(String agentId, AgentFunction function) {
    if (functions.putIfAbsent(agentId, function) != null) {
      throw new IllegalArgumentException("agent \"" + agentId + "\" has a function already");
    }
    return this;
  }

  /** Serves until the JVM is asked to end, as by SIGTERM or SIGINT. Throws what serve throws. */
  public void run() {
    CountDownLatch hasEnded = new CountDownLatch(1);
    Thread hook =
        new Thread(
            () -> {
              stop();
              try {
                hasEnded.await();
              } catch (InterruptedException interrupted) {
                Thread.currentThread().interrupt();
              }
            },
            "worker-stop");
    Runtime.getRuntime().addShutdownHook(hook);
    try {
      serve();
    } finally {
      hasEnded.countDown();
      try {
        Runtime.getRuntime().removeShutdownHook(hook);
      } catch (IllegalStateException isEnding) {
        // The JVM ends, and the hook has been waiting for this.
      }
    }
  }

  /** Takes no more turns, and ends serve once the running functions have ended; for good. */
  public void stop() {
    isStopping = true;
    Connections<WatchInboxRequest, WatchInboxResponse> open = inbox;
    if (open != null) {
      open.close();
    }
  }

  /**
   * Takes turns until {@link #stop}. A service that is away is waited for, however long.
   *
   * @throws IllegalStateException without functions
   * @throws RoutingException for a refusal of the service
   */
  public void serve() {
    if (functions.isEmpty()) {
      throw new IllegalStateException(
          "the worker has no functions; register them with worker.agent(id, function)");
    }
    // Each turn has a thread of its own, which keeps its lease, and one of these for its function.
    ExecutorService threads = Executors.newCachedThreadPool();
    try {
      take(threads);
      awaitRunning(stopTimeout);
    } finally {
      // Other turns are given back; a function that ignores its interrupt is not waited for.
      running.values().forEach(Thread::interrupt);
      awaitRunning(lease.dividedBy(KEEPS_PER_LEASE)); // Of the calls that give them back.
      threads.shutdownNow();
    }
  }

  /** Reads the inbox until the worker stops. */
  private void take(ExecutorService threads) {
    WatchInboxRequest.Builder request =
        WatchInboxRequest.newBuilder()
            .addAllAgentIds(functions.keySet())
            .setWorkerId(workerId)
            .setCapacity(concurrency)
            .setLease(duration(lease))
            .setHistoryTurns(historyTurns);
    var open =
        new Connections<>(
            client, RoutingServiceGrpc.getWatchInboxMethod(), request::build, FOREVER);
    inbox = open;
    try {
      while (!isStopping && !open.isClosed()) {
        WatchInboxResponse message = open.next(LOOK);
        if (message != null && message.hasHeartbeat()) {
          request.setResumeToken(message.getHeartbeat().getResumeToken());
        } else if (message != null && message.hasItem()) {
          begin(threads, message.getItem());
        }
      }
    } finally {
      inbox = null;
      open.close();
    }
  }

  private void begin(ExecutorService threads, InboxItem item) {
    String token = item.getLeaseToken();
    // Sent again after a lost connection; its function still runs.
    if (running.containsKey(token)) {
      return;
    }
    Thread work =
        new Thread(
            () -> {
              try {
                work(threads, reporting(threads, new InboxTurn(item)));
              } catch (InterruptedException interrupted) {
                giveBack(new InboxTurn(item));
              } finally {
                running.remove(token);
              }
            },
            "inbox-turn");
    running.put(token, work);
    work.start();
  }

  private InboxTurn reporting(ExecutorService threads, InboxTurn turn) {
    return turn.reportingTo(
        new TurnReports(
            said -> tell(turn, said),
            turn.item().getStepsKnown(),
            threads,
            (event, error) -> {
              if (!turn.isLost()) {
                report(System.Logger.Level.WARNING, event, turn, error);
              }
            }));
  }

  private void awaitRunning(Duration timeout) {
    long lateNanos = System.nanoTime() + timeout.toNanos();
    try {
      while (!running.isEmpty() && System.nanoTime() < lateNanos) {
        TimeUnit.MILLISECONDS.sleep(10);
      }
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
    }
  }

  /** Answers one turn, or leaves it to another attempt, and keeps its lease meanwhile. */
  private void work(ExecutorService threads, InboxTurn turn) throws InterruptedException {
    Future<?> answering =
        threads.submit(
            () -> {
              answer(turn);
              return null;
            });
    long everyNanos = lease.toNanos() / KEEPS_PER_LEASE;
    long keepAt = System.nanoTime() + everyNanos;
    try {
      while (true) {
        try {
          // A call that timed out is repeated at once: after another pause the lease would be over.
          answering.get(Math.max(0, keepAt - System.nanoTime()), TimeUnit.NANOSECONDS);
          return;
        } catch (TimeoutException isRunning) {
          keepAt = System.nanoTime() + everyNanos;
          if (!isKept(turn)) {
            report(System.Logger.Level.WARNING, "turn_lost", turn, null);
            return;
          }
        } catch (ExecutionException failed) {
          afterFailure(turn, failed.getCause());
          return;
        }
      }
    } finally {
      turn.lose();
      answering.cancel(true);
    }
  }

  /** Runs an agent's function and reports what it returned. */
  private void answer(InboxTurn turn) throws Exception {
    CompleteTurnRequest.Builder answer = functions.get(turn.agentId()).answer(turn);
    if (answer == null) {
      throw new IllegalStateException(
          "the agent's function returned null; return an answer, made with Answers");
    }
    List<Step> rest = new ArrayList<>(turn.reports().finish());
    if (!turn.isLost()) {
      rest.addAll(answer.getStepsList());
      rest = rest.subList(0, Math.min(rest.size(), TurnReports.STEPS_MAX));
      complete(turn, answer.clearSteps().addAllSteps(rest));
    }
  }

  /** Reports an answer, for as long as it takes: the thread is interrupted if the turn is lost. */
  private void complete(InboxTurn turn, CompleteTurnRequest.Builder answer)
      throws InterruptedException {
    answer
        .setSessionId(turn.item().getSessionId())
        .setRequestId(turn.requestId())
        .setAgentId(turn.agentId())
        .setLeaseToken(turn.item().getLeaseToken());
    if (answer.getOutcomeCase() == CompleteTurnRequest.OutcomeCase.OUTCOME_NOT_SET) {
      answer.setProceed(ProceedOutcome.getDefaultInstance());
    }
    while (true) {
      try {
        client.completeTurn(answer.build(), turn.call());
        return;
      } catch (RoutingException.LeaseLost | RoutingException.RequestNotOpen lost) {
        report(System.Logger.Level.WARNING, "answer_not_taken", turn, lost);
        return;
      } catch (RoutingException error) {
        if (!isPassing(error)) {
          throw error;
        }
      }
      Thread.sleep(REPORT_PAUSE.toMillis());
    }
  }

  /** Lets a turn be tried again after a pause, or ends it with a failure. */
  private void afterFailure(InboxTurn turn, Throwable cause) throws InterruptedException {
    report(System.Logger.Level.ERROR, "agent_failed", turn, cause);
    try {
      if (turn.attempt() >= attempts) {
        complete(turn, Answers.failed(FAILED_MESSAGE));
      } else {
        // The lease lapses after the pause, and counts as an attempt.
        Duration pause = Duration.ofSeconds(1L << Math.min(turn.attempt() - 1, DOUBLINGS_MAX));
        Duration extend = pause.compareTo(RETRY_MAX) < 0 ? pause : RETRY_MAX;
        tell(turn, keep -> keep.setExtend(duration(extend)));
      }
    } catch (RoutingException error) {
      throwIfInterrupted();
      report(System.Logger.Level.WARNING, "turn_left", turn, error);
    }
  }

  /** Extends a lease; says whether the turn is still this worker's. */
  private boolean isKept(InboxTurn turn) throws InterruptedException {
    try {
      KeepTurnResponse kept = tell(turn, keep -> keep.setExtend(duration(lease)));
      return kept.getStatus() == KeepTurnStatus.KEEP_TURN_STATUS_KEPT;
    } catch (RoutingException error) {
      throwIfInterrupted();
      if (isPassing(error)) {
        return true; // An answer may still count: perhaps no other worker has the turn.
      }
      report(System.Logger.Level.WARNING, "lease_not_kept", turn, error);
      return false;
    }
  }

  /** The worker stops: another one gets the turn at once. */
  private void giveBack(InboxTurn turn) {
    try {
      tell(turn, keep -> keep.setRelease(true));
    } catch (RoutingException | IllegalStateException error) {
      report(System.Logger.Level.WARNING, "turn_left", turn, error);
    }
  }

  private KeepTurnResponse tell(InboxTurn turn, Consumer<KeepTurnRequest.Builder> act) {
    KeepTurnRequest.Builder request =
        KeepTurnRequest.newBuilder()
            .setSessionId(turn.item().getSessionId())
            .setRequestId(turn.requestId())
            .setAgentId(turn.agentId())
            .setLeaseToken(turn.item().getLeaseToken());
    act.accept(request);
    Duration timeout = lease.dividedBy(KEEPS_PER_LEASE);
    return client.keepTurn(request.build(), turn.call().withTimeout(timeout));
  }

  private static void throwIfInterrupted() throws InterruptedException {
    if (Thread.interrupted()) {
      throw new InterruptedException();
    }
  }

  /** Says whether a call may succeed later. */
  private static boolean isPassing(RoutingException error) {
    return error instanceof RoutingException.Unavailable
        || error instanceof RoutingException.DeadlineExceeded
        || error instanceof RoutingException.Overloaded;
  }

  private static void report(
      System.Logger.Level level, String event, InboxTurn turn, Throwable error) {
    String line =
        event
            + " request_id="
            + turn.requestId()
            + " agent_id="
            + turn.agentId()
            + " attempt="
            + turn.attempt();
    if (error == null || error instanceof RoutingException) {
      LOG.log(level, error == null ? line : line + " error=" + error.getMessage());
    } else {
      LOG.log(level, line, error);
    }
  }

  private static com.google.protobuf.Duration duration(Duration given) {
    return com.google.protobuf.Duration.newBuilder()
        .setSeconds(given.getSeconds())
        .setNanos(given.getNano())
        .build();
  }

  /** Returns a worker's name: its host, its process, and what tells two of one process apart. */
  private static String ownName() {
    String host;
    try {
      host = InetAddress.getLocalHost().getHostName().replaceAll("[^A-Za-z0-9.-]", "-");
    } catch (UnknownHostException unknown) {
      host = "worker";
    }
    String id = Ids.newUuid7();
    return host.substring(0, Math.min(host.length(), HOST_CHARACTERS_MAX))
        + "-"
        + ProcessHandle.current().pid()
        + "-"
        + id.substring(id.length() - 8);
  }
}
