// A watch over its connections: up to where the caller has seen everything, and when to give up.
//
// The caller gets every change exactly once and in order, over any number of connections.

import { Code } from "@connectrpc/connect";
import { type CallOptions, type CallSettings, headersOf } from "./call.js";
import { Overloaded, type RoutingError, Unavailable, WatchTooSlow } from "./errors.js";
import { routingError } from "./failure.js";
import type { WatchSessionRequest } from "./gen/agent_routing/v1/routing_service_pb.js";
import type { Change } from "./gen/agent_routing/v1/session_event_pb.js";
import { backoffMs } from "./retry.js";
import { sleep } from "./waiting.js";

/** How long the service may be away: longer than a restart or an upgrade. No user is waiting. */
export const AWAY_MS_DEFAULT = 60_000;

const METHOD = "WatchSession";

/** Yields a session's changes, over as many connections as necessary. */
export async function* watchChanges(
  settings: CallSettings,
  request: WatchSessionRequest,
  awayMsMax: number,
  options: Pick<CallOptions, "signal" | "headers">,
): AsyncGenerator<Change, void, void> {
  let awaySinceMs: number | undefined;
  let attempts = 0;
  for (;;) {
    attempts++;
    const replica = settings.replicas.current();
    // Also ends the stream if the caller leaves the loop: the service must stop sending.
    const stop = new AbortController();
    const signal = options.signal ? AbortSignal.any([options.signal, stop.signal]) : stop.signal;
    const headers = await headersOf(settings, options);
    let error: RoutingError;
    let isFirst = true;
    let hasLeft = false;
    try {
      const stream = replica.stub.routing.watchSession(request, {
        timeoutMs: 0,
        signal,
        headers,
      });
      for await (const { kind } of stream) {
        [awaySinceMs, attempts] = [undefined, 0];
        if (kind.case === "change") {
          request.afterRevision = kind.value.revision;
          hasLeft = true;
          try {
            yield kind.value;
            hasLeft = false;
          } finally {
            // Before the loop closes the stream, which may wait for the service's next message.
            if (hasLeft) stop.abort();
          }
        } else if (kind.case === "heartbeat") {
          // The first heartbeat carries the session's revision, not the stream's position. The
          // caller starts there only if it did not ask for earlier changes.
          if (!isFirst || request.afterRevision === undefined) {
            request.afterRevision = kind.value.revision;
          }
        }
        isFirst = false;
      }
      // For example by a proxy that limits how long a connection may last.
      error = new Unavailable(
        `${METHOD}: "${replica.target}" ends each watch as it begins; is there a proxy in between?`,
        {
          code: Code.Unavailable,
          method: METHOD,
          sessionId: request.sessionId,
          attempts: Math.max(1, attempts),
        },
      );
    } catch (thrown) {
      if (hasLeft) return;
      options.signal?.throwIfAborted();
      settings.replicas.throwIfClosed(thrown);
      error = routingError(thrown, {
        method: METHOD,
        target: replica.target,
        requestId: "",
        sessionId: request.sessionId,
        timeoutMs: awayMsMax,
        attempts: Math.max(1, attempts),
        wasCut: replica.isCut?.() ?? false,
      });
    } finally {
      stop.abort();
    }
    settings.replicas.turnFrom(replica);
    awaySinceMs ??= performance.now();
    const wait = backoffMs(settings.retry, Math.max(1, attempts)) + (error.retryAfterMs ?? 0);
    const mayComeBack =
      error instanceof Unavailable || error instanceof Overloaded || error instanceof WatchTooSlow;
    if (!mayComeBack || performance.now() - awaySinceMs + wait > awayMsMax) throw error;
    await sleep(wait, options.signal);
  }
}
