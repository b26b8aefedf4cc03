// A chat in the browser, over Connect or gRPC-Web, with the tax example's agents as scripts.
//
// The page's address says where to go: ?server=http://127.0.0.1:8080&protocol=grpc-web&session=…&user=ana

import {
  type Agent,
  newUuid7,
  type ReplyOption,
  RoutingError,
  type Suggestion,
  WebClient,
} from "@agent-routing/client/web";
import { Conversation, type Shown } from "../../chat/conversation.js";
import { iconOf } from "./icons.js";
import "./style.css";

type Protocol = "connect" | "grpc-web";

const asked = new URLSearchParams(location.search);
const server = asked.get("server") ?? "http://127.0.0.1:8080";
const sessionId = asked.get("session") ?? `chat-${newUuid7()}`;
const userId = asked.get("user") ?? "ana";

const messages = element<HTMLOListElement>("messages");
const events = element<HTMLOListElement>("events");
const holder = element("holder");
const input = element<HTMLInputElement>("text");

let client: WebClient;
let conversation: Conversation;
let watching = new AbortController();
let lastRevision = 0n;

use(asked.get("protocol") === "grpc-web" ? "grpc-web" : "connect");

element("protocols").addEventListener("change", (event) => {
  use((event.target as HTMLInputElement).value as Protocol);
});
element<HTMLFormElement>("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = input.value.trim();
  input.value = "";
  if (text !== "") void say(text);
});
input.focus();

/** Switches to a protocol. The service has the conversation, so nothing else changes. */
function use(protocol: Protocol): void {
  const chosen = document.querySelector<HTMLInputElement>(`input[value="${protocol}"]`);
  if (chosen !== null) chosen.checked = true;
  watching.abort();
  watching = new AbortController();
  client = new WebClient(server, { protocol });
  conversation = conversation?.over(client) ?? new Conversation(client, sessionId, userId);
  document.body.dataset.protocol = protocol;
}

async function say(text: string, quickReplyId = ""): Promise<void> {
  for (const offer of messages.querySelectorAll(".options button")) {
    (offer as HTMLButtonElement).disabled = true;
  }
  append(bubble("user", text));
  document.body.dataset.busy = "true";
  try {
    for await (const shown of conversation.say(text, quickReplyId)) show(shown);
    if (!document.body.dataset.watching) void watch();
  } catch (error) {
    if (!(error instanceof RoutingError)) throw error;
    append(bubble("failure", error.message));
  } finally {
    delete document.body.dataset.busy;
  }
}

function show(shown: Shown): void {
  switch (shown.kind) {
    case "reply":
      append(replyWith(shown.text, shown.options));
      break;
    case "handoff": {
      const line = item("handoff");
      line.append(shown.from, " → ", badge(shown.to));
      append(line);
      if (shown.words !== "") append(bubble("reply", shown.words));
      break;
    }
    case "agent": {
      const line = item("agent");
      const head = document.createElement("div");
      head.className = "head";
      head.append(badge(shown.agent));
      head.append(
        shown.degraded
          ? note("degraded", "offline: answered by the last agent known")
          : note("reason", shown.reason.toLowerCase().replaceAll("_", " ")),
      );
      if (shown.asks) head.append(note("asks", "waits for your answer"));
      line.append(head, words(shown.text));
      append(line);
      holder.replaceChildren("with ", badge(shown.agent));
      break;
    }
    case "suggestion":
      append(offer(shown.suggestion));
      break;
    default:
  }
}

/** Shows the session's changes as they happen, each once, over the chosen protocol. */
async function watch(): Promise<void> {
  document.body.dataset.watching = "true";
  const { signal } = watching;
  try {
    const watched = client.watchSession(
      { sessionId, userId, afterRevision: lastRevision },
      { signal },
    );
    for await (const change of watched) {
      lastRevision = change.revision;
      const line = document.createElement("li");
      const kinds = change.events.map((event) => inWords(event.kind.case ?? "something newer"));
      line.append(note("revision", String(change.revision)), kinds.join(", "));
      events.append(line);
      line.scrollIntoView({ block: "nearest" });
    }
  } catch (error) {
    if (!signal.aborted && !(error instanceof RoutingError)) throw error;
  } finally {
    delete document.body.dataset.watching;
    // Ended by a change of protocol: the new one continues from here.
    if (signal.aborted) void watch();
  }
}

/** Returns "messageRouted" as "message routed". */
function inWords(name: string): string {
  return name.replaceAll(/[A-Z]/g, (letter) => ` ${letter.toLowerCase()}`);
}

/** Returns a command's reply, with buttons for what may be chosen in it. */
function replyWith(text: string, options: readonly ReplyOption[]): HTMLLIElement {
  const line = bubble("reply", text);
  if (options.length > 0) {
    line.append(buttons(options.map((each) => [each.label, () => void say(each.text)])));
  }
  return line;
}

function buttons(choices: readonly [label: string, press: () => void][]): HTMLElement {
  const made = document.createElement("div");
  made.className = "options";
  for (const [label, press] of choices) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = label;
    button.addEventListener("click", press);
    made.append(button);
  }
  return made;
}

function offer({ text, options, agent }: Suggestion): HTMLLIElement {
  const line = item("offer");
  const choices = buttons(options.map((each) => [each.label, () => void say(each.label, each.id)]));
  line.append(words(text), choices);
  if (agent !== undefined) line.style.setProperty("--agent", agent.color);
  return line;
}

function badge(agent: Agent): HTMLElement {
  const made = document.createElement("span");
  made.className = "badge";
  made.style.setProperty("--agent", agent.color || "#5b6b7b");
  made.append(iconOf(agent.icon), agent.displayName || agent.agentId);
  return made;
}

function bubble(kind: string, text: string): HTMLLIElement {
  const line = item(kind);
  line.append(words(text));
  return line;
}

function item(kind: string): HTMLLIElement {
  const line = document.createElement("li");
  line.className = kind;
  return line;
}

function words(text: string): HTMLParagraphElement {
  const made = document.createElement("p");
  made.textContent = text;
  return made;
}

function note(kind: string, text: string): HTMLSpanElement {
  const made = document.createElement("span");
  made.className = kind;
  made.textContent = text;
  return made;
}

function append(line: HTMLLIElement): void {
  messages.append(line);
  messages.scrollTop = messages.scrollHeight;
}

function element<T extends HTMLElement>(id: string): T {
  const found = document.getElementById(id);
  if (found === null) throw new Error(`the page has no #${id}`);
  return found as T;
}
