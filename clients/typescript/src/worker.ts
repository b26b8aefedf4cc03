// A worker: runs agents as functions, on turns from their inboxes.
//
//   const worker = new Worker("127.0.0.1:50051");
//   worker.agent("vat", async (turn) => outcomes.followUp("Monthly or quarterly?"));
//   await worker.run();
//
// Rule: a turn is answered under its lease. The worker extends the lease while the function runs,
// and aborts the function's signal when the turn is no longer its own. A worker that crashes lets
// the lease lapse, and the turn is delivered again: so a function may run more than once for a
// turn, and one answer counts.

import { hostname } from "node:os";
import { create, type JsonValue } from "@bufbuild/protobuf";
import { durationFromMs } from "@bufbuild/protobuf/wkt";
import type { CallOptions } from "./call.js";
import type { RoutingClient } from "./client.js";
import { LeaseLost, RequestNotOpen, RoutingError } from "./errors.js";
import type { Dispatch } from "./gen/agent_routing/v1/dispatch_pb.js";
import type { Item } from "./gen/agent_routing/v1/item_pb.js";
import {
  type CompleteTurnResponse,
  type InboxItem,
  type KeepTurnResponse,
  KeepTurnStatus,
  WatchInboxRequestSchema,
} from "./gen/agent_routing/v1/routing_service_pb.js";
import type { Turn } from "./gen/agent_routing/v1/turn_pb.js";
import { newUuid7 } from "./ids.js";
import { Client } from "./index.js";
import { type Answer, failure, type Outcome, proceed } from "./outcomes.js";
import { isPassing, TurnAnswer } from "./turnAnswer.js";
import { type Said, type StepFields, TurnReports } from "./turnReports.js";
import { positiveMs, sleep } from "./waiting.js";

export type { Answer } from "./outcomes.js";
export type { StepFields } from "./turnReports.js";

/** Turns at a time: agents wait for models most of the time. */
export const CONCURRENCY_DEFAULT = 10;
/** After a crash a turn waits this long for another worker. */
export const LEASE_MS_DEFAULT = 30_000;
/**
 * How often a function that throws is tried, before its turn ends with a failure. The service
 * abandons a turn after five leases without an answer.
 */
export const ATTEMPTS_DEFAULT = 3;
/**
 * How long running functions may take to end when the worker stops; then their turns are given
 * back. Kubernetes kills a process after 30 s.
 */
export const STOP_MS_DEFAULT = 20_000;
/** The longest pause before a function that threw is tried again; the first is a second. */
const RETRY_MS_MAX = 30_000;
/** How often a lease is extended while it runs, so that one lost call does not lose it. */
const KEEPS_PER_LEASE = 3;
/** What the history says of a turn whose function threw each time. The log has the error. */
const FAILED_MESSAGE = "the agent failed";
const WORKER_ID_CHARACTERS_MAX = 128;

/**
 * What a function returns: a text, an outcome, or an outcome with a text, items and steps; undefined
 * after turn.complete().
 */
export type Result = string | Outcome | Answer | undefined;
/**
 * An async generator yields the answer's text in parts, which watchers see at once, and at the end
 * an outcome if it is not proceed.
 */
export type AgentFunction = (
  turn: InboxTurn,
) => Result | AsyncIterable<Result> | Promise<Result | AsyncIterable<Result>>;

/**
 * What a worker reports: turn_lost, turn_left, agent_failed, answer_not_taken, lease_not_kept,
 * steps_not_reported, report_not_sent.
 */
export interface WorkerEvent {
  readonly name: string;
  readonly requestId: string;
  readonly agentId: string;
  readonly attempt: number;
  /** What failed, if something did. */
  readonly error?: unknown;
}

export interface WorkerOptions {
  /** Shown to operators, 1-128 characters. Default: host and process. */
  workerId?: string;
  /** Turns at a time, 1-1,000. Default 10. */
  concurrency?: number;
  /** How long a crash keeps a turn back. 1 s to 1 h. Default 30,000. */
  leaseMs?: number;
  /** How often a function that throws is tried. Default 3. */
  attempts?: number;
  /** How long functions may take to end when the worker stops. Default 20,000. */
  stopTimeoutMs?: number;
  /** Past turns to send along with each turn, as in route(). */
  historyTurns?: number;
  /** Gets what the worker reports. Default: a line for each on standard error. */
  onEvent?: (event: WorkerEvent) => void;
}

/** A turn for an agent's function. */
export class InboxTurn {
  constructor(
    /** The generated message, with everything. */
    readonly item: InboxItem,
    /** Aborted when the turn is no longer this worker's, or when the worker ends. */
    readonly signal: AbortSignal,
    readonly reports: TurnReports,
    readonly given: TurnAnswer,
  ) {}

