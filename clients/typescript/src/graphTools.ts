// The tools of a graph's agents, and the node that asks the service about their handoffs.

import { AIMessage, type BaseMessage, ToolMessage } from "@langchain/core/messages";
import type { ToolCall } from "@langchain/core/messages/tool";
import { tool } from "@langchain/core/tools";
import {
  Command,
  END,
  isGraphInterrupt,
  type LangGraphRunnableConfig,
  Send,
} from "@langchain/langgraph";
import { ToolNode } from "@langchain/langgraph/prebuilt";
import { OpenTurn, TURN } from "./graphTurn.js";
import { complete, followUp, type Outcome } from "./outcomes.js";

/** Tools whose calls are the turn's outcome, and not among its steps. */
const ENDING_TOOLS: ReadonlySet<string> = new Set(["ask_user", "complete_task", "consult_agent"]);

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
      if (targetOf(done) === undefined && !ENDING_TOOLS.has(call.name)) {
        turn.step(call.name, call.args, done instanceof ToolMessage ? done.text : "");
      }
      return done;
    };
    const calls = alone ? turn.calls : undefined;
    const result = await (calls ? calls.once(call.id ?? call.name, call.name, run) : run());
    const target = targetOf(result);
    if (target === undefined) return result;
    const refusal = await turn.handOver(target, speakerOf(state), call.args);
    if (refusal !== undefined) return refused(call, refusal);
    if (turn.worker === undefined) return result;
    // The run ends: the target's worker has its own.
    const { update } = result as Command;
    return new Command({ goto: END, graph: Command.PARENT, ...(update && { update }) });
  }
}

/** The fields of listAgents() that a transfer tool shows to the model. */
export interface TransferTarget {
  agentId: string;
  description: string;
}

/**
 * Returns the tool transfer_to_agent. targets: agents to describe to the model, such as those of
 * `client.listAgents({ fromAgentId })`; the node of a target has its id.
 */
export function transferToAgent(targets: readonly TransferTarget[] = []) {
  return tool(
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
      description: `Hand the conversation over to another agent, for good.${described(targets)}`,
      schema: {
        type: "object",
        properties: {
          agent_id: { type: "string", description: "The agent to hand over to." },
          reason: { type: "string", description: "Why, in one sentence, for that agent." },
        },
        required: ["agent_id"],
      },
    },
  );
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
export function consultAgent(targets: readonly TransferTarget[] = []) {
  return tool(
    (given: unknown, runtime) => {
      const { agent_id: agentId, question } = given as { agent_id: string; question: string };
      const turn = turnOf(runtime);
      if (turn === undefined) return "not executed: no conversation is being routed";
      return turn.consult(agentId, question);
    },
    {
      name: "consult_agent",
      description:
        "Ask another agent a question. You keep the conversation: your turn pauses, and you " +
        `continue with the answer.${described(targets)}`,
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

function described(targets: readonly TransferTarget[]): string {
  return targets.map(({ agentId, description }) => `\n${agentId}: ${description}`).join("");
}

/** Returns the turn of a tool's run; undefined outside a routed run. */
function turnOf(runtime: unknown): OpenTurn | undefined {
  const config = (runtime as { config?: LangGraphRunnableConfig }).config ?? runtime;
  const turn: unknown = (config as LangGraphRunnableConfig).configurable?.[TURN];
  return turn instanceof OpenTurn ? turn : undefined;
}

/** Returns what a model reads in the place of a tool's result. */
function refused({ name, id }: ToolCall, content: string): ToolMessage {
  return new ToolMessage({ content, name, tool_call_id: id ?? "", status: "error" });
}

/**
 * Tells whether a call has a task of its own. LangGraph gives the interrupts of one task their values
 * in the order in which they happen, and repeats all of the task: of several calls in one task none
 * can be left out, and none may wait, as it would run again after the decision about another.
 */
function isAlone(config: LangGraphRunnableConfig, state: unknown): boolean {
  const path: unknown = config.metadata?.langgraph_path;
  if (Array.isArray(path) && path[0] === "__pregel_push") return true;
  const messages = (state as { messages?: BaseMessage[] } | undefined)?.messages ?? [];
  const last = messages.findLast((each) => each instanceof AIMessage);
  return last?.tool_calls?.length === 1;
}

/** Returns the node to which a tool's result hands over; undefined if it is not a handoff. */
function targetOf(result: unknown): string | undefined {
  if (!(result instanceof Command) || result.graph !== Command.PARENT) return undefined;
  const [goto, ...others] = Array.isArray(result.goto) ? result.goto : [result.goto];
  if (goto === undefined || others.length > 0) return undefined;
  return goto instanceof Send ? goto.node : String(goto);
}

/** Returns the name of the agent whose answer calls the tools; empty if it has no name. */
function speakerOf(state: unknown): string {
  const messages = (state as { messages?: BaseMessage[] } | undefined)?.messages ?? [];
  return messages.findLast((each) => each instanceof AIMessage)?.name ?? "";
}
