// A watch of one session: up to where the caller has seen everything.
//
// The caller gets every change exactly once and in order, over any number of connections.

import type { CallOptions, CallSettings } from "./call.js";
import type {
  WatchSessionRequest,
  WatchSessionResponse,
} from "./gen/agent_routing/v1/routing_service_pb.js";
import type { Change } from "./gen/agent_routing/v1/session_event_pb.js";
import { overConnections } from "./reconnecting.js";

/** How long the service may be away: longer than a restart or an upgrade. No user is waiting. */
export const AWAY_MS_DEFAULT = 60_000;

/** Yields a session's changes, over as many connections as necessary. */
export async function* watchChanges(
  settings: CallSettings,
  request: WatchSessionRequest,
  awayMsMax: number,
  options: Pick<CallOptions, "signal" | "headers">,
): AsyncGenerator<Change, void, void> {
  for await (const kind of watchMessages(settings, request, awayMsMax, options)) {
    if (kind.case === "change") yield kind.value;
  }
}

/** What a watch brings, but for heartbeats: changes, and the parts and notes that it asks for. */
export type Watched = WatchSessionResponse["kind"];

/** Yields what a watch brings, over as many connections as necessary. */
export async function* watchMessages(
  settings: CallSettings,
  request: WatchSessionRequest,
  awayMsMax: number,
  options: Pick<CallOptions, "signal" | "headers">,
): AsyncGenerator<Watched, void, void> {
  const watched = { method: "WatchSession", sessionId: request.sessionId, awayMsMax };
  const messages = overConnections(settings, watched, options, (stub, more) =>
    stub.routing.watchSession(request, more),
  );
  for await (const [{ kind }, isFirst] of messages) {
    if (kind.case === "change") request.afterRevision = kind.value.revision;
    if (kind.case !== "heartbeat") {
      yield kind;
    } else if (!isFirst || request.afterRevision === undefined) {
      // The first heartbeat carries the session's revision, not the stream's position. The
      // caller starts there only if it did not ask for earlier changes.
      request.afterRevision = kind.value.revision;
    }
  }
}
