// How a turn ended: what completeTurn() reports.
//
//   await client.completeTurn({ ..., outcome: outcomes.followUp({ timeoutMs: 600_000 }) });

import type { JsonObject, MessageInitShape } from "@bufbuild/protobuf";
import { durationFromMs } from "@bufbuild/protobuf/wkt";
import { HandoffMode } from "./gen/agent_routing/v1/handoff_pb.js";
import type { CompleteTurnRequestSchema } from "./gen/agent_routing/v1/routing_service_pb.js";

/** One of the outcomes below, or the generated form of one. */
export type Outcome = NonNullable<MessageInitShape<typeof CompleteTurnRequestSchema>["outcome"]>;

/** Answered. The agent keeps the conversation as its stickiness says. */
export function proceed(): Outcome {
  return { case: "proceed", value: {} };
}

/**
 * Asked the user something: the next message comes back to this agent.
 *
 * timeoutMs: how long it waits for the answer, above 0 and at most 366 days; left out: until the
 * answer, whenever it comes.
 */
export function followUp({ timeoutMs }: { timeoutMs?: number } = {}): Outcome {
  return {
    case: "followUp",
    value: timeoutMs === undefined ? {} : { timeout: durationFromMs(timeoutMs) },
  };
}

/**
 * Completed what the agent was there for. The registry says who comes next.
 *
 * summary: what was done, for the audit and the next agent, at most 4 KiB. message: words for the
 * user on the way to the next agent, at most 4 KiB; left out: the registry's, if it has any.
 */
export function complete(given: { summary?: string; message?: string } = {}): Outcome {
  return { case: "complete", value: given };
}

/**
 * Hands over to another agent, or consults it; the message goes on there.
 *
 * reason: why, at most 1 KiB; in a CONSULT the question. context: what the target needs to know, at
 * most 16 KiB. message: words for the user, at most 4 KiB. mode: left out: as the target's registry
 * entry says, else TRANSFER.
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

/** Needs an approval, of what prompt says, before it goes on: the task pauses until resumeTask(). */
export function approvalNeeded(prompt: string): Outcome {
  return { case: "approvalNeeded", value: { prompt } };
}

/** Failed, and with it the task; the agent stays. message: for the audit, not for the user. */
export function failure(message = ""): Outcome {
  return { case: "failure", value: { message } };
}
