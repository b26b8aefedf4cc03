// The tools of a graph's agents, and the node that asks the service about their handoffs.

import { AIMessage, type BaseMessage, ToolMessage } from "@langchain/core/messages";
import type { ToolCall } from "@langchain/core/messages/tool";
import { tool } from "@langchain/core/tools";
import {
  Command,
  END,
  getConfig,
  isGraphInterrupt,
  type LangGraphRunnableConfig,
  Send,
} from "@langchain/langgraph";
import { ToolNode } from "@langchain/langgraph/prebuilt";
import { describeAgents, type TransferTarget } from "./graphNotes.js";
import { OpenTurn, TURN } from "./graphTurn.js";
import { complete, followUp, type Outcome } from "./outcomes.js";

/** Tools whose calls are the turn's outcome, and not among its steps. */
const ENDING_TOOLS: ReadonlySet<string> = new Set([
  ...["transfer_to_agent", "ask_user", "complete_task", "consult_agent"],
]);

const TRANSFER =
  "Hands the conversation over to another agent, or to people. Your instructions say which of them " +
  "you may hand over to now.";

const CONSULT =
  "Asks another agent a question. You keep the conversation: your turn pauses, and you continue with " +
  "the answer.";

/** What a model reads whose call would wait in one task with others. */
const SHARED_TASK =
  "not executed: this tool waits for an approval, and the calls of one answer run together here, " +
  "so that none of them can wait; call it again, as the only tool of your answer";

/** A ToolNode whose handoffs the service decides. The model reads why a handoff was refused. */
export class RoutedToolNode extends ToolNode {
  protected override async runTool(
    call: ToolCall,
    config: LangGraphRunnableConfig,
    state: unknown,
  ): Promise<ToolMessage | Command> {
    const turn: unknown = config.configurable?.[TURN];
    if (!(turn instanceof OpenTurn)) return await super.runTool(call, config, state);
    const alone = isAlone(config, state);
    const run = async () => {
      let done: ToolMessage | Command;
      try {
        done = await super.runTool(call, config, state);
      } catch (error) {
        if (alone || !isGraphInterrupt(error)) throw error;
        return refused(call, SHARED_TASK);
      }
      const isOwn = ENDING_TOOLS.has(call.name);
      // With wrong arguments it has ended nothing: the model reads why.
      if (isOwn && done instanceof ToolMessage && done.status === "error") {
        return refused(call, done.text);
      }
      if (targetOf(done) === undefined && !isOwn) {
        turn.step(call.name, call.args, done instanceof ToolMessage ? done.text : "");
      }
      return done;
    };
    const calls = alone ? turn.calls : undefined;
    const result = await (calls ? calls.once(call.id ?? call.name, call.name, run) : run());
    const target = targetOf(result);
    if (target === undefined) return result;
    const asked = answerOf(state);
    const given = await turn.handOver(target, asked?.name ?? "", call.args, asked?.text ?? "");
    if ("refusal" in given) return refused(call, given.refusal);
    return await handedOver(
      turn,
      [call, ...othersOf(asked, call)],
      result as Command,
      given.note,
      config,
    );
  }
}

/**
 * Returns what follows an accepted handoff: the target goes on in the graph, with its instructions
 * and what it has to know; if it runs elsewhere, the run ends.
 */
