// The messages of one stream that wait for answers, over any number of connections.
//
// Owns their order and what happens to them when a connection breaks. A message is the same request
// on every connection, and is answered once.

import { create } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import { type CallOptions, type CallSettings, headersOf, isAnswering, tooLate } from "./call.js";
import { RoutingError, Unavailable } from "./errors.js";
import { routingError } from "./failure.js";
import {
  type RouteRequest,
  type RouteStreamRequest,
  RouteStreamRequestSchema,
  type RouteStreamResponse,
} from "./gen/agent_routing/v1/routing_service_pb.js";
import type { Status } from "./gen/google/rpc/status_pb.js";
import { backoffMs, waitMs, wasRefusedUnread, wasUnanswered } from "./retry.js";
import { RouteResult } from "./routeResult.js";
import { Places, positiveMs, sleep } from "./waiting.js";

/**
 * Messages of one stream that wait for answers at a time; others wait to be sent. The service takes
 * as many from a stream, so more would only wait there.
 */
const IN_FLIGHT_MAX = 128;

const METHOD = "RouteStream";

/** A message that waits for its answer. */
interface Waiting {
  readonly request: RouteRequest;
  readonly deadlineMs: number;
  readonly timeoutMs: number;
  attempts: number;
  resolve(answer: RouteStreamResponse): void;
  reject(error: unknown): void;
}

/** The messages to send on a connection, as they arrive. */
class Outbox implements AsyncIterable<RouteStreamRequest> {
  readonly #unsent: RouteStreamRequest[] = [];
  #wake: (() => void) | undefined;
  #ended = false;

  push(request: RouteRequest): void {
    // Several answers in one message take both sides less time.
    this.#unsent.push(create(RouteStreamRequestSchema, { route: request, takesMore: true }));
    this.#wake?.();
  }

  end(): void {
    this.#ended = true;
    this.#wake?.();
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<RouteStreamRequest> {
    for (;;) {
      const next = this.#unsent.shift();
      if (next !== undefined) {
        yield next;
      } else if (this.#ended) {
        return;
      } else {
        await new Promise<void>((resolve) => {
          this.#wake = resolve;
        });
        this.#wake = undefined;
      }
    }
  }
}

/**
 * Messages of many sessions over one stream, made by Client.stream(): for gateways that route
 * hundreds of messages a second.
 *
 * Up to 128 messages are on the way at once, the others wait. Answers arrive when they are ready;
 * those of one session arrive in the order of its messages. After a lost connection the stream
 * connects again, and sends what was not answered again, under the same request ids and in the same
 * order. Needs a transport with streams in both directions: gRPC, not a browser's fetch.
 */
export class RouteStream {
  readonly #settings: CallSettings;
  readonly #minted: (request: RouteRequest) => RouteRequest;
  readonly #waiting = new Map<string, Waiting>();
  readonly #places = new Places(IN_FLIGHT_MAX);
  #outbox: Outbox | undefined;
  #stop = new AbortController();
  #connecting: Promise<void> | undefined;
  #breaks = 0;

  /** minted: sets the ids of a request. */
  constructor(settings: CallSettings, minted: (request: RouteRequest) => RouteRequest) {
    this.#settings = settings;
    this.#minted = minted;
  }

