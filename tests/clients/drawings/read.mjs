// Reads charts as JSON from standard input: {mermaid: [text], dot: [text]}. Prints what Mermaid and
// Graphviz found in each: [{nodes: {id: label}, edges: [[from, to, label]]}].
import { readFileSync } from "node:fs";
import { instance } from "@viz-js/viz";
import { JSDOM } from "jsdom";

// Mermaid cleans labels by the DOM of a browser.
const { window } = new JSDOM("");
globalThis.window = window;
globalThis.document = window.document;

const { default: mermaid } = await import("mermaid");
const given = JSON.parse(readFileSync(0, "utf8"));

async function readMermaid(text) {
  await mermaid.parse(text);
  const { db } = await mermaid.mermaidAPI.getDiagramFromText(text);
  const nodes = Object.fromEntries([...db.getVertices()].map(([id, each]) => [id, each.text]));
  return { nodes, edges: db.getEdges().map((each) => [each.start, each.end, each.text]) };
}

const viz = await instance();

function readDot(text) {
  const drawn = JSON.parse(viz.renderString(text, { format: "json" }));
  const names = (drawn.objects ?? []).map((each) => each.name);
  const nodes = Object.fromEntries((drawn.objects ?? []).map((each) => [each.name, each.label]));
  const edges = (drawn.edges ?? []).map((each) => [names[each.tail], names[each.head], each.label]);
  return { nodes, edges };
}

const mermaidRead = [];
for (const text of given.mermaid) mermaidRead.push(await readMermaid(text));
console.log(JSON.stringify({ mermaid: mermaidRead, dot: given.dot.map(readDot) }));
