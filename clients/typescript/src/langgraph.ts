// LangGraph.js: agents of a graph whose handoffs the service decides and remembers.
//
//   const agent = createReactAgent({ name: "vat", llm, tools: new RoutedToolNode([transferToAgent()]) });
//   const routed = new RoutedGraph(client, graph);
//   const run = await routed.run({ text: "How much VAT do I owe?", sessionId: "chat-42", userId: "ana" });
//
// Owns how a graph is run for a message, and what happens with a tool's handoff. Every tool that
// returns a Command to the parent graph is a handoff, also a tool of the program; the service is
// asked before the handoff happens. Outside a routed run a RoutedToolNode is a ToolNode.

import { AIMessage, type BaseMessage, HumanMessage, ToolMessage } from "@langchain/core/messages";
import type { ToolCall } from "@langchain/core/messages/tool";
import { tool } from "@langchain/core/tools";
import { Command, type LangGraphRunnableConfig, Send } from "@langchain/langgraph";
import { ToolNode } from "@langchain/langgraph/prebuilt";
import type { RouteFields, RoutingClient } from "./client.js";
import { HandoffRefused, UnknownAgent } from "./errors.js";
import {
  Decision,
  Delivery,
  type Dispatch,
  type Suggestion,
} from "./gen/agent_routing/v1/dispatch_pb.js";
import { TaskStatus } from "./gen/agent_routing/v1/task_pb.js";
import type { Turn } from "./gen/agent_routing/v1/turn_pb.js";
import {
  APPROVAL_STEP,
  type Approval,
  asideThread,
  decidedInput,
  decidedOf,
  defaultResumeValue,
  isPaused,
  messageOf,
  mustStayAside,
  pausedRequests,
  promptOf,
  type ResumeValue,
  refusedInput,
  type Snapshot,
  textSince,
  Waiting,
} from "./graphInterrupts.js";
import { approvalNeeded, complete, failure, followUp, type Outcome, proceed } from "./outcomes.js";

export {
  type Approval,
  ApprovedRunLost,
  type Decided,
  defaultResumeValue,
  type ResumeValue,
} from "./graphInterrupts.js";

/** The key of the turn in a run's configuration. LangGraph omits such keys from checkpoints. */
const TURN = "__agent_routing_turn";

/** Limit of hops of a message, far above the service's own limit. */
const DISPATCHES_MAX = 20;

/** The result of a message. */
export interface RoutedRun {
  sessionId: string;
  requestId: string;
  /** The texts to show, in order: a command's reply, and each agent's answer. */
  texts: string[];
  /** The agent that answered last. Undefined if no agent had to act. */
  agentId: string | undefined;
  /** Why the first agent got the message, such as "STICKY". */
  reason: string;
  /** Whether the service could not be reached. Nothing is stored there then. */
  degraded: boolean;
  /** The agent switch that is offered to the user, if there is one. */
  suggestion: Suggestion | undefined;
  /** The dispatch to an agent whose turns wait in an inbox: its workers answer it. */
  next: Dispatch | undefined;
  /** What the run waits for, if an agent needs an approval: pass it to decide(). */
  approval: Approval | undefined;
}

/** The part of a compiled graph that is used here. Its state has messages and activeAgent. */
export interface RunnableGraph {
  // biome-ignore lint/suspicious/noExplicitAny: a graph's state and configuration are its program's
  invoke(input: any, config?: any): Promise<any>;
  readonly nodes: Readonly<Record<string, unknown>>;
  readonly checkpointer?: unknown;
  // biome-ignore lint/suspicious/noExplicitAny: as above
  getState?(config: any, options?: any): Promise<Snapshot>;
}

/** One open turn while the graph runs. */
class OpenTurn {
  ended: { outcome: Outcome; text: string } | undefined;
  /** The tool calls, for the execution trace. */
  readonly steps: { name: string; kind: string; input: string; output: string }[] = [];
  /** Handoffs are checked one by one: the first of an answer decides. */
  #asking: Promise<unknown> = Promise.resolve();

