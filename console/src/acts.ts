// What an operator can do to a session. Each act is tried first: the trial says what would change, and
// the act is bound to the revision at which it was tried.

import {
  type Agent,
  type ClearActiveAgentRequestSchema,
  ClearScope,
  Decision,
  Initiator,
  type MovedTurn,
  type StatusResponse,
  type Verdict,
} from "@agent-routing/v1";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { routing } from "./calls";

export const ACTS = ["move", "clear", "reset", "cancel", "approve", "reject"] as const;
export type Act = (typeof ACTS)[number];

/** An act as the form has it. agentId: only to move. */
export interface Asked {
  act: Act;
  agentId: string;
  reason: string;
}

/** What an act changes, or would change. */
export interface Outcome {
  revision: bigint;
  from?: Agent;
  to?: Agent;
  /** The rules that refuse it, and those that were kept. */
  verdicts: Verdict[];
  requestId: string;
  /** How many people have approved, of how many; 0 where that is not asked. */
  decisions: number;
  decisionsNeeded: number;
  /** The message that waits, and what becomes of it. */
  movedTurn?: MovedTurn;
}

/** Which acts a session has now. */
export function possible(status: StatusResponse): Act[] {
  const isOpen = status.task?.status === 1 || status.task?.status === 2;
  return ACTS.filter((act) => {
    if (act === "approve" || act === "reject") return status.pendingApproval !== undefined;
    return act !== "cancel" || isOpen;
  });
}

/** Tries an act (isTrial), or does it. A trial and its act have the same request id. */
export async function perform(
  status: StatusResponse,
  asked: Asked,
  requestId: string,
  isTrial: boolean,
): Promise<Outcome> {
  const { sessionId, revision } = status;
  const base = {
    sessionId,
    requestId,
    reason: asked.reason,
    // Another operator may have changed the session since it was tried.
    expectedRevision: revision,
    validateOnly: isTrial,
  };
  const none = { verdicts: [], decisions: 0, decisionsNeeded: 0 };
  switch (asked.act) {
    case "move": {
      const answer = await routing.setActiveAgent({
        ...base,
        agentId: asked.agentId,
        initiator: Initiator.OPERATOR,
      });
      return {
        ...none,
        revision: answer.revision,
        from: answer.handoff?.from ?? status.activeAgent ?? status.nextAgent,
        to: answer.agent ?? answer.handoff?.to,
        verdicts: answer.verdicts,
        requestId: answer.requestId,
        movedTurn: answer.movedTurn,
      };
    }
    case "clear":
    case "reset": {
      const scope = asked.act === "reset" ? ClearScope.SESSION : ClearScope.ACTIVE_AGENT;
      const given: MessageInitShape<typeof ClearActiveAgentRequestSchema> = { ...base, scope };
      const answer = await routing.clearActiveAgent(given);
      const { agent, previousAgent } = answer;
      return { ...none, ...answer, from: previousAgent, to: agent };
    }
    case "cancel": {
      const answer = await routing.cancelTask({ ...base, taskId: status.task?.taskId ?? "" });
      return { ...none, ...answer, from: answer.previousAgent, to: answer.agent };
    }
    default: {
      const pending = status.pendingApproval;
      const answer = await routing.resumeTask({
        sessionId,
        taskId: pending?.taskId ?? "",
        requestId: pending?.requestId ?? "",
        decision: asked.act === "approve" ? Decision.APPROVE : Decision.REJECT,
        comment: asked.reason,
        validateOnly: isTrial,
      });
      return {
        ...none,
        ...answer,
        from: pending?.agent,
        to: answer.dispatch?.agent ?? pending?.agent,
      };
    }
  }
}

export function isRefused(outcome: Outcome): boolean {
  return outcome.verdicts.some((each) => !each.allowed);
}
