// The tax example's agents, as scripts: they need no model and no network.
//
// An agent gets a dispatch, and returns its answer and how its turn ended. A real one would call a
// model and report the same.

import type { Dispatch, Outcome } from "@agent-routing/client/web";
import { outcomes } from "@agent-routing/client/web";

export interface Answer {
  text: string;
  outcome: Outcome;
}

const VAT_RATE = 0.21;
const NUMBER = /\d[\d.,]*/;

/** The agent for a message, by terms in its text; the first match counts. */
const SPECIALISTS: readonly [agentId: string, words: RegExp][] = [
  ["filing", /\b(file it|file my|submit)\b/i],
  ["payroll", /\b(payroll|wages|employees?)\b/i],
  ["invoices", /\binvoices?\b/i],
  ["vat", /\bvat\b/i],
  ["income_tax", /\b(income tax|tax return|deduct\w*)\b/i],
];

type Script = (dispatch: Dispatch) => Answer;

const SCRIPTS: Readonly<Record<string, Script>> = {
  coordinator({ text }) {
    const found = SPECIALISTS.find(([, words]) => words.test(text));
    if (found === undefined) {
      return say("Hello! Ask me about VAT, income tax, invoices or payroll.");
    }
    return {
      text: "One moment, I bring in our specialist.",
      outcome: outcomes.handoff(found[0], { reason: "what the message is about" }),
    };
  },
  vat({ text, locked }) {
    const number = NUMBER.exec(text)?.[0];
    if (number !== undefined) {
      const vat = Number(number.replaceAll(",", "")) * VAT_RATE;
      return say(`That makes ${vat.toFixed(2)} € of VAT.`);
    }
    if (/\b(when|due|deadline)\b/i.test(text)) return say("By the 20th after the quarter's end.");
    return ask(
      locked
        ? "A number is all I need: what did you sell, without VAT?"
        : "What did you sell this quarter, without VAT?",
    );
  },
  income_tax({ text }) {
    if (/\bvat\b/i.test(text)) return handOver("vat", "VAT is for a colleague of mine.");
    if (NUMBER.test(text)) return say("Then a return is due by the end of June.");
    return ask("What did you earn last year, before tax?");
  },
  invoices({ text }) {
    if (/\bvat\b/i.test(text)) return handOver("vat", "VAT is for a colleague of mine.");
    return say("All your invoices are paid, but for F-1023, which is due next week.");
  },
  payroll: () => say("Two employees: their payslips are ready for you to look at."),
  filing: () => ({ text: "Filed. You get the receipt by mail.", outcome: outcomes.complete() }),
};

/** Returns the answer of a dispatch's agent. */
export function answerOf(dispatch: Dispatch): Answer {
  const script = SCRIPTS[dispatch.agent?.agentId ?? ""];
  return script === undefined ? say("I am here, and have nothing to say.") : script(dispatch);
}

/** Returns an agent's answer after its handoff was refused. */
export function afterRefusal(rules: readonly string[]): Answer {
  return say(
    rules.includes("entitled")
      ? "That needs the premium plan. Can I help with something else?"
      : "I cannot bring in that colleague now. Can I help you myself?",
  );
}

function say(text: string): Answer {
  return { text, outcome: outcomes.proceed() };
}

function ask(text: string): Answer {
  return { text, outcome: outcomes.followUp({ timeoutMs: 600_000 }) };
}

function handOver(agentId: string, text: string): Answer {
  return { text, outcome: outcomes.handoff(agentId, { reason: text }) };
}
