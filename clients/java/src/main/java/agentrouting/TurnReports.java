package agentrouting;

import agentrouting.v1.AnswerDelta;
import agentrouting.v1.KeepTurnRequest;
import agentrouting.v1.KeepTurnResponse;
import agentrouting.v1.KeepTurnStatus;
import agentrouting.v1.Step;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executor;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.function.BiConsumer;
import java.util.function.Consumer;
import java.util.function.Function;

/**
 * What an agent's function says of its turn while it works: steps, notes, parts of the answer. Best
 * effort: a report that fails never fails the function; steps that were not sent before the answer
 * go with it.
 */
final class TurnReports {
  /** The service stores the steps of a turn at most this often. */
  private static final Duration STEPS_EVERY = Duration.ofSeconds(5);

  /** Of one report. */
  static final int STEPS_MAX = 64;

  private static final int STEPS_BYTES_MAX = 48 * 1024;

  /** How often a part of the answer is sent: readers see no difference to more often. */
  private static final Duration DELTA_EVERY = Duration.ofMillis(100);

  /** Of one part, in UTF-16 units: below its 32 KiB in any language. */
  private static final int DELTA_UNITS_MAX = 8_000;

  /** How many characters of the text before come with each part. */
  private static final int BEFORE_CHARACTERS = 160;

  private final Function<Consumer<KeepTurnRequest.Builder>, KeepTurnResponse> keep;
  private final BiConsumer<String, RuntimeException> onFailed;
  private final Executor threads;
  private final CountDownLatch ending = new CountDownLatch(1);
  // What follows is guarded by this.
  private final List<Step> steps = new ArrayList<>();
  private final StringBuilder written = new StringBuilder();
  private int known;
  private boolean storesSteps = true;
  private boolean isReporting;
  private boolean isSending;
  private long nextStepsNanos = System.nanoTime();
  private int sentUnits;
  private long sentBytes;

  /**
   * Makes the reports of a turn.
   *
   * @param keep calls KeepTurn for the turn
   * @param known steps of this attempt that are stored already
   * @param onFailed gets what could not be sent
   */
  TurnReports(
      Function<Consumer<KeepTurnRequest.Builder>, KeepTurnResponse> keep,
      int known,
      Executor threads,
      BiConsumer<String, RuntimeException> onFailed) {
    this.keep = keep;
    this.known = known;
    this.threads = threads;
    this.onFailed = onFailed;
  }

  synchronized void step(Step step) {
    steps.add(step.getKind().isEmpty() ? step.toBuilder().setKind("tool").build() : step);
    isReporting = isReporting || storesSteps && !isEnding() && started(this::report);
  }

  void note(String text) {
    sendOnce(keeping -> keeping.setNote(text));
  }

  synchronized void delta(String text) {
    written.append(text);
    isSending = isSending || !isEnding() && started(this::send);
  }

  synchronized String written() {
    return written.toString();
  }

  /** Sends the rest of the parts; returns the steps that were not sent. */
  List<Step> finish() throws InterruptedException {
    end();
    synchronized (this) {
      while (isSending) {
        wait();
      }
    }
    boolean isMore = true;
    while (isMore) {
      isMore = flush(true);
    }
    synchronized (this) {
      // A report on its way may be stored: its steps must not go with the answer as well.
      while (isReporting) {
        wait();
      }
      return List.copyOf(steps);
    }
  }

  /** Begins no other report. */
  void end() {
    ending.countDown();
  }

  private boolean isEnding() {
    return ending.getCount() == 0;
  }

  private boolean started(Runnable work) {
    try {
      threads.execute(work);
      return true;
    } catch (RejectedExecutionException workerHasEnded) {
      return false;
    }
  }

  /**
   * Waits for so long, or until the function has ended; says whether it has. Without a wait the
   * answer is no: a step that is reported as the function ends is sent.
   */
  private boolean endsWithin(long nanos) {
    try {
      return nanos > 0 && ending.await(nanos, TimeUnit.NANOSECONDS);
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
      return true;
    }
  }