  constructor(
    readonly client: RoutingClient,
    readonly sessionId: string,
    readonly userId: string,
    readonly requestId: string,
    readonly degraded: boolean,
    public holderId: string,
  ) {}

  /** Asks the service about a handoff. Returns the refusal for the model, or undefined. */
  handOver(
    target: string,
    from: string,
    given: Record<string, unknown>,
  ): Promise<string | undefined> {
    const asked = this.#asking.then(() => this.#handOver(target, from, given));
    this.#asking = asked.catch(() => undefined);
    return asked;
  }

  async #handOver(
    target: string,
    from: string,
    given: Record<string, unknown>,
  ): Promise<string | undefined> {
    if (this.degraded) {
      this.holderId = target;
      return undefined;
    }
    try {
      const { agent } = await this.client.setActiveAgent({
        sessionId: this.sessionId,
        userId: this.userId,
        agentId: target,
        turnRequestId: this.requestId,
        fromAgentId: from || this.holderId,
        reason: String(given.reason ?? "").slice(0, REASON_CHARS_MAX),
        message: String(given.message ?? ""),
      });
      this.holderId = agent?.agentId ?? target;
      this.ended = undefined;
      return undefined;
    } catch (error) {
      if (error instanceof HandoffRefused) {
        const rules = error.violations.map(({ name, detail }) => `${name}: ${detail}`).join("; ");
        return `The handoff to ${target} was refused. ${rules}. Answer the user yourself, or hand over to somebody else.`;
      }
      if (error instanceof UnknownAgent) return `${error.message}.`;
      throw error;
    }
  }
}

/** Times that a run continues without an approval that it cannot get; then it ends as it is. */
const REFUSALS_MAX = 5;

/** Limit of a prompt; the service accepts 4 KiB, and a character has at most four bytes. */
const PROMPT_CHARS_MAX = 1000;

/** Limits of a turn's steps and of a step's texts, so that all fit into the service's 48 KiB. */
const STEPS_MAX = 16;
const STEP_CHARS_MAX = 350;

/** Limit of a handoff's reason, which models make long: the service accepts 1 KiB. */
const REASON_CHARS_MAX = 250;

/**
 * Runs a graph of agents: each message goes to the agent that the service names.
 *
 * graph: compiled, with a node for each agent, named by the agent's id or an alias. It starts at
 * activeAgent of its state, as createSwarm() of langgraph-swarm makes it, and its agents' tools are
 * in a RoutedToolNode. agents: the names of the nodes that are agents, if not all are. resumeValue:
 * what interrupt() returns for a decision; by default what LangChain's human-in-the-loop middleware
 * expects, and for other interrupts true or false.
 */
export class RoutedGraph {
  readonly #client: RoutingClient;
  readonly #graph: RunnableGraph;
  readonly #agents: readonly string[];
  #nodes: ReadonlyMap<string, string> | undefined;

  readonly #resumeValue: ResumeValue;

  constructor(
    client: RoutingClient,
    graph: RunnableGraph,
    agents: readonly string[] = [],
    resumeValue: ResumeValue = defaultResumeValue,
  ) {
    this.#resumeValue = resumeValue;
    this.#client = client;
    this.#graph = graph;
    this.#agents =
      agents.length > 0 ? agents : Object.keys(graph.nodes).filter((name) => !/^__/.test(name));
  }

  /**
   * Routes a user's message to its agent, and to the agents to which it is handed over.
   *
   * config: for the graph; configurable.thread_id is the session's id unless it is given. An error of
   * the graph is reported as the turn's failure, and thrown.
   */
  async run(fields: RouteFields, config: LangGraphRunnableConfig = {}): Promise<RoutedRun> {
    const routed = await this.#client.route(fields);
    const run: RoutedRun = {
      sessionId: routed.sessionId,
      requestId: routed.requestId,
      texts: routed.replyText === undefined ? [] : [routed.replyText],
      agentId: undefined,
      reason: routed.reason,
      degraded: routed.degraded,
      suggestion: routed.suggestion,
      next: undefined,
      approval: undefined,
    };
    return await this.#goOn(routed.dispatch, run, fields.userId ?? "", config);
  }

