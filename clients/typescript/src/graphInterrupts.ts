// LangGraph.js's interrupts, as requests for approval.
//
// Owns in which thread of a checkpointer a turn runs, and with which input. Rule: the checkpointer
// keeps everything, so that any process can continue; a thread that waits for a decision is not
// written to by other messages.

import { AIMessage, type BaseMessage, HumanMessage } from "@langchain/core/messages";
import { Command } from "@langchain/langgraph";
import type { RoutingClient } from "./client.js";
import { Decision, type Dispatch } from "./gen/agent_routing/v1/dispatch_pb.js";
import { RouteReason } from "./gen/agent_routing/v1/route_reason_pb.js";
import { TurnOrder } from "./gen/agent_routing/v1/routing_service_pb.js";
import { TaskStatus } from "./gen/agent_routing/v1/task_pb.js";
import { contentOf } from "./graphItems.js";

/** The kind of the step that a paused turn reports, by which its resumed turn is known. */
export const APPROVAL_STEP = "approval";

/**
 * The key of the task in a user's message, whose id is the request. LangGraph.js keeps no metadata of
 * a run in its checkpoints.
 */
const TASK_KEY = "agent_routing_task_id";

/** Decisions in a row for one run that are looked through for where it began. */
const APPROVALS_MAX = 50;

/** Where an interrupt's value has its text, if it is an object. */
const PROMPT_KEYS = ["question", "prompt", "message", "instruction", "description"];

/** What a run waits for: pass it to decide(), in this process or another. */
export interface Approval {
  sessionId: string;
  taskId: string;
  requestId: string;
  agentId: string;
  prompt: string;
}

/** A decision, with the comment of the person who decided; it may be empty. */
export interface Decided {
  isApproved: boolean;
  comment: string;
}

/** Returns what interrupt() returns, for the interrupt's value and the decision. */
export type ResumeValue = (value: unknown, decided: Decided) => unknown;

/** A decided run that cannot continue: it was already taken up, or its thread is not here. */
export class ApprovedRunLost extends Error {
  override name = "ApprovedRunLost";
}

interface Interrupt {
  id?: string;
  value?: unknown;
}

/** The part of LangGraph's state of a thread that is used here. */
export interface Snapshot {
  // biome-ignore lint/suspicious/noExplicitAny: a graph's state is its program's
  readonly values: any;
  readonly next: readonly string[];
  readonly tasks: readonly {
    readonly interrupts?: readonly Interrupt[];
    readonly state?: unknown;
  }[];
}

/** A thread as a turn finds it. */
export class Waiting {
  constructor(
    readonly threadId: string,
    readonly snapshot: Snapshot,
  ) {}

  /** The interrupts that wait for a value, in an order that no reading changes. */
  get interrupts(): Interrupt[] {
    const found = new Map<string, Interrupt>();
    for (const { interrupts } of this.snapshot.tasks) {
      for (const each of interrupts ?? []) found.set(each.id ?? "", each);
    }
    return [...found.keys()].sort().map((id) => found.get(id) ?? {});
  }

  /** The messages, those of agents that have not ended yet included. */
  get messages(): BaseMessage[] {
    return messagesOf(this.snapshot);
  }