async function handedOver(
  turn: OpenTurn,
  [call, ...others]: readonly [ToolCall, ...ToolCall[]],
  { update: given }: Command,
  note: string,
  config: LangGraphRunnableConfig,
): Promise<ToolMessage | Command> {
  const done = resultOf(call, `Handed over.\n${note}`);
  if (turn.isPassedOn && !isNested(config)) return done;
  // LangGraph drops the results of the other calls, and providers want one for each.
  const results = [done, ...others.map((each) => resultOf(each, "its result is not known here"))];
  const goto = turn.isPassedOn ? END : (turn.agents.nodeOf(turn.holderId) ?? turn.holderId);
  const added = turn.isPassedOn ? [] : await turn.instructions();
  let update: Command["update"];
  if (Array.isArray(given)) {
    update = [...given, ["messages", [...results, ...added]]] as Command["update"];
  } else {
    const { activeAgent: _, ...rest } = (given ?? {}) as Record<string, unknown>;
    const messages = ((rest.messages ?? []) as BaseMessage[]).filter(
      (each) => !(each instanceof ToolMessage && each.tool_call_id === call.id),
    );
    update = { ...rest, messages: [...messages, ...results, ...added] };
    if (!turn.isPassedOn) update = { ...update, activeAgent: goto };
  }
  return new Command({ goto, graph: Command.PARENT, ...(update && { update }) });
}

/** Returns the calls next to one in a model's answer. */
function othersOf(answer: AIMessage | undefined, call: ToolCall): ToolCall[] {
  return (answer?.tool_calls ?? []).filter(({ id }) => id !== call.id);
}

function resultOf({ name, id }: ToolCall, content: string): ToolMessage {
  return new ToolMessage({ content, name, tool_call_id: id ?? "" });
}

/** Whether a graph is around the one of the agent: then a handoff can end its run. */
function isNested({ configurable }: LangGraphRunnableConfig): boolean {
  return String(configurable?.checkpoint_ns ?? "").includes("|");
}

/**
 * Returns the tool transfer_to_agent, for the graph's own agents, those of other programs and people.
 *
 * targets: agents to describe in the tool; by default those of the registry, as they are when the
 * model first gets the tool. Whom an agent may reach now, for this user, is in its instructions.
 */
export function transferToAgent(targets?: readonly TransferTarget[]) {
  const transfer = tool(
    (given: unknown, runtime) => {
      const { agent_id: agentId } = given as { agent_id: string };
      const { state, toolCallId } = runtime as {
        state?: { messages?: BaseMessage[] };
        toolCallId?: string;
      };
      const done = new ToolMessage({
        content: `Handed over to ${agentId}.`,
        name: "transfer_to_agent",
        tool_call_id: toolCallId ?? "",
      });
      return new Command({
        goto: agentId,
        graph: Command.PARENT,
        update: { messages: [...(state?.messages ?? []), done], activeAgent: agentId },
      });
    },
    {
      name: "transfer_to_agent",
      description: TRANSFER,
      schema: {
        type: "object",
        properties: {
          agent_id: { type: "string", description: "The agent to hand over to." },
          reason: { type: "string", description: "Why, in one sentence, for that agent." },
          context: {
            description: "What the other agent needs to know: fields, or a text.",
            anyOf: [{ type: "object", additionalProperties: true }, { type: "string" }],
          },
          message: { type: "string", description: "Text for the user about the handoff." },
          mode: {
            type: "string",
            enum: ["", "interlude"],
            description:
              "interlude: you get the conversation back when the other agent is done. Otherwise " +
              "leave it out.",
          },
        },
        required: ["agent_id"],
      },
      // Its result ends the run of an agent that is the whole graph. A refusal has no name.
      returnDirect: true,
    },
  );
  return describedBy(transfer, TRANSFER, targets);
}

/** Returns the tool ask_user: its question is the answer, and the agent gets the next message. */
export function askUser() {
  return ending(
    "ask_user",
    "Ask the user a question, and wait for the answer.",
    "question",
    (text) => ({
      outcome: followUp(),
      text,
    }),
  );
}

/** Returns the tool complete_task: it ends the agent's task; the registry names the next agent. */
export function completeTask() {
  return ending(
    "complete_task",
    "Say that the task is done, with your last words to the user.",
    "answer",
    (text) => ({ outcome: complete(), text }),
  );
}

/**
 * Returns the tool consult_agent: the turn pauses, and the agent continues with the other agent's
 * answer, which the user does not see. targets: as for transferToAgent().
 */
