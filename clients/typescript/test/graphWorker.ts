// A worker whose agents are a LangGraph with scripted models; its checkpoints are in a folder.
//
//   node build/test/graphWorker.js TARGET FOLDER LEASE_MS
//
// It kills itself as kill -9 does, once, where a file FOLDER/kill-PLACE says: "model" is before the
// desk asks for an approval, "tool" is inside the approved tool, "end" is after it. SIGTERM stops it.

import { appendFileSync, existsSync, rmSync } from "node:fs";
import { BaseChatModel } from "@langchain/core/language_models/chat_models";
import { AIMessage, type BaseMessage, HumanMessage, ToolMessage } from "@langchain/core/messages";
import type { ChatResult } from "@langchain/core/outputs";
import { tool } from "@langchain/core/tools";
import { Annotation, interrupt, MessagesAnnotation, START, StateGraph } from "@langchain/langgraph";
import { createReactAgent } from "@langchain/langgraph/prebuilt";
import { Client } from "../src/index.js";
import {
  askUser,
  completeTask,
  consultAgent,
  RoutedGraph,
  RoutedToolNode,
  transferToAgent,
} from "../src/langgraph.js";
import { Worker } from "../src/worker.js";
import { FileSaver } from "./fileSaver.js";

const [target = "", folder = "", leaseMs = ""] = process.argv.slice(2);
let calls = Date.now();

type Call = [name: string, given: Record<string, string>];
type Script = (said: string, seen: { tool: string; all: string }) => string | Call | AIMessage;

function killOnce(place: string): void {
  const file = `${folder}/kill-${place}`;
  if (!existsSync(file)) return;
  rmSync(file);
  process.kill(process.pid, "SIGKILL");
}

class ScriptedModel extends BaseChatModel {
  constructor(readonly script: Script) {
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
    const said = messages.findLast((each) => each instanceof HumanMessage);
    const begun = said === undefined ? 0 : messages.lastIndexOf(said);
    const seen = {
      tool: last instanceof ToolMessage ? last.text : "",
      all: messages
        .slice(Math.max(0, begun - 1))
        .map(textOf)
        .join("\n"),
    };
    const answer = this.script(said?.text ?? "", seen);
    const message =
      answer instanceof AIMessage
        ? answer
        : typeof answer === "string"
          ? new AIMessage(answer)
          : new AIMessage({
              content: answer[0] === "refund" ? "I need an approval." : "",
              tool_calls: [{ name: answer[0], args: answer[1], id: `call-${++calls}` }],
            });
    return { generations: [{ text: message.text, message }] };
  }
}

/** Returns a message as its model sees it, kinds of content included. */
function textOf(message: BaseMessage): string {
  if (typeof message.content === "string") return message.content;
  return message.content.map((each) => (each.type === "text" ? each.text : each.type)).join("\n");
}

const SCRIPTS: Record<string, Script> = {
  coordinator: (said, { tool: output, all }) => {
    if (output !== "") return `I cannot: ${output}`;
    if (/The answer: /.test(all)) return `It is ${/The answer: (.*)/.exec(all)?.[1]}.`;
    if (/rate/.test(said)) return ["consult_agent", { agent_id: "vat", question: "which?" }];
    if (/was refused/.test(said)) return `I answer myself: ${said}`;
    if (/nowhere/.test(said)) return ["consult_agent", { agent_id: "nowhere", question: "?" }];
    if (/around/.test(said)) return ["transfer_to_agent", { agent_id: "invoices" }];
    if (/payroll/.test(said)) return ["transfer_to_agent", { agent_id: "payroll" }];
    if (/invoice/.test(said))
      return ["transfer_to_agent", { agent_id: "invoices", reason: "bill" }];
    return "How can I help?";
  },
  vat: (said, { tool: output, all }) => {
    if (output !== "") return "enough";
    if (/> The question: which\?/.test(all)) return "21 percent";
    if (/around/.test(said)) return ["transfer_to_agent", { agent_id: "coordinator" }];
    if (/thanks/.test(said)) return ["complete_task", { answer: "You are welcome." }];
    return ["ask_user", { question: "What did you sell?" }];
  },
  invoices: (said, { tool: output, all }) => {
    if (/around/.test(said)) {
      return output === "" ? ["transfer_to_agent", { agent_id: "vat" }] : "enough";
    }
    if (output !== "") {
      killOnce("end");
      return `The tool says: ${output}`;
    }
    if (/fail/.test(said)) throw new RangeError("the model is away");
    if (/look/.test(said)) return ["look_up", { number: "7" }];
    if (/photo/.test(said)) {
      return new AIMessage({
        content: [
          { type: "text", text: all.split("\n").includes("image") ? "Seen." : "I see nothing." },
          { type: "image", mimeType: "image/png", data: "iVBO" },
        ],
      });
    }
    const [amount] = said.match(/\d+/) ?? [];
    if (amount === undefined) return `All paid. ${all}`;
    killOnce("model");
    return ["refund", { amount }];
  },
};

const lookUp = tool((given: unknown) => `invoice ${(given as { number: string }).number}: paid`, {
  name: "look_up",
  description: "Look an invoice up.",
  schema: { type: "object", properties: { number: { type: "string" } }, required: ["number"] },
});

const refund = tool(
  (given: unknown) => {
    const { amount } = given as { amount: string };
    if (interrupt({ question: "Refund it?", amount }) !== true) return "not refunded";
    appendFileSync(`${folder}/refunds`, `begun ${amount}\n`);
    killOnce("tool");
    appendFileSync(`${folder}/refunds`, `done ${amount}\n`);
    return `refunded ${amount}`;
  },
  {
    name: "refund",
    description: "Refund an amount.",
    schema: { type: "object", properties: { amount: { type: "string" } }, required: ["amount"] },
  },
);

const names = Object.keys(SCRIPTS);
const State = Annotation.Root({ ...MessagesAnnotation.spec, activeAgent: Annotation<string>() });
// biome-ignore lint/suspicious/noExplicitAny: nodes added in a loop have no literal name types
let building = new StateGraph(State) as any;
for (const [name, script] of Object.entries(SCRIPTS)) {
  const agent = createReactAgent({
    name,
    llm: new ScriptedModel(script),
    tools: new RoutedToolNode([
      ...[transferToAgent(), askUser(), completeTask(), consultAgent()],
      ...(name === "invoices" ? [refund, lookUp] : []),
    ]),
  });
  building = building.addNode(name, agent, { ends: [...names, "__end__"], subgraphs: [agent] });
}
const graph = building
  .addConditionalEdges(START, (state: typeof State.State) => state.activeAgent, names)
  .compile({ checkpointer: new FileSaver(`${folder}/checkpoints.json`) });

const client = new Client(target, { timeoutMs: 20_000 });
const routed = new RoutedGraph(client, graph);
const worker = new Worker(client, { leaseMs: Number(leaseMs) });
for (const name of names) worker.agent(name, routed.asAgent({ durability: "sync" }));
await worker.run();
client.close();
