// What waits for an approval: followed by WatchApprovals, those with the earliest deadline first.

import type { WaitingApproval } from "@agent-routing/v1";
import { Code, ConnectError } from "@connectrpc/connect";
import { routing } from "./calls";
import type { LiveState } from "./live";

const HEARTBEAT_S = 5;
const SILENCE_MS_MAX = 12_000;
const RETRY_MS = [500, 1_000, 2_000, 5_000];
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
  let failures = 0;
  let silence = 0;
  let showTimer = 0;
  const heard = () => {
    clearTimeout(silence);
    silence = setTimeout(() => onState("behind"), SILENCE_MS_MAX);
  };
  onState("connecting");
  heard();
  try {
    while (!signal.aborted) {
      // A new stream sends everything that waits again.
      const waiting = new Map<string, WaitingApproval>();
      let isComplete = false;
      const show = () => {
        showTimer = 0;
        onWaiting([...waiting.values()].sort(byDeadline));
      };
      try {
        const heartbeatInterval = { seconds: BigInt(HEARTBEAT_S), nanos: 0 };
        for await (const { kind } of routing.watchApprovals({ heartbeatInterval }, { signal })) {
          heard();
          onState("live");
          failures = 0;
          if (kind.case === "waiting") waiting.set(keyOf(kind.value), kind.value);
          else if (kind.case === "ended") {
            waiting.delete(`${kind.value.sessionId} ${kind.value.requestId}`);
          }
          else if (kind.case === "heartbeat") isComplete ||= kind.value.isComplete;
          if (isComplete && showTimer === 0) showTimer = setTimeout(show, SHOW_EVERY_MS);
        }
      } catch (error) {
        if (signal.aborted) return;
        const { code } = ConnectError.from(error);
        const isFinal = [Code.Unauthenticated, Code.PermissionDenied, Code.FailedPrecondition];
        if (isFinal.includes(code)) throw error;
      }
      onState("behind");
      const wait = RETRY_MS[Math.min(failures++, RETRY_MS.length - 1)];
      await new Promise((resolve) => setTimeout(resolve, wait));
    }
  } finally {
    clearTimeout(silence);
    clearTimeout(showTimer);
  }
}