  /**
   * Approves or rejects what a run waits for, and continues the run, in any process that shares the
   * graph's checkpointer. The same decision repeated returns without running anything.
   *
   * Throws what resumeTask() throws, such as TaskNotPaused for an approval that was withdrawn, and
   * ApprovedRunLost.
   */
  async decide(
    approval: Approval,
    decision: "APPROVE" | "REJECT",
    given: { userId?: string; comment?: string } = {},
    config: LangGraphRunnableConfig = {},
  ): Promise<RoutedRun> {
    const { sessionId, taskId, requestId } = approval;
    const who = { sessionId, userId: given.userId ?? "" };
    const comment = given.comment ?? "";
    const decided = { ...who, taskId, requestId, decision: Decision[decision], comment };
    const { dispatch } = await this.#client.resumeTask(decided);
    const status = await this.#client.status(who);
    const open = status.openRequests.find((each) => each.requestId === dispatch?.requestId);
    return await this.answer(sessionId, open, given.userId, config);
  }

  /** Runs the agents for a dispatch that a frontend has routed or resumed. */
  async answer(
    sessionId: string,
    dispatch: Dispatch | undefined,
    userId = "",
    config: LangGraphRunnableConfig = {},
  ): Promise<RoutedRun> {
    const run: RoutedRun = {
      sessionId,
      requestId: dispatch?.requestId ?? "",
      texts: [],
      agentId: undefined,
      reason: "",
      degraded: false,
      suggestion: undefined,
      next: undefined,
      approval: undefined,
    };
    return await this.#goOn(dispatch, run, userId, config, true);
  }

