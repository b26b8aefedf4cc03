// What the servers that answer the page do: messages a second and the durations of Route, of the last
// minute. Each answer has counts since a server's start, and comes from whichever server took the call.

import type { GetServerStatusResponse } from "@agent-routing/v1";

const WINDOW_MS = 60_000;
const ROUTES = ["Route", "RouteStream"];

interface Sample {
  atMs: number;
  counts: number[];
}

/** The load of one server, as far as two answers of it tell. */
export interface Load {
  status: GetServerStatusResponse;
  /** Undefined: it has answered once. */
  perSecond?: number;
  /** Upper bound of the range in which it is. Undefined: nothing was routed. */
  p99Ms?: number;
}

export class ServerLoads {
  readonly #samples = new Map<string, Sample[]>();
  readonly #loads = new Map<string, { load: Load; atMs: number }>();

  /** Takes an answer; returns the servers that have answered lately, in the order of their names. */
  take(status: GetServerStatusResponse, nowMs: number): Load[] {
    const boundsMs = status.durationBounds.map(
      (each) => Number(each.seconds) * 1_000 + each.nanos / 1e6,
    );
    const counts = Array.from({ length: boundsMs.length + 1 }, () => 0);
    for (const row of status.calls) {
      if (!ROUTES.includes(row.method)) continue;
      for (const [place, count] of row.counts.entries()) {
        counts[place] = (counts[place] ?? 0) + Number(count);
      }
    }
    // A server that was started again under the same name begins anew.
    const key = `${status.server} ${status.startTime?.seconds}`;
    const samples = (this.#samples.get(key) ?? []).filter((each) => nowMs - each.atMs <= WINDOW_MS);
    const first = samples[0];
    samples.push({ atMs: nowMs, counts });
    this.#samples.set(key, samples);
    const made: Load = { status };
    if (first !== undefined && nowMs > first.atMs) {
      const more = counts.map((count, place) => count - (first.counts[place] ?? 0));
      const all = more.reduce((sum, each) => sum + each, 0);
      made.perSecond = (all * 1_000) / (nowMs - first.atMs);
      if (all > 0) made.p99Ms = boundOf(more, all * 0.99, boundsMs);
    }
    this.#loads.set(status.server, { load: made, atMs: nowMs });
    // One that is gone would count for ever.
    for (const [server, { atMs }] of this.#loads) {
      if (nowMs - atMs > WINDOW_MS) this.#loads.delete(server);
    }
    for (const [each, old] of this.#samples) {
      if (nowMs - (old.at(-1)?.atMs ?? 0) > WINDOW_MS) this.#samples.delete(each);
    }
    return [...this.#loads]
      .sort(([one], [other]) => one.localeCompare(other))
      .map(([, { load }]) => load);
  }
}

function boundOf(counts: number[], wanted: number, boundsMs: number[]): number {
  let sum = 0;
  for (const [place, count] of counts.entries()) {
    sum += count;
    if (sum >= wanted) return boundsMs[place] ?? Number.POSITIVE_INFINITY;
  }
  return Number.POSITIVE_INFINITY;
}
