// One open turn while a graph runs: the agent that holds it, its steps, and how it will end.

import type { JsonObject } from "@bufbuild/protobuf";
import type { HumanMessage } from "@langchain/core/messages";
import type { RoutingClient } from "./client.js";
import { HandoffRefused, InvalidField, PreconditionFailed, UnknownAgent } from "./errors.js";
import { Delivery, type Dispatch } from "./gen/agent_routing/v1/dispatch_pb.js";
import { HandoffMode } from "./gen/agent_routing/v1/handoff_pb.js";
import type { CompleteTurnResponse } from "./gen/agent_routing/v1/routing_service_pb.js";
import type { GraphAgents } from "./graphAgents.js";
import type { DecidedCalls } from "./graphCalls.js";
import { APPROVAL_STEP, isPaused } from "./graphInterrupts.js";
import type { AnswerItem } from "./graphItems.js";
import { instructionsOf, noteOfHandoff } from "./graphNotes.js";
import { handoff, type Outcome } from "./outcomes.js";
import type { InboxTurn } from "./worker.js";

/** The key of the turn in a run's configuration. LangGraph omits such keys from checkpoints. */
export const TURN = "__agent_routing_turn";

/** Limits of a turn's steps and of a step's texts, so that all fit into the service's 48 KiB. */
const STEPS_MAX = 16;
const STEP_CHARS_MAX = 350;
const STEP_NAME_CHARS_MAX = 128;

/** Limit of a handoff's reason, which models make long: the service accepts 1 KiB. */
const REASON_CHARS_MAX = 250;
/** Limit of a handoff's text for the user; the service accepts 4 KiB. */
const MESSAGE_CHARS_MAX = 1000;
/** Limit of a handoff's context; the service accepts 16 KiB with its framing. */
const CONTEXT_CHARS_MAX = 3_800;

const TOO_LATE = "not executed: the conversation has been handed over";
const NO_CONSULT = "not executed: at the moment you cannot consult another agent";

interface GraphStep {
  name: string;
  kind: string;
  input: string;
  output: string;
}

/** An open turn. worker: the turn of a worker, by whose lease it is answered. */
export class OpenTurn {
  ended: { outcome: Outcome; text: string } | undefined;
  items: AnswerItem[] = [];
  /** The calls of a decided run, of which each is begun at most once. */
  calls: DecidedCalls | undefined;
  /** Whether a consultation was refused: the agent runs again, and reads why. */
  note = "";
  /** The service's answer to a handoff that ended the turn here: its target runs elsewhere. */
  passedOn: CompleteTurnResponse | undefined;
  /** The open turn, after it was moved to an agent whose turns wait in an inbox. */
  movedAway: Dispatch | undefined;
  /** What handoffs within the graph say to the user. */
  readonly texts: string[] = [];
  public holderId: string;
  /** All agents that have held the turn in this run. */
  readonly holderIds = new Set<string>();
  readonly requestId: string;
  readonly #steps: GraphStep[] = [];
  /** Handoffs are checked one by one: the first of an answer decides. */
  #asking: Promise<unknown> = Promise.resolve();

  constructor(
    readonly client: RoutingClient,
    readonly agents: GraphAgents,
    readonly sessionId: string,
    readonly userId: string,
    readonly dispatch: Dispatch,
    readonly degraded: boolean,
    readonly worker?: InboxTurn,
  ) {
    this.requestId = dispatch.requestId;
    this.holderId = dispatch.agent?.agentId ?? "";
    this.holderIds.add(this.holderId);
  }

  /** Whether a handoff ended the run: its target is no agent of this run. */
  get isPassedOn(): boolean {
    return this.passedOn !== undefined || this.movedAway !== undefined;
  }

  /** Returns the message with the instructions of the agent that holds the turn. */
  async instructions(): Promise<HumanMessage[]> {
    if (this.degraded) return [];
    const view = await this.agents.view(this, this.holderId);
    return [instructionsOf(view, (id) => this.agents.nameOf(id))];
  }

  /** Whether another agent asks, and not the user. */
  get isConsulted(): boolean {
    const { consult } = this.dispatch;
    return consult !== undefined && consult.answer === undefined;
  }

  /** Why the agent cannot ask for an approval in this turn, for the model; empty if it can. */
  get noApproval(): string {
    if (isPaused(this.dispatch)) {
      return "not executed: your earlier request for approval has not been decided yet";
    }
    if (this.isConsulted) {
      return "not executed: while another agent consults you, you cannot ask for approval";
    }
    return this.degraded ? "not executed: at the moment nothing can be approved" : "";
  }

  /** Records a tool call. A worker reports it while the run goes on. */
  step(name: string, given: unknown, output: string): void {
    const step = {
      ...{ name: name.slice(0, STEP_NAME_CHARS_MAX), kind: "tool" },
      input: JSON.stringify(given).slice(0, STEP_CHARS_MAX),
      output: output.slice(0, STEP_CHARS_MAX),
    };
    if (this.worker === undefined) this.#steps.push(step);
    else this.worker.step(step);
  }

  /** Ends the turn with a request for approval. */
  needApproval(outcome: Outcome, prompt: string, text: string): void {
    if (this.isPassedOn) return;
    // With the answer: only the attempt that asks may report that it did.
    this.#steps.push({ name: "interrupt", kind: APPROVAL_STEP, input: prompt, output: "" });
    this.ended = { outcome, text };
  }

