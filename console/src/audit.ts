// The audit of all sessions, read page by page: from a time on, oldest first, as the log has it.

import type { AuditRecord } from "@agent-routing/v1";
import { admin } from "./calls";
import { timestamp } from "./figures";

const PAGE_SIZE = 100;
/** Pages without a record that are read at once; each reads at most 5,000 changes. */
const EMPTY_PAGES_MAX = 20;

/** What the page lists, by its choice. Empty: all kinds. */
export const KINDS = {
  acts: ["operator_act", "stickiness_switched", "session_purged"],
  refusals: ["handoff_refused"],
  handoffs: ["agent_handoff", "handoff_refused"],
  switches: ["stickiness_switched"],
  all: [],
} as const;
export type What = keyof typeof KINDS;

/** The filters, as the URL has them. */
export interface Wanted {
  what: What;
  actor: string;
  from: string;
  to: string;
  /** "1h", "24h", "7d", "30d", "all", or a time in ISO 8601. */
  since: string;
  /** "", or a time in ISO 8601. */
  until: string;
}

export function wantedOf(query: string): Wanted {
  const given = new URLSearchParams(query);
  const what = given.get("what") ?? "acts";
  return {
    what: what in KINDS ? (what as What) : "acts",
    actor: given.get("actor") ?? "",
    from: given.get("from") ?? "",
    to: given.get("to") ?? "",
    since: given.get("since") ?? "24h",
    until: given.get("until") ?? "",
  };
}

const SINCE_MS: Record<string, number> = {
  "1h": 3_600_000,
  "24h": 86_400_000,
  "7d": 7 * 86_400_000,
  "30d": 30 * 86_400_000,
};

/** Reads on until there is something to show. token: where the page before ended; "": the start. */
export async function readAudit(
  wanted: Wanted,
  token: string,
  signal: AbortSignal,
): Promise<{ records: AuditRecord[]; next: string }> {
  const back = SINCE_MS[wanted.since];
  const fromMs = back === undefined ? Date.parse(wanted.since) : Date.now() - back;
  const untilMs = Date.parse(wanted.until);
  const request = {
    kinds: [...KINDS[wanted.what]],
    actor: wanted.actor,
    fromAgentId: wanted.from,
    toAgentId: wanted.to,
    ...(Number.isFinite(fromMs) && { eventTimeFrom: timestamp(fromMs) }),
    ...(Number.isFinite(untilMs) && { eventTimeBefore: timestamp(untilMs) }),
    pageSize: PAGE_SIZE,
  };
  let next = token;
  for (let page = 0; page < EMPTY_PAGES_MAX; page++) {
    const answer = await admin.listEvents({ ...request, pageToken: next }, { signal });
    next = answer.nextPageToken;
    if (answer.records.length > 0 || next === "") return { records: answer.records, next };
  }
  return { records: [], next };
}
