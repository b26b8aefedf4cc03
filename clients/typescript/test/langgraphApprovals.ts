// A graph whose tool needs an approval, at a service that runs.
//
//   node build/test/langgraphApprovals.js TARGET SESSION FOLDER VERSION (say TEXT | decide APPROVAL DECISION)…
//
// Each message or decision has a graph of its own: only the file of the checkpointer is the same, as
// after a restart. Prints one line of JSON for each; the tool appends to FOLDER/refunds.

import { appendFileSync } from "node:fs";
import { BaseChatModel } from "@langchain/core/language_models/chat_models";
import { AIMessage, type BaseMessage, HumanMessage, ToolMessage } from "@langchain/core/messages";
import type { ChatResult } from "@langchain/core/outputs";
import { tool } from "@langchain/core/tools";
import { Annotation, interrupt, MessagesAnnotation, START, StateGraph } from "@langchain/langgraph";
import { createReactAgent } from "@langchain/langgraph/prebuilt";
import { Client } from "../src/index.js";
import { type Decided, RoutedGraph, RoutedToolNode, transferToAgent } from "../src/langgraph.js";
import { FileSaver } from "./fileSaver.js";

const [target = "", sessionId = "", folder = "", version = "", ...given] = process.argv.slice(2);
let calls = Date.now();

class ScriptedModel extends BaseChatModel {
  constructor() {
    super({});
  }

  override _llmType(): string {
    return "scripted";
  }

  override bindTools(): this {
    return this;
  }

  override async _generate(messages: BaseMessage[]): Promise<ChatResult> {
    const last = messages.at(-1);
    const said = messages.findLast((each) => each instanceof HumanMessage)?.text ?? "";
    const amounts = /refund/.test(said) ? (said.match(/\d+/g) ?? []) : [];
    const message =
      last instanceof ToolMessage && last.name !== "transfer_to_agent"
        ? new AIMessage(`The tool says: ${last.text}`)
        : amounts.length === 0
          ? new AIMessage("anything else?")
          : new AIMessage({
              content: "I need an approval.",
              tool_calls: amounts.map((amount) => ({
                name: "refund",
                args: { amount },
                id: `call-${++calls}`,
              })),
            });
    return { generations: [{ text: message.text, message }] };
  }
}

/** Hands everything to the desk. */
class FrontModel extends ScriptedModel {
  override async _generate(): Promise<ChatResult> {
    const call = {
      name: "transfer_to_agent",
      args: { agent_id: "invoices" },
      id: `call-${++calls}`,
    };
    const message = new AIMessage({ content: "", tool_calls: [call] });
    return { generations: [{ text: "", message }] };
  }
}

const refund = tool(
  (args: unknown) => {
    const { amount } = args as { amount: string };
    const answer = interrupt({ question: "Refund it?", amount }) as Decided;
    if (!answer.isApproved) return `no: ${answer.comment}`;
    appendFileSync(`${folder}/refunds`, `${amount}\n`);
    return `refunded ${amount}`;
  },
  {
    name: "refund",
    description: "Refund an amount.",
    schema: { type: "object", properties: { amount: { type: "string" } }, required: ["amount"] },
  },
);

const State = Annotation.Root({ ...MessagesAnnotation.spec, activeAgent: Annotation<string>() });
const client = new Client(target, { timeoutMs: 20_000 });
for (let at = 0; at < given.length; ) {
  const saver = new FileSaver(`${folder}/checkpoints.json`);
  const front = createReactAgent({
    name: "coordinator",
    llm: new FrontModel(),
    tools: new RoutedToolNode([transferToAgent()]),
  });
  const agent = createReactAgent({
    name: "invoices",
    llm: new ScriptedModel(),
    tools: new RoutedToolNode([refund]),
    version: version as "v1" | "v2",
  });
  // biome-ignore lint/suspicious/noExplicitAny: a subgraph's state has keys of its own
  const graph = (new StateGraph(State) as any)
    .addNode("coordinator", front, { ends: ["invoices"], subgraphs: [front] })
    .addNode("invoices", agent, { subgraphs: [agent] })
    .addConditionalEdges(START, (state: typeof State.State) => state.activeAgent, [
      "coordinator",
      "invoices",
    ])
    .compile({ checkpointer: saver });
  const routed = new RoutedGraph(
    client,
    graph,
    ["coordinator", "invoices"],
    (_value, decided) => decided,
  );
  let shown: unknown;
  try {
    if (given[at] === "say") {
      shown = await routed.run({ text: given[at + 1] ?? "", sessionId, userId: "ana" });
      at += 2;
    } else {
      const decision = given[at + 2] === "APPROVE" ? "APPROVE" : "REJECT";
      const comment = { userId: "ana", comment: "as ben wishes" };
      shown = await routed.decide(JSON.parse(given[at + 1] ?? ""), decision, comment);
      at += 3;
    }
  } catch (error) {
    shown = { error: (error as Error).constructor.name, message: (error as Error).message };
    at = given.length;
  }
  const { suggestion: _, ...rest } = shown as Record<string, unknown>;
  console.log(JSON.stringify(rest));
}
client.close();
