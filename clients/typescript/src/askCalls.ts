// ask() and askParts(): a message, and its answer by the workers of agents with inboxes.

import { create } from "@bufbuild/protobuf";
import { AnswerParts, lastPart } from "./answerParts.js";
import {
  ASK_MS_DEFAULT,
  ASK_TURNS,
  type Asked,
  type AskedPart,
  Asking,
  checkInbox,
} from "./asking.js";
import type { CallInfo, CallOptions } from "./call.js";
import type { RoutingClient } from "./client.js";
import { RoutingError, StoreFormat } from "./errors.js";
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
import type { RetryPolicy } from "./retry.js";
import { positiveMs, sleep } from "./waiting.js";
import type { Watched } from "./watch.js";

type Shared = Pick<CallOptions, "signal" | "headers">;

export interface AskOptions extends Shared {
  /** How long to wait for the answer. Default 300,000. */
  waitMs?: number;
}

/** What asking needs of a client. */
export interface AskCalls {
  readonly client: RoutingClient;
  readonly retry: RetryPolicy;
  watch(
    request: WatchSessionRequest,
    awayMsMax: number,
    options: Shared,
  ): AsyncGenerator<Watched, void, void>;
  throwIfClosed(): void;
}

export async function ask(calls: AskCalls, fields: AskFields, options: AskOptions): Promise<Asked> {
  for await (const part of answer(calls, fields, options, [])) {
    if (part.asked !== undefined) return part.asked;
  }
  throw new Error("the last part has the answer");
}

export function askParts(
  calls: AskCalls,
  fields: AskFields,
  options: AskOptions,
): AsyncGenerator<AskedPart, void, void> {
  return answer(calls, fields, options, [WatchInclude.DELTAS, WatchInclude.NOTES]);
}

/** A part with the service's reply, before the agents' answers. */
const REPLY = { agentId: "", isNote: false, replaces: false };

/** Yields the parts of an answer; the last one has asked. */
async function* answer(
  calls: AskCalls,
  fields: AskFields,
  given: AskOptions,
  include: WatchInclude[],
): AsyncGenerator<AskedPart, void, void> {
  const { waitMs = ASK_MS_DEFAULT, ...options } = given;
  const asking = await begin(calls, fields, options, waitMs, include);
  if (asking.asked !== undefined) {
    yield lastPart(asking.asked.text, asking.asked);
    return;
  }
  const { replyText, requestId } = asking.routed;
  if (replyText) yield { ...REPLY, text: replyText, requestId };
  const parts = new AnswerParts();
  const look = async () => {
    await lookAt(calls.client, asking, options);
    parts.know(asking.turns);
  };
  for (;;) {
    try {
      await look();
      if (asking.asked === undefined) {
        for await (const kind of live(calls, asking, options)) {
          // The stream stays open while this is read, so that no part is lost.
          if (asking.received(kind)) await look();
          parts.take(kind);
          yield* parts.ready();
          if (asking.asked !== undefined) break;
        }
      }
    } catch (error) {
      if (!(error instanceof RoutingError)) throw error;
      asking.failed(error);
    }
    if (asking.asked !== undefined) break;
    await sleep(asking.pauseMs(calls.retry), options.signal);
  }
  yield* parts.rest(asking.asked);
}

/** Routes a message to inboxes. Throws NoInbox for a turn that the caller has to carry. */
async function begin(
  { client }: AskCalls,
  fields: AskFields,
  options: Shared,
  waitMs: number,
  include: WatchInclude[],
): Promise<Asking> {
  const untilMs = performance.now() + positiveMs("waitMs", waitMs);
  const message = { ...fields, requestId: fields.requestId || newUuid7() };
  const info: CallInfo = {};
  const routed = await client
    .route({ ...message, deliver: Delivery.INBOX }, { ...options, info })
    .catch((error: unknown) => {
      // Agents with inboxes can be asked all the same.
      if (error instanceof StoreFormat) return client.route(message, { ...options, info });
      throw error;
    });
  if (routed.error !== undefined) throw routed.error;
  // A message that waits (double_text: queue) is dispatched later, as its turn then says.
  if (routed.dispatch !== undefined) checkInbox(routed.dispatch);
  const { sessionId, revision: afterRevision } = routed;
  const ids = { sessionId, userId: fields.userId ?? "" };
  const watched = create(WatchSessionRequestSchema, { ...ids, afterRevision, include });
  // An attempt of this very call may be the earlier one, so a repeat within it says nothing.
  const replayed = routed.replayed && info.attempts === 1;
  return new Asking(routed, watched, { waitMs, untilMs }, replayed);
}

/** Reads what became of a message. */
async function lookAt(client: RoutingClient, asking: Asking, options: Shared): Promise<void> {
  const { sessionId, userId } = asking.watched;
  const ids = { sessionId, userId };
  // First: a turn that is open now is in the history that is read next.
  const state = await client.status(ids, options);
  const turns: Turn[] = [];
  let pageToken = "";
  do {
    const page = await client.listTurnsPage(
      { ...ids, order: TurnOrder.NEWEST_FIRST, pageSize: ASK_TURNS, pageToken },
      options,
    );
    turns.push(...page.turns);
    pageToken = page.nextPageToken;
  } while (pageToken !== "" && !asking.isFound(turns, state));
  asking.look(state, turns);
}

/** Yields what a watch brings for a while; it moves its request on. Throws NoAnswerYet. */
async function* live(
  calls: AskCalls,
  asking: Asking,
  options: Shared,
): AsyncGenerator<Watched, void, void> {
  const timeoutMs = asking.beginWatchMs();
  const late = new AbortController();
  const timer = setTimeout(() => late.abort(), timeoutMs);
  const { signal } = options;
  const ended = signal === undefined ? late.signal : AbortSignal.any([signal, late.signal]);
  try {
    yield* calls.watch(asking.watched, timeoutMs, { ...options, signal: ended });
  } catch {
    // Also at the end of its time. The caller's next call shows what is wrong.
    signal?.throwIfAborted();
    calls.throwIfClosed();
  } finally {
    clearTimeout(timer);
  }
}
