// One call from its first attempt to its answer or error.
//
// Owns time, attempts, credentials and metadata. One deadline covers all attempts, and each attempt
// sends the same request.

import type { Message } from "@bufbuild/protobuf";
import type { CallOptions as TransportCallOptions } from "@connectrpc/connect";
import type { Circuit } from "./circuit.js";
import type { RoutingError } from "./errors.js";
import { routingError } from "./failure.js";
import { isUndecided, type KnownAgents } from "./knownAgents.js";
import type { Replicas, Stub } from "./replicas.js";
import { type RetryPolicy, type RetryThrottle, waitMs, wasUnanswered } from "./retry.js";
import { positiveMs, sleep } from "./waiting.js";

/** How long a user waits for the routing decision, before the client decides alone. */
export const TIMEOUT_MS_DEFAULT = 5_000;

export const REPLAYED_KEY = "agent-routing-replayed";
export const TENANT_KEY = "agent-routing-tenant";

/** Returns the token of a call. Called for every attempt: reuse a token until it expires. */
export type TokenSource = () => string | Promise<string>;

/** Facts about a call that are not in its answer. Pass an object as info, then read it. */
export interface CallInfo {
  /** How often the request was sent. */
  attempts?: number;
  /** Whether the answer is the stored answer to an earlier request with this requestId. */
  replayed?: boolean;
}

/** Options of any call. */
export interface CallOptions {
  /** Time for the call with all its attempts, in milliseconds. Default: the client's. */
  timeoutMs?: number;
  /** Cancels the call, which then rejects with the signal's reason. */
  signal?: AbortSignal;
  /** Sent with this call only, such as traceparent. */
  headers?: Readonly<Record<string, string>>;
  /** Filled in during the call. */
  info?: CallInfo;
}

/** What all calls of a client share. */
export interface CallSettings {
  readonly replicas: Replicas;
  readonly timeoutMs: number;
  readonly headers: Readonly<Record<string, string>>;
  readonly token: TokenSource | undefined;
  readonly retry: RetryPolicy;
  readonly throttle: RetryThrottle;
  readonly circuit: Circuit;
  readonly known: KnownAgents | undefined;
}

/** Returns the headers of one attempt. */
export async function headersOf(
  settings: CallSettings,
  options: CallOptions,
): Promise<Record<string, string>> {
  const headers = { ...settings.headers, ...options.headers };
  if (settings.token !== undefined) headers.authorization = `Bearer ${await settings.token()}`;
  return headers;
}

/** Sends a request until it is answered, refused, or out of time or attempts. */
export async function call<Request extends Message, Answer extends Message>(
  settings: CallSettings,
  method: string,
  request: Request,
  send: (stub: Stub, request: Request, options: TransportCallOptions) => Promise<Answer>,
  options: CallOptions,
): Promise<Answer> {
  const timeoutMs = positiveMs("timeoutMs", options.timeoutMs ?? settings.timeoutMs);
  const deadlineMs = performance.now() + timeoutMs;
  const info = options.info ?? {};
  const requestId = "requestId" in request ? String(request.requestId) : "";
  const sessionId = "sessionId" in request ? String(request.sessionId) : "";
  info.replayed = false;
  for (let attempts = 1; ; attempts++) {
    info.attempts = attempts;
    options.signal?.throwIfAborted();
    const replica = settings.replicas.current();
    const { target } = replica;
    const note = (received: Headers) => {
      info.replayed ||= received.get(REPLAYED_KEY) === "true";
    };
    // A failure to get a token is not the service's: it is thrown unchanged.
    const headers = await headersOf(settings, options);
    let error: RoutingError;
    try {
      const answer = await send(replica.stub, request, {
        // The wire has whole milliseconds only.
        timeoutMs: Math.max(1, Math.ceil(deadlineMs - performance.now())),
        ...(options.signal && { signal: options.signal }),
        headers,
        onHeader: note,
        onTrailer: note,
      });
      settings.throttle.succeeded();
      settings.circuit.succeeded();
      settings.known?.learn(request, answer);
      return answer;
    } catch (thrown) {
      options.signal?.throwIfAborted();
      settings.replicas.throwIfClosed(thrown);
      const wasCut = replica.isCut?.() ?? false;
      error = routingError(thrown, {
        ...{ method, target, requestId, sessionId, timeoutMs, attempts, wasCut },
      });
    }
    if (!wasUnanswered(error)) {
      settings.known?.forget(sessionId, error);
      throw counted(settings, error);
    }
    settings.replicas.turnFrom(replica);
    if (!settings.throttle.mayRetry()) throw counted(settings, error);
    const wait = waitMs(settings.retry, error, attempts, deadlineMs - performance.now());
    if (wait === undefined) throw counted(settings, error);
    await sleep(wait, options.signal);
  }
}

/** Counts a call that failed, with all its attempts; returns its error. */
function counted(settings: CallSettings, error: RoutingError): RoutingError {
  if (!isUndecided(error)) settings.circuit.succeeded();
  else if (error.reason === "" || wasUnanswered(error)) settings.circuit.failed();
  return error;
}
