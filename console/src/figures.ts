// The figures of routing: the spans that are read, how two of them compare, and what follows from them.

import {
  type ConfidenceCount,
  type GetRoutingStatsResponse,
  type HandoffCount,
  type RegistryVersionCount,
  type StatsPeriod,
  StatsPeriodSchema,
} from "@agent-routing/v1";
import { create } from "@bufbuild/protobuf";
import { TimestampSchema } from "@bufbuild/protobuf/wkt";
import { admin } from "./calls";

const HOUR_MS = 3_600_000;

/** Spans that a page offers, in hours. */
export const SPANS = { "1h": 1, "24h": 24, "7d": 168, "30d": 720 } as const;
export type Span = keyof typeof SPANS;

export function spanOf(given: string): Span {
  return given in SPANS ? (given as Span) : "24h";
}

/** A time span, in milliseconds since 1970. */
export interface Period {
  fromMs: number;
  toMs: number;
}

/** The last hours up to now, from a whole hour on. */
export function lastHours(hours: number): Period {
  const toMs = Date.now();
  return { fromMs: Math.floor((toMs - (hours - 1) * HOUR_MS) / HOUR_MS) * HOUR_MS, toMs };
}

/** The period of the same length before another one. */
export function before(period: Period): Period {
  const fromMs = period.fromMs - Math.ceil((period.toMs - period.fromMs) / HOUR_MS) * HOUR_MS;
  return { fromMs, toMs: period.fromMs };
}

/** When a registry decided. */
export function periodOf(version: RegistryVersionCount): Period {
  const ms = (time?: { seconds: bigint }) => Number(time?.seconds ?? 0n) * 1_000;
  return { fromMs: ms(version.startTime), toMs: Math.min(ms(version.endTime), Date.now()) };
}

export function timestamp(ms: number) {
  return { seconds: BigInt(Math.floor(ms / 1_000)), nanos: 0 };
}

export function readFigures(
  period: Period,
  signal: AbortSignal,
): Promise<GetRoutingStatsResponse> {
  return admin.getRoutingStats(
    { startTime: timestamp(period.fromMs), endTime: timestamp(period.toMs) },
    { signal },
  );
}

/** The periods of an answer, with empty ones where nothing was counted: those are left out there. */
export function allPeriods(figures: GetRoutingStatsResponse): StatsPeriod[] {
  const found = new Map(figures.periods.map((each) => [each.startTime?.seconds, each]));
  const first = figures.periods[0];
  const last = figures.periods.at(-1)?.startTime?.seconds ?? 0n;
  const length = first?.length?.seconds ?? 0n;
  const made: StatsPeriod[] = [];
  if (first === undefined || length === 0n) return made;
  for (let seconds = first.startTime?.seconds ?? 0n; seconds <= last; seconds += length) {
    const startTime = create(TimestampSchema, { seconds });
    made.push(found.get(seconds) ?? create(StatsPeriodSchema, { startTime }));
  }
  return made;
}

export function share(part: bigint | number, whole: bigint | number): number {
  return Number(whole) === 0 ? 0 : Number(part) / Number(whole);
}

/** All handoffs from one agent to another, whoever asked for them. */
export interface Edge {
  from: string;
  to: string;
  count: number;
  refused: number;
  returned: number;
  pingPongs: number;
}

export function edgesOf(handoffs: HandoffCount[]): Edge[] {
  const found = new Map<string, Edge>();
  for (const each of handoffs) {
    const key = `${each.fromAgentId} ${each.toAgentId}`;
    const edge = found.get(key) ?? {
      from: each.fromAgentId,
      to: each.toAgentId,
      count: 0,
      refused: 0,
      returned: 0,
      pingPongs: 0,
    };
    edge.count += Number(each.count);
    edge.refused += Number(each.refused);
    edge.returned += Number(each.returned);
    edge.pingPongs += Number(each.pingPongs);
    found.set(key, edge);
  }
  return [...found.values()].sort((one, other) => other.count - one.count);
}

/** The audit's page with the handoffs of an edge in a period. */
export function edgeLink(edge: Edge, period: Period): string {
  const query = new URLSearchParams({
    view: "audit",
    what: "handoffs",
    from: edge.from,
    to: edge.to,
    since: new Date(period.fromMs).toISOString(),
    until: new Date(period.toMs).toISOString(),
  });
  return `/?${query}`;
}

/** What offers would have been made above a bound, and what users answered to them. */
export interface Consequence {
  offered: number;
  accepted: number;
  declined: number;
  ignored: number;
  /** Accepted offers below the bound. */
  missed: number;
}

export function consequenceOf(counts: ConfidenceCount[], bound: number): Consequence {
  const made = { offered: 0, accepted: 0, declined: 0, ignored: 0, missed: 0 };
  for (const each of counts) {
    // Half a range of room: 0.8 is not exactly 16 times 0.05.
    if (each.confidenceFrom < bound - 0.001) made.missed += Number(each.accepted);
    else {
      made.offered += Number(each.offered);
      made.accepted += Number(each.accepted);
      made.declined += Number(each.declined);
      made.ignored += Number(each.ignored);
    }
  }
  return made;
}

/** Saves text as a file, from the page itself. */
export function save(name: string, kind: string, parts: string[]): void {
  const url = URL.createObjectURL(new Blob(parts, { type: kind }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}
