// Where a user's message goes.

import type { RoutingError } from "./errors.js";
import type { Dispatch, Suggestion } from "./gen/agent_routing/v1/dispatch_pb.js";
import type { Handoff } from "./gen/agent_routing/v1/handoff_pb.js";
import { RouteReason } from "./gen/agent_routing/v1/route_reason_pb.js";
import type { RouteResponse } from "./gen/agent_routing/v1/routing_service_pb.js";

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
    /** Whether this is the stored answer of an earlier call with this requestId. */
    readonly replayed: boolean,
    /**
     * Why the client decided by itself, since the service could not be reached; else undefined.
     * Nothing is stored then, and the service knows nothing of this message until it is routed
     * again, with the same sessionId, requestId and content; commands in the text were not carried
     * out.
     */
    readonly error?: RoutingError,
  ) {}

  /** Whether the client decided by itself; see error. */
  get degraded(): boolean {
    return this.error !== undefined;
  }
  /** As given, found, or made. */
  get sessionId(): string {
    return this.response.sessionId;
  }
  /** As given, found, or made. Empty where there is none. */
  get taskId(): string {
    return this.response.taskId;
  }
  /** As given or made; completeTurn() names it. */
  get requestId(): string {
    return this.response.requestId;
  }
  /** The session's revision after the call; 0 if degraded. */
  get revision(): bigint {
    return this.response.revision;
  }
  /** The whole dispatch: agent, items, history, handoff. undefined where no agent has to act. */
  get dispatch(): Dispatch | undefined {
    return this.response.dispatch;
  }
  /** The agent to send text to. undefined where no agent has to act. */
  get agentId(): string | undefined {
    return this.response.dispatch?.agent?.agentId;
  }
  /** The user's message for the agent, without its command. Empty without a dispatch. */
  get text(): string {
    return this.response.dispatch?.text ?? "";
  }
  /**
   * Why this agent, such as "STICKY": a RouteReason, or the number of one that this release does
   * not know. "UNSPECIFIED" without a dispatch, and if degraded.
   */
  get reason(): string {
    return reasonName(this.response.dispatch?.reason ?? RouteReason.UNSPECIFIED);
  }
  /** Whether the agent had asked something, and this message is taken for the answer. */
  get locked(): boolean {
    return this.response.dispatch?.locked ?? false;
  }
  /** The handoff that led here, if one did. */
  get handoff(): Handoff | undefined {
    return this.response.dispatch?.handoff;
  }
  /** The agent that got the session's message before this one: the same one while it sticks. */
  get previousAgentId(): string | undefined {
    return this.response.dispatch?.previousAgentId || undefined;
  }
  /** What to show the user at once, before any agent's answer: a command's. */
  get replyText(): string | undefined {
    return this.response.reply?.text;
  }
  /** A switch that is offered to the user, if one is. */
  get suggestion(): Suggestion | undefined {
    return this.response.suggestion;
  }
  /** Whether an agent got the message with no call of the supervisor. */
  get supervisorBypassed(): boolean {
    return this.response.supervisorBypassed;
  }
}

/** Returns a reason by name, or the number of one that this release does not know. */
export function reasonName(reason: RouteReason): string {
  return RouteReason[reason] ?? String(reason);
}