export function consultAgent(targets?: readonly TransferTarget[]) {
  const consult = tool(
    (given: unknown, runtime) => {
      const { agent_id: agentId, question } = given as { agent_id: string; question: string };
      const turn = turnOf(runtime);
      if (turn === undefined) return "not executed: no conversation is being routed";
      return turn.consult(agentId, question);
    },
    {
      name: "consult_agent",
      description: CONSULT,
      schema: {
        type: "object",
        properties: {
          agent_id: { type: "string", description: "The agent to ask." },
          question: { type: "string", description: "With everything that the agent must know." },
        },
        required: ["agent_id", "question"],
      },
      returnDirect: true,
    },
  );
  return describedBy(consult, CONSULT, targets);
}

function ending(
  name: string,
  description: string,
  argument: string,
  end: (text: string) => { outcome: Outcome; text: string },
) {
  return tool(
    (given: unknown, runtime) => {
      const text = String((given as Record<string, unknown>)[argument] ?? "");
      const turn = turnOf(runtime);
      if (turn !== undefined) turn.ended = end(text);
      return text;
    },
    {
      name,
      description,
      schema: {
        type: "object",
        properties: { [argument]: { type: "string" } },
        required: [argument],
      },
      returnDirect: true,
    },
  );
}

/** Gives a tool a description that lists agents: the given ones, or the registry's. */
function describedBy<T extends { description: string }>(
  made: T,
  description: string,
  targets: readonly TransferTarget[] | undefined,
): T {
  const get = () => {
    const turn = currentTurn();
    const agents = turn?.agents;
    const others = agents?.all.filter(({ agentId }) => agentId !== turn?.holderId);
    const listed = targets ?? others ?? [];
    return description + describeAgents(listed, (id) => agents?.nameOf(id) ?? id);
  };
  return Object.defineProperty(made, "description", { get, enumerable: true, configurable: true });
}

/** Returns the turn of this run of a graph; undefined outside a routed run. */
function currentTurn(): OpenTurn | undefined {
  const config: LangGraphRunnableConfig | undefined = getConfig();
  const turn: unknown = config?.configurable?.[TURN];
  return turn instanceof OpenTurn ? turn : undefined;
}

/** Returns the turn of a tool's run; undefined outside a routed run. */
function turnOf(runtime: unknown): OpenTurn | undefined {
  const config = (runtime as { config?: LangGraphRunnableConfig }).config ?? runtime;
  const turn: unknown = (config as LangGraphRunnableConfig).configurable?.[TURN];
  return turn instanceof OpenTurn ? turn : undefined;
}

/** Returns what a model reads in the place of a tool's result. */
function refused({ id }: ToolCall, content: string): ToolMessage {
  return new ToolMessage({ content, tool_call_id: id ?? "", status: "error" });
}

/**
 * Tells whether a call has a task of its own. LangGraph gives the interrupts of one task their values
 * in the order in which they happen, and repeats all of the task: of several calls in one task none
 * can be left out, and none may wait, as it would run again after the decision about another.
 */
function isAlone(config: LangGraphRunnableConfig, state: unknown): boolean {
  const path: unknown = config.metadata?.langgraph_path;
  if (Array.isArray(path) && path[0] === "__pregel_push") return true;
  return answerOf(state)?.tool_calls?.length === 1;
}

/** Returns the node to which a tool's result hands over; undefined if it is not a handoff. */
function targetOf(result: unknown): string | undefined {
  if (!(result instanceof Command) || result.graph !== Command.PARENT) return undefined;
  const [goto, ...others] = Array.isArray(result.goto) ? result.goto : [result.goto];
  if (goto === undefined || others.length > 0) return undefined;
  return goto instanceof Send ? goto.node : String(goto);
}

/** Returns the answer that calls the tools. */
function answerOf(state: unknown): AIMessage | undefined {
  const messages = (state as { messages?: BaseMessage[] } | undefined)?.messages ?? [];
  return messages.findLast((each) => each instanceof AIMessage);
}
