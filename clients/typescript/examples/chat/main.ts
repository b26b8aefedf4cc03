// A chat in the terminal, with the tax example's agents as scripts.
//
//   npm run example -- [--target 127.0.0.1:50051] [--session ID] [--user ana]
//
// Start the service with `make run`. Lines are read until the input ends, so a story can be piped in.

import { createInterface } from "node:readline";
import { parseArgs, styleText } from "node:util";
import { type Agent, Client, newUuid7, RoutingError } from "@agent-routing/client";
import { Conversation, type Shown } from "./conversation.js";

const { values } = parseArgs({
  options: {
    target: { type: "string", default: process.env.AGENT_ROUTING_TARGET ?? "127.0.0.1:50051" },
    session: { type: "string", default: `chat-${newUuid7()}` },
    user: { type: "string", default: "ana" },
    locale: { type: "string", default: "en" },
  },
});

const isColored =
  process.env.NO_COLOR === undefined &&
  (process.stdout.isTTY || process.env.FORCE_COLOR !== undefined);

function dim(text: string): string {
  return isColored ? styleText("dim", text) : text;
}

/** Writes an agent's name on its own color, as a badge. */
function badge(agent: Agent): string {
  const name = ` ${agent.displayName || agent.agentId} `;
  const [, red, green, blue] = /^#(..)(..)(..)$/.exec(agent.color) ?? [];
  if (!isColored || red === undefined || green === undefined || blue === undefined) {
    return `[${name.trim()}]`;
  }
  const parts = [red, green, blue].map((part) => Number.parseInt(part, 16));
  return `\x1b[97;1;48;2;${parts.join(";")}m${name}\x1b[0m`;
}

function show(shown: Shown): void {
  switch (shown.kind) {
    case "reply":
      for (const line of shown.text.split("\n")) console.log(`  ${line}`);
      break;
    case "handoff":
      console.log(dim(`  ── ${shown.from} → ${shown.to.displayName || shown.to.agentId} ──`));
      if (shown.words) console.log(`  ${shown.words}`);
      break;
    case "agent": {
      const mark = shown.degraded ? " (offline: the last agent known answers)" : "";
      const because = shown.degraded ? "" : ` ${shown.reason.toLowerCase().replaceAll("_", " ")}`;
      console.log(`${badge(shown.agent)}${dim(`${because}${mark}`)}`);
      console.log(`  ${shown.text}`);
      break;
    }
    case "suggestion":
      console.log(`  ${shown.suggestion.text}`);
      for (const option of shown.suggestion.options) console.log(`    • ${option.label}`);
      break;
    default:
  }
}

const client = new Client(values.target);
const conversation = new Conversation(client, values.session, values.user, values.locale);
const input = createInterface({ input: process.stdin, output: process.stdout, prompt: "> " });
input.setPrompt(process.stdin.isTTY ? "> " : "");
if (process.stdin.isTTY) {
  console.log(dim(`session ${values.session} at ${values.target}; /status, /agents, /supervisor`));
}
input.prompt();
for await (const line of input) {
  const text = line.trim();
  if (text !== "") {
    if (!process.stdin.isTTY) console.log(`> ${text}`);
    try {
      for await (const shown of conversation.say(text)) show(shown);
    } catch (error) {
      if (!(error instanceof RoutingError)) throw error;
      console.log(`  ${error.message}`);
    }
  }
  input.prompt();
}
client.close();
