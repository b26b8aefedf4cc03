// What ask() returns, and how it finds out what became of a message.
//
// Rule: that is read from Status and the history, never guessed from time. The watch only says when to
// look.

import { Overloaded, type RoutingError, WatchTooSlow } from "./errors.js";
import { AgentKind } from "./gen/agent_routing/v1/agent_pb.js";
import { Delivery, type Dispatch } from "./gen/agent_routing/v1/dispatch_pb.js";
import { RouteReason } from "./gen/agent_routing/v1/route_reason_pb.js";
import type {
  StatusResponse,
  WatchSessionRequest,
} from "./gen/agent_routing/v1/routing_service_pb.js";
import { AbandonCause, type Turn, TurnOutcome } from "./gen/agent_routing/v1/turn_pb.js";
import { isUndecided } from "./knownAgents.js";
import { backoffMs, type RetryPolicy } from "./retry.js";
import type { RouteResult } from "./routeResult.js";
import type { Watched } from "./watch.js";

/** How long ask() waits: longer than a person does, shorter than the service's turn_timeout. */
export const ASK_MS_DEFAULT = 300_000;

/** How long one watch of ask() lasts before it looks again. */
const ASK_WATCH_MS = 20_000;

/** Turns in a page that ask() reads: a message passes through far fewer agents. */
export const ASK_TURNS = 100;

/** The shortest wait before ask() tries again, whatever the client's retry policy says. */
const PAUSE_MS_MIN = 100;

/** Thrown by ask() after its time. The turn goes on: ask again with the same requestId. */
export class NoAnswerYet extends Error {
  /** The message's. */
  readonly requestId: string;
  /** The agent that has the message; empty while it is queued. */
  readonly agentId: string;

  constructor(requestId: string, agentId: string, waitMs: number) {
    const from = agentId === "" ? "" : ` from agent "${agentId}"`;
    const state = agentId === "" ? "it waits for the answer to the one before" : "its turn goes on";
    super(
      `no answer${from} in ${waitMs / 1000} s; ${state}: ask again with requestId ${requestId}`,
    );
    this.name = new.target.name;
    this.requestId = requestId;
    this.agentId = agentId;
  }
}

/**
 * Thrown by ask() if the agent that has the turn has no inbox: the caller has to carry it. route() with
 * the requestId returns its dispatch.
 */
export class NoInbox extends RangeError {
  /** The message's. */
  readonly requestId: string;
  readonly agentId: string;

  constructor(requestId: string, agentId: string) {
    super(
      `agent "${agentId}" has no inbox; carry request ${requestId} to it, or set delivery: inbox ` +
        "for it in the registry",
    );
    this.name = new.target.name;
    this.requestId = requestId;
    this.agentId = agentId;
  }
}

/**
 * What became of a message: how the last agent ended its turn, by the names of TurnOutcome, or why there
 * is no answer.
 *
 * - ABANDONED: none will come; cause says why. Ask as a new request.
 * - WITH_PEOPLE: people have the message. A watch of the session shows what they write.
 * - AWAITING_APPROVAL: a person has to decide first.
 * - QUEUED: the message waits behind one that people have.
 *
 * With the same requestId ask() returns what has become of the message since, and waits again if an
 * agent has it.
 */
export type AskedOutcome = Exclude<keyof typeof TurnOutcome, "UNSPECIFIED" | "SAID"> | WaitsFor;

/** Why a turn was abandoned. */
export type AskedCause = Exclude<keyof typeof AbandonCause, "UNSPECIFIED">;

/** An outcome that is not the end of a turn. */
export type WaitsFor = "WITH_PEOPLE" | "AWAITING_APPROVAL" | "QUEUED";

/** What became of a message: its answer, or why there is none yet or will be none. */
export class Asked {
  /** An outcome that is not the end of a turn, if it is one. */
  readonly waitsFor: WaitsFor | undefined;
  /** With WITH_PEOPLE: whether a person has claimed the conversation. */
  readonly claimed: boolean;
  /** Whether an earlier call sent this requestId, so that its caller gets the same answer. */
  readonly replayed: boolean;

  constructor(
    /** What route() returned. */
    readonly route: RouteResult,
    /** What the agents did, in order; empty for a command, and while the message is queued. */
    readonly turns: readonly Turn[] = [],
    more: { waitsFor?: WaitsFor | undefined; claimed?: boolean; replayed?: boolean } = {},
  ) {
    this.waitsFor = more.waitsFor;
    this.claimed = more.claimed ?? false;
    this.replayed = more.replayed ?? false;
  }

