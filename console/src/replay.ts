// A replay: stored conversations with the registry in force and with a candidate, while it runs and after.

import {
  ReplayEffect,
  type ReplayedTurn,
  type ReplayFigures,
  type ReplayProgress,
  ReplayState,
  type WatchReplayResponse,
} from "@agent-routing/v1";
import { Code } from "@connectrpc/connect";
import { admin } from "./calls";
import { lastHours, SPANS, type Span, timestamp } from "./figures";
import { followStream, isRefusal, type LiveState } from "./live";
import { encoded } from "./registry";

export const TURNS_A_PAGE = 50;
export const SESSIONS_MAX = 10_000;
export const SESSIONS_DEFAULT = 1_000;

/** In the order in which they are shown. */
export const EFFECTS = [
  "MISROUTED_NOW",
  "OWNER_REMOVED",
  "SUPERVISED_NOW",
  "RIGHT_NOW",
  "AS_GOOD",
  "UNKNOWN",
] as const;
export type EffectName = (typeof EFFECTS)[number];

export function nameOf(effect: ReplayEffect): EffectName {
  const name = ReplayEffect[effect];
  return EFFECTS.find((each) => each === name) ?? "UNKNOWN";
}

/** Which conversations are played. channel "": any. */
export interface Wanted {
  span: Span;
  channel: string;
  sessionsMax: number;
}

/** Starts a replay; returns its id. */
export async function start(candidate: string, wanted: Wanted, reason: string): Promise<string> {
  const answer = await admin.startReplay({
    candidate: encoded(candidate),
    updateTimeFrom: timestamp(lastHours(SPANS[wanted.span]).fromMs),
    channel: wanted.channel,
    sessionsMax: wanted.sessionsMax,
    reason,
  });
  return answer.replayId;
}

export async function cancel(replayId: string): Promise<void> {
  await admin.cancelReplay({ replayId });
}

export function hasEnded(progress: ReplayProgress): boolean {
  return progress.state >= ReplayState.DONE;
}

/**
 * Follows a replay to its end, or until it is stopped. replayId "": the latest one. readReason "": the
 * turns have no texts. Throws an error that a repeat cannot mend.
 */
export function followReplay(
  replayId: string,
  readReason: string,
  onMessage: (message: WatchReplayResponse) => void,
  onState: (state: LiveState) => void,
  signal: AbortSignal,
): Promise<void> {
  let id = replayId;
  let afterPosition = 0n;
  let isWhole = false;
  return followStream(
    {
      open: (signal) => admin.watchReplay({ replayId: id, afterPosition, readReason }, { signal }),
      timeOf: () => undefined,
      onMessage: (message) => {
        // A later one may begin while the connection is away.
        id = message.progress?.replayId ?? id;
        afterPosition = message.position;
        isWhole = message.progress !== undefined && hasEnded(message.progress);
        onMessage(message);
      },
      onState,
      isFinal: (code) =>
        isRefusal(code) ||
        code === Code.NotFound ||
        code === Code.InvalidArgument ||
        code === Code.Unimplemented,
      isWhole: () => isWhole,
    },
    signal,
  );
}

/** Which of the turns are shown, as the URL has it. "": all. page: from 1. */
export interface Filters {
  effect: string;
  from: string;
  to: string;
  page: number;
}

export const FILTERS = ["effect", "from", "to"] as const;

export function filtersOf(query: string): Filters {
  const given = new URLSearchParams(query);
  const [effect = "", from = "", to = ""] = FILTERS.map((name) => given.get(name) ?? "");
  return { effect, from, to, page: Math.max(1, Math.floor(Number(given.get("page"))) || 1) };
}

export function matching(turns: ReplayedTurn[], { effect, from, to }: Filters): ReplayedTurn[] {
  return turns.filter(
    (each) =>
      (effect === "" || nameOf(each.effect) === effect) &&
      (from === "" || each.currentAgentId === from) &&
      (to === "" || each.agentId === to),
  );
}

export type FigureName = Exclude<keyof ReplayFigures, "$typeName" | "$unknown">;

/** The figures of a registry, in the order in which they are shown. */
export const FIGURES: FigureName[] = [
  "supervisorCallsSaved",
  "supervisorCalls",
  "scoredMessages",
  "firstRight",
  "misrouted",
  "stuck",
  "handoffs",
  "handoffsRefused",
  "errors",
];
