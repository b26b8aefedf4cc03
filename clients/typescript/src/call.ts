// One call from its first attempt to its answer or error.
//
// Owns time, attempts, credentials and metadata. One deadline covers all attempts, and each attempt
// sends the same request.

import { isMessage, type Message } from "@bufbuild/protobuf";
import type { CallOptions as TransportCallOptions } from "@connectrpc/connect";
import { Code } from "@connectrpc/connect";
import type { Circuit } from "./circuit.js";
import { DeadlineExceeded, Overloaded, type RoutingError, Unavailable } from "./errors.js";
import { routingError } from "./failure.js";
import { RouteRequestSchema } from "./gen/agent_routing/v1/routing_service_pb.js";
import { isUndecided, type KnownAgents } from "./knownAgents.js";
import type { Replica, Replicas, Stub } from "./replicas.js";
import {
  type RetryPolicy,
  type RetryThrottle,
  waitMs,
  wasRefusedUnread,
  wasUnanswered,
} from "./retry.js";
import { type Places, positiveMs, sleep } from "./waiting.js";

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
  readonly queue: CallQueue;
}

/** The calls of a client that wait until fewer are on their way. */
export interface CallQueue {
  readonly places: Places;
  /** When one last began to wait, on the clock of performance.now(). */
  lastMs: number;
}

/** What an error says about its call. */
export interface CallFacts {
  method: string;
  target: string;
  requestId: string;
  sessionId: string;
  timeoutMs: number;
  attempts: number;
  /** Whether the service refused it unread. */
  wasRefused?: boolean;
}

/** Tells whether the service has answered a call of this client within a call's time. */
export function isAnswering({ circuit, timeoutMs }: CallSettings): boolean {
  return circuit.answeredWithin(timeoutMs);
}

/** Returns the error for a message that is not sent, because of an outage. */
export function away(facts: CallFacts): Unavailable {
  return new Unavailable(
    `${facts.method}: "${facts.target}" has not answered for a while; the client decided at once`,
    { code: Code.Unavailable, ...facts, attempts: 0 },
  );
}

/** Returns the error for a call that waited behind other calls until its deadline. */
export function tooLate(settings: CallSettings, facts: CallFacts): RoutingError {
  const isLoad = isAnswering(settings);
  return new (isLoad ? Overloaded : DeadlineExceeded)(
    `${facts.method}: "${facts.target}" did not get to this call within ` +
      `${facts.timeoutMs / 1000} s, because of other calls; repeat it later with the same requestId`,
    { code: isLoad ? Code.ResourceExhausted : Code.DeadlineExceeded, ...facts },
  );
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

type Send<Request, Answer> = (
  stub: Stub,
  request: Request,
  options: TransportCallOptions,
) => Promise<Answer>;

/** Sends a request until it is answered, refused, or out of time or attempts. */
export async function call<Request extends Message, Answer extends Message>(
  settings: CallSettings,
  method: string,
  request: Request,
  send: Send<Request, Answer>,
  options: CallOptions,
): Promise<Answer> {
  const timeoutMs = positiveMs("timeoutMs", options.timeoutMs ?? settings.timeoutMs);
  const info = options.info ?? {};
  const facts: CallFacts = {
    method,
    target: settings.replicas.current().target,
    requestId: "requestId" in request ? String(request.requestId) : "",
    sessionId: "sessionId" in request ? String(request.sessionId) : "",
    timeoutMs,
    attempts: 0,
  };
  const deadlineMs = performance.now() + timeoutMs;
  info.replayed = false;
  const { places } = settings.queue;
  if (places.isFull) await waitInQueue(settings, request, facts, options.signal);
  else await places.take(options.signal);
  try {
    return await attempt(settings, request, send, { ...options, info }, facts, deadlineMs);
  } finally {
    places.release();
  }
}

/** Waits for a place among the client's calls. Throws Unavailable if the service has gone. */
async function waitInQueue(
  settings: CallSettings,
  request: Message,
  facts: CallFacts,
  signal: AbortSignal | undefined,
): Promise<void> {
  const { circuit, known, queue } = settings;
  queue.lastMs = performance.now();
  const late = AbortSignal.timeout(facts.timeoutMs);
  try {
    await queue.places.take(signal ? AbortSignal.any([signal, late]) : late);
  } catch {
    signal?.throwIfAborted();
    throw tooLate(settings, facts);
  }
  if (circuit.state !== "closed" && isMessage(request, RouteRequestSchema)) {
    if (known?.mayDecide(request)) {
      queue.places.release();
      throw away(facts);
    }
  }
}

async function attempt<Request extends Message, Answer extends Message>(
  settings: CallSettings,
  request: Request,
  send: Send<Request, Answer>,
  options: CallOptions & { info: CallInfo },
  facts: CallFacts,
  deadlineMs: number,
): Promise<Answer> {
  const { info } = options;
  for (;;) {
    info.attempts = ++facts.attempts;
    options.signal?.throwIfAborted();
    const replica = settings.replicas.current();
    facts.target = replica.target;
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
      error = routingError(thrown, { ...facts, wasCut: replica.isCut() });
    }
    await waitAfter(settings, replica, error, facts, deadlineMs, options.signal);
  }
}

/** Waits before the next attempt of a call, or throws its error. */
async function waitAfter(
  settings: CallSettings,
  replica: Replica,
  error: RoutingError,
  facts: CallFacts,
  deadlineMs: number,
  signal: AbortSignal | undefined,
): Promise<void> {
  const { known, queue, replicas, retry, throttle } = settings;
  const isHeldUp = facts.wasRefused || queue.lastMs >= deadlineMs - facts.timeoutMs;
  if (error instanceof DeadlineExceeded && isHeldUp && isAnswering(settings)) {
    throw tooLate(settings, facts);
  }
  if (!wasUnanswered(error)) {
    known?.forget(facts.sessionId, error);
    throw counted(settings, error);
  }
  replicas.turnFrom(replica);
  if (wasRefusedUnread(error)) facts.wasRefused = true;
  else if (!throttle.mayRetry()) throw counted(settings, error);
  const wait = waitMs(retry, error, facts.attempts, deadlineMs - performance.now());
  if (wait === undefined) throw counted(settings, error);
  await sleep(wait, signal);
}

/** Counts a call that failed, with all its attempts; returns its error. */
function counted(settings: CallSettings, error: RoutingError): RoutingError {
  if (!isUndecided(error)) settings.circuit.succeeded();
  else if (wasRefusedUnread(error) && isAnswering(settings)) return error;
  else if (error.reason === "" || wasUnanswered(error)) settings.circuit.failed();
  return error;
}
