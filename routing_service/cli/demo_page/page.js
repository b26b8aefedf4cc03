// The demo's page: asks for what happened since the last answer, and shows it. All text is set as
// text, never as HTML.
"use strict";

const byId = (id) => document.getElementById(id);
const agents = new Map();
let home = "";
let sent = 0;
let saved = 0;

function add(kind, text, who, color) {
  const item = document.createElement("li");
  item.className = kind;
  if (color) item.style.setProperty("--agent", color);
  if (who) {
    const head = document.createElement("span");
    head.className = "who";
    head.textContent = who;
    item.append(head);
  }
  item.append(text);
  byId("messages").append(item);
  item.scrollIntoView({ block: "nearest" });
}

const nameOf = (id) => agents.get(id)?.name ?? id;
const colorOf = (id) => agents.get(id)?.color;
const words = (text) => text.replaceAll("_", " ");

function opened(event) {
  byId("title").textContent = event.title;
  byId("command").textContent = `agent-routing history ${event.session_id} --target ${event.target}`;
  byId("console").hidden = !event.console_url;
  byId("console-link").href = event.console_url;
  home = event.home_agent_id;
  for (const agent of event.agents) {
    agents.set(agent.agent_id, agent);
    const item = document.createElement("li");
    item.id = `agent-${agent.agent_id}`;
    item.style.setProperty("--agent", agent.color || "gray");
    const about = document.createElement("small");
    about.textContent = agent.description;
    item.append(agent.name, about);
    byId("agents").append(item);
  }
}

function step(each) {
  if (each.kind === "answer") {
    const waits = each.waits ? ", waits for the answer" : "";
    const who = `${nameOf(each.agent_id)} · ${words(each.reason)}${waits}`;
    if (each.text) add("agent", each.text, who, colorOf(each.agent_id));
  } else if (each.kind === "handoff") {
    add("event", `↪ ${nameOf(each.from.agent_id)} hands over to ${nameOf(each.to.agent_id)}`);
  } else if (each.kind === "refused") {
    add("event", `✗ ${nameOf(each.agent_id)} may not hand over to ${nameOf(each.to)}: ${each.rules.join(", ")}`);
  } else {
    add("event", `? ${nameOf(each.agent_id)} needs an approval: ${each.prompt}`);
  }
}

function happened(event) {
  add("user", event.user_text);
  if (event.reply) add("agent", event.reply.text, `the service · ${event.reply.command}`);
  event.steps.forEach(step);
  if (event.suggestion) add("event", event.suggestion.text);
  if (event.error) add("event", `! ${event.error.message}`);
  const first = event.steps.find((each) => each.kind === "answer");
  if (first) {
    sent += 1;
    saved += first.agent_id === home ? 0 : 1;
  }
  byId("sent").textContent = sent;
  byId("saved").textContent = saved;
  byId("revision").textContent = event.revision ?? "";
  for (const [id, agent] of agents) {
    const item = byId(`agent-${id}`);
    item.classList.toggle("active", id === event.next_agent_id);
    const waits = id === event.active_agent_id && event.locked ? " (waits for an answer)" : "";
    item.firstChild.textContent = agent.name + waits;
  }
}

async function follow() {
  let after = 0;
  for (;;) {
    try {
      const answer = await fetch(`/events?after=${after}`);
      const { events, last } = await answer.json();
      for (const event of events) {
        if (event.kind === "opened") opened(event);
        else if (event.kind === "note") byId("note").textContent = event.text;
        else happened(event);
      }
      after = last;
    } catch {
      byId("note").textContent = "The demo has ended. Start it again, and reload this page.";
      return;
    }
  }
}

byId("say").addEventListener("submit", async (submitted) => {
  submitted.preventDefault();
  const text = byId("text").value.trim();
  if (!text) return;
  byId("text").value = "";
  await fetch("/messages", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ text }),
  });
});

follow();
