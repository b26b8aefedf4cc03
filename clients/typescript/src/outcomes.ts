// How a turn ended: one function for each outcome that completeTurn() takes.
//
//   await client.completeTurn({ ..., outcome: outcomes.followUp({ timeoutMs: 600_000 }) });

import type { JsonObject, MessageInitShape } from "@bufbuild/protobuf";
import { durationFromMs } from "@bufbuild/protobuf/wkt";
import { HandoffMode } from "./gen/agent_routing/v1/handoff_pb.js";
import type { CompleteTurnRequestSchema } from "./gen/agent_routing/v1/routing_service_pb.js";

/** One of the outcomes below, or its generated message. */
export type Outcome = NonNullable<MessageInitShape<typeof CompleteTurnRequestSchema>["outcome"]>;

/** What a worker's function may return: an outcome with the agent's text, items and steps. */
export interface Answer
  extends Pick<MessageInitShape<typeof CompleteTurnRequestSchema>, "items" | "steps"> {
  text?: string;
  /** Default: proceed(). */
  outcome?: Outcome;
}

/** The agent answered, and keeps the conversation as its stickiness says. */
export function proceed(): Outcome {
  return { case: "proceed", value: {} };
}

/**
 * The agent asked the user a question: the next message goes to this agent.
 *
 * text: the question, for functions of a worker: the result is then an Answer. timeoutMs: how long
 * it waits for the answer, above 0 and at most 366 days. Default: without limit.
 */
export function followUp(given?: { timeoutMs?: number }): Outcome;
export function followUp(text: string, given?: { timeoutMs?: number }): Answer;
export function followUp(
  textOrGiven: string | { timeoutMs?: number } = {},
  given: { timeoutMs?: number } = {},
): Outcome | Answer {
  const { timeoutMs } = typeof textOrGiven === "string" ? given : textOrGiven;
  const outcome: Outcome = {
    case: "followUp",
    value: timeoutMs === undefined ? {} : { timeout: durationFromMs(timeoutMs) },
  };
  return typeof textOrGiven === "string" ? { text: textOrGiven, outcome } : outcome;
}

/**
 * The agent completed its task. The registry names the next agent.
 *
 * summary: what was done, for the audit and the next agent, at most 4 KiB. message: text for the
 * user on the way to the next agent, at most 4 KiB. Default: the registry's text, if it has one.
 */
export function complete(given: { summary?: string; message?: string } = {}): Outcome {
  return { case: "complete", value: given };
}

/**
 * The agent hands over to another agent, or consults it; the message goes there next.
 *
 * reason: at most 1 KiB; for a CONSULT the question. context: what the target needs to know, at
 * most 16 KiB. message: text for the user, at most 4 KiB. mode: by default as in the target's
 * registry entry, or else TRANSFER.
 */
export function handoff(
  agentId: string,
  given: { reason?: string; context?: JsonObject; message?: string; mode?: HandoffMode } = {},
): Outcome {
  return {
    case: "handoff",
    value: { mode: HandoffMode.UNSPECIFIED, ...given, agentId },
  };
}

/**
 * The agent needs an approval of the prompt: the task pauses until resumeTask().
 *
 * fields: the same for programs, such as the amount, at most 4 KiB.
 */
export function approvalNeeded(prompt: string, given: { fields?: JsonObject } = {}): Outcome {
  return { case: "approvalNeeded", value: { prompt, ...given } };
}

/** The agent and its task failed; the agent stays active. message: for the audit only. */
export function failure(message = ""): Outcome {
  return { case: "failure", value: { message } };
}
