// Where a user's message goes.

import { create } from "@bufbuild/protobuf";
import { timestampFromDate } from "@bufbuild/protobuf/wkt";
import type { RoutingError } from "./errors.js";
import type { Dispatch, Suggestion } from "./gen/agent_routing/v1/dispatch_pb.js";
import type { Handoff } from "./gen/agent_routing/v1/handoff_pb.js";
import { RouteReason } from "./gen/agent_routing/v1/route_reason_pb.js";
import {
  type DegradedTurn,
  DegradedTurnSchema,
  type RouteResponse,
} from "./gen/agent_routing/v1/routing_service_pb.js";

/**
 * Where a user's message goes.
 *
 * Show replyText if there is one; then, if agentId is set, send text to that agent and report its
 * answer with completeTurn().
 */
export class RouteResult {
  constructor(
    /** The generated message, with everything. */
    readonly response: RouteResponse,
    /** Whether this is the stored answer to an earlier call with this requestId. */
    readonly replayed: boolean,
    /**
     * Why the client decided alone, because the service could not be reached, or undefined.
     * Nothing is stored then, and the service does not know this message until it is routed again,
     * with the same sessionId, requestId and content, or reported; see degradedTurn().
     */
    readonly error?: RoutingError,
    /** Of a degraded decision: the last revision of the session that the client knew. */
    readonly baseRevision?: bigint,
    /** Of a degraded decision: when it was made. */
    readonly decidedAt?: Date,
  ) {}

  /**
   * Returns the report of a degraded decision, for reportDegraded(). agentText: what the user was
   * shown. Throws RangeError if the service decided: there is nothing to report then.
   */
  degradedTurn(agentText = "", userId = ""): DegradedTurn {
    if (!this.degraded) {
      throw new RangeError(
        "the service made this decision and knows it; nothing is to be reported",
      );
    }
    return create(DegradedTurnSchema, {
      sessionId: this.sessionId,
      requestId: this.requestId,
      userId,
      agentId: this.agentId ?? "",
      text: this.text,
      items: this.dispatch?.items ?? [],
      agentText,
      ...(this.decidedAt && { decideTime: timestampFromDate(this.decidedAt) }),
      ...(this.baseRevision !== undefined && { baseRevision: this.baseRevision }),
    });
  }

  /** Whether the client decided alone; see error. */
  get degraded(): boolean {
    return this.error !== undefined;
  }
  /** Given, found, or made by the service; empty for a degraded message that named none. */
  get sessionId(): string {
    return this.response.sessionId;
  }
  /** Given, found, or generated. Empty if there is none. */
  get taskId(): string {
    return this.response.taskId;
  }
  /** Given or generated; completeTurn() takes it. */
  get requestId(): string {
    return this.response.requestId;
  }
  /** The session's revision after the call; 0 if degraded. */
  get revision(): bigint {
    return this.response.revision;
  }
  /** The whole dispatch: agent, items, history, handoff. undefined if no agent must act. */
  get dispatch(): Dispatch | undefined {
    return this.response.dispatch;
  }
  /** The agent to send text to. undefined if no agent must act. */
  get agentId(): string | undefined {
    return this.response.dispatch?.agent?.agentId;
  }
  /** The user's message for the agent, without its command. Empty without a dispatch. */
  get text(): string {
    return this.response.dispatch?.text ?? "";
  }
  /**
   * Why this agent, such as "STICKY": a RouteReason, or the number of an unknown one. "UNSPECIFIED"
   * without a dispatch, and if degraded.
   */
  get reason(): string {
    return reasonName(this.response.dispatch?.reason ?? RouteReason.UNSPECIFIED);
  }
  /** Whether the agent asked a question, and this message is the answer. */
  get locked(): boolean {
    return this.response.dispatch?.locked ?? false;
  }
  /** The handoff that led to this dispatch, if there was one. */
  get handoff(): Handoff | undefined {
    return this.response.dispatch?.handoff;
  }
  /** The agent of the session's previous message: the same agent while it sticks. */
  get previousAgentId(): string | undefined {
    return this.response.dispatch?.previousAgentId || undefined;
  }
  /** The reply to a command, to show before an agent's answer. */
  get replyText(): string | undefined {
    return this.response.reply?.text;
  }
  /** The agent switch that is offered to the user, if there is one. */
  get suggestion(): Suggestion | undefined {
    return this.response.suggestion;
  }
  /** Whether an agent got the message without a call of the supervisor. */
  get supervisorBypassed(): boolean {
    return this.response.supervisorBypassed;
  }
}

/** Returns the name of a reason, or the number of an unknown one. */
export function reasonName(reason: RouteReason): string {
  return RouteReason[reason] ?? String(reason);
}
