// What the page of a session reads, and how its events are grouped and explained.

import {
  type Agent,
  type AuditRecord,
  ClaimReleaseCause,
  EventOrder,
  type GetSessionAtResponse,
  Initiator,
  LockReleaseCause,
  OutcomeStatus,
  RouteReason,
  type SessionEvent,
  type StatusResponse,
  type Turn,
  TurnAbandonCause,
  TurnOrder,
  TurnOutcome,
  type Verdict,
} from "@agent-routing/v1";
import { Code } from "@connectrpc/connect";
import { admin, routing } from "./calls";
import {
  followStream,
  heartbeatInterval,
  isRefusal as isRefusalCode,
  type LiveState,
} from "./live";

/** Of events and of turns, the latest; older ones follow page by page. */
const PAGE_SIZE = 200;

/** Everything that the page shows of a session. */
export interface Shown {
  status: StatusResponse;
  /** Newest first. */
  records: AuditRecord[];
  moreRecords: string;
  /** Newest first. */
  turns: Turn[];
  moreTurns: string;
}

/** Reads a session. readReason: why its texts are read; "": they stay hidden. */
export async function read(
  sessionId: string,
  readReason: string,
  signal: AbortSignal,
): Promise<Shown> {
  const options = { signal };
  const [status, events, turns] = await Promise.all([
    routing.status({ sessionId }, options),
    olderEvents(sessionId, readReason, "", signal),
    olderTurns(sessionId, readReason, "", signal),
  ]);
  return {
    status,
    records: events.records,
    moreRecords: events.nextPageToken,
    turns: turns.turns,
    moreTurns: turns.nextPageToken,
  };
}

export function olderEvents(
  sessionId: string,
  readReason: string,
  pageToken: string,
  signal: AbortSignal,
) {
  const order = EventOrder.NEWEST_FIRST;
  return admin.listEvents(
    { sessionId, order, pageSize: PAGE_SIZE, pageToken, readReason },
    { signal },
  );
}

export function olderTurns(
  sessionId: string,
  readReason: string,
  pageToken: string,
  signal: AbortSignal,
) {
  const order = TurnOrder.NEWEST_FIRST;
  return routing.listTurns(
    { sessionId, order, pageSize: PAGE_SIZE, pageToken, readReason },
    { signal },
  );
}

export function stateAt(
  sessionId: string,
  revision: number,
  signal: AbortSignal,
): Promise<GetSessionAtResponse> {
  return admin.getSessionAt({ sessionId, revision: BigInt(revision) }, { signal });
}

/** Follows a session until it is stopped. Throws an error that a repeat cannot mend. */
export function followSession(
  sessionId: string,
  onChange: () => void,
  onState: (state: LiveState) => void,
  signal: AbortSignal,
): Promise<void> {
  let isFirst = true;
  return followStream(
    {
      open: (signal) => {
        // Without a revision: the stream begins with a heartbeat, at which the page is read.
        isFirst = true;
        return routing.watchSession({ sessionId, heartbeatInterval }, { signal });
      },
      timeOf: ({ kind }) =>
        kind.case === "heartbeat"
          ? kind.value.sendTime
          : kind.case === "change"
            ? kind.value.events.at(-1)?.eventTime
            : undefined,
      onMessage: ({ kind }) => {
        if (isFirst || kind.case === "change") onChange();
        isFirst = false;
      },
      onState,
      isFinal: (code) =>
        isRefusalCode(code) || code === Code.NotFound || code === Code.FailedPrecondition,
    },
    signal,
  );
}

/** A user's message, or what happened outside of one, with all that followed. Oldest first. */
export interface Group {
  id: string;
  startMs: number;
  records: AuditRecord[];
}

