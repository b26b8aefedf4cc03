// Puts the parts of a message's answers together, as a watch of its session brings them.

import { type Asked, type AskedPart, isConsult } from "./asking.js";
import type { TurnDelta } from "./gen/agent_routing/v1/routing_service_pb.js";
import { type Turn, TurnOutcome } from "./gen/agent_routing/v1/turn_pb.js";
import type { Watched } from "./watch.js";

/** What came of one request's answer. */
class Written {
  attempt = 0;
  end = 0n;
  /** As the caller has it, after what is ready. */
  text = "";
  isWhole = false;
  ready: AskedPart[] = [];
}

/**
 * Drops repeats, and after a gap waits for the whole. Parts of requests that are not known to follow
 * from the message are kept back, so that what an agent said before a handoff comes before the parts
 * of the next agent.
 */
export class AnswerParts {
  /** Of the requests of the chain, in its order. */
  readonly #written: Map<string, Written>;
  readonly #keptBack = new Map<string, Written>();

  constructor(requestId: string) {
    this.#written = new Map([[requestId, new Written()]]);
  }

  /**
   * Takes the turns that followed from the message so far; those that ended are whole. isDone: all of
   * them are, also those that were abandoned.
   */
  know(turns: readonly Turn[], isDone = false): void {
    for (const turn of turns) {
      const { requestId } = turn;
      if (!this.#written.has(requestId)) this.#written.set(requestId, this.#of(requestId));
      const hasEnded = isDone || turn.outcome !== TurnOutcome.UNSPECIFIED;
      if (hasEnded && !isConsult(turn, turns)) this.#complete(turn, this.#of(requestId));
    }
  }

  /** Adds what is missing of a whole answer. */
  #complete(turn: Turn, written: Written): void {
    const { agentId, requestId } = turn;
    const whole = [turn.agentText, turn.handoffMessage].filter((text) => text !== "").join("\n\n");
    if (whole !== written.text) {
      const replaces = !whole.startsWith(written.text);
      const text = replaces ? whole : whole.slice(written.text.length);
      written.ready.push({ text, agentId, requestId, isNote: false, replaces });
    }
    [written.text, written.isWhole] = [whole, true];
  }

  /** Takes a message of the watch. */
  take(kind: Watched): void {
    if (kind.case === "note") {
      const { text, agentId, requestId } = kind.value;
      const ready = { text, agentId, requestId, isNote: true, replaces: false };
      this.#of(requestId).ready.push(ready);
    } else if (kind.case === "delta") {
      this.#delta(kind.value);
    }
  }

  #delta({ attempt, begin, end, text, agentId, requestId }: TurnDelta): void {
    const written = this.#of(requestId);
    const startsAgain = attempt > written.attempt;
    const expected = startsAgain ? 0n : written.end;
    if (written.isWhole || attempt < written.attempt) return;
    if (end <= expected || begin !== expected) return;
    const replaces = startsAgain && written.text !== "";
    [written.attempt, written.end] = [attempt, end];
    written.text = startsAgain ? text : written.text + text;
    written.ready.push({ text, agentId, requestId, isNote: false, replaces });
  }

  /** Returns the parts to show, and forgets them. */
  ready(): AskedPart[] {
    return [...this.#written.values()].flatMap((written) => written.ready.splice(0));
  }

  /** Returns what is missing of the whole answers, with the last part. */
  rest(asked: Asked): AskedPart[] {
    this.know(asked.turns, true);
    return [...this.ready(), lastPart("", asked)];
  }

  #of(requestId: string): Written {
    const written = this.#written.get(requestId) ?? this.#keptBack.get(requestId) ?? new Written();
    if (!this.#written.has(requestId)) this.#keptBack.set(requestId, written);
    return written;
  }
}

/** Returns the part that has the whole answer. */
export function lastPart(text: string, asked: Asked): AskedPart {
  const { agentId, requestId } = asked;
  return { text, agentId, requestId, isNote: false, replaces: false, asked };
}