  /** The whole dispatch: the handoff that led here, a decision, a question. */
  get dispatch(): Dispatch {
    return this.item.dispatch as Dispatch;
  }
  /** The user's message, without its command. */
  get text(): string {
    return this.dispatch.text;
  }
  /** Images and files of the message. */
  get items(): readonly Item[] {
    return this.dispatch.items;
  }
  /** Past turns that the agent may see, the oldest first. */
  get history(): readonly Turn[] {
    return this.dispatch.history;
  }
  get sessionId(): string {
    return this.item.sessionId;
  }
  /** The user of the session; empty if it has none. */
  get userId(): string {
    return this.item.userId;
  }
  /** The agent that must answer. */
  get agentId(): string {
    return this.dispatch.agent?.agentId ?? "";
  }
  /**
   * The request to answer, the same in each attempt: the key of what must happen once, such as a
   * payment.
   */
  get requestId(): string {
    return this.dispatch.requestId;
  }
  /** 1 for the first delivery of this turn. */
  get attempt(): number {
    return this.item.attempt;
  }
  /** The trace that this turn continues (W3C); empty if the service does not trace. */
  get traceparent(): string {
    return this.dispatch.traceparent;
  }

  /**
   * Reports something that was done, for the history and for watchers that ask for it. It is sent at
   * once, or 5 s after the report before: what was sent survives a crash. Of a turn 256 steps are
   * kept. What could not be sent goes with the answer.
   */
  step(step: StepFields): void {
    this.reports.step(step);
  }
  /**
   * Shows the user a line while they wait, such as "still looking". At most 1 KiB. It is stored
   * nowhere, and a note that cannot be sent is dropped. Never rejects.
   */
  async note(text: string): Promise<void> {
    await this.reports.note(text);
  }
  /**
   * Shows the next part of the answer. It is stored nowhere: return the whole text as well. A
   * function that yields its text does this by itself.
   */
  delta(text: string): void {
    this.reports.delta(text);
  }
  /**
   * Gives the answer now, and returns what became of it; the function then returns undefined. For an
   * outcome that may be refused, such as a handoff: after HandoffRefused give another answer. Waits
   * while the service is away.
   *
   * Throws what completeTurn() throws: LeaseLost or RequestNotOpen if the turn is no longer this
   * worker's. Error for a second answer.
   */
  async complete(answer: Answer): Promise<CompleteTurnResponse> {
    return await this.given.give(answer);
  }
}

/** Runs functions on the turns of their agents, until it is stopped. */
export class Worker {
  readonly #given: RoutingClient | string | readonly string[];
  readonly #workerId: string;
  readonly #concurrency: number;
  readonly #leaseMs: number;
  readonly #attempts: number;
  readonly #stopMs: number;
  readonly #historyTurns: number;
  readonly #onEvent: (event: WorkerEvent) => void;
  readonly #functions = new Map<string, AgentFunction>();
  /** By lease token. */
  readonly #running = new Map<string, Promise<void>>();
  #stopping = new AbortController();

  /** client: stays the caller's to close; or the address of the service, or of its replicas. */
  constructor(client: RoutingClient | string | readonly string[], options: WorkerOptions = {}) {
    this.#given = client;
    this.#workerId = options.workerId ?? ownName();
    this.#concurrency = options.concurrency ?? CONCURRENCY_DEFAULT;
    this.#leaseMs = positiveMs("leaseMs", options.leaseMs ?? LEASE_MS_DEFAULT);
    this.#attempts = options.attempts ?? ATTEMPTS_DEFAULT;
    this.#stopMs = positiveMs("stopTimeoutMs", options.stopTimeoutMs ?? STOP_MS_DEFAULT);
    this.#historyTurns = options.historyTurns ?? 0;
    this.#onEvent = options.onEvent ?? writeEvent;
  }

  /**
   * Registers the function of an agent, by its id. Throws RangeError for a second one.
   *
   * A function that waits for something passes turn.signal on: it cannot be stopped otherwise when
   * the turn is lost. A result that comes later is dropped.
   */
  agent(agentId: string, run: AgentFunction): this {
    if (this.#functions.has(agentId)) {
      throw new RangeError(`agent "${agentId}" has a function already`);
    }
    this.#functions.set(agentId, run);
    return this;
  }

  /** Serves until SIGINT or SIGTERM. Throws what serve() throws. */
  async run(): Promise<void> {
    const stop = () => this.stop();
    process.on("SIGINT", stop);
    process.on("SIGTERM", stop);
    try {
      await this.serve();
    } finally {
      process.off("SIGINT", stop);
      process.off("SIGTERM", stop);
    }
  }

