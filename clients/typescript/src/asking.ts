// What ask() returns, and how it finds out that a message was answered.

import { Delivery, type Dispatch } from "./gen/agent_routing/v1/dispatch_pb.js";
import { RouteReason } from "./gen/agent_routing/v1/route_reason_pb.js";
import { type Turn, TurnOutcome } from "./gen/agent_routing/v1/turn_pb.js";
import type { RouteResult } from "./routeResult.js";

/** How long ask() waits: longer than a person does, shorter than the service's turn_timeout. */
export const ASK_MS_DEFAULT = 300_000;

/** How long one watch of ask() lasts before it looks again. */
export const ASK_WATCH_MS = 20_000;

/** Turns that ask() reads: a message passes through far fewer agents. */
export const ASK_TURNS = 100;

/** Thrown by ask() after its time. The turn goes on: ask again with the same requestId. */
export class NoAnswerYet extends Error {
  readonly requestId: string;

  constructor(routed: RouteResult, waitMs: number) {
    super(
      `no answer from agent "${routed.agentId}" in ${waitMs / 1000} s; its turn goes on: ask again ` +
        `with requestId ${routed.requestId}`,
    );
    this.name = new.target.name;
    this.requestId = routed.requestId;
  }
}

/** The answer to a message. */
export class Asked {
  constructor(
    /** What route() returned. */
    readonly route: RouteResult,
    /** What the agents did, in order; empty for a command. */
    readonly turns: readonly Turn[] = [],
  ) {}

  /** Everything that the user should see, with an empty line between two agents' texts. */
  get text(): string {
    if (this.turns.length === 0) return this.route.replyText ?? "";
    return this.turns
      .filter((turn) => !isConsult(turn, this.turns))
      .flatMap((turn) => [turn.agentText, turn.handoffMessage])
      .filter((text) => text !== "")
      .join("\n\n");
  }
  /** What to show after the text: that the task was parked until its approval; or empty. */
  get notice(): string {
    return this.turns.at(-1)?.notice ?? "";
  }
  /** The agent that answered last; empty for a command. */
  get agentId(): string {
    return this.turns.at(-1)?.agentId ?? "";
  }
  /**
   * How the last agent ended its turn; undefined for a command.
   *
   * ABANDONED: there is no answer, and none will come. A newer message may have taken the turn's place,
   * its time may have run out, or its workers may have died: ask as a new request. FAILURE and
   * APPROVAL_NEEDED usually have no text either.
   */
  get outcome(): TurnOutcome | undefined {
    const last = this.turns.filter((turn) => turn.outcome !== TurnOutcome.SAID).at(-1);
    // The turn is not open: one whose time ran out may not be stored as abandoned yet.
    return last && (last.outcome || TurnOutcome.ABANDONED);
  }
  /** The session. */
  get sessionId(): string {
    return this.route.sessionId;
  }
  /** The request of the message: ask() with it again returns the same answer. */
  get requestId(): string {
    return this.route.requestId;
  }
}

/** A part of an answer, or a note. */
export interface AskedPart {
  /** What to append to the text of its request. */
  readonly text: string;
  readonly agentId: string;
  readonly requestId: string;
  /** text is a note for the user while they wait, and not part of the answer. */
  readonly isNote: boolean;
  /** text stands for everything of its request so far. */
  readonly replaces: boolean;
  /** The whole answer, with the last part. */
  readonly asked?: Asked;
}

/** Throws RangeError for a turn that the caller has to carry. */
export function checkInbox(dispatch: Dispatch): void {
  if (dispatch.delivery !== Delivery.INBOX) {
    throw new RangeError(
      `agent "${dispatch.agent?.agentId}" has no inbox; carry request ${dispatch.requestId} to it, ` +
        "or set delivery: inbox for it in the registry",
    );
  }
}

/** Returns the turns that followed from a request, itself included, the oldest first. */
export function chainOf(requestId: string, newestFirst: readonly Turn[]): Turn[] {
  const known = new Set([requestId]);
  const found = [...newestFirst].reverse().filter((turn) => {
    const isOfChain = known.has(turn.requestId) || known.has(turn.parentRequestId);
    if (isOfChain) known.add(turn.requestId);
    return isOfChain;
  });
  // What an agent said in its turn was read before its answer, but its turn began earlier.
  const said = found.filter((turn) => turn.outcome === TurnOutcome.SAID);
  return found
    .filter((turn) => turn.outcome !== TurnOutcome.SAID)
    .flatMap((turn) => [...said.filter((one) => one.parentRequestId === turn.requestId), turn]);
}

/** Tells whether one of the requests still waits for an answer. */
export function isOpen(turns: readonly Turn[], openRequests: readonly Dispatch[]): boolean {
  const requests = new Set(turns.map((turn) => turn.requestId));
  return turns.length === 0 || openRequests.some((open) => requests.has(open.requestId));
}

/** Tells whether an answer was for the agent that asked, and not for the user. */
export function isConsult(turn: Turn, turns: readonly Turn[]): boolean {
  return (
    turn.reason === RouteReason.CONSULTED &&
    turns.some(
      (after) =>
        after.parentRequestId === turn.requestId &&
        after.reason === RouteReason.CONSULTED &&
        after.agentId === turn.fromAgentId,
    )
  );
}