  /**
   * As Client.route(), over this stream. timeoutMs: over all connections and attempts, including
   * the wait for one of the 128 places. A second message with a requestId that is on its way waits
   * for the answer to the first. A stream does not show repeats: replayed is always false.
   */
  async routeRequest(
    unminted: RouteRequest,
    options: Omit<CallOptions, "headers"> = {},
  ): Promise<RouteResult> {
    const request = this.#minted(unminted);
    this.#settings.replicas.current();
    const timeoutMs = positiveMs("timeoutMs", options.timeoutMs ?? this.#settings.timeoutMs);
    const deadlineMs = performance.now() + timeoutMs;
    const late = AbortSignal.timeout(timeoutMs);
    const signal = options.signal ? AbortSignal.any([options.signal, late]) : late;
    const info = options.info ?? {};
    info.replayed = false;
    let attempts = 0;
    try {
      this.#stop.signal.throwIfAborted();
      if (this.#places.isFull) this.#settings.queue.lastMs = performance.now();
      await this.#places.take(signal);
      try {
        for (;;) {
          const answer = await this.#exchange(request, signal, timeoutMs, deadlineMs, attempts);
          attempts = answer.attempts;
          info.attempts = attempts;
          const { result } = answer.response;
          if (result.case === "route") {
            this.#settings.throttle.succeeded();
            this.#settings.circuit.succeeded();
            this.#settings.known?.learn(request, result.value);
            return new RouteResult(result.value, false);
          }
          await this.#waitAfter(
            refused(result.case === "error" ? result.value : undefined),
            request,
            { timeoutMs, deadlineMs, attempts },
            signal,
          );
        }
      } finally {
        this.#places.release();
      }
    } catch (thrown) {
      options.signal?.throwIfAborted();
      const error = late.aborted
        ? this.#late(request, timeoutMs, deadlineMs, Math.max(1, attempts))
        : thrown;
      if (!(error instanceof RoutingError)) throw error;
      if (wasRefusedUnread(error) && isAnswering(this.#settings)) throw error;
      const degraded = this.#settings.known?.degradedAnswer(request, error);
      if (degraded === undefined) throw error;
      const base = this.#settings.known?.revision(degraded.sessionId);
      return new RouteResult(degraded, false, error, base, new Date());
    }
  }

  /** Ends the stream; messages on their way reject. Idempotent. */
  async close(): Promise<void> {
    this.#outbox?.end();
    this.#stop.abort(new Error("the stream is closed; create another one"));
    for (const waiting of [...this.#waiting.values()]) waiting.reject(this.#stop.signal.reason);
    await this.#connecting;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  /** Sends a message and waits for the response with its id. */
  async #exchange(
    request: RouteRequest,
    signal: AbortSignal,
    timeoutMs: number,
    deadlineMs: number,
    attempts: number,
  ): Promise<{ response: RouteStreamResponse; attempts: number }> {
    while (this.#waiting.has(request.requestId)) await this.#settled(request.requestId, signal);
    this.#stop.signal.throwIfAborted();
    return await new Promise((resolve, reject) => {
      const done = () => {
        signal.removeEventListener("abort", leave);
        if (this.#waiting.get(request.requestId) === waiting) {
          this.#waiting.delete(request.requestId);
        }
        for (const tell of this.#afterwards.splice(0)) tell();
      };
      const leave = () => waiting.reject(signal.reason);
      const waiting: Waiting = {
        request,
        deadlineMs,
        timeoutMs,
        attempts: attempts + 1,
        resolve: (response) => {
          done();
          resolve({ response, attempts: waiting.attempts });
        },
        reject: (error) => {
          done();
          reject(error);
        },
      };
      signal.addEventListener("abort", leave, { once: true });
      this.#waiting.set(request.requestId, waiting);
      this.#outbox?.push(request);
      this.#connecting ??= this.#connect().finally(() => {
        this.#connecting = undefined;
      });
    });
  }

  readonly #afterwards: (() => void)[] = [];

  /** Waits until the message with an id has its answer. */
  async #settled(requestId: string, signal: AbortSignal): Promise<void> {
    while (this.#waiting.has(requestId)) {
      signal.throwIfAborted();
      await new Promise<void>((resolve) => {
        this.#afterwards.push(resolve);
        signal.addEventListener("abort", () => resolve(), { once: true });
      });
    }
  }

  /** Keeps a connection while messages wait, and an idle one until it ends. */
  async #connect(): Promise<void> {
    while (!this.#stop.signal.aborted && this.#waiting.size > 0) {
      let headers: Record<string, string>;
      try {
        headers = await headersOf(this.#settings, {});
      } catch (error) {
        // A failure to get a token is not the service's: it is thrown unchanged.
        for (const waiting of [...this.#waiting.values()]) waiting.reject(error);
        break;
      }
      const failure = await this.#oneConnection(headers);
      if (this.#stop.signal.aborted) break;
      const wait = this.#broken(failure);
      try {
        await sleep(wait, this.#stop.signal);
      } catch {
        break;
      }
    }
  }

  /** Transfers messages and answers until the connection ends; returns its error or undefined. */
  async #oneConnection(headers: Record<string, string>): Promise<unknown> {
    const replica = this.#settings.replicas.current();
    const outbox = new Outbox();
    this.#outbox = outbox;
    for (const { request } of this.#waiting.values()) outbox.push(request);
    const stop = new AbortController();
    const own = replica.takeStream();
    try {
      const stream = own.stub.routing.routeStream(outbox, {
        timeoutMs: 0,
        signal: AbortSignal.any([this.#stop.signal, stop.signal]),
        headers,
      });
      for await (const response of stream) {
        this.#breaks = 0;
        for (const answer of [response, ...response.more]) {
          this.#waiting.get(answer.requestId)?.resolve(answer);
        }
      }
      return undefined;
    } catch (failure) {
      return own.isCut()
        ? new ConnectError(`the connection to "${replica.target}" was lost`, Code.Unavailable)
        : failure;
    } finally {
      this.#outbox = undefined;
      outbox.end();
      stop.abort();
      own.release();
    }
  }

  /**
   * Decides about the messages whose connection ended before their answers, and returns the
   * milliseconds to wait before the next connection. A message without attempts or time left, or
   * whose stream was refused, gets the error.
   */
  #broken(failure: unknown): number {
    this.#breaks++;
    const { replicas, retry, throttle } = this.#settings;
    if (!replicas.isClosed) replicas.turnFrom(replicas.current());
    const isCalm = this.#waiting.size === 0 || throttle.mayRetry();
    const backoff = backoffMs(retry, this.#breaks);
    let wait = backoff;
    for (const waiting of [...this.#waiting.values()]) {
      const error = this.#error(failure, waiting.request, waiting.timeoutMs, waiting.attempts);
      if (error.retryAfterMs !== undefined) wait = backoff + error.retryAfterMs;
      const mayWait =
        isCalm &&
        wasUnanswered(error) &&
        waiting.attempts < retry.attemptsMax &&
        performance.now() + wait < waiting.deadlineMs;
      if (mayWait) waiting.attempts++;
      else waiting.reject(error);
    }
    return wait;
  }

  /** Waits before a message whose answer is an error is sent again, or throws the error. */
  async #waitAfter(
    failure: ConnectError,
    request: RouteRequest,
    {
      timeoutMs,
      deadlineMs,
      attempts,
    }: { timeoutMs: number; deadlineMs: number; attempts: number },
    signal: AbortSignal,
  ): Promise<void> {
    const { known, retry, throttle } = this.#settings;
    const error = this.#error(failure, request, timeoutMs, attempts);
    if (!wasUnanswered(error)) {
      known?.forget(request.sessionId, error);
      throw error;
    }
    if (!wasRefusedUnread(error) && !throttle.mayRetry()) throw error;
    const wait = waitMs(retry, error, attempts, deadlineMs - performance.now());
    if (wait === undefined) throw error;
    await sleep(wait, signal);
  }

  /** Returns the error of a message whose deadline has passed. */
  #late(
    request: RouteRequest,
    timeoutMs: number,
    deadlineMs: number,
    attempts: number,
  ): RoutingError {
    const { queue, replicas } = this.#settings;
    if (queue.lastMs >= deadlineMs - timeoutMs && isAnswering(this.#settings)) {
      const { target } = replicas.current();
      const { requestId, sessionId } = request;
      return tooLate(this.#settings, {
        ...{ method: METHOD, target, requestId, sessionId, timeoutMs, attempts },
      });
    }
    const failure = new ConnectError("the deadline has passed", Code.DeadlineExceeded);
    return this.#error(failure, request, timeoutMs, attempts);
  }

  #error(
    failure: unknown,
    request: RouteRequest,
    timeoutMs: number,
    attempts: number,
  ): RoutingError {
    this.#settings.replicas.throwIfClosed(failure);
    const { target } = this.#settings.replicas.current();
    const { requestId, sessionId } = request;
    if (failure === undefined) {
      // For example by a proxy that limits how long a connection may last.
      return new Unavailable(`${METHOD}: "${target}" ended the stream before it answered`, {
        code: Code.Unavailable,
        method: METHOD,
        requestId,
        sessionId,
        attempts,
      });
    }
    return routingError(failure, {
      method: METHOD,
      target,
      requestId,
      sessionId,
      timeoutMs,
      attempts,
      wasCut: false,
    });
  }
}

/** Returns the error in an answer, in the form of a failed call. */
function refused(status: Status | undefined): ConnectError {
  if (status === undefined) {
    return new ConnectError(
      "the answer is of a kind that this client does not know; update it",
      Code.Unknown,
    );
  }
  const error = new ConnectError(status.message, status.code as Code);
  error.details = status.details.map(({ typeUrl, value }) => ({
    type: typeUrl.slice(typeUrl.lastIndexOf("/") + 1),
    value,
  }));
  return error;
}
