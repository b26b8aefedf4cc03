// The fields that the client's methods take, and what is made of them.

import type { DescMessage, MessageInitShape } from "@bufbuild/protobuf";
import type {
  CancelTaskRequestSchema,
  ClaimTurnRequestSchema,
  ClearActiveAgentRequestSchema,
  CompleteTurnRequestSchema,
  KeepTurnRequestSchema,
  ReleaseTurnRequestSchema,
  RouteRequestSchema,
  SetActiveAgentRequestSchema,
} from "./gen/agent_routing/v1/routing_service_pb.js";
import type { Outcome } from "./outcomes.js";

/** The fields of a request. The contract says which of them are optional. */
export type Fields<Desc extends DescMessage> = Omit<
  MessageInitShape<Desc>,
  "$typeName" | "$unknown"
>;

/** As Fields, but the revision may also be a number. */
type WithRevision<Desc extends DescMessage> = Omit<Fields<Desc>, "expectedRevision"> & {
  /** Refuse unless the session is at this revision; 0: the session is new. Default: not checked. */
  expectedRevision?: bigint | number | undefined;
};

export type RouteFields = WithRevision<typeof RouteRequestSchema>;
export type SetActiveAgentFields = WithRevision<typeof SetActiveAgentRequestSchema>;
export type CancelTaskFields = WithRevision<typeof CancelTaskRequestSchema>;
export type ClearActiveAgentFields = WithRevision<typeof ClearActiveAgentRequestSchema>;
export type CompleteTurnFields = Omit<Fields<typeof CompleteTurnRequestSchema>, "outcome"> & {
  /** How the turn ended, made with outcomes. */
  outcome: Outcome;
};
export type AskFields = RouteFields & {
  /** Required, so that a repeat finds the session. */
  sessionId: string;
};
export type KeepTurnFields = Omit<Fields<typeof KeepTurnRequestSchema>, "act"> & {
  /** How long the lease runs from now on, 1 s to 1 h. Default: the lease stays as it is. */
  extendMs?: number;
  /** Give the turn back, to any worker. */
  release?: boolean;
};
export type ClaimTurnFields = WithRevision<typeof ClaimTurnRequestSchema>;
export type ReleaseTurnFields = WithRevision<typeof ReleaseTurnRequestSchema>;
export type SayFields = Pick<
  Fields<typeof KeepTurnRequestSchema>,
  "sessionId" | "userId" | "agentId" | "requestId" | "taskId" | "messageId"
> & {
  /** What the user gets. */
  text: string;
};
export type WatchFields = {
  sessionId: string;
  userId?: string;
  /** The last revision seen; 0: from the beginning. Default: only new changes. */
  afterRevision?: bigint | number;
  /** The longest silence of the connection before a heartbeat, 1 s to 5 min. Default 15,000. */
  heartbeatIntervalMs?: number;
};

/** Returns the fields with the revision as a bigint. */
export function withRevision<T extends { expectedRevision?: bigint | number | undefined }>(
  fields: T,
): Omit<T, "expectedRevision"> & { expectedRevision?: bigint } {
  const { expectedRevision, ...others } = fields;
  return expectedRevision === undefined
    ? others
    : { ...others, expectedRevision: BigInt(expectedRevision) };
}