  /** Takes no more turns, and ends serve() once the running functions have ended. */
  stop(): void {
    this.#stopping.abort();
  }

  /**
   * Takes turns until stop(). A service that is away is waited for, however long.
   *
   * Throws RangeError without functions; InvalidField, ScopeMissing, Unauthenticated and the other
   * refusals of the service.
   */
  async serve(): Promise<void> {
    if (this.#functions.size === 0) {
      throw new RangeError("the worker has no functions; register them with worker.agent(id, run)");
    }
    this.#stopping = new AbortController();
    const given = this.#given;
    const isAddress = typeof given === "string" || Array.isArray(given);
    const client = isAddress ? new Client(given as string | string[]) : (given as RoutingClient);
    const ending = new AbortController();
    try {
      await this.#take(client, ending.signal);
      await settledWithin([...this.#running.values()], this.#stopMs);
    } finally {
      // Running turns are given back; a function that ignores its signal is not waited for.
      ending.abort();
      await Promise.all(this.#running.values());
      if (isAddress) client.close();
    }
  }

  /** Reads the inbox until the worker stops. */
  async #take(client: RoutingClient, ending: AbortSignal): Promise<void> {
    const { signal } = this.#stopping;
    const request = create(WatchInboxRequestSchema, {
      agentIds: [...this.#functions.keys()],
      workerId: this.#workerId,
      capacity: this.#concurrency,
      lease: durationFromMs(this.#leaseMs),
      historyTurns: this.#historyTurns,
    });
    try {
      for await (const item of client.watchInbox(request, { signal })) {
        // Sent again after a lost connection; its function still runs.
        if (this.#running.has(item.leaseToken)) continue;
        const work = this.#work(client, item, ending);
        this.#running.set(item.leaseToken, work);
        void work.finally(() => this.#running.delete(item.leaseToken));
      }
    } catch (error) {
      if (!signal.aborted) throw error;
    }
  }

  /** Answers one turn, or leaves it to another attempt. Never throws. */
  async #work(client: RoutingClient, item: InboxItem, ending: AbortSignal): Promise<void> {
    const over = new AbortController();
    const reports: TurnReports = new TurnReports(
      (said) => this.#tell(client, turn, said, over.signal),
      item.stepsKnown,
      (name, error) => {
        if (!over.signal.aborted) this.#report(name, turn, error);
      },
    );
    const given = new TurnAnswer(client, item, reports, over.signal, ofItem(item));
    const turn = new InboxTurn(item, over.signal, reports, given);
    const answered = this.#answer(turn).then(
      () => "answered" as const,
      async (error: unknown) => {
        if (!over.signal.aborted) await this.#failed(client, turn, error);
        return "answered" as const;
      },
    );
    const lost = this.#keep(client, turn).then(() => "lost" as const);
    const ended = aborted(ending, over.signal).then(() => "ended" as const);
    switch (await Promise.race([answered, lost, ended])) {
      case "lost":
        // Its lease ended with its answer; the function may still end.
        if (given.isGiven) await answered;
        else this.#report("turn_lost", turn);
        break;
      case "ended":
        // Another worker gets the turn at once.
        over.abort();
        await this.#tell(client, turn, { release: true }).catch((error: unknown) =>
          this.#report("turn_left", turn, error),
        );
        break;
      default:
    }
    reports.stop();
    over.abort();
  }

  /** Runs an agent's function and reports what it returned. */
  async #answer(turn: InboxTurn): Promise<void> {
    const run = this.#functions.get(turn.agentId) as AgentFunction;
    const result = await run(turn);
    if (result === undefined && turn.given.isGiven) return;
    const answer = isStreamed(result) ? await streamed(turn, result) : answerOf(result);
    turn.signal.throwIfAborted();
    await turn.given.give(answer);
  }

  /** Lets a turn be tried again after a pause, or ends it with a failure. Never throws. */
  async #failed(client: RoutingClient, turn: InboxTurn, error: unknown): Promise<void> {
    if (error instanceof LeaseLost || error instanceof RequestNotOpen) {
      this.#report("answer_not_taken", turn, error);
      return;
    }
    this.#report("agent_failed", turn, error);
    if (turn.given.isGiven) return;
    try {
      if (turn.attempt >= this.#attempts) {
        await turn.given.give({ outcome: failure(FAILED_MESSAGE) });
      } else {
        // The lease lapses after the pause, and counts as an attempt.
        const extendMs = Math.min(1_000 * 2 ** (turn.attempt - 1), RETRY_MS_MAX);
        await this.#tell(client, turn, { extendMs });
      }
    } catch (left) {
      if (!turn.signal.aborted) this.#report("turn_left", turn, left);
    }
  }

  /** Extends a lease until the turn is no longer this worker's. Never throws. */
  async #keep(client: RoutingClient, turn: InboxTurn): Promise<void> {
    const everyMs = this.#leaseMs / KEEPS_PER_LEASE;
    let tookMs = 0;
    try {
      for (;;) {
        // A call that timed out is repeated at once: after another pause the lease would be over.
        await sleep(Math.max(0, everyMs - tookMs), turn.signal);
        const begunMs = performance.now();
        tookMs = 0;
        try {
          const kept = await this.#tell(client, turn, { extendMs: this.#leaseMs }, turn.signal);
          if (kept.status !== KeepTurnStatus.KEPT) return;
        } catch (error) {
          // An answer may still count: it is possible that no other worker has the turn.
          if (!isPassing(error)) throw error;
          tookMs = performance.now() - begunMs;
        }
      }
    } catch (error) {
      if (!turn.signal.aborted) this.#report("lease_not_kept", turn, error);
    }
  }

