// Exports that both clients share.

export type { ApprovalNews } from "./approvals.js";
export type { AskOptions } from "./askCalls.js";
export type { AskedPart } from "./asking.js";
export { Asked, NoAnswerYet } from "./asking.js";
export type { CallInfo, CallOptions, TokenSource } from "./call.js";
export type { Circuit, CircuitState } from "./circuit.js";
export * from "./errors.js";
export type { Agent } from "./gen/agent_routing/v1/agent_pb.js";
export { AgentKind } from "./gen/agent_routing/v1/agent_pb.js";
export { ClearScope } from "./gen/agent_routing/v1/clear_scope_pb.js";
export type { Dispatch, ReplyOption, Suggestion } from "./gen/agent_routing/v1/dispatch_pb.js";
export { Decision } from "./gen/agent_routing/v1/dispatch_pb.js";
export type { Handoff, Verdict } from "./gen/agent_routing/v1/handoff_pb.js";
export { HandoffMode, Initiator } from "./gen/agent_routing/v1/handoff_pb.js";
export { RouteReason } from "./gen/agent_routing/v1/route_reason_pb.js";
export type { Change, SessionEvent } from "./gen/agent_routing/v1/session_event_pb.js";
export type { Task } from "./gen/agent_routing/v1/task_pb.js";
export { TaskStatus } from "./gen/agent_routing/v1/task_pb.js";
export type { Turn } from "./gen/agent_routing/v1/turn_pb.js";
export { OutcomeStatus } from "./gen/agent_routing/v1/turn_pb.js";
export { newUuid7 } from "./ids.js";
export type { Fallback, HomeCache } from "./knownAgents.js";
export { MarkerFilter } from "./markerFilter.js";
export type { Answer, Outcome } from "./outcomes.js";
export * as outcomes from "./outcomes.js";
export type { RetryPolicy } from "./retry.js";
export { RouteResult, reasonName } from "./routeResult.js";
