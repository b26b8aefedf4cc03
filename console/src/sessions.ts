// The rows of the table of sessions: what is listed, and what changes of it as it happens.

import {
  type Agent,
  type Change,
  RouteReason,
  type SessionSummary,
  type StatusResponse,
  TaskStatus,
} from "@agent-routing/v1";
import { Code, ConnectError } from "@connectrpc/connect";
import { admin, routing } from "./calls";

export const PAGE_SIZE = 50;
/** Sessions whose last decision is remembered while others are shown. */
const REASONS_MAX = 2_000;

/** The filters, as the URL has them. "": any. */
export interface Filters {
  session: string;
  user: string;
  agent: string;
  task: string;
  channel: string;
  /** "yes", "no" or "". */
  waiting: string;
  /** Minutes. */
  within: string;
  page: string;
}

export const FILTER_NAMES = [
  "session",
  "user",
  "agent",
  "task",
  "channel",
  "waiting",
  "within",
  "page",
] as const;

export interface Row {
  /** Unique on a page: calls are about the caller's tenant alone. */
  sessionId: string;
  owner: string;
  revision: bigint;
  agent?: Agent;
  locked: boolean;
  task: TaskStatus;
  openTurns: number;
  channel: string;
  updateMs: number;
  /** Of the last decision since the page was opened; "": none was seen. */
  reason: string;
  /** Why the server cannot read it; "": it can. */
  unreadable: string;
}

export function filtersOf(query: string): Filters {
  const given = new URLSearchParams(query);
  const read = FILTER_NAMES.map((name) => [name, given.get(name) ?? ""]);
  return Object.fromEntries(read) as unknown as Filters;
}

export function queryOf(filters: Filters): string {
  const given = FILTER_NAMES.filter((name) => filters[name] !== "");
  const query = new URLSearchParams(given.map((name) => [name, filters[name]])).toString();
  return query && `?${query}`;
}

/** The rows of a page and the token of the next page. */
export async function list(
  filters: Filters,
  signal: AbortSignal,
): Promise<{ rows: Row[]; next: string }> {
  if (filters.session !== "") {
    const found = await find(filters.session, signal);
    return { rows: [rowOfStatus(found)], next: "" };
  }
  const minutes = Number(filters.within);
  const fromMs = Date.now() - minutes * 60_000;
  const answer = await admin.listSessions(
    {
      owner: filters.user,
      activeAgentId: filters.agent,
      taskStatus: TaskStatus[filters.task as keyof typeof TaskStatus] ?? TaskStatus.UNSPECIFIED,
      channel: filters.channel,
      ...(filters.waiting !== "" && { locked: filters.waiting === "yes" }),
      ...(minutes > 0 && {
        // To the minute: with a page token the filters must stay the same.
        updateTimeFrom: { seconds: BigInt(Math.floor(fromMs / 60_000) * 60), nanos: 0 },
      }),
      pageSize: PAGE_SIZE,
      pageToken: filters.page,
    },
    { signal },
  );
  // A session that changed while the page was read may be in it twice.
  const rows = new Map(answer.sessions.map((each) => [each.sessionId, rowOf(each)]));
  return { rows: [...rows.values()], next: answer.nextPageToken };
}

const TASK_ID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;

/** Finds a session by its id, or by the id of one of its tasks. */
async function find(id: string, signal: AbortSignal): Promise<StatusResponse> {
  try {
    return await routing.status({ sessionId: id }, { signal });
  } catch (error) {
    // A frontend may have chosen ids of sessions that look like those of tasks.
    if (ConnectError.from(error).code !== Code.NotFound || !TASK_ID.test(id)) throw error;
    return await routing.status({ taskId: id }, { signal });
  }
}

function rowOf(summary: SessionSummary): Row {
  return {
    sessionId: summary.sessionId,
    owner: summary.owner,
    revision: summary.revision,
    agent: summary.activeAgent,
    locked: summary.locked,
    task: summary.taskStatus,
    openTurns: summary.openTurns,
    channel: summary.channel,
    updateMs: Number(summary.updateTime?.seconds ?? 0n) * 1_000,
    reason: "",
    unreadable: summary.unreadable?.reason ?? "",
  };
}

function rowOfStatus(status: StatusResponse): Row {
  return {
    sessionId: status.sessionId,
    owner: status.owner,
    revision: status.revision,
    agent: status.activeAgent,
    locked: status.locked,
    task: status.task?.status ?? TaskStatus.UNSPECIFIED,
    openTurns: status.openRequests.length,
    channel: status.channel,
    updateMs: Number(status.updateTime?.seconds ?? 0n) * 1_000,
    reason: "",
    unreadable: "",
  };
}

/** The last decision of each session that the page has seen, by the session's id. */
export class Decisions {
  readonly #reasons = new Map<string, string>();

  of(sessionId: string): string {
    return this.#reasons.get(sessionId) ?? "";
  }

  note(change: Change): void {
    for (const { kind } of change.events) {
      let reason = RouteReason.UNSPECIFIED;
      if (kind.case === "messageRouted") reason = kind.value.reason;
      else if (kind.case === "agentHandoff") reason = kind.value.routeReason;
      if (reason === RouteReason.UNSPECIFIED) continue;
      this.#reasons.delete(change.sessionId);
      this.#reasons.set(change.sessionId, RouteReason[reason] ?? String(reason));
      const oldest = this.#reasons.keys().next().value;
      if (this.#reasons.size > REASONS_MAX && oldest !== undefined) this.#reasons.delete(oldest);
    }
  }
}

/** Brings a row to a later revision. What the change does not say follows with the next listing. */
export function changed(row: Row, change: Change): Row {
  const last = change.events.at(-1);
  if (change.revision <= row.revision || last === undefined) return row;
  return {
    ...row,
    revision: change.revision,
    agent: last.activeAgent,
    locked: last.activeAgent?.agentId === row.agent?.agentId && row.locked,
    updateMs: Number(last.eventTime?.seconds ?? 0n) * 1_000,
  };
}
