package agentrouting;

import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;

/** The calls of a client that are on their way, and those that wait until fewer are. */
final class CallQueue {
  private final Semaphore places = new Semaphore(Wire.PLACES_MAX, true);
  private volatile long lastNanos = System.nanoTime() - TimeUnit.DAYS.toNanos(365);

  /** Takes a place if one is free. */
  boolean tryTake() {
    return places.tryAcquire();
  }

  /** Waits for a place; says whether there was one in time. */
  boolean take(long nanos) throws InterruptedException {
    enter();
    return places.tryAcquire(nanos, TimeUnit.NANOSECONDS);
  }

  void release() {
    places.release();
  }

  /** Records that a call, or a message, waits behind others. */
  void enter() {
    lastNanos = System.nanoTime();
  }

  /** Tells whether one began to wait since then. */
  boolean wasUsedSince(long nanos) {
    return lastNanos - nanos >= 0;
  }
}
