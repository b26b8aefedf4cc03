// What waits for an approval: followed by WatchApprovals, those with the earliest deadline first.

import type { WaitingApproval } from "@agent-routing/v1";
import { Code } from "@connectrpc/connect";
import { routing } from "./calls";
import { followStream, heartbeatInterval, isRefusal, type LiveState } from "./live";

/** What comes within this time is shown together. */
const SHOW_EVERY_MS = 100;

export function keyOf(each: WaitingApproval): string {
  return `${each.sessionId} ${each.approval?.requestId}`;
}

/** Those without a deadline come last, the oldest first. */
export function byDeadline(one: WaitingApproval, other: WaitingApproval): number {
  const due = (each: WaitingApproval) => each.approval?.expireTime?.seconds ?? 1n << 62n;
  const since = (each: WaitingApproval) => each.approval?.pauseTime?.seconds ?? 0n;
  return Number(due(one) - due(other)) || Number(since(one) - since(other));
}

/** Follows what waits until it is stopped. Throws an error that a repeat cannot mend. */
export async function followApprovals(
  onWaiting: (waiting: WaitingApproval[]) => void,
  onState: (state: LiveState) => void,
  signal: AbortSignal,
): Promise<void> {
  let showTimer = 0;
  let waiting = new Map<string, WaitingApproval>();
  let isComplete = false;
  const show = () => {
    showTimer = 0;
    onWaiting([...waiting.values()].sort(byDeadline));
  };
  try {
    await followStream(
      {
        open: (signal) => {
          // A new stream sends everything that waits again.
          waiting = new Map();
          isComplete = false;
          return routing.watchApprovals({ heartbeatInterval }, { signal });
        },
        timeOf: ({ kind }) => (kind.case === "heartbeat" ? kind.value.sendTime : undefined),
        onMessage: ({ kind }) => {
          if (kind.case === "waiting") waiting.set(keyOf(kind.value), kind.value);
          else if (kind.case === "ended") {
            waiting.delete(`${kind.value.sessionId} ${kind.value.requestId}`);
          } else if (kind.case === "heartbeat") isComplete ||= kind.value.isComplete;
          if (isComplete && showTimer === 0) showTimer = setTimeout(show, SHOW_EVERY_MS);
        },
        onState,
        isFinal: (code) => isRefusal(code) || code === Code.FailedPrecondition,
      },
      signal,
    );
  } finally {
    clearTimeout(showTimer);
  }
}
