// The desk: what waits for the people of agents of kind human, and what a person does with it.

import {
  type Agent,
  AgentKind,
  KeepTurnStatus,
  type ListNotesResponse,
  type StatusResponse,
  type Turn,
  TurnOrder,
  type WaitingConversation,
} from "@agent-routing/v1";
import { Code, ConnectError } from "@connectrpc/connect";
import { routing } from "./calls";
import { type LiveState, pause } from "./live";

/** There is no watch over an inbox for people, so it is listed again after this time. */
const LIST_EVERY_MS = 2_000;
/** The registry may change: agents are read again after so many listings. */
const AGENTS_EVERY = 30;
const RETRY_MS = [500, 1_000, 2_000, 5_000];
/** The most that a page of ListWaiting has. */
export const WAITING_MAX = 100;
/** What a person reads before answering. */
const TURNS_MAX = 200;

/** A conversation that waits, and for the people of which agent. */
export interface Waiting {
  agent: Agent;
  entry: WaitingConversation;
}

/** What is found at a listing. */
export interface Inbox {
  /** All agents of the registry. */
  agents: Agent[];
  /** Agents of kind human that the credential may serve. */
  served: Agent[];
  /** The longest waiting first. */
  waiting: Waiting[];
  /** More wait than are listed. */
  hasMore: boolean;
}

/** What is shown of one conversation. */
export interface Opened {
  status: StatusResponse;
  /** Newest first. */
  turns: Turn[];
  /** Oldest first. */
  notes: ListNotesResponse["notes"];
}

function msOf(entry: WaitingConversation): number {
  const time = entry.dispatchTime;
  return Number(time?.seconds ?? 0n) * 1_000 + Math.floor((time?.nanos ?? 0) / 1_000_000);
}

export function deskLink(agentId: string, sessionId: string): string {
  return `/?${new URLSearchParams({ view: "desk", agent: agentId, id: sessionId })}`;
}

/** Lists an agent's inbox; undefined: the credential may not serve that agent. */
async function listOf(agent: Agent, signal: AbortSignal) {
  try {
    const request = { agentId: agent.agentId, pageSize: WAITING_MAX };
    return { agent, answer: await routing.listWaiting(request, { signal }) };
  } catch (error) {
    if (ConnectError.from(error).code === Code.PermissionDenied) return undefined;
    throw error;
  }
}

/** Lists what waits until it is stopped. Throws an error that a repeat cannot mend. */
export async function followInbox(
  onFound: (found: Inbox) => void,
  onState: (state: LiveState) => void,
  signal: AbortSignal,
): Promise<void> {
  let failures = 0;
  let agents: Agent[] = [];
  let asked: Agent[] = [];
  onState("connecting");
  for (let round = 0; !signal.aborted; round++) {
    let waitMs = LIST_EVERY_MS;
    try {
      if (round % AGENTS_EVERY === 0 || agents.length === 0) {
        agents = (await routing.listAgents({}, { signal })).agents;
        asked = agents.filter((each) => each.kind === AgentKind.HUMAN);
      }
      const lists = await Promise.all(asked.map((each) => listOf(each, signal)));
      const found = lists.filter((each) => each !== undefined);
      asked = found.map((each) => each.agent);
      const waiting = found.flatMap(({ agent, answer }) =>
        answer.entries.map((entry) => ({ agent, entry })),
      );
      waiting.sort((one, other) => msOf(one.entry) - msOf(other.entry));
      const hasMore = found.some(({ answer }) => answer.nextPageToken !== "");
      onFound({ agents, served: asked, waiting, hasMore });
      onState("live");
      failures = 0;
    } catch (error) {
      if (signal.aborted) return;
      const { code } = ConnectError.from(error);
      if (code === Code.Unauthenticated || code === Code.PermissionDenied) throw error;
      onState("behind");
      waitMs = RETRY_MS[Math.min(failures++, RETRY_MS.length - 1)] ?? LIST_EVERY_MS;
    }
    await pause(waitMs, signal);
  }
}

/** Says for how long a conversation has waited, in the page's language. */
export function waited(entry: WaitingConversation, nowMs: number, language: string): string {
  const minutes = Math.min(0, Math.round((msOf(entry) - nowMs) / 60_000));
  const format = new Intl.RelativeTimeFormat(language, { style: "narrow", numeric: "auto" });
  return minutes > -120
    ? format.format(minutes, "minute")
    : format.format(Math.round(minutes / 60), "hour");
}

/** Reads a conversation. readReason: why its texts are read; "": they stay hidden. */
export async function openOne(
  agentId: string,
  sessionId: string,
  readReason: string,
  signal: AbortSignal,
): Promise<Opened> {
  const order = TurnOrder.NEWEST_FIRST;
  const options = { signal };
  // The texts first: they may be refused.
  const turns = await routing.listTurns(
    { sessionId, agentId, order, pageSize: TURNS_MAX, readReason },
    options,
  );
  const [status, notes] = await Promise.all([
    routing.status({ sessionId }, options),
    routing.listNotes({ sessionId, agentId }, options),
  ]);
  return { status, turns: turns.turns, notes: notes.notes };
}

/** Where a conversation can be answered: its newest open request, and its task. */
export interface Place {
  requestId: string;
  taskId: string;
}

/** Returns where the people of an agent answer; undefined: the conversation is not with them. */
export function placeOf(
  agentId: string,
  status: StatusResponse,
  entry: WaitingConversation | undefined,
): Place | undefined {
  const held = status.openRequests.filter((each) => each.agent?.agentId === agentId);
  // A parked task's requests are in the inbox alone.
  const isParked = status.parkedTasks.some(
    (each) => each.task?.taskId === entry?.openRequests.at(-1)?.taskId,
  );
  const open = held.at(-1) ?? (isParked ? entry?.openRequests.at(-1) : undefined);
  if (open !== undefined) return open;
  if (status.activeAgent?.agentId !== agentId) return undefined;
  return { requestId: "", taskId: status.task?.taskId ?? "" };
}

/** Says something without ending the turn. Returns false if the turn is over: nothing was said. */
export async function say(
  agentId: string,
  sessionId: string,
  place: Place,
  text: string,
  messageId: string,
): Promise<boolean> {
  const { requestId, taskId } = place;
  const where = requestId !== "" ? { requestId } : { taskId };
  const answer = await routing.keepTurn({ sessionId, agentId, ...where, say: text, messageId });
  return answer.status === KeepTurnStatus.KEPT;
}

/** Answers. next: whether the people keep the conversation, are done with it, or name the next agent. */
export function answer(
  agentId: string,
  sessionId: string,
  requestId: string,
  text: string,
  next: "keep" | "done" | { agentId: string },
) {
  const outcome =
    next === "keep"
      ? ({ case: "proceed", value: {} } as const)
      : next === "done"
        ? ({ case: "complete", value: {} } as const)
        : ({ case: "handoff", value: next } as const);
  return routing.completeTurn({ sessionId, requestId, agentId, text, outcome });
}
