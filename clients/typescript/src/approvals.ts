// A watch of what waits for an approval: each connection begins with everything that waits.

import { create, equals } from "@bufbuild/protobuf";
import type { CallOptions, CallSettings } from "./call.js";
import {
  EndedApprovalSchema,
  type WaitingApproval,
  WaitingApprovalSchema,
  type WatchApprovalsRequest,
  type WatchApprovalsResponse,
} from "./gen/agent_routing/v1/routing_service_pb.js";
import { overConnections } from "./reconnecting.js";

/** What began or changed (waiting), or what waits no longer (ended). */
export type ApprovalNews = Extract<
  WatchApprovalsResponse["kind"],
  { case: "waiting" } | { case: "ended" }
>;

/** Yields what is new for the caller, over as many connections as necessary. */
export async function* watchWaiting(
  settings: CallSettings,
  request: WatchApprovalsRequest,
  awayMsMax: number,
  options: Pick<CallOptions, "signal" | "headers">,
): AsyncGenerator<ApprovalNews, void, void> {
  const seen = new Map<string, WaitingApproval>();
  let notAgain = new Set<string>();
  const watched = { method: "WatchApprovals", sessionId: "", awayMsMax };
  const messages = overConnections(settings, watched, options, (stub, more) =>
    stub.routing.watchApprovals(request, more),
  );
  for await (const [{ kind }, isFirst] of messages) {
    if (isFirst) notAgain = new Set(seen.keys());
    if (kind.case === "waiting") {
      const key = keyOf(kind.value.sessionId, kind.value.approval?.requestId);
      notAgain.delete(key);
      const before = seen.get(key);
      if (before !== undefined && equals(WaitingApprovalSchema, before, kind.value)) continue;
      seen.set(key, kind.value);
      yield kind;
    } else if (kind.case === "ended") {
      if (seen.delete(keyOf(kind.value.sessionId, kind.value.requestId))) yield kind;
    } else if (kind.case === "heartbeat" && kind.value.isComplete) {
      // What ended while there was no connection.
      for (const key of [...notAgain].sort()) {
        const { sessionId, approval } = seen.get(key) as WaitingApproval;
        seen.delete(key);
        const requestId = approval?.requestId ?? "";
        yield { case: "ended", value: create(EndedApprovalSchema, { sessionId, requestId }) };
      }
      notAgain = new Set();
    }
  }
}

/** Ids have no line breaks. */
function keyOf(sessionId: string, requestId = ""): string {
  return `${sessionId}\n${requestId}`;
}
