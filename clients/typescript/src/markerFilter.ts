// Streamed text without handoff markers: a user who reads along never sees one flash.
//
// Text is held back only while it may become a marker, or may dress one up. What counts as a marker is
// the service's (tests/clients/vectors/text); the service's own text, in the answer to
// completeTurn(), is the last word.

const GAP = new Set(" \t\r\n\\*_`~\"'[");
const DRESS = "*_`~\"'({<«“";
const UNDRESS = "*_`~\"')}>»”";
const HELD = new Set(` \t\r\n\\${DRESS}`);
const AFTER_UNCLOSED = new Set(" \t*_`~\"')}>|\\");
const SPACES = new Set("\u00a0\u202f\u200b\u200c\u200d\u2060\ufeff\u00ad\u200e\u200f");
const OF_WORD = /[\p{L}\p{N}.:@=;+_-]/u;

const GAP_MAX = 40;
const NAME_MAX = 256;
/** Of spaces, quotes and signs of emphasis that may stand in front of a marker. */
const HELD_MAX = 64;

const NO = -1;
const MAYBE = -2;

/**
 * Filters one answer. Feed it each token, show what it returns, then what end() returns.
 *
 *   const filter = new MarkerFilter();
 *   for await (const token of tokens) show(filter.feed(token));
 *   show(filter.end());
 */
export class MarkerFilter {
  /** Not shown yet. */
  #text = "";
  /** The last character that was shown. */
  #last = "";
  /** What may still be around the last marker. */
  #closers = "";
  #isAfter = false;

  /** Returns what may be shown by now. */
  feed(token: string): string {
    this.#text += token;
    return this.#flow(false);
  }

  /** Returns the rest, once there are no more tokens. */
  end(): string {
    return this.#flow(true);
  }

  #flow(isEnd: boolean): string {
    let shown = "";
    for (;;) {
      if (this.#isAfter && !this.#tidy(isEnd)) return shown;
      const plain = alike(this.#text);
      const { start, end } = find(plain, isEnd);
      if (end < 0) return shown + this.#show(isEnd ? plain.length : heldFrom(plain, start));
      let dressed = start;
      while (
        dressed > 0 &&
        DRESS.includes(plain.charAt(dressed - 1)) &&
        start - dressed < GAP_MAX
      ) {
        dressed--;
      }
      this.#closers = [...plain.slice(dressed, start)]
        .reverse()
        .map((sign) => UNDRESS.charAt(DRESS.indexOf(sign)))
        .join("");
      const text = this.#text.slice(0, dressed).replace(/[ \t]+$/, "");
      const rest = this.#text.slice(end);
      this.#text = text;
      shown += this.#show(text.length);
      this.#text = rest;
      this.#isAfter = true;
    }
  }

  #show(count: number): string {
    const text = this.#text.slice(0, count);
    this.#text = this.#text.slice(count);
    if (text !== "") this.#last = text.charAt(text.length - 1);
    return text;
  }

  /** Drops what is left of a marker's dress; false: that shows with the next token. */
  #tidy(isEnd: boolean): boolean {
    let place = 0;
    let plain = alike(this.#text);
    for (; place < plain.length; place++) {
      const sign = plain.charAt(place);
      if (sign === "]" || sign === "\\") continue;
      if (this.#closers === "" || sign !== this.#closers.charAt(0)) break;
      this.#closers = this.#closers.slice(1);
    }
    this.#text = this.#text.slice(place);
    plain = plain.slice(place);
    if (this.#last === "" || this.#last === "\n") {
      const line = plain.replace(/^[ \t]+/, "");
      if ((line === "" || line === "\r") && !isEnd) return false;
      const ends = line.startsWith("\r\n") ? 2 : Number(line.startsWith("\n"));
      this.#text = this.#text.slice(plain.length - line.length + ends);
    } else if (plain === "" && !isEnd) {
      return false;
    }
    this.#isAfter = false;
    this.#closers = "";
    return true;
  }
}

/** Returns a text as long, with signs that mean the same written in one way. */
function alike(text: string): string {
  let made = "";
  for (let place = 0; place < text.length; place++) {
    const sign = text.charAt(place);
    const code = text.charCodeAt(place);
    if (code >= 0xff01 && code <= 0xff5e) made += String.fromCharCode(code - 0xfee0);
    else if ("【〔⟦".includes(sign)) made += "[";
    else if ("】〕⟧".includes(sign)) made += "]";
    else made += SPACES.has(sign) ? " " : sign;
  }
  return made;
}

/** Returns where a marker begins and ends; its end is MAYBE if more text decides, or NO. */
function find(plain: string, isEnd: boolean): { start: number; end: number } {
  for (let start = plain.indexOf("["); start >= 0; start = plain.indexOf("[", start + 1)) {
    const end = markerEnd(plain, start, isEnd);
    if (end === NO) continue;
    let first = start;
    while (first > 0 && plain.charAt(first - 1) === "\\") first--;
    return { start: first, end };
  }
  return { start: plain.length, end: NO };
}

function markerEnd(plain: string, start: number, isEnd: boolean): number {
  const unknown = isEnd ? NO : MAYBE;
  let place = skip(plain, start + 1);
  for (const letters of ["handoff", "to"]) {
    const said = plain.slice(place, place + letters.length).toLowerCase();
    if (!letters.startsWith(said)) return NO;
    if (said.length < letters.length) return unknown;
    place += letters.length;
    if (letters === "to") break;
    while (place < plain.length && "_\\ -".includes(plain.charAt(place))) place++;
  }
  place = skip(plain, place);
  if (place >= plain.length) return unknown;
  if (!":=".includes(plain.charAt(place))) return NO;
  return nameEnd(plain, place + 1, isEnd);
}

function skip(plain: string, from: number): number {
  const stop = Math.min(plain.length, from + GAP_MAX);
  let place = from;
  while (place < stop && GAP.has(plain.charAt(place))) place++;
  return place;
}

/** Returns where a marker ends whose name begins at start, MAYBE if more text decides. */
function nameEnd(plain: string, start: number, isEnd: boolean): number {
  let lineEnd = -1;
  let place = start;
  for (; place < plain.length; place++) {
    const sign = plain.charAt(place);
    if (sign === "]") return place + 1;
    if (sign === "[") break;
    if (sign === "\r" || sign === "\n") {
      if (lineEnd >= 0 && plain.slice(lineEnd, place).trim() !== "") break;
      if (lineEnd < 0 && plain.slice(start, place).trim() !== "") lineEnd = place;
    }
    if (place - Math.max(start, lineEnd) >= NAME_MAX) break;
  }
  if (place >= plain.length && !isEnd) return MAYBE;
  return unclosedEnd(plain, start, lineEnd >= 0 ? lineEnd : place);
}

/** Returns where the text goes on behind a marker without a bracket at its end. */
function unclosedEnd(plain: string, start: number, end: number): number {
  let place = start;
  while (place < end && AFTER_UNCLOSED.has(plain.charAt(place))) place++;
  while (place < end && OF_WORD.test(plain.charAt(place))) place++;
  let rest = place;
  while (rest < end && AFTER_UNCLOSED.has(plain.charAt(rest))) rest++;
  return rest === end ? end : place;
}

/** Returns from where a text is held back: a marker may begin at start, or behind its end. */
function heldFrom(plain: string, start: number): number {
  let place = start;
  while (place > 0 && start - place < HELD_MAX && HELD.has(plain.charAt(place - 1))) place--;
  return place;
}
