// One open turn while a graph runs: the agent that holds it, its steps, and how it will end.

import { HumanMessage } from "@langchain/core/messages";
import type { RoutingClient } from "./client.js";
import { HandoffRefused, InvalidField, PreconditionFailed, UnknownAgent } from "./errors.js";
import { Delivery, type Dispatch } from "./gen/agent_routing/v1/dispatch_pb.js";
import { HandoffMode } from "./gen/agent_routing/v1/handoff_pb.js";
import type { CompleteTurnResponse } from "./gen/agent_routing/v1/routing_service_pb.js";
import type { DecidedCalls } from "./graphCalls.js";
import { APPROVAL_STEP, isPaused } from "./graphInterrupts.js";
import type { AnswerItem } from "./graphItems.js";
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

/** Agents that a model is shown for a message that may be for another: more would say nothing. */
const HINTED_AGENTS_MAX = 3;

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
  /** The service's answer to a handoff with which a worker's turn ended. */
  passedOn: CompleteTurnResponse | undefined;
  public holderId: string;
  /** All agents that have held the turn in this run. */
  readonly holderIds = new Set<string>();
  readonly requestId: string;
  readonly #steps: GraphStep[] = [];
  /** Handoffs are checked one by one: the first of an answer decides. */
  #asking: Promise<unknown> = Promise.resolve();

  constructor(
    readonly client: RoutingClient,
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
    // With the answer: only the attempt that asks may report that it did.
    this.#steps.push({ name: "interrupt", kind: APPROVAL_STEP, input: prompt, output: "" });
    this.ended = { outcome, text };
  }

  /** Ends the turn with a question to another agent. Returns the tool's result for the model. */
  consult(agentId: string, question: string): string {
    if (this.passedOn !== undefined) return TOO_LATE;
    const cannot = this.degraded || this.isConsulted || isPaused(this.dispatch) || this.note !== "";
    if (cannot) return NO_CONSULT;
    const reason = question.slice(0, REASON_CHARS_MAX);
    const outcome = handoff(agentId, { reason, mode: HandoffMode.CONSULT });
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
    if (this.passedOn !== undefined) return TOO_LATE;
    if (this.degraded) {
      this.holderId = target;
      this.holderIds.add(target);
      return undefined;
    }
    const reason = String(given.reason ?? "").slice(0, REASON_CHARS_MAX);
    const message = String(given.message ?? "").slice(0, MESSAGE_CHARS_MAX);
    try {
      if (this.worker !== undefined) {
        // The target's inbox gets the message: the run ends here.
        this.passedOn = await this.report(handoff(target, { reason, message }), "");
        return undefined;
      }
      const { agent } = await this.client.setActiveAgent({
        sessionId: this.sessionId,
        userId: this.userId,
        agentId: target,
        turnRequestId: this.requestId,
        fromAgentId: from || this.holderId,
        reason,
        message,
      });
      this.holderId = agent?.agentId ?? target;
      this.holderIds.add(this.holderId);
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

/** Returns what an agent must know about how a message came to it. */
export function notesOf({ handoff: given, consult, candidates }: Dispatch): HumanMessage[] {
  const parts: string[] = [];
  if (given !== undefined) {
    const giver = given.from?.agentId ?? "another agent";
    parts.push(`For context: agent ${giver} has handed the conversation to you.`);
    if (given.reason !== "") parts.push(`Reason: ${given.reason}`);
    if (given.context !== undefined) {
      parts.push(`What you need to know: ${JSON.stringify(given.context)}`);
    }
  }
  if (consult?.answer !== undefined) {
    parts.push(`For context: you asked: ${consult.question}`);
    parts.push(`The answer: ${consult.answer || "none"}`);
  } else if (consult !== undefined) {
    parts.push(`Agent ${consult.asker?.agentId} asks you, not the user: ${consult.question}`);
  }
  if (candidates.length > 0) {
    const likely = candidates.slice(0, HINTED_AGENTS_MAX).map(({ agentId }) => agentId);
    parts.push(
      `For context: this message may be for ${likely.join(" or ")}. Hand it over if so; ` +
        "answer it yourself if it is for you.",
    );
  }
  return parts.length === 0 ? [] : [new HumanMessage(parts.join("\n"))];
}
