// A worker whose agents do what a message says, and a frontend that asks; see
// tests/clients/vectors/workers/README.md.
//
//   node build/test/scriptedWorker.js work ADDRESS OPTIONS
//   node build/test/scriptedWorker.js ask ADDRESS

import { createInterface } from "node:readline";
import { setTimeout as pause } from "node:timers/promises";
import { type Asked, type AskedPart, Client, outcomes } from "../src/index.js";
import { type InboxTurn, type Result, Worker } from "../src/worker.js";

type Action = Record<string, unknown>;

function say(line: object): void {
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

/** Waits until the turn is taken from the function. */
async function hang(turn: InboxTurn): Promise<Result> {
  await new Promise((resolve) => turn.signal.addEventListener("abort", resolve));
  say({ event: "stopped", agent_id: turn.agentId });
  throw new Error("the turn is lost");
}

/** Says what is done, and writes an answer in parts. */
async function* write(turn: InboxTurn, parts: string[]): AsyncGenerator<Result> {
  await turn.note("one moment");
  turn.step({ name: "search", input: "VAT", output: "2 pages" });
  for (const part of parts) {
    yield part;
    await pause(400);
  }
}

async function act(turn: InboxTurn, action: Action): Promise<Result | AsyncGenerator<Result>> {
  const [[kind, given]] = Object.entries(action) as [[string, unknown]];
  const text = String(given);
  switch (kind) {
    case "say":
      return text;
    case "say_late":
      await pause(4_000);
      return text;
    case "follow_up":
      return outcomes.followUp(text);
    case "complete":
      return { text: "done", outcome: outcomes.complete({ summary: text }) };
    case "handoff":
      return { text: "one moment", outcome: outcomes.handoff(text, { reason: "asked" }) };
    case "approval_needed":
      return outcomes.approvalNeeded(text, { fields: { amount: 20 } });
    case "failure":
      return outcomes.failure(text);
    case "answer":
      return {
        text,
        items: [{ contentType: "text/plain", content: { case: "text", value: "more" } }],
        steps: [{ name: "look up", kind: "tool" }],
      };
    case "write":
      return write(turn, given as string[]);
    case "steps":
      for (const name of given as string[]) turn.step({ name });
      return "done";
    case "step_and_die":
      turn.step({ name: text });
      await pause(500);
      process.kill(process.pid, "SIGKILL");
      return await hang(turn);
    case "write_and_raise":
      turn.delta(text);
      await pause(500);
      throw new Error(text);
    case "write_and_hang":
      turn.delta(text);
      return await hang(turn);
    case "raise":
      throw new Error(text);
    case "nothing":
      return undefined as unknown as Result;
    case "die":
      process.kill(process.pid, "SIGKILL");
      return await hang(turn);
    case "hang":
      return await hang(turn);
    default:
      throw new Error(`unknown action ${kind}`);
  }
}

async function work(address: string, options: Record<string, unknown>): Promise<void> {
  const { agents, number, ...settings } = options as {
    agents: string[];
    number: number;
    leaseMs?: number;
  };
  const worker = new Worker(address, settings);
  for (const agentId of agents) {
    worker.agent(agentId, async (turn) => {
      say({
        event: "began",
        agent_id: agentId,
        attempt: turn.attempt,
        request_id: turn.requestId,
      });
      const script = JSON.parse(turn.text) as Record<string, Action[]>;
      const actions = script[`${agentId}@${number}`] ?? script[agentId] ?? [];
      return await act(turn, actions[Math.min(turn.attempt, actions.length) - 1] ?? {});
    });
  }
  await worker.run();
  say({ event: "ended" });
}

async function ask(address: string): Promise<void> {
  const client = new Client(address);
  for await (const line of createInterface({ input: process.stdin })) {
    const { wait_ms: waitMs, ...given } = JSON.parse(line);
    const fields = {
      text: given.text,
      sessionId: given.session_id,
      userId: given.user_id,
      ...(given.request_id && { requestId: given.request_id }),
    };
    const options = waitMs === undefined ? {} : { waitMs };
    try {
      const [asked, read] = given.parts
        ? await readParts(client.askParts(fields, options))
        : [await client.ask(fields, options), {}];
      const turns = asked.turns.map((turn) => turn.agentId);
      const { text, agentId: agent_id, notice, claimed, replayed } = asked;
      const { outcome = "", cause = "" } = asked;
      say({ text, agent_id, notice, turns, outcome, cause, claimed, replayed, ...read });
    } catch (error) {
      const { message, requestId: request_id } = error as Error & { requestId?: string };
      say({ error: message, request_id });
    }
  }
  client.close();
}

/** Returns the whole answer, and what a user saw of it. */
async function readParts(parts: AsyncIterable<AskedPart>): Promise<[Asked, object]> {
  const texts = new Map<string, string>();
  const notes: string[] = [];
  let count = 0;
  let asked: Asked | undefined;
  for await (const part of parts) {
    if (part.isNote) {
      notes.push(part.text);
    } else if (part.text !== "" || part.replaces) {
      const turn = `${part.requestId} ${part.agentId}`;
      const before = part.replaces ? "" : (texts.get(turn) ?? "");
      texts.set(turn, before + part.text);
      count++;
    }
    asked = part.asked;
  }
  if (asked === undefined) throw new Error("there was no last part");
  const shown = [...texts.values()].filter((text) => text !== "");
  return [asked, { shown, notes, in_parts: count > shown.length }];
}

const [mode, address = "", options = "{}"] = process.argv.slice(2);
if (mode === "approvals") await approvals(address);
else if (mode === "ask") await ask(address);
else await work(address, camelCased(JSON.parse(options)));

/** Lists what waits for an approval, then watches it. */
async function approvals(target: string): Promise<void> {
  const client = new Client(target);
  const sessions: string[] = [];
  for await (const waiting of client.listApprovals({ pageSize: 1 })) {
    sessions.push(waiting.sessionId);
  }
  say({ event: "listed", sessions });
  for await (const { case: event, value } of client.watchApprovals()) {
    say({ event, session_id: value.sessionId });
  }
}

/** Returns options with the names that this language gives them. */
function camelCased(given: Record<string, unknown>): Record<string, unknown> {
  const camel = (key: string) => key.replace(/_(.)/g, (_, letter) => letter.toUpperCase());
  return Object.fromEntries(Object.entries(given).map(([key, value]) => [camel(key), value]));
}
