// A stream of the service over its connections: when to connect again, and when to give up.

import type { CallOptions as TransportCallOptions } from "@connectrpc/connect";
import { Code } from "@connectrpc/connect";
import { type CallOptions, type CallSettings, headersOf } from "./call.js";
import {
  Overloaded,
  type RoutingError,
  Unauthenticated,
  Unavailable,
  WatchTooSlow,
} from "./errors.js";
import { routingError } from "./failure.js";
import { backAgain, whenLeft } from "./leftPage.js";
import type { Stub } from "./replicas.js";
import { backoffMs } from "./retry.js";
import { sleep } from "./waiting.js";

/** What is watched, and how long the service may be away before the watch fails. */
export interface Watched {
  method: string;
  sessionId: string;
  awayMsMax: number;
}

/**
 * Yields the messages of a stream, over as many connections as necessary, each with whether it is
 * the first of its connection. open: begins a connection, from where the last one ended.
 */
export async function* overConnections<Message>(
  settings: CallSettings,
  { method, sessionId, awayMsMax }: Watched,
  options: Pick<CallOptions, "signal" | "headers">,
  open: (stub: Stub, options: TransportCallOptions) => AsyncIterable<Message>,
): AsyncGenerator<[Message, boolean], void, void> {
  let awaySinceMs: number | undefined;
  let attempts = 0;
  for (;;) {
    attempts++;
    const replica = settings.replicas.current();
    // Also ends the stream if the caller leaves the loop: the service must stop sending.
    const stop = new AbortController();
    const stayed = whenLeft(() => stop.abort());
    const signal = options.signal ? AbortSignal.any([options.signal, stop.signal]) : stop.signal;
    const headers = await headersOf(settings, options);
    const own = replica.takeStream();
    let error: RoutingError;
    let isFirst = true;
    let hasLeft = false;
    try {
      for await (const message of open(own.stub, { timeoutMs: 0, signal, headers })) {
        [awaySinceMs, attempts] = [undefined, 0];
        hasLeft = true;
        try {
          yield [message, isFirst];
          hasLeft = false;
        } finally {
          // Before the loop closes the stream, which may wait for the service's next message.
          if (hasLeft) stop.abort();
        }
        isFirst = false;
      }
      // For example by a proxy that limits how long a connection may last.
      error = new Unavailable(
        `${method}: "${replica.target}" ends each watch as it begins; is there a proxy in between?`,
        { code: Code.Unavailable, method, sessionId, attempts: Math.max(1, attempts) },
      );
    } catch (thrown) {
      if (hasLeft) return;
      options.signal?.throwIfAborted();
      if (await backAgain()) {
        [awaySinceMs, attempts] = [undefined, 0];
        continue;
      }
      settings.replicas.throwIfClosed(thrown);
      error = routingError(thrown, {
        method,
        target: replica.target,
        requestId: "",
        sessionId,
        timeoutMs: awayMsMax,
        attempts: Math.max(1, attempts),
        wasCut: own.isCut(),
      });
    } finally {
      stop.abort();
      stayed();
      own.release();
    }
    settings.replicas.turnFrom(replica);
    awaySinceMs ??= performance.now();
    const wait = backoffMs(settings.retry, Math.max(1, attempts)) + (error.retryAfterMs ?? 0);
    // A watch whose token expired under way continues with another token.
    const mayRenew =
      attempts === 0 && settings.token !== undefined && error instanceof Unauthenticated;
    const mayComeBack =
      mayRenew ||
      error instanceof Unavailable ||
      error instanceof Overloaded ||
      error instanceof WatchTooSlow;
    if (!mayComeBack || performance.now() - awaySinceMs + wait > awayMsMax) throw error;
    await sleep(wait, options.signal);
  }
}