  /**
   * Everything that the user should see: the service's reply, and what the agents wrote. There is an
   * empty line between two texts.
   */
  get text(): string {
    const texts = this.turns.map((turn) => shownText(turn, this.turns));
    return joined([this.route.replyText ?? "", ...texts]);
  }
  /** What to show after the text: that the task was parked until its approval; or empty. */
  get notice(): string {
    return this.turns.at(-1)?.notice ?? "";
  }
  /** The agent that answered last, or has the message; empty for a command. */
  get agentId(): string {
    return this.turns.at(-1)?.agentId ?? "";
  }
  /** What became of the message; undefined for a command. */
  get outcome(): AskedOutcome | undefined {
    if (this.waitsFor !== undefined) return this.waitsFor;
    const end = this.#end;
    if (end === undefined) return this.route.response.queued ? "ABANDONED" : undefined;
    // A number that is newer than this client stays a number.
    return (TurnOutcome[outcomeOf(end)] ?? String(end.outcome)) as AskedOutcome;
  }
  /**
   * Why the turn was abandoned; undefined otherwise, and if the message was still queued when the
   * session was reset, or the service is older than these causes.
   */
  get cause(): AskedCause | undefined {
    const end = this.#end;
    if (end === undefined || this.outcome !== "ABANDONED") return undefined;
    // It is not stored as abandoned yet.
    if (end.outcome === TurnOutcome.UNSPECIFIED) return "TIMEOUT";
    if (end.abandonCause === AbandonCause.UNSPECIFIED) return undefined;
    return (AbandonCause[end.abandonCause] ?? String(end.abandonCause)) as AskedCause;
  }
  /** The session. */
  get sessionId(): string {
    return this.route.sessionId;
  }
  /** The request of the message: ask() with it again returns the same answer. */
  get requestId(): string {
    return this.route.requestId;
  }
  get #end(): Turn | undefined {
    return this.turns.filter((turn) => turn.outcome !== TurnOutcome.SAID).at(-1);
  }
}

/** A part of an answer, or a note. */
export interface AskedPart {
  /** What to append to the text of its turn, which requestId and agentId name. */
  readonly text: string;
  readonly agentId: string;
  readonly requestId: string;
  /** text is a note for the user while they wait, and not part of the answer. */
  readonly isNote: boolean;
  /** text stands for everything of its turn so far; if it is empty, nothing of it counts. */
  readonly replaces: boolean;
  /** The whole answer, with the last part. */
  readonly asked?: Asked;
}

/** A message that was routed: what became of it so far, and how long that is waited for. */
export class Asking {
  /** The result; undefined as long as an agent may still answer. */
  asked: Asked | undefined;
  /** What followed so far. */
  turns: Turn[] = [];
  readonly #replayed: boolean;
  readonly #waitMs: number;
  readonly #untilMs: number;
  #watchUntilMs = 0;
  #attempts = 0;

  /** untilMs: on the clock of performance.now(). */
  constructor(
    readonly routed: RouteResult,
    /** The watch that says when to look again. */
    readonly watched: WatchSessionRequest,
    times: { waitMs: number; untilMs: number },
    replayed: boolean,
  ) {
    this.#replayed = replayed;
    this.#waitMs = times.waitMs;
    this.#untilMs = times.untilMs;
    const isAnswered = routed.dispatch === undefined && !routed.response.queued;
    if (isAnswered) this.#done();
  }

  #done(waitsFor?: WaitsFor, claimed = false): void {
    const more = { waitsFor, claimed, replayed: this.#replayed };
    this.asked = new Asked(this.routed, this.turns, more);
  }

  /** Tells whether the turns go back to the message, or it is queued and has none. */
  isFound(newestFirst: readonly Turn[], state: StatusResponse): boolean {
    const { requestId } = this.routed;
    return (
      this.#queueOf(state) !== undefined || newestFirst.some((turn) => turn.requestId === requestId)
    );
  }

