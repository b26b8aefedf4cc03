// ask() and askParts(): a message, and its answer by the workers of agents with inboxes.

import { create } from "@bufbuild/protobuf";
import { AnswerParts, lastPart } from "./answerParts.js";
import {
  ASK_MS_DEFAULT,
  ASK_TURNS,
  ASK_WATCH_MS,
  Asked,
  type AskedPart,
  chainOf,
  checkInbox,
  isOpen,
  NoAnswerYet,
} from "./asking.js";
import type { CallOptions } from "./call.js";
import type { RoutingClient } from "./client.js";
import { StoreFormat } from "./errors.js";
import { Delivery } from "./gen/agent_routing/v1/dispatch_pb.js";
import {
  TurnOrder,
  WatchInclude,
  type WatchSessionRequest,
  WatchSessionRequestSchema,
} from "./gen/agent_routing/v1/routing_service_pb.js";
import type { Turn } from "./gen/agent_routing/v1/turn_pb.js";
import { newUuid7 } from "./ids.js";
import type { AskFields } from "./requestFields.js";
import type { RouteResult } from "./routeResult.js";
import { positiveMs } from "./waiting.js";
import type { Watched } from "./watch.js";

type Shared = Pick<CallOptions, "signal" | "headers">;

export interface AskOptions extends Shared {
  /** How long to wait for the answer. Default 300,000. */
  waitMs?: number;
}

/** What asking needs of a client. */
export interface AskCalls {
  readonly client: RoutingClient;
  watch(
    request: WatchSessionRequest,
    awayMsMax: number,
    options: Shared,
  ): AsyncGenerator<Watched, void, void>;
  throwIfClosed(): void;
}

export async function ask(calls: AskCalls, fields: AskFields, options: AskOptions): Promise<Asked> {
  const asking = await begin(calls, fields, options);
  if (asking.isAnswered) return new Asked(asking.routed);
  const watched = asking.request([]);
  for (;;) {
    const { turns, isDone } = await asking.chain();
    if (isDone) return new Asked(asking.routed, turns);
    // The watch moves its request on.
    for await (const kind of asking.live(watched)) if (kind.case === "change") break;
  }
}

export async function* askParts(
  calls: AskCalls,
  fields: AskFields,
  options: AskOptions,
): AsyncGenerator<AskedPart, void, void> {
  const asking = await begin(calls, fields, options);
  if (asking.isAnswered) {
    const asked = new Asked(asking.routed);
    yield lastPart(asked.text, asked);
    return;
  }
  const watched = asking.request([WatchInclude.DELTAS, WatchInclude.NOTES]);
  const parts = new AnswerParts(asking.routed.requestId);
  for (;;) {
    let { turns, isDone } = await asking.chain();
    if (!isDone) {
      for await (const kind of asking.live(watched)) {
        if (kind.case === "change") {
          // The stream stays open while this is read, so that no part is lost.
          ({ turns, isDone } = await asking.chain());
          parts.know(turns);
        }
        parts.take(kind);
        yield* parts.ready();
        if (isDone) break;
      }
    }
    if (isDone) {
      yield* parts.rest(new Asked(asking.routed, turns));
      return;
    }
  }
}

/** A message that was routed, and the calls that find out what became of it. */
class Asking {
  readonly #calls: AskCalls;
  readonly #ids: { sessionId: string; userId: string };
  readonly #options: Shared;
  readonly #waitMs: number;
  readonly #untilMs: number;
  readonly routed: RouteResult;

  constructor(
    calls: AskCalls,
    routed: RouteResult,
    userId: string,
    options: Shared,
    [waitMs, untilMs]: [number, number],
  ) {
    this.#calls = calls;
    this.#ids = { sessionId: routed.sessionId, userId };
    this.#options = options;
    this.#waitMs = waitMs;
    this.#untilMs = untilMs;
    this.routed = routed;
  }

  /** Whether no agent is asked: a command, with its reply. */
  get isAnswered(): boolean {
    return this.routed.dispatch === undefined && !this.routed.response.queued;
  }

  /** The request of a watch from here on. */
  request(include: WatchInclude[]): WatchSessionRequest {
    const afterRevision = this.routed.revision;
    return create(WatchSessionRequestSchema, { ...this.#ids, afterRevision, include });
  }

  /** Returns what followed from the message so far, and whether all of it was answered. */
  async chain(): Promise<{ turns: Turn[]; isDone: boolean }> {
    const { client } = this.#calls;
    // First: a turn that is open now is in the history that is read next.
    const state = await client.status(this.#ids, this.#options);
    const page = await client.listTurnsPage(
      { ...this.#ids, order: TurnOrder.NEWEST_FIRST, pageSize: ASK_TURNS },
      this.#options,
    );
    const turns = chainOf(this.routed.requestId, page.turns);
    return { turns, isDone: !isOpen(turns, state.openRequests) };
  }

  /** Yields what a watch brings for a while. Throws NoAnswerYet if there is no time left. */
  async *live(request: WatchSessionRequest): AsyncGenerator<Watched, void, void> {
    const leftMs = this.#untilMs - performance.now();
    if (leftMs <= 0) throw new NoAnswerYet(this.routed, this.#waitMs);
    const timeoutMs = Math.min(leftMs, ASK_WATCH_MS);
    const late = new AbortController();
    const timer = setTimeout(() => late.abort(), timeoutMs);
    const { signal } = this.#options;
    const ended = signal === undefined ? late.signal : AbortSignal.any([signal, late.signal]);
    try {
      yield* this.#calls.watch(request, timeoutMs, { ...this.#options, signal: ended });
    } catch {
      // Also at the end of its time. The caller's next call shows what is wrong.
      signal?.throwIfAborted();
      this.#calls.throwIfClosed();
    } finally {
      clearTimeout(timer);
    }
  }
}

/** Routes a message to inboxes. Throws RangeError for a turn that the caller has to carry. */
async function begin(calls: AskCalls, fields: AskFields, options: AskOptions): Promise<Asking> {
  const { waitMs = ASK_MS_DEFAULT, ...others } = options;
  const untilMs = performance.now() + positiveMs("waitMs", waitMs);
  const message = { ...fields, requestId: fields.requestId || newUuid7() };
  const { client } = calls;
  const routed = await client
    .route({ ...message, deliver: Delivery.INBOX }, others)
    .catch((error: unknown) => {
      // Agents with inboxes can be asked all the same.
      if (error instanceof StoreFormat) return client.route(message, others);
      throw error;
    });
  if (routed.error !== undefined) throw routed.error;
  // A message that waits (double_text: queue) is dispatched later, as its turn then says.
  if (routed.dispatch !== undefined) checkInbox(routed.dispatch);
  return new Asking(calls, routed, fields.userId ?? "", others, [waitMs, untilMs]);
}
