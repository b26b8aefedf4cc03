// Puts the parts of a message's answers together, as a watch of its session brings them.

import { type Asked, type AskedPart, shownText } from "./asking.js";
import type { TurnDelta } from "./gen/agent_routing/v1/routing_service_pb.js";
import { type Turn, TurnOutcome } from "./gen/agent_routing/v1/turn_pb.js";
import type { Watched } from "./watch.js";

/** What came of one turn's answer. */
class Written {
  attempt = 0;
  end = 0n;
  /** As the caller has it, after what is ready. */
  text = "";
  isWhole = false;
  ready: AskedPart[] = [];
}

/**
 * Drops repeats, and after a gap waits for the whole. Parts of turns that are not known to follow from
 * the message are kept back, so that what an agent said before a handoff comes before the parts of the
 * next agent.
 */
export class AnswerParts {
  /** Of the turns of the chain, in its order. */
  readonly #written = new Map<string, Written>();
  readonly #keptBack = new Map<string, Written>();

  /**
   * Takes the turns that followed from the message so far; those that ended are whole. isDone: all of
   * them are, also those that are still open.
   */
  know(turns: readonly Turn[], isDone = false): void {
    for (const turn of turns) {
      if (!this.#written.has(keyOf(turn))) this.#written.set(keyOf(turn), this.#of(turn));
      const hasEnded = isDone || turn.outcome !== TurnOutcome.UNSPECIFIED;
      if (hasEnded) this.#complete(turn, shownText(turn, turns), this.#of(turn));
    }
  }

  /** Adds what is missing of a whole answer. */
  #complete({ agentId, requestId }: Turn, whole: string, written: Written): void {
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
      this.#of(kind.value).ready.push(ready);
    } else if (kind.case === "delta") {
      this.#delta(kind.value);
    }
  }

  #delta(delta: TurnDelta): void {
    const { attempt, begin, end, text, agentId, requestId } = delta;
    const written = this.#of(delta);
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

  #of(of: OfTurn): Written {
    const key = keyOf(of);
    const written = this.#written.get(key) ?? this.#keptBack.get(key) ?? new Written();
    if (!this.#written.has(key)) this.#keptBack.set(key, written);
    return written;
  }
}

type OfTurn = Pick<Turn, "requestId" | "agentId">;

/** Names a turn: agents between which an operator moved a message share its request. */
function keyOf({ requestId, agentId }: OfTurn): string {
  return `${requestId} ${agentId}`;
}

/** Returns the part that has the whole answer. */
export function lastPart(text: string, asked: Asked): AskedPart {
  const { agentId, requestId } = asked;
  return { text, agentId, requestId, isNote: false, replaces: false, asked };
}
