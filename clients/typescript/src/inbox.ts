// A worker's stream of turns, over its connections: the resume token, and which turns are new.

import type { CallOptions, CallSettings } from "./call.js";
import type { InboxItem, WatchInboxRequest } from "./gen/agent_routing/v1/routing_service_pb.js";
import { overConnections } from "./reconnecting.js";

/** Yields the turns that wait for a worker's agents, over as many connections as necessary. */
export async function* watchTurns(
  settings: CallSettings,
  request: WatchInboxRequest,
  awayMsMax: number,
  options: Pick<CallOptions, "signal" | "headers">,
): AsyncGenerator<InboxItem, void, void> {
  const watched = { method: "WatchInbox", sessionId: "", awayMsMax };
  const messages = overConnections(settings, watched, options, (stub, more) =>
    stub.routing.watchInbox(request, more),
  );
  for await (const [{ kind }] of messages) {
    if (kind.case === "heartbeat") request.resumeToken = kind.value.resumeToken;
    else if (kind.case === "item") yield kind.value;
  }
}
