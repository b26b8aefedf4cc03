// The contract's generated messages, enums and services, for calls without a method in the client.

export * from "./gen/agent_routing/v1/admin_service_pb.js";
export * from "./gen/agent_routing/v1/agent_pb.js";
export * from "./gen/agent_routing/v1/clear_scope_pb.js";
export * from "./gen/agent_routing/v1/dispatch_pb.js";
export * from "./gen/agent_routing/v1/error_reason_pb.js";
export * from "./gen/agent_routing/v1/handoff_pb.js";
export * from "./gen/agent_routing/v1/item_pb.js";
export * from "./gen/agent_routing/v1/moved_turn_pb.js";
export * from "./gen/agent_routing/v1/route_reason_pb.js";
export * from "./gen/agent_routing/v1/routing_service_pb.js";
export * from "./gen/agent_routing/v1/session_event_pb.js";
export * from "./gen/agent_routing/v1/task_pb.js";
export * from "./gen/agent_routing/v1/topic_detector_service_pb.js";
export * from "./gen/agent_routing/v1/turn_pb.js";
