// The stream of changes: opened again after an outage at the position where it ended, so that no change
// is missed, and a change that comes twice is recognised by its revision.

import type { Change } from "@agent-routing/v1";
import { Code, ConnectError } from "@connectrpc/connect";
import { admin } from "./calls";

/** connecting: nothing has come yet. behind: nothing has come for SILENCE_MS_MAX. */
export type LiveState = "connecting" | "live" | "behind";

const HEARTBEAT_S = 5;
/** Two heartbeats may be lost before the page says so. */
const SILENCE_MS_MAX = 12_000;
const RETRY_MS = [500, 1_000, 2_000, 5_000];

/** Follows the changes until it is stopped. Throws an error that a repeat cannot mend. */
export async function follow(
  onChange: (change: Change) => void,
  /** Changes may have been missed, or the stream has just begun: read the page again. */
  onGap: () => void,
  onState: (state: LiveState) => void,
  signal: AbortSignal,
): Promise<void> {
  let cursor = "";
  let failures = 0;
  let silence = 0;
  const heard = () => {
    clearTimeout(silence);
    silence = setTimeout(() => onState("behind"), SILENCE_MS_MAX);
  };
  onState("connecting");
  heard();
  try {
    while (!signal.aborted) {
      try {
        const heartbeatInterval = { seconds: BigInt(HEARTBEAT_S), nanos: 0 };
        const stream = admin.watchEvents({ cursor, heartbeatInterval }, { signal });
        if (cursor === "") onGap();
        for await (const message of stream) {
          heard();
          onState("live");
          if (cursor === "") onGap();
          failures = 0;
          cursor = message.cursor || cursor;
          if (message.kind.case === "change") onChange(message.kind.value);
          else if (message.kind.case === "unreadable") onGap();
        }
      } catch (error) {
        if (signal.aborted) return;
        const { code } = ConnectError.from(error);
        if (code === Code.Unauthenticated || code === Code.PermissionDenied) throw error;
        if (code === Code.OutOfRange || code === Code.InvalidArgument) cursor = "";
      }
      onState("behind");
      const wait = RETRY_MS[Math.min(failures++, RETRY_MS.length - 1)];
      await new Promise((resolve) => setTimeout(resolve, wait));
    }
  } finally {
    clearTimeout(silence);
  }
}
