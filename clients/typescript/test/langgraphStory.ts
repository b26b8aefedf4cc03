// Messages through a LangGraph of agents with scripted models, at a service that runs.
//
//   node build/test/langgraphStory.js TARGET SESSION TEXT…
//
// Prints one line of JSON for each text: its result, the called agents, and what models read of tools.

import { BaseChatModel } from "@langchain/core/language_models/chat_models";
import { AIMessage, type BaseMessage, HumanMessage, ToolMessage } from "@langchain/core/messages";
import type { ChatResult } from "@langchain/core/outputs";
import { Annotation, MessagesAnnotation, START, StateGraph } from "@langchain/langgraph";
import { createReactAgent } from "@langchain/langgraph/prebuilt";
import { Client } from "../src/index.js";
import {
  askUser,
  completeTask,
  RoutedGraph,
  RoutedToolNode,
  transferToAgent,
} from "../src/langgraph.js";

const [target = "", sessionId = "", ...texts] = process.argv.slice(2);
const called: string[] = [];
const told: string[] = [];

/** Returns a script's answer to the text that it has read. */
class ScriptedModel extends BaseChatModel {
  constructor(
    readonly agent: string,
    readonly script: (said: string, toolSaid: string) => string | [string, Record<string, string>],
  ) {
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
    const user = messages.findLast((each) => each instanceof HumanMessage)?.text ?? "";
    const toolSaid = last instanceof ToolMessage && last.status === "error" ? last.text : "";
    called.push(this.agent);
    if (toolSaid !== "") told.push(toolSaid);
    const answer = this.script(user, toolSaid);
    const message =
      typeof answer === "string"
        ? new AIMessage(answer)
        : new AIMessage({
            content: "",
            tool_calls: [{ name: answer[0], args: answer[1], id: `call-${called.length}` }],
          });
    return { generations: [{ text: message.text, message }] };
  }
}

const transfer = (agent_id: string): [string, Record<string, string>] => [
  "transfer_to_agent",
  { agent_id, reason: "it is for them" },
];
const SCRIPTS: Record<string, ScriptedModel["script"]> = {
  coordinator: (said, refused) => {
    if (refused) return `I cannot do that: ${refused}`;
    if (/payroll/.test(said)) return transfer("payroll");
    if (/nobody/.test(said)) return transfer("nobody");
    if (/invoice/.test(said)) return transfer("invoices");
    return /vat/i.test(said) ? transfer("vat") : "How can I help?";
  },
  // Hands on within the same turn.
  invoices: (said) => (/vat/i.test(said) ? transfer("vat") : "All invoices are paid."),
  vat: (said) => {
    if (/\d/.test(said)) return "That makes 21 %.";
    if (/thanks/.test(said)) return ["complete_task", { answer: "You are welcome." }];
    return ["ask_user", { question: "What did you sell?" }];
  },
};

const names = Object.keys(SCRIPTS);
const State = Annotation.Root({ ...MessagesAnnotation.spec, activeAgent: Annotation<string>() });
let building = new StateGraph(State) as unknown as StateGraph<typeof State.spec>;
for (const [name, script] of Object.entries(SCRIPTS)) {
  const agent = createReactAgent({
    name,
    llm: new ScriptedModel(name, script),
    tools: new RoutedToolNode([transferToAgent(), askUser(), completeTask()]),
  });
  const options = { ends: names, subgraphs: [agent] };
  // biome-ignore lint/suspicious/noExplicitAny: nodes added in a loop have no literal name types
  building = (building as any).addNode(name, agent, options);
}
// biome-ignore lint/suspicious/noExplicitAny: as above
const graph = (building as any)
  .addConditionalEdges(START, (state: typeof State.State) => state.activeAgent, names)
  .compile();

const client = new Client(target, { timeoutMs: 20_000 });
const routed = new RoutedGraph(client, graph);
for (const text of texts) {
  const run = await routed.run({ text, sessionId, userId: "ana", locale: "en", channel: "web" });
  const { suggestion: _, requestId: __, next: ___, ...shown } = run;
  console.log(JSON.stringify({ ...shown, called: called.splice(0), told: told.splice(0) }));
}
client.close();