  private void report() {
    boolean mayBeMore = true;
    while (mayBeMore) {
      long waitNanos;
      synchronized (this) {
        waitNanos = nextStepsNanos - System.nanoTime();
      }
      mayBeMore = !endsWithin(waitNanos) && reportOnce();
      synchronized (this) {
        // Together: a step that comes after this begins another report.
        mayBeMore = mayBeMore && storesSteps && !steps.isEmpty();
        isReporting = mayBeMore;
        notifyAll();
      }
    }
  }

  /** Sends one report; says whether there may be another. */
  private boolean reportOnce() {
    List<Step> part;
    int first;
    synchronized (this) {
      part = oneReport();
      first = known;
    }
    try {
      KeepTurnResponse kept = keep.apply(said -> said.addAllSteps(part).setFirstStep(first));
      synchronized (this) {
        // Beyond the limit of a turn the service leaves steps out: they are not sent again.
        boolean isKept = kept.getStatus() == KeepTurnStatus.KEEP_TURN_STATUS_KEPT;
        if (isKept) {
          steps.subList(0, part.size()).clear();
          known = kept.getStepsKnown();
          nextStepsNanos = System.nanoTime() + STEPS_EVERY.toNanos();
        }
        return isKept;
      }
    } catch (RoutingException.Overloaded busy) {
      pause(busy.retryAfter().orElse(STEPS_EVERY));
    } catch (RoutingException.StoreFormat | RoutingException.InvalidField refused) {
      // All steps go with the answer.
      onFailed.accept("steps_not_reported", refused);
      synchronized (this) {
        storesSteps = false;
      }
    } catch (RoutingException | IllegalStateException error) {
      onFailed.accept("steps_not_reported", error);
      pause(STEPS_EVERY);
    }
    return true;
  }

  private synchronized void pause(Duration wait) {
    nextStepsNanos = System.nanoTime() + wait.toNanos();
  }

  /** Returns the first steps that fit into one report; one that never does goes alone. */
  private List<Step> oneReport() {
    int total = 0;
    int count = 0;
    for (Step step : steps.subList(0, Math.min(steps.size(), STEPS_MAX))) {
      total += step.getSerializedSize();
      if (total > STEPS_BYTES_MAX && count > 0) {
        break;
      }
      count++;
    }
    return List.copyOf(steps.subList(0, count));
  }

  private void send() {
    boolean mayBeMore = true;
    while (mayBeMore) {
      boolean isOver = endsWithin(DELTA_EVERY.toNanos()); // Then finish() sends the rest.
      boolean isMore = !isOver;
      while (isMore) {
        isMore = flush(false);
      }
      synchronized (this) {
        mayBeMore = !isOver && sentUnits < written.length() - halfAtEnd(written.length());
        isSending = mayBeMore;
        notifyAll();
      }
    }
  }

  /** Sends one part; false if there is none. Half of a character waits for the other half. */
  private boolean flush(boolean isLast) {
    AnswerDelta.Builder delta = AnswerDelta.newBuilder();
    synchronized (this) {
      int length = written.length() - (isLast ? 0 : halfAtEnd(written.length()));
      int end = Math.min(length, sentUnits + DELTA_UNITS_MAX);
      if (end < length) {
        end -= halfAtEnd(end);
      }
      if (end <= sentUnits) {
        return false;
      }
      String text = written.substring(sentUnits, end);
      delta.setOffset(sentBytes).setText(text).setBefore(lastCharacters());
      // Also if it fails: a gap only means that readers wait for the whole answer.
      sentUnits = end;
      sentBytes += text.getBytes(StandardCharsets.UTF_8).length;
    }
    sendOnce(said -> said.setDelta(delta));
    return true;
  }

  private void sendOnce(Consumer<KeepTurnRequest.Builder> said) {
    try {
      keep.apply(said);
    } catch (RoutingException | IllegalStateException error) {
      onFailed.accept("report_not_sent", error);
    }
  }

  /** Returns 1 if the text up to there ends in the first half of a character, else 0. */
  private int halfAtEnd(int end) {
    return end > 0 && Character.isHighSurrogate(written.charAt(end - 1)) ? 1 : 0;
  }

  private String lastCharacters() {
    int count = Math.min(BEFORE_CHARACTERS, written.codePointCount(0, sentUnits));
    return written.substring(written.offsetByCodePoints(sentUnits, -count), sentUnits);
  }
}