  async #goOn(
    dispatch: Dispatch | undefined,
    run: RoutedRun,
    userId: string,
    config: LangGraphRunnableConfig,
    isGiven = false,
  ): Promise<RoutedRun> {
    let next = dispatch;
    for (let step = 0; next !== undefined && step < DISPATCHES_MAX; step++) {
      // A worker answers what its agent's inbox gave it; all else in an inbox is for the workers.
      if (next.delivery === Delivery.INBOX && !(isGiven && step === 0)) {
        run.next = next;
        break;
      }
      next = await this.#dispatched(next, run, userId, config);
    }
    return run;
  }

  /** Runs an agent for a dispatch and reports its answer; returns the next dispatch. */
  async #dispatched(
    dispatch: Dispatch,
    run: RoutedRun,
    userId: string,
    config: LangGraphRunnableConfig,
  ): Promise<Dispatch | undefined> {
    const { sessionId, degraded } = run;
    const { requestId } = dispatch;
    const holderId = dispatch.agent?.agentId ?? "";
    const turn = new OpenTurn(this.#client, sessionId, userId, requestId, degraded, holderId);
    const report = async (outcome: Outcome, text: string) =>
      await this.#client.completeTurn({
        ...{ sessionId, userId, requestId, agentId: turn.holderId, text, outcome },
        steps: turn.steps.slice(-STEPS_MAX),
      });
    let text: string;
    try {
      text = await this.#invoke(dispatch, turn, config);
    } catch (error) {
      if (!degraded) await report(failure(error instanceof Error ? error.name : "failed"), "");
      throw error;
    }
    run.agentId = turn.holderId;
    if (degraded) {
      run.texts.push(text);
      return undefined;
    }
    const outcome = turn.ended?.outcome ?? proceed();
    const answer = await report(outcome, text);
    if (answer.text !== "") run.texts.push(answer.text);
    if (outcome.case === "approvalNeeded" && answer.taskStatus === TaskStatus.PAUSED) {
      const prompt = outcome.value.prompt ?? "";
      const { taskId } = answer;
      run.approval = { sessionId, taskId, requestId, agentId: turn.holderId, prompt };
    }
    return answer.next;
  }

  /** Runs the graph from a dispatch's agent, and returns its last text. */
  async #invoke(
    dispatch: Dispatch,
    turn: OpenTurn,
    config: LangGraphRunnableConfig,
  ): Promise<string> {
    const message = messageOf(dispatch);
    // If the graph has no memory of its own, the agent gets the history from the service.
    const past = this.#graph.checkpointer ? [] : dispatch.history.flatMap(pastMessages);
    let given: unknown = {
      messages: [...past, ...hint(dispatch), message],
      activeAgent: await this.#nodeOf(turn),
    };
    let threadId = String(config.configurable?.thread_id ?? (turn.sessionId || turn.requestId));
    let known = new Set<unknown>([...past.map(({ id }) => id)]);
    if (this.#graph.checkpointer) {
      const found = await this.#place(dispatch, turn, config, threadId);
      threadId = found.waiting.threadId;
      known = new Set(found.waiting.messages.map(({ id }) => id));
      if (found.input !== undefined) given = found.input;
    }
    const placed = {
      ...config,
      configurable: { ...config.configurable, thread_id: threadId, [TURN]: turn },
    };
    let state: { messages: BaseMessage[] } = await this.#graph.invoke(given, placed);
    let messages = state.messages;
    for (let refusals = 0; this.#graph.checkpointer; refusals++) {
      const waiting = await this.#waitingIn(config, threadId);
      const [first] = waiting.interrupts;
      if (first === undefined) break;
      messages = waiting.messages;
      const refused = refusalOf(dispatch, turn);
      if (refused === "") {
        const prompt = promptOf(first.value).slice(0, PROMPT_CHARS_MAX) || "approve?";
        turn.steps.push({ name: "interrupt", kind: APPROVAL_STEP, input: prompt, output: "" });
        turn.ended = { outcome: approvalNeeded(prompt), text: textSince(messages, known) };
        break;
      }
      if (refusals >= REFUSALS_MAX) break;
      const again = refusedInput(waiting, refused, this.#resumeValue);
      state = await this.#graph.invoke(again, placed);
      messages = state.messages;
    }
    if (turn.ended !== undefined) return turn.ended.text;
    const begun = messages.findLastIndex((each) => each.id === message.id);
    return textSince(messages.slice(begun + 1), known);
  }

  /** Finds the thread of a turn, and the input of a run that continues there. */
  async #place(
    dispatch: Dispatch,
    turn: OpenTurn,
    config: LangGraphRunnableConfig,
    threadId: string,
  ): Promise<{ waiting: Waiting; input?: Command | null }> {
    const { sessionId, userId, degraded } = turn;
    const who = { sessionId, userId };
    const decided = decidedOf(dispatch);
    const requests = decided ? await pausedRequests(this.#client, who, dispatch.requestId) : [];
    let waiting = await this.#waitingIn(config, threadId);
    if (decided !== undefined && requests.length > 0) {
      if (!waiting.isOf(requests)) {
        waiting = await this.#waitingIn(config, asideThread(dispatch, threadId));
      }
      return { waiting, input: decidedInput(waiting, requests, decided, this.#resumeValue) };
    }
    if (!degraded && (await mustStayAside(this.#client, who, dispatch, waiting))) {
      waiting = await this.#waitingIn(config, asideThread(dispatch, threadId));
    }
    return { waiting };
  }

  async #waitingIn(config: LangGraphRunnableConfig, threadId: string): Promise<Waiting> {
    if (this.#graph.getState === undefined) {
      throw new TypeError("the graph has a checkpointer and no getState()");
    }
    const place = { ...config, configurable: { ...config.configurable, thread_id: threadId } };
    return new Waiting(threadId, await this.#graph.getState(place, { subgraphs: true }));
  }

  /** Returns the node of the agent that holds a turn. Throws if the graph has none. */
  async #nodeOf({ holderId, degraded }: OpenTurn): Promise<string> {
    if (this.#nodes === undefined && !degraded) {
      const { agents, agentIdByAlias } = await this.#client.listAgents();
      const ids = new Map(agents.map(({ agentId }) => [agentId.toLowerCase(), agentId]));
      for (const [alias, id] of Object.entries(agentIdByAlias)) ids.set(alias.toLowerCase(), id);
      this.#nodes = new Map(
        this.#agents.map((name) => [ids.get(name.toLowerCase()) ?? name, name]),
      );
    }
    const node = this.#nodes?.get(holderId) ?? this.#agents.find((name) => name === holderId);
    if (node === undefined) {
      throw new Error(
        `the graph has no node for agent "${holderId}"; its nodes are ${this.#agents.join(", ")}: ` +
          "name one by the agent's id or an alias",
      );
    }
    return node;
  }
}

/** Returns why an agent cannot ask for an approval in a turn, for the model; empty if it can. */
function refusalOf(dispatch: Dispatch, { degraded }: OpenTurn): string {
  if (isPaused(dispatch)) {
    return "not executed: your earlier request for approval has not been decided yet";
  }
  if (dispatch.consult !== undefined && dispatch.consult.answer === undefined) {
    return "not executed: while another agent consults you, you cannot ask for approval";
  }
  return degraded ? "not executed: at the moment nothing can be approved" : "";
}

/** Returns what the model is told of a message that may be for another agent. */
function hint(dispatch: Dispatch): HumanMessage[] {
  if (dispatch.candidates.length === 0) return [];
  const likely = dispatch.candidates.slice(0, 3).map(({ agentId }) => agentId);
  const content =
    `For context: this message may be for ${likely.join(" or ")}. Hand it over if so; ` +
    "answer it yourself if it is for you.";
  return [new HumanMessage({ content })];
}

/** Tools whose calls are the turn's outcome, and not among its steps. */
const ENDING_TOOLS: ReadonlySet<string> = new Set(["ask_user", "complete_task"]);

/** A ToolNode whose handoffs the service decides. The model reads why a handoff was refused. */
export class RoutedToolNode extends ToolNode {
  protected override async runTool(
    call: ToolCall,
    config: LangGraphRunnableConfig,
    state: unknown,
  ): Promise<ToolMessage | Command> {
    const result = await super.runTool(call, config, state);
    const turn: unknown = config.configurable?.[TURN];
    const target = targetOf(result);
    if (turn instanceof OpenTurn && target === undefined && !ENDING_TOOLS.has(call.name)) {
      const output = result instanceof ToolMessage ? result.text : "";
      turn.steps.push({
        ...{ name: call.name.slice(0, 128), kind: "tool", output: output.slice(0, STEP_CHARS_MAX) },
        input: JSON.stringify(call.args).slice(0, STEP_CHARS_MAX),
      });
    }
    if (!(turn instanceof OpenTurn) || target === undefined) return result;
    const refusal = await turn.handOver(target, speakerOf(state), call.args);
    if (refusal === undefined) return result;
    const told = { content: refusal, name: call.name, tool_call_id: call.id ?? "" };
    return new ToolMessage({ ...told, status: "error" });
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
  const named = targets.map(({ agentId, description }) => `\n${agentId}: ${description}`).join("");
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
      description: `Hand the conversation over to another agent, for good.${named}`,
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

function ending(
  name: string,
  description: string,
  argument: string,
  end: (text: string) => { outcome: Outcome; text: string },
) {
  return tool(
    (given: unknown, runtime) => {
      const config = (runtime as { config?: LangGraphRunnableConfig }).config ?? runtime;
      const turn: unknown = (config as LangGraphRunnableConfig).configurable?.[TURN];
      const text = String((given as Record<string, unknown>)[argument] ?? "");
      if (turn instanceof OpenTurn) turn.ended = end(text);
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

function pastMessages({ userText, agentText }: Turn): BaseMessage[] {
  return [
    ...(userText === "" ? [] : [new HumanMessage(userText)]),
    ...(agentText === "" ? [] : [new AIMessage(agentText)]),
  ];
}