/** Groups records. newestFirst: as they are read. */
export function groupsOf(newestFirst: AuditRecord[]): Group[] {
  const groups: Group[] = [];
  for (const record of [...newestFirst].reverse()) {
    const event = record.event;
    if (event === undefined) continue;
    const current = groups.at(-1);
    const begins = event.kind.case === "messageRouted" || event.kind.case === "commandHandled";
    const inSameChange = current?.records.at(-1)?.event?.revision === event.revision;
    if (current === undefined || (begins && !inSameChange)) {
      groups.push({ id: event.eventId, startMs: msOf(event), records: [record] });
    } else {
      current.records.push(record);
    }
  }
  return groups;
}

export function msOf(event: SessionEvent): number {
  const time = event.eventTime;
  return Number(time?.seconds ?? 0n) * 1_000 + Math.floor((time?.nanos ?? 0) / 1_000_000);
}

/** The contract's word for an event: "agent_handoff" reads as "agent handoff". */
export function kindOf(event: SessionEvent): string {
  const name = event.kind.case ?? "content removed";
  return name.replace(/[A-Z]/g, (letter) => ` ${letter.toLowerCase()}`);
}

export function isRefusal(event: SessionEvent): boolean {
  return event.kind.case === "handoffRefused";
}

/** The agents of an event: the one it is about, or the two of a handoff. */
export function agentsOf(event: SessionEvent): (Agent | undefined)[] {
  const { kind } = event;
  if (kind.case === "agentHandoff" || kind.case === "handoffRefused") {
    return [kind.value.handoff?.from, kind.value.handoff?.to];
  }
  if (kind.case === "agentCleared") return [kind.value.previousAgent];
  if (kind.case === "switchSuggested") return [kind.value.suggestion?.agent];
  if (kind.value !== undefined && "agent" in kind.value) return [kind.value.agent as Agent];
  return [];
}

/** What decided an event, in words of the contract. */
export function reasonOf(event: SessionEvent): string {
  const { kind } = event;
  switch (kind.case) {
    case "messageRouted":
      return RouteReason[kind.value.reason] ?? "";
    case "agentHandoff":
      return [Initiator[kind.value.handoff?.initiator ?? 0], RouteReason[kind.value.routeReason]]
        .filter((word) => word && word !== "UNSPECIFIED")
        .join(" · ");
    case "handoffRefused":
      return refusedBy(kind.value.verdicts).join(", ");
    case "turnCompleted": {
      const status = OutcomeStatus[kind.value.outcomeStatus] ?? "";
      const outcome = TurnOutcome[kind.value.outcome] ?? "";
      return status === "APPLIED" || status === "UNSPECIFIED" ? outcome : `${outcome} · ${status}`;
    }
    case "turnAbandoned":
      return TurnAbandonCause[kind.value.cause] ?? "";
    case "lockReleased":
      return LockReleaseCause[kind.value.cause] ?? "";
    case "commandHandled":
      return kind.value.command;
    case "claimed":
      return kind.value.claimant;
    case "claimReleased":
      return [kind.value.claimant, ClaimReleaseCause[kind.value.cause]].join(" · ");
    case "noteAdded":
      return kind.value.author;
    default:
      return "";
  }
}

export function refusedBy(verdicts: Verdict[]): string[] {
  return verdicts.filter((each) => !each.allowed).map((each) => each.rule);
}

/** What a person or a model wrote in an event; "": nothing, or it is hidden. */
export function textOf(event: SessionEvent): string {
  const { kind } = event;
  switch (kind.case) {
    case "agentHandoff":
    case "handoffRefused":
      return kind.value.handoff?.reason ?? "";
    case "agentCleared":
      return kind.value.reason;
    case "taskPaused":
      return kind.value.prompt;
    case "operatorAct":
    case "claimed":
      return kind.value.reason;
    default:
      return "";
  }
}

/** The latest record that says why the conversation is where it is. records: newest first. */
export function lastDecision(records: AuditRecord[]): AuditRecord | undefined {
  const decides = new Set(["messageRouted", "agentHandoff", "agentCleared", "stickinessExpired"]);
  return records.find((record) => decides.has(record.event?.kind.case ?? ""));
}
