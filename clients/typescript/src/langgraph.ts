// LangGraph.js: agents of a graph whose handoffs the service decides and remembers.
//
//   const agent = createReactAgent({ name: "vat", llm, tools: new RoutedToolNode([transferToAgent()]) });
//   const routed = new RoutedGraph(client, graph);
//   const run = await routed.run({ text: "How much VAT do I owe?", sessionId: "chat-42", userId: "ana" });
//
// Owns how a graph is run for a message, and what happens with a tool's handoff. Every tool that
// returns a Command to the parent graph is a handoff, also a tool of the program; the service is
// asked before the handoff happens. Outside a routed run a RoutedToolNode is a ToolNode.

import { AIMessage, type BaseMessage, HumanMessage } from "@langchain/core/messages";
import {
  type BaseCheckpointSaver,
  type Command,
  type LangGraphRunnableConfig,
  START,
} from "@langchain/langgraph";
import type { RouteFields, RoutingClient } from "./client.js";
import { Decision, type Dispatch, type Suggestion } from "./gen/agent_routing/v1/dispatch_pb.js";
import { TaskStatus } from "./gen/agent_routing/v1/task_pb.js";
import type { Turn } from "./gen/agent_routing/v1/turn_pb.js";
import { DecidedCalls } from "./graphCalls.js";
import {
  type Approval,
  ApprovedRunLost,
  asideThread,
  decidedInput,
  decidedOf,
  defaultResumeValue,
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
import { type AnswerItem, itemsOf } from "./graphItems.js";
import { isForInbox, notesOf, OpenTurn, TURN } from "./graphTurn.js";
import { approvalNeeded, failure, proceed } from "./outcomes.js";
import type { AgentFunction, InboxTurn } from "./worker.js";

export {
  type Approval,
  ApprovedRunLost,
  type Decided,
  defaultResumeValue,
  type ResumeValue,
} from "./graphInterrupts.js";
export type { AnswerItem } from "./graphItems.js";
export {
  askUser,
  completeTask,
  consultAgent,
  RoutedToolNode,
  type TransferTarget,
  transferToAgent,
} from "./graphTools.js";

/** Limit of hops of a message, far above the service's own limit. */
const DISPATCHES_MAX = 20;

/** The result of a message. */
export interface RoutedRun {
  sessionId: string;
  requestId: string;
  /** The texts to show, in order: a command's reply, and each agent's answer. */
  texts: string[];
  /** Images, files and links of the answers. */
  items: AnswerItem[];
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

/** The options of a run of the graph. */
export type GraphOptions = LangGraphRunnableConfig & {
  /** "sync": a step is in the checkpointer before the next begins. */
  durability?: "sync" | "async" | "exit";
};

/** The part of a compiled graph that is used here. Its state has messages and activeAgent. */
export interface RunnableGraph {
  // biome-ignore lint/suspicious/noExplicitAny: a graph's state and configuration are its program's
  invoke(input: any, config?: any): Promise<any>;
  readonly nodes: Readonly<Record<string, unknown>>;
  readonly checkpointer?: unknown;
  readonly builder?: unknown;
  // biome-ignore lint/suspicious/noExplicitAny: as above
  getState?(config: any, options?: any): Promise<Snapshot>;
}

/** Times that a run continues without an approval that it cannot get; then it ends as it is. */
const REFUSALS_MAX = 5;

/** Limit of a prompt; the service accepts 4 KiB, and a character has at most four bytes. */
const PROMPT_CHARS_MAX = 1000;

/**
 * Runs a graph of agents: each message goes to the agent that the service names.
 *
 * graph: compiled, with a node for each agent, named by the agent's id or an alias. It starts at
 * activeAgent of its state, as createSwarm() of langgraph-swarm makes it, and its agents' tools are
 * in a RoutedToolNode. agents: the names of the nodes that are agents, if not all are. resumeValue:
 * what interrupt() returns for a decision; by default what LangChain's human-in-the-loop middleware
 * expects, and for other interrupts true or false.
 *
 * The constructor throws RangeError for a graph of several agents that always begins at the same one,
 * such as those of createSupervisor().
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
    const fixed = fixedStart(graph, this.#agents);
    if (fixed !== undefined) {
      throw new RangeError(
        `the graph begins every run at "${fixed}", so no other agent could keep the conversation: ` +
          "its edge from START is fixed, as in the graphs of createSupervisor(). Use createSwarm(), " +
          "or route from START by activeAgent. If the whole graph is one agent of the registry, name " +
          "that one as the third argument: […]",
      );
    }
  }

  /**
   * Routes a user's message to its agent, and to the agents to which it is handed over.
   *
   * config: for the graph; configurable.thread_id is the session's id unless it is given. An error of
   * the graph is reported as the turn's failure, and thrown.
   */
  async run(fields: RouteFields, config: GraphOptions = {}): Promise<RoutedRun> {
    const routed = await this.#client.route(fields);
    const run: RoutedRun = {
      ...newRun(routed.sessionId, routed.requestId),
      texts: routed.replyText === undefined ? [] : [routed.replyText],
      reason: routed.reason,
      degraded: routed.degraded,
      suggestion: routed.suggestion,
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
    config: GraphOptions = {},
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
    config: GraphOptions = {},
  ): Promise<RoutedRun> {
    const run = newRun(sessionId, dispatch?.requestId ?? "");
    return await this.#goOn(dispatch, run, userId, config, true);
  }

  /**
   * Returns a worker's function that runs the agents of this graph.
   *
   *   worker.agent("vat", routed.asAgent());
   *
   * The turn is answered under the worker's lease, and tool calls are reported while the graph runs.
   * A handoff ends the run: the next agent's inbox gets the turn. A run that throws is tried again by
   * the worker, from the user's message. config: for the graph, as in run(); the worker's signal
   * stops the graph when the turn is lost.
   */
  asAgent(config: GraphOptions = {}): AgentFunction {
    return async (given) => {
      const { sessionId, userId, dispatch, signal } = given;
      const run = newRun(sessionId, dispatch.requestId);
      const both = config.signal ? AbortSignal.any([signal, config.signal]) : signal;
      const stopped = { ...config, signal: both };
      await this.#dispatched(dispatch, run, userId, stopped, given);
      return undefined;
    };
  }

  async #goOn(
    dispatch: Dispatch | undefined,
    run: RoutedRun,
    userId: string,
    config: GraphOptions,
    isGiven = false,
  ): Promise<RoutedRun> {
    let next = dispatch;
    for (let step = 0; next !== undefined && step < DISPATCHES_MAX; step++) {
      // A worker answers what its agent's inbox gave it; all else in an inbox is for the workers.
      if (isForInbox(next) && !(isGiven && step === 0)) {
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
    config: GraphOptions,
    worker?: InboxTurn,
  ): Promise<Dispatch | undefined> {
    const { sessionId, degraded } = run;
    const turn = new OpenTurn(this.#client, sessionId, userId, dispatch, degraded, worker);
    for (;;) {
      let text: string;
      try {
        text = await this.#invoke(turn, config);
      } catch (error) {
        // A worker tries again. A decided run that is lost is lost to all attempts.
        const isOver = worker === undefined || error instanceof ApprovedRunLost;
        if (isOver && !degraded) {
          await turn.report(failure(error instanceof Error ? error.name : "failed"), "");
        }
        throw error;
      }
      run.agentId = turn.holderId;
      if (degraded) {
        run.texts.push(text);
        return undefined;
      }
      const outcome = turn.ended?.outcome ?? proceed();
      const answer = turn.passedOn ?? (await turn.finish(outcome, text));
      if (answer === undefined) continue;
      // A consulted agent answers the agent that asked.
      if (!turn.isConsulted) {
        if (answer.text !== "") run.texts.push(answer.text);
        run.items.push(...turn.items);
      }
      if (outcome.case === "approvalNeeded" && answer.taskStatus === TaskStatus.PAUSED) {
        const prompt = outcome.value.prompt ?? "";
        const { taskId } = answer;
        const { requestId } = dispatch;
        run.approval = { sessionId, taskId, requestId, agentId: turn.holderId, prompt };
      }
      return answer.next;
    }
  }

  /** Runs the graph from a dispatch's agent, and returns its last text. */
  async #invoke(turn: OpenTurn, config: GraphOptions): Promise<string> {
    const { dispatch } = turn;
    const message = messageOf(dispatch);
    const activeAgent = await this.#nodeOf(turn);
    // If the graph has no memory of its own, the agent gets the history from the service.
    const past = this.#graph.checkpointer ? [] : dispatch.history.flatMap(pastMessages);
    const isAgain = turn.note !== "";
    const notes = [
      // The graph's own memory has them from the first run.
      ...(isAgain && this.#graph.checkpointer ? [] : notesOf(dispatch)),
      ...(isAgain ? [new HumanMessage(turn.note)] : []),
    ];
    let given: unknown = { messages: [...past, ...notes, message], activeAgent };
    let threadId = String(config.configurable?.thread_id ?? (turn.sessionId || turn.requestId));
    let known = new Set<unknown>([...past.map(({ id }) => id)]);
    if (this.#graph.checkpointer) {
      const found = await this.#place(turn, config, threadId);
      threadId = found.waiting.threadId;
      known = new Set(found.waiting.messages.map(({ id }) => id));
      if (found.input !== undefined) given = found.input;
    }
    const placed = {
      ...config,
      configurable: { ...config.configurable, thread_id: threadId, [TURN]: turn },
    };
    let state: { messages: BaseMessage[]; activeAgent?: string } = await this.#graph.invoke(
      given,
      placed,
    );
    let messages = state.messages;
    let waits = false;
    for (let refusals = 0; this.#graph.checkpointer; refusals++) {
      const waiting = await this.#waitingIn(config, threadId);
      const [first] = waiting.interrupts;
      waits = first !== undefined;
      if (first === undefined) break;
      messages = waiting.messages;
      if (turn.noApproval === "") {
        const prompt = promptOf(first.value).slice(0, PROMPT_CHARS_MAX) || "approve?";
        turn.needApproval(approvalNeeded(prompt), prompt, textSince(messages, known));
        break;
      }
      if (refusals >= REFUSALS_MAX) break;
      const again = refusedInput(waiting, turn.noApproval, this.#resumeValue);
      state = await this.#graph.invoke(again, placed);
      messages = state.messages;
    }
    if (!waits) await turn.calls?.forget();
    const begun = messages.findLastIndex((each) => each.id === message.id);
    const own = messages.slice(begun + 1).filter(({ id }) => id === undefined || !known.has(id));
    this.#checkHandoffs(turn, own, state.activeAgent);
    turn.items = itemsOf(own);
    return turn.ended?.text ?? textSince(own, known);
  }

  /**
   * Throws for a handoff about which the service was not asked. Its agent has run, so the service can
   * only learn that the turn failed.
   */
  #checkHandoffs(turn: OpenTurn, own: readonly BaseMessage[], activeAgent?: string): void {
    const spoke = own.flatMap((each) => (each instanceof AIMessage && each.name) || []);
    // In a worker a handoff ends the run, with the target in the state.
    if (turn.worker === undefined && activeAgent !== undefined) spoke.push(activeAgent);
    const held = [...turn.holderIds].map((id) => this.#nodes?.get(id) ?? id);
    const stray = spoke.find((name) => this.#agents.includes(name) && !held.includes(name));
    if (stray !== undefined) {
      throw new Error(
        `the graph went to agent "${stray}" without asking the service: hand over by a tool in a ` +
          "RoutedToolNode",
      );
    }
  }

  /** Finds the thread of a turn, and the input of a run that continues there. */
  async #place(
    turn: OpenTurn,
    config: GraphOptions,
    threadId: string,
  ): Promise<{ waiting: Waiting; input?: Command | null }> {
    const { sessionId, userId, degraded, dispatch } = turn;
    const who = { sessionId, userId };
    const decided = decidedOf(dispatch);
    const requests = decided ? await pausedRequests(this.#client, who, dispatch.requestId) : [];
    let waiting = await this.#waitingIn(config, threadId);
    const [begun] = requests.slice(-1);
    if (decided !== undefined && begun !== undefined) {
      if (!waiting.isOf(requests)) {
        waiting = await this.#waitingIn(config, asideThread(dispatch, threadId));
      }
      const saver = this.#graph.checkpointer as BaseCheckpointSaver<number | string>;
      turn.calls = new DecidedCalls(saver, `${waiting.threadId}:${begun}`);
      return { waiting, input: decidedInput(waiting, requests, decided, this.#resumeValue) };
    }
    if (!degraded && (await mustStayAside(this.#client, who, dispatch, waiting))) {
      waiting = await this.#waitingIn(config, asideThread(dispatch, threadId));
    }
    return { waiting };
  }

  async #waitingIn(config: GraphOptions, threadId: string): Promise<Waiting> {
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

/** Returns the result of a run that has not begun. */
function newRun(sessionId: string, requestId: string): RoutedRun {
  return {
    sessionId,
    requestId,
    texts: [],
    items: [],
    agentId: undefined,
    reason: "",
    degraded: false,
    suggestion: undefined,
    next: undefined,
    approval: undefined,
  };
}

/** Returns the agent at which a graph of several agents always begins, if there is one. */
function fixedStart({ builder }: RunnableGraph, agents: readonly string[]): string | undefined {
  const { edges } = (builder ?? {}) as { edges?: Iterable<readonly [string, string]> };
  if (agents.length < 2 || edges === undefined) return undefined;
  return [...edges].find(([start, end]) => start === START && agents.includes(end))?.[1];
}

function pastMessages({ userText, agentText }: Turn): BaseMessage[] {
  return [
    ...(userText === "" ? [] : [new HumanMessage(userText)]),
    ...(agentText === "" ? [] : [new AIMessage(agentText)]),
  ];
}
