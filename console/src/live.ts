// Streams of the server: opened again after an outage, closed while the page is hidden or left, and
// compared with the server's clock, so that the page says when it is behind.

import type { Change } from "@agent-routing/v1";
import { Code, ConnectError } from "@connectrpc/connect";
import { admin, serverNowMs } from "./calls";

/**
 * connecting: nothing has come yet. late: what comes was sent more than LATE_MS ago. behind: nothing
 * has come for SILENCE_MS_MAX.
 */
export type LiveState = "connecting" | "live" | "late" | "behind";

const HEARTBEAT_S = 5;
/** Two heartbeats may be lost before the page says so. */
const SILENCE_MS_MAX = 12_000;
const RETRY_MS = [500, 1_000, 2_000, 5_000];
/** The server's time is known to a second. */
const LATE_MS = 3_000;
/** A page that is hidden for longer has no stream. */
const HIDDEN_MS = 5_000;
/** After this time the page is read again rather than brought up to date change by change. */
const AWAY_MS_MAX = 60_000;
/** People do not see the difference, and the server sends one message instead of many. */
const BATCH_MS = 100;

export const heartbeatInterval = { seconds: BigInt(HEARTBEAT_S), nanos: 0 };

export interface Stream<Message> {
  open: (signal: AbortSignal) => AsyncIterable<Message>;
  onMessage: (message: Message) => void;
  /** When the server made or sent a message, if it says so. */
  timeOf: (message: Message) => { seconds: bigint; nanos: number } | undefined;
  onState: (state: LiveState) => void;
  /** Whether an error ends it; it is thrown then. Others are tried again. */
  isFinal: (code: Code) => boolean;
  /** Whether there is nothing more to come after the end of an answer. Not given: there always is. */
  isWhole?: () => boolean;
}

function msOf(time: { seconds: bigint; nanos: number }): number {
  return Number(time.seconds) * 1_000 + time.nanos / 1e6;
}

/**
 * Whether the browser has left the page and keeps it for Back. A stream that such a page had would stay
 * open, and a browser opens six connections to a server: after five pages nothing would load.
 */
let isLeft = false;
addEventListener("pagehide", () => (isLeft = true));
addEventListener("pageshow", () => (isLeft = false));

function isUnseen(): boolean {
  return isLeft || document.hidden;
}

/** Waits for a time, and then until the page is seen: a page that is not seen reads nothing. */
export async function pause(ms: number, signal: AbortSignal): Promise<void> {
  await new Promise((resolve) => setTimeout(resolve, ms));
  await seen(signal);
}

/** Waits until the page is seen; returns for how long it was not, in milliseconds. */
async function seen(signal: AbortSignal): Promise<number> {
  const sinceMs = Date.now();
  while (isUnseen() && !signal.aborted) {
    await new Promise((resolve) => {
      document.addEventListener("visibilitychange", resolve, { once: true });
      addEventListener("pageshow", resolve, { once: true });
      signal.addEventListener("abort", resolve, { once: true });
    });
  }
  return Date.now() - sinceMs;
}

/** Returns a signal that is aborted with another one, or when the page is left or hidden for a while. */
function whileSeen(signal: AbortSignal): { signal: AbortSignal; end: () => void } {
  const stopped = new AbortController();
  let hiding = 0;
  const stop = () => stopped.abort();
  const look = () => {
    clearTimeout(hiding);
    if (document.hidden) hiding = setTimeout(stop, HIDDEN_MS);
  };
  document.addEventListener("visibilitychange", look);
  addEventListener("pagehide", stop);
  signal.addEventListener("abort", stop);
  look();
  return {
    signal: stopped.signal,
    end: () => {
      clearTimeout(hiding);
      document.removeEventListener("visibilitychange", look);
      removeEventListener("pagehide", stop);
      signal.removeEventListener("abort", stop);
    },
  };
}

/** Follows a stream until it is stopped. Throws an error that a repeat cannot mend. */
export async function followStream<Message>(
  stream: Stream<Message>,
  signal: AbortSignal,
  /** The page was hidden for so long. */
  onAway: (ms: number) => void = () => {},
): Promise<void> {
  let failures = 0;
  let silence = 0;
  let state: LiveState = "live";
  const heard = () => {
    clearTimeout(silence);
    silence = setTimeout(() => stream.onState("behind"), SILENCE_MS_MAX);
  };
  stream.onState("connecting");
  heard();
  try {
    while (!signal.aborted) {
      const open = whileSeen(signal);
      try {
        for await (const message of stream.open(open.signal)) {
          heard();
          const time = stream.timeOf(message);
          if (time !== undefined) state = serverNowMs() - msOf(time) > LATE_MS ? "late" : "live";
          stream.onState(state);
          failures = 0;
          stream.onMessage(message);
        }
        if (stream.isWhole?.()) return;
      } catch (error) {
        if (signal.aborted) return;
        if (!open.signal.aborted && stream.isFinal(ConnectError.from(error).code)) throw error;
      } finally {
        open.end();
      }
      if (isUnseen()) {
        clearTimeout(silence);
        stream.onState("connecting");
        onAway(await seen(signal));
        heard();
        continue;
      }
      stream.onState("behind");
      const wait = RETRY_MS[Math.min(failures++, RETRY_MS.length - 1)];
      await new Promise((resolve) => setTimeout(resolve, wait));
    }
  } finally {
    clearTimeout(silence);
  }
}

export function isRefusal(code: Code): boolean {
  return code === Code.Unauthenticated || code === Code.PermissionDenied;
}

/** Follows the changes until it is stopped. Throws an error that a repeat cannot mend. */
export function follow(
  onChanges: (changes: Change[]) => void,
  /** Changes may have been missed, or the stream has just begun: read the page again. */
  onGap: () => void,
  onState: (state: LiveState) => void,
  signal: AbortSignal,
): Promise<void> {
  let cursor = "";
  let isNew = true;
  const batchInterval = { seconds: 0n, nanos: BATCH_MS * 1_000_000 };
  return followStream(
    {
      open: (signal) => {
        isNew = cursor === "";
        // A change comes at least once: it is recognised by its revision if it comes twice.
        return admin.watchEvents({ cursor, heartbeatInterval, batchInterval }, { signal });
      },
      timeOf: ({ kind }) => {
        if (kind.case === "heartbeat") return kind.value.sendTime;
        const last = kind.case === "batch" ? kind.value.changes.at(-1)?.kind : kind;
        return last?.case === "change" ? last.value.events.at(-1)?.eventTime : undefined;
      },
      onMessage: (message) => {
        if (isNew) onGap();
        isNew = false;
        cursor = message.cursor || cursor;
        const { kind } = message;
        const parts = kind.case === "batch" ? kind.value.changes.map((each) => each.kind) : [kind];
        const changes = parts.flatMap((each) => (each.case === "change" ? [each.value] : []));
        if (changes.length > 0) onChanges(changes);
        if (parts.some((each) => each.case === "unreadable")) onGap();
      },
      onState,
      isFinal: (code) => {
        // The position is no longer kept.
        if (code === Code.OutOfRange || code === Code.InvalidArgument) cursor = "";
        return isRefusal(code);
      },
    },
    signal,
    (ms) => {
      if (ms > AWAY_MS_MAX) cursor = "";
    },
  );
}
