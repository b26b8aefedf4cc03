// What an agent's function says of its turn while it works: steps, notes, parts of the answer.
//
// Rule: best effort. A report that fails never fails the function; steps that were not sent before
// the answer go with it.

import { create, type MessageInitShape, toBinary } from "@bufbuild/protobuf";
import { durationFromMs } from "@bufbuild/protobuf/wkt";
import { InvalidField, Overloaded, StoreFormat } from "./errors.js";
import {
  type AnswerDeltaSchema,
  type KeepTurnResponse,
  KeepTurnStatus,
} from "./gen/agent_routing/v1/routing_service_pb.js";
import { type Step, StepSchema } from "./gen/agent_routing/v1/turn_pb.js";
import { sleep } from "./waiting.js";

/** The service stores the steps of a turn at most this often. */
const STEPS_EVERY_MS = 5_000;
/** Of one report. */
export const STEPS_MAX = 64;
const STEPS_BYTES_MAX = 48 * 1024;
/** How often a part of the answer is sent: readers see no difference to more often. */
const DELTA_EVERY_MS = 100;
/** Of one part, in UTF-16 units: below its 32 KiB in any language. */
const DELTA_UNITS_MAX = 8_000;
/** How many characters of the text before come with each part. */
const BEFORE_CHARACTERS = 160;

/** Something that an agent did. */
export interface StepFields {
  /** What was done, such as the tool's name. 1-128 characters. */
  name: string;
  /** Default "tool". */
  kind?: string;
  /** What it was given and what came of it: for operators and the agent itself. */
  input?: string;
  output?: string;
  durationMs?: number;
}

/** The part of a KeepTurn that says something. */
export interface Said {
  steps?: Step[];
  firstStep?: number;
  note?: string;
  delta?: MessageInitShape<typeof AnswerDeltaSchema>;
}

/** The reports of one turn. */
export class TurnReports {
  readonly #keep: (said: Said) => Promise<KeepTurnResponse>;
  readonly #onFailed: (name: string, error: unknown) => void;
  #ending = new AbortController();
  #steps: Step[] = [];
  /** Steps of this attempt that are stored already. */
  #known: number;
  #storesSteps = true;
  #sentStepsMs = Number.NEGATIVE_INFINITY;
  #written = "";
  #sentUnits = 0;
  #sentBytes = 0;
  #sending: Promise<void> | undefined;
  #reporting: Promise<void> | undefined;

  /** keep: calls KeepTurn for the turn. onFailed: gets what could not be sent. */
  constructor(
    keep: (said: Said) => Promise<KeepTurnResponse>,
    known: number,
    onFailed: (name: string, error: unknown) => void,
  ) {
    this.#keep = keep;
    this.#known = known;
    this.#onFailed = onFailed;
  }

  /** The parts so far. */
  get written(): string {
    return this.#written;
  }

  /** Takes a step, and sends it as soon as the service stores another report. */
  step(fields: StepFields): void {
    const { durationMs, ...others } = { kind: "tool", ...fields };
    const duration = durationMs === undefined ? {} : { duration: durationFromMs(durationMs) };
    this.#steps.push(create(StepSchema, { ...others, ...duration }));
    this.#beginReport();
  }

  async note(text: string): Promise<void> {
    await this.#try({ note: text });
  }