  async #tell(
    client: RoutingClient,
    turn: InboxTurn,
    act: { extendMs: number } | { release: true } | Said,
    signal?: AbortSignal,
  ): Promise<KeepTurnResponse> {
    return await client.keepTurn(
      {
        sessionId: turn.sessionId,
        requestId: turn.requestId,
        agentId: turn.agentId,
        leaseToken: turn.item.leaseToken,
        ...act,
      },
      {
        ...ofItem(turn.item),
        ...(signal && { signal }),
        timeoutMs: this.#leaseMs / KEEPS_PER_LEASE,
      },
    );
  }

  #report(name: string, turn: InboxTurn, error?: unknown): void {
    const { requestId, agentId, attempt } = turn;
    this.#onEvent({ name, requestId, agentId, attempt, ...(error === undefined ? {} : { error }) });
  }
}

/** Returns the options of a call about a turn: its trace goes on. */
function ofItem({ dispatch }: InboxItem): CallOptions {
  const traceparent = dispatch?.traceparent ?? "";
  return traceparent === "" ? {} : { headers: { traceparent } };
}

function isStreamed(result: Result | AsyncIterable<Result>): result is AsyncIterable<Result> {
  return typeof result === "object" && result !== null && Symbol.asyncIterator in result;
}

/** Sends the parts of an answer as they come, and returns the whole. */
async function streamed(turn: InboxTurn, parts: AsyncIterable<Result>): Promise<Answer> {
  let last: Answer | undefined;
  for await (const part of parts) {
    turn.signal.throwIfAborted();
    if (last !== undefined) {
      throw new TypeError("the agent's function yielded something after its outcome");
    }
    if (typeof part !== "string") last = answerOf(part);
    const text = typeof part === "string" ? part : (last?.text ?? "");
    if (text !== "") turn.delta(text);
  }
  return { ...last, text: turn.reports.written };
}

/** Returns what a function returned as an answer. */
function answerOf(result: Result): Answer {
  if (typeof result === "string") return { text: result, outcome: proceed() };
  if (typeof result !== "object" || result === null) {
    const given: JsonValue = String(result);
    throw new TypeError(`the agent's function returned ${given}; return a text or an outcome`);
  }
  return "case" in result ? { outcome: result } : result;
}

/** Resolves when the signal is aborted; never, if over is aborted first. */
function aborted(signal: AbortSignal, over: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const done = () => resolve();
    signal.addEventListener("abort", done, { once: true, signal: over });
    if (signal.aborted) resolve();
  });
}

/** Waits until all have ended, but for at most ms. */
async function settledWithin(all: readonly Promise<void>[], ms: number): Promise<void> {
  const over = new AbortController();
  const late = sleep(ms, over.signal).catch(() => undefined);
  await Promise.race([Promise.all(all), late]);
  over.abort();
}

function writeEvent({ name, requestId, agentId, attempt, error }: WorkerEvent): void {
  const said = error instanceof RoutingError ? `${error.name}: ${error.message}` : error;
  const because = error === undefined ? [] : [said];
  console.error(
    `${name} request_id=${requestId} agent_id=${agentId} attempt=${attempt}`,
    ...because,
  );
}

/** Returns a worker's name: its host, its process, and what tells two of one process apart. */
function ownName(): string {
  const host = hostname().replace(/[^A-Za-z0-9.-]/g, "-");
  return `${host.slice(0, WORKER_ID_CHARACTERS_MAX - 32)}-${process.pid}-${newUuid7().slice(-8)}`;
}
