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
import { GraphAgents } from "./graphAgents.js";
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
import { notesOf, pastMessages } from "./graphNotes.js";
import { isForInbox, OpenTurn, TURN } from "./graphTurn.js";
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
export { routedPrompt, type TransferTarget } from "./graphNotes.js";
export {
  askUser,
  completeTask,
  consultAgent,
  RoutedToolNode,
  transferToAgent,
} from "./graphTools.js";

/** Limit of hops of a message, far above the service's own limit. */
const DISPATCHES_MAX = 20;

/** The result of a message. */
export interface RoutedRun {
  sessionId: string;
  requestId: string;
  /** The texts to show, in order: a command's reply, each agent's answer and words on the way. */
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
  /**
   * The dispatch with which the run ended, if its agent is no node of the graph: pass it on to its
   * program. Workers and people have it already (delivery INBOX).
   */
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
  readonly #agents: GraphAgents;
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
    const names =
      agents.length > 0 ? agents : Object.keys(graph.nodes).filter((name) => !/^__/.test(name));
    this.#agents = new GraphAgents(client, names);
    const fixed = fixedStart(graph, names);
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
      await this.#agents.learn();
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
    if (next !== undefined && !run.degraded) await this.#agents.learn();
    for (let step = 0; next !== undefined && step < DISPATCHES_MAX; step++) {
      const isHere = this.#agents.nodeOf(next.agent?.agentId ?? "") !== undefined;
      // A worker answers what its agent's inbox gave it; all else in an inbox is for the workers.
      if (!isHere || (isForInbox(next) && !(isGiven && step === 0))) {
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
    const who = [sessionId, userId] as const;
    const turn = new OpenTurn(this.#client, this.#agents, ...who, dispatch, degraded, worker);
    for (;;) {
      let text: string;
      try {
        text = await this.#invoke(turn, config);
      } catch (error) {
        // A worker tries again. A decided run that is lost is lost to all attempts.
        const isOver = worker === undefined || error instanceof ApprovedRunLost;
        if (isOver && !degraded && !turn.isPassedOn) {
          await turn.report(failure(error instanceof Error ? error.name : "failed"), "");
        }
        throw error;
      }
      run.agentId = turn.holderId;
      run.texts.push(...turn.texts);
      if (turn.movedAway !== undefined) return turn.movedAway;
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
      if (answer.notice !== undefined) run.texts.push(answer.notice.text);
      if (answer.next?.handoff?.message) run.texts.push(answer.next.handoff.message);
      return answer.next;
    }
  }

  /** Runs the graph from a dispatch's agent, and returns its last text. */
  async #invoke(turn: OpenTurn, config: GraphOptions): Promise<string> {
    const { dispatch } = turn;
    const message = messageOf(dispatch);
    const activeAgent = this.#nodeOf(turn);
    // If the graph has no memory of its own, the agent gets the history from the service.
    const past = this.#graph.checkpointer ? [] : this.#past(turn);
    const isAgain = turn.note !== "";
    const notes = [
      // The graph's own memory has them from the first run.
      ...(isAgain && this.#graph.checkpointer
        ? []
        : notesOf(dispatch, (id) => this.#agents.nameOf(id))),
      ...(isAgain ? [new HumanMessage(turn.note)] : []),
    ];
    const instructions = await turn.instructions();
    let given: unknown = {
      messages: [...instructions, ...past, ...notes, message],
      activeAgent,
    };
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
      if (first === undefined || turn.isPassedOn) break;
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
    // If a handoff ended the run, the state may still name the agent from which it came.
    if (!turn.isPassedOn && activeAgent !== undefined) spoke.push(activeAgent);
    const held = [...turn.holderIds].map((id) => this.#agents.nameOf(id));
    const stray = spoke.find((name) => this.#agents.nodes.includes(name) && !held.includes(name));
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
  #nodeOf({ holderId }: OpenTurn): string {
    const node = this.#agents.nodeOf(holderId);
    if (node === undefined) {
      throw new Error(
        `the graph has no node for agent "${holderId}"; its nodes are ` +
          `${this.#agents.nodes.join(", ")}: name one by the agent's id or an alias`,
      );
    }
    return node;
  }

  #past({ dispatch, holderId }: OpenTurn): BaseMessage[] {
    return dispatch.history.flatMap((turn) =>
      pastMessages(turn, holderId, this.#agents.nameOf(turn.agentId)),
    );
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