  /** Takes the next part of the answer, and sends it soon. */
  delta(text: string): void {
    this.#written += text;
    this.#sending ??= this.#send().finally(() => {
      this.#sending = undefined;
    });
  }

  /** Sends the rest of the parts; returns the steps that were not sent. */
  async finish(): Promise<Step[]> {
    this.stop();
    await this.#sending;
    await this.#flush(this.#written.length);
    // A report on its way may be stored: its steps must not go with the answer as well.
    await this.#reporting;
    return this.#steps;
  }

  /** Sends again, because the function goes on after all: its answer was refused. */
  goOn(): void {
    this.#ending = new AbortController();
    if (this.#steps.length > 0) this.#beginReport();
  }

  /** Begins no other report. */
  stop(): void {
    this.#ending.abort();
  }

  get #isEnding(): boolean {
    return this.#ending.signal.aborted;
  }

  #beginReport(): void {
    if (!this.#storesSteps || this.#reporting !== undefined || this.#isEnding) return;
    this.#reporting = this.#report().finally(() => {
      this.#reporting = undefined;
    });
  }

  async #report(): Promise<void> {
    while (this.#steps.length > 0) {
      if (await this.#endsWithin(this.#sentStepsMs + STEPS_EVERY_MS - performance.now())) return;
      const part = oneReport(this.#steps);
      let kept: KeepTurnResponse;
      try {
        kept = await this.#keep({ steps: part, firstStep: this.#known });
      } catch (error) {
        const isBusy = error instanceof Overloaded;
        if (!isBusy) this.#onFailed("steps_not_reported", error);
        if (error instanceof StoreFormat || error instanceof InvalidField) {
          this.#storesSteps = false; // They go with the answer.
          return;
        }
        const waitMs = (isBusy ? error.retryAfterMs : undefined) ?? STEPS_EVERY_MS;
        if (await this.#endsWithin(waitMs)) return;
        continue;
      }
      if (kept.status !== KeepTurnStatus.KEPT) return;
      this.#sentStepsMs = performance.now();
      // Beyond the limit of a turn the service leaves steps out: they are not sent again.
      this.#steps.splice(0, part.length);
      this.#known = kept.stepsKnown;
    }
  }

  /**
   * Waits for so long, or until the function has ended; tells whether it has. Without a wait the
   * answer is no: a step that is reported as the function ends is sent.
   */
  async #endsWithin(ms: number): Promise<boolean> {
    if (ms <= 0) return false;
    await sleep(ms, this.#ending.signal).catch(() => undefined);
    return this.#isEnding;
  }

  async #send(): Promise<void> {
    do {
      await this.#endsWithin(DELTA_EVERY_MS);
      // Half of a character waits for the other half.
      await this.#flush(this.#written.length - Number(endsInHalf(this.#written)));
    } while (!this.#isEnding && this.#sentUnits < this.#written.length);
  }

  async #flush(end: number): Promise<void> {
    while (this.#sentUnits < end) {
      const start = this.#sentUnits;
      let text = this.#written.slice(start, Math.min(end, start + DELTA_UNITS_MAX));
      if (endsInHalf(text) && text.length > 1) text = text.slice(0, -1);
      const earlier = this.#written.slice(Math.max(0, start - 2 * BEFORE_CHARACTERS), start);
      const before = [...earlier].slice(-BEFORE_CHARACTERS).join("");
      const offset = BigInt(this.#sentBytes);
      // Also if it fails: a gap only means that readers wait for the whole answer.
      this.#sentUnits += text.length;
      this.#sentBytes += new TextEncoder().encode(text).length;
      await this.#try({ delta: { offset, text, before } });
    }
  }

  async #try(said: Said): Promise<void> {
    try {
      await this.#keep(said);
    } catch (error) {
      this.#onFailed("report_not_sent", error);
    }
  }
}

/** Tells whether a text ends in the first half of a character of two UTF-16 units. */
function endsInHalf(text: string): boolean {
  const last = text.charCodeAt(text.length - 1);
  return last >= 0xd800 && last < 0xdc00;
}

/** Returns the first steps that fit into one report; one that never does goes alone. */
function oneReport(steps: readonly Step[]): Step[] {
  let total = 0;
  for (const [place, step] of steps.slice(0, STEPS_MAX).entries()) {
    total += toBinary(StepSchema, step).length;
    if (total > STEPS_BYTES_MAX) return steps.slice(0, Math.max(1, place));
  }
  return steps.slice(0, STEPS_MAX);
}