  /** The task whose run waits; empty if it was not a routed one. */
  get taskId(): string {
    return String(this.#begun?.additional_kwargs[TASK_KEY] ?? "");
  }

  /** Whether the thread waits for the decision about one of these requests. */
  isOf(requests: readonly string[]): boolean {
    const { next } = this.snapshot;
    const waits = this.interrupts.length > 0 || next.length > 0;
    return waits && requests.includes(this.#begun?.id ?? "");
  }

  /** The user's message with which the last run began. */
  get #begun(): BaseMessage | undefined {
    const messages: BaseMessage[] = this.snapshot.values?.messages ?? [];
    return messages.findLast(({ additional_kwargs: given }) => given[TASK_KEY] !== undefined);
  }
}

function messagesOf({ values, tasks }: Snapshot): BaseMessage[] {
  const nested = tasks.flatMap(({ state }) =>
    state !== undefined && (state as Snapshot).tasks !== undefined
      ? messagesOf(state as Snapshot)
      : [],
  );
  return [...((values?.messages as BaseMessage[] | undefined) ?? []), ...nested];
}

/** Returns the user's message, by which its run is known later. */
export function messageOf({ requestId, taskId, text, items }: Dispatch): HumanMessage {
  return new HumanMessage({
    content: contentOf(text, items),
    id: requestId,
    additional_kwargs: { [TASK_KEY]: taskId },
  });
}

/** Returns the decision with which a paused run continues; undefined for any other dispatch. */
export function decidedOf({ resume }: Dispatch): Decided | undefined {
  if (resume === undefined) return undefined;
  return { isApproved: resume.decision === Decision.APPROVE, comment: resume.comment };
}

/** Whether the user wrote while the task waits for a decision. */
export function isPaused({ reason }: Dispatch): boolean {
  return reason === RouteReason.AWAITING_APPROVAL;
}

/** The thread of a message that must leave a waiting thread as it is. */
export function asideThread(dispatch: Dispatch, threadId: string): string {
  return `${threadId}:${isPaused(dispatch) ? dispatch.requestId : dispatch.taskId}`;
}

/**
 * Returns the requests that led to a resumed turn, nearest first, if its framework asked. Empty if
 * the program asked for the approval by a call of its own.
 */
export async function pausedRequests(
  client: RoutingClient,
  who: { sessionId: string; userId: string },
  requestId: string,
): Promise<string[]> {
  const page = await client.listTurnsPage({
    ...who,
    order: TurnOrder.NEWEST_FIRST,
    pageSize: APPROVALS_MAX,
  });
  // A request that was handed over has an entry for each agent that had it.
  const entries = (id: string) => page.turns.filter((turn) => turn.requestId === id);
  const parentOf = (id: string) =>
    entries(id).find(({ parentRequestId }) => parentRequestId !== "")?.parentRequestId ?? "";
  const chain: string[] = [];
  let id = parentOf(requestId);
  while (entries(id).some(({ steps }) => steps.some(({ kind }) => kind === APPROVAL_STEP))) {
    chain.push(id);
    id = parentOf(id);
  }
  return chain;
}

/** Whether a message must not write to a thread that waits. */
export async function mustStayAside(
  client: RoutingClient,
  who: { sessionId: string; userId: string },
  dispatch: Dispatch,
  waiting: Waiting,
): Promise<boolean> {
  if (waiting.interrupts.length === 0) return false;
  if (isPaused(dispatch)) return true;
  // In the same task the approval was withdrawn.
  if (waiting.taskId === "" || waiting.taskId === dispatch.taskId) return false;
  const { tasks } = await client.listTasksPage({ ...who, statuses: [TaskStatus.PAUSED] });
  return tasks.some(({ taskId }) => taskId === waiting.taskId);
}

/** Returns the input with which a decided run continues. Throws ApprovedRunLost. */
export function decidedInput(
  waiting: Waiting,
  requests: readonly string[],
  decided: Decided,
  resumeValue: ResumeValue,
): Command | null {
  if (!waiting.isOf(requests)) {
    throw new ApprovedRunLost(
      `thread "${waiting.threadId}" of the checkpointer does not wait for this decision: it was ` +
        "already taken up, or the processes do not share a checkpointer",
    );
  }
  const [first] = waiting.interrupts;
  // LangGraph continues from its last checkpoint if a run that died had taken the decision.
  if (first === undefined) return null;
  return new Command({ resume: { [first.id ?? ""]: resumeValue(first.value, decided) } });
}

/** Returns the input that refuses all interrupts, in a turn that cannot wait. */
export function refusedInput(waiting: Waiting, reason: string, resumeValue: ResumeValue): Command {
  const refused: Decided = { isApproved: false, comment: reason };
  const resume = Object.fromEntries(
    waiting.interrupts.map(({ id, value }) => [id ?? "", resumeValue(value, refused)]),
  );
  return new Command({ resume });
}

/** Returns what LangChain's human-in-the-loop middleware expects; for other values a boolean. */
export const defaultResumeValue: ResumeValue = (value, decided) => {
  const actions = actionsOf(value);
  if (actions === undefined) return decided.isApproved;
  const message = decided.comment === "" ? "rejected" : `rejected: ${decided.comment}`;
  const decision = decided.isApproved ? { type: "approve" } : { type: "reject", message };
  return { decisions: actions.map(() => decision) };
};

/** Returns the prompt of an interrupt. */
export function promptOf(value: unknown): string {
  if (typeof value === "string") return value;
  if (typeof value !== "object" || value === null) return String(value);
  const actions = actionsOf(value);
  if (actions !== undefined) return actions.map(describeAction).join("\n");
  const given = value as Record<string, unknown>;
  const key = PROMPT_KEYS.find((each) => typeof given[each] === "string");
  const { [key ?? ""]: text, ...rest } = given;
  return describe(text === undefined ? "approve?" : String(text), rest);
}

/** Returns the last text of the messages that were not there before. */
export function textSince(messages: readonly BaseMessage[], known: ReadonlySet<unknown>): string {
  const said = messages.findLast((each) => each instanceof AIMessage && !known.has(each.id));
  return said?.text ?? "";
}

interface Action {
  name?: unknown;
  args?: Record<string, unknown>;
}

function actionsOf(value: unknown): Action[] | undefined {
  if (typeof value !== "object" || value === null) return undefined;
  const { actionRequests, action_requests: snake } = value as Record<string, unknown>;
  const found = actionRequests ?? snake;
  return Array.isArray(found) ? found : undefined;
}

function describeAction({ name, args }: Action): string {
  return describe(String(name), args ?? {});
}

function describe(what: string, given: Record<string, unknown>): string {
  const shown = Object.entries(given).map(
    ([key, value]) => `${key}: ${typeof value === "string" ? value : JSON.stringify(value)}`,
  );
  return shown.length === 0 ? what : `${what}: ${shown.join(", ")}`;
}