  /**
   * Takes the session's state, and the turns, which were read after it. Throws NoInbox if the message
   * is now with an agent whose turns a caller carries.
   */
  look(state: StatusResponse, newestFirst: readonly Turn[]): void {
    this.turns = chainOf(this.routed.requestId, newestFirst);
    // Of a replica that has not seen the newest change.
    if (state.revision < (this.watched.afterRevision ?? 0n)) return;
    const chain = new Set(this.turns.map((turn) => turn.requestId)).add(this.routed.requestId);
    const waiting = state.openRequests.filter((open) => chain.has(open.requestId)).at(-1);
    const queue = this.#queueOf(state);
    if (waiting !== undefined) {
      checkInbox(waiting);
      // The claim of a parked task is not in its state.
      const claimed = state.claim !== undefined && waiting.taskId === state.task?.taskId;
      if (isWithPeople(waiting)) this.#done("WITH_PEOPLE", claimed);
    } else if (queue !== undefined) {
      const before = state.openRequests.filter((open) => open.taskId === queue).at(-1);
      if (before !== undefined && isWithPeople(before)) this.#done("QUEUED");
    } else {
      const isPaused = [state, ...state.parkedTasks].some(({ pendingApproval }) =>
        chain.has(pendingApproval?.requestId ?? ""),
      );
      this.#done(isPaused ? "AWAITING_APPROVAL" : undefined);
    }
  }

  /** Returns the task in which the message is queued; undefined if it is not. */
  #queueOf(state: StatusResponse): string | undefined {
    return [state, ...state.parkedTasks].find(({ queuedRequestIds }) =>
      queuedRequestIds.includes(this.routed.requestId),
    )?.task?.taskId;
  }

  /** Begins a watch; returns how long it may last. Throws NoAnswerYet if there is no time left. */
  beginWatchMs(): number {
    const nowMs = performance.now();
    if (nowMs >= this.#untilMs) {
      const agentId = this.turns.at(-1)?.agentId ?? this.routed.agentId ?? "";
      throw new NoAnswerYet(this.routed.requestId, agentId, this.#waitMs);
    }
    this.#attempts++;
    this.#watchUntilMs = Math.min(this.#untilMs, nowMs + ASK_WATCH_MS);
    return this.#watchUntilMs - nowMs;
  }

  /** Takes a message of the watch; tells whether to look again. */
  received(kind: Watched): boolean {
    this.#attempts = 0;
    return kind.case === "change";
  }

  /** Goes on while the service is away. Throws the error if it is a refusal, or time is up. */
  failed(error: RoutingError): void {
    Object.assign(error, { requestId: this.routed.requestId });
    const mayComeBack =
      isUndecided(error) || error instanceof Overloaded || error instanceof WatchTooSlow;
    if (!mayComeBack || performance.now() >= this.#untilMs) throw error;
    this.#attempts++;
    this.#watchUntilMs = this.#untilMs;
  }

  /** Returns how long to wait before the next look, after a watch or a failure. */
  pauseMs(policy: RetryPolicy): number {
    const pauseMs = Math.max(PAUSE_MS_MIN, backoffMs(policy, Math.max(1, this.#attempts)));
    return Math.max(0, Math.min(pauseMs, this.#watchUntilMs - performance.now()));
  }
}

/** Returns what the user should see of a turn, one of those that followed from a message. */
export function shownText(turn: Turn, turns: readonly Turn[]): string {
  if (isConsult(turn, turns) || wasGivenUp(turn)) return "";
  return joined([turn.agentText, turn.handoffMessage]);
}

/** Puts an empty line between texts that are not empty. */
function joined(texts: string[]): string {
  return texts.filter((text) => text !== "").join("\n\n");
}

/** Throws NoInbox for a turn that the caller has to carry. */
export function checkInbox(dispatch: Dispatch): void {
  if (dispatch.delivery !== Delivery.INBOX) {
    throw new NoInbox(dispatch.requestId, dispatch.agent?.agentId ?? "");
  }
}

/** Returns the turns that followed from a request, itself included, the oldest first. */
function chainOf(requestId: string, newestFirst: readonly Turn[]): Turn[] {
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

/** Returns how a turn ended. An answer to one that was given up counts as none. */
function outcomeOf(turn: Turn): TurnOutcome {
  const isAbandoned = turn.outcome === TurnOutcome.UNSPECIFIED || wasGivenUp(turn);
  return isAbandoned ? TurnOutcome.ABANDONED : turn.outcome;
}

const GIVEN_UP: ReadonlySet<AbandonCause> = new Set([
  AbandonCause.RESET,
  AbandonCause.CLEARED,
  AbandonCause.COMMAND,
  AbandonCause.CANCELLED,
  AbandonCause.REPLACED,
  AbandonCause.ERASED,
]);

/** Tells whether the user, or somebody for them, gave the turn up: a late answer is not shown. */
function wasGivenUp(turn: Turn): boolean {
  return GIVEN_UP.has(turn.abandonCause);
}

function isWithPeople(dispatch: Dispatch): boolean {
  return dispatch.agent?.kind === AgentKind.HUMAN;
}

/** Tells whether an answer was for the agent that asked, and not for the user. */
function isConsult(turn: Turn, turns: readonly Turn[]): boolean {
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