  /** Ends the turn with a question to another agent. Returns the tool's result for the model. */
  consult(agentId: string, question: string): string {
    if (this.isPassedOn) return TOO_LATE;
    const cannot = this.degraded || this.isConsulted || isPaused(this.dispatch) || this.note !== "";
    if (cannot) return NO_CONSULT;
    const reason = question.slice(0, REASON_CHARS_MAX);
    const outcome = handoff(this.agents.idOf(agentId), { reason, mode: HandoffMode.CONSULT });
    this.ended = { outcome, text: "" };
    return "asked; you will continue with the answer";
  }

  /** Reports how the turn ended: under the worker's lease if there is one. */
  async report(outcome: Outcome, text: string): Promise<CompleteTurnResponse> {
    const { sessionId, userId, requestId, holderId: agentId, items } = this;
    const answer = { text, outcome, items, steps: this.#steps.slice(-STEPS_MAX) };
    if (this.worker !== undefined) return await this.worker.complete(answer);
    return await this.client.completeTurn({ sessionId, userId, requestId, agentId, ...answer });
  }

  /**
   * Reports how a run ended. Returns undefined if a consultation was refused: then the agent runs
   * again, and its note says why.
   */
  async finish(outcome: Outcome, text: string): Promise<CompleteTurnResponse | undefined> {
    try {
      return await this.report(outcome, text);
    } catch (error) {
      const isConsult =
        outcome.case === "handoff" && outcome.value.mode === HandoffMode.CONSULT && !this.note;
      if (!isConsult || !isRefusal(error)) throw error;
      this.note = `The consultation was refused: ${error.message}. Answer the user yourself.`;
      this.ended = undefined;
      return undefined;
    }
  }

  /**
   * Asks the service about a handoff. An agent of the graph goes on in the same run; any other
   * target, and in a worker every one, ends it (isPassedOn).
   *
   * target: an agent's id, alias or node. beside: what the model wrote with the call. Returns the
   * texts for the model: that the handoff was refused, or what the target has to know.
   */
  handOver(
    target: string,
    from: string,
    given: Record<string, unknown>,
    beside = "",
  ): Promise<{ refusal: string } | { note: string }> {
    const asked = this.#asking.then(async () => {
      const refusal = await this.#handOver(target, from, given, beside);
      if (refusal !== undefined) return { refusal };
      const reason = String(given.reason ?? "");
      const context = contextOf(given.context);
      const giver = this.agents.nameOf(
        this.agents.idOf(from || this.dispatch.agent?.agentId || ""),
      );
      return { note: noteOfHandoff({ from: giver, reason, context }) };
    });
    this.#asking = asked.catch(() => undefined);
    return asked;
  }

  async #handOver(
    name: string,
    from: string,
    given: Record<string, unknown>,
    beside: string,
  ): Promise<string | undefined> {
    if (this.isPassedOn) return TOO_LATE;
    const target = this.agents.idOf(name);
    const isHere = this.agents.nodeOf(target) !== undefined;
    if (this.degraded) {
      if (!isHere)
        return `No agent ${name} can be reached at the moment. Answer the user yourself.`;
      this.#holds(target);
      return undefined;
    }
    const reason = String(given.reason ?? "").slice(0, REASON_CHARS_MAX);
    const message = String(given.message ?? "").slice(0, MESSAGE_CHARS_MAX);
    const context = contextOf(given.context);
    const mode = given.mode === "interlude" ? HandoffMode.INTERLUDE : HandoffMode.UNSPECIFIED;
    const said = { reason, mode, ...(context && { context }) };
    try {
      if (this.worker !== undefined || !isHere) {
        this.passedOn = await this.report(handoff(target, { ...said, message }), beside);
        return undefined;
      }
      // What the model wrote next to the transfer has no field of its own here.
      const shown = [beside, message].filter((each) => each !== "").join("\n\n");
      const { agent } = await this.client.setActiveAgent({
        sessionId: this.sessionId,
        userId: this.userId,
        agentId: target,
        turnRequestId: this.requestId,
        fromAgentId: this.agents.idOf(from) || this.holderId,
        message: shown.slice(0, MESSAGE_CHARS_MAX),
        ...said,
      });
      if (shown !== "") this.texts.push(shown);
      await this.#seeDelivery(agent?.agentId ?? target);
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

  #holds(agentId: string): void {
    this.holderId = agentId;
    this.holderIds.add(agentId);
    this.ended = undefined;
  }

  /** Leaves a turn that was moved to an agent with an inbox: that agent's workers have it. */
  async #seeDelivery(agentId: string): Promise<void> {
    const { openRequests } = await this.client.status(this);
    const moved = openRequests.find(
      (each) => each.requestId === this.requestId && each.agent?.agentId === agentId,
    );
    if (moved === undefined || !isForInbox(moved)) return this.#holds(agentId);
    this.movedAway = moved;
    this.holderIds.add(agentId);
  }
}

/** Returns a handoff's context from what a model gave: fields, or a text. */
function contextOf(given: unknown): JsonObject | undefined {
  if (given === undefined || given === null || given === "") return undefined;
  const text = typeof given === "string" ? given : JSON.stringify(given);
  if (typeof given === "object" && !Array.isArray(given) && text.length <= CONTEXT_CHARS_MAX) {
    return Object.keys(given).length === 0 ? undefined : (given as JsonObject);
  }
  return { context: text.slice(0, CONTEXT_CHARS_MAX) };
}

function isRefusal(error: unknown): error is Error {
  return (
    error instanceof PreconditionFailed ||
    error instanceof UnknownAgent ||
    error instanceof InvalidField
  );
}

/** Whether a dispatch waits in an inbox, for its agent's workers. */
export function isForInbox({ delivery }: Dispatch): boolean {
  return delivery === Delivery.INBOX;
}
