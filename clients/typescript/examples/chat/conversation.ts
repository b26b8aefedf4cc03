// One conversation: a user's message, on its way from agent to agent until somebody waits.
//
// What a frontend has to do, whatever it looks like: route the message, show a command's reply, and
// run agent after agent while completeTurn() names a next one.

import type {
  Agent,
  Dispatch,
  RouteResult,
  RoutingClient,
  Suggestion,
} from "agent-routing-client/web";
import { HandoffRefused, reasonName, UnknownRequest } from "agent-routing-client/web";
import { type Answer, afterRefusal, answerOf } from "./agents.js";

/** What there is to show, in its order. */
export type Shown =
  | { kind: "reply"; text: string }
  | { kind: "handoff"; from: string; to: Agent; words: string }
  | { kind: "agent"; agent: Agent; text: string; reason: string; asks: boolean; degraded: boolean }
  | { kind: "suggestion"; suggestion: Suggestion };

/** No message is handed on more often than the service itself allows, by far. */
const STEPS_MAX = 20;

export class Conversation {
  #agent: Agent | undefined;

  constructor(
    readonly client: RoutingClient,
    readonly sessionId: string,
    readonly userId: string,
    readonly locale = "en",
    readonly channel = "web",
  ) {}

  /** Returns the same conversation by another client. */
  over(client: RoutingClient): Conversation {
    const { sessionId, userId, locale, channel } = this;
    const other = new Conversation(client, sessionId, userId, locale, channel);
    other.#agent = this.#agent;
    return other;
  }

  /** Sends what the user says; gives what there is to show, as it comes. */
  async *say(text: string, quickReplyId = ""): AsyncGenerator<Shown, void, void> {
    const { sessionId, userId, locale, channel } = this;
    const fields = { sessionId, userId, locale, channel, text, quickReplyId };
    const turn = await this.client.route(fields);
    if (turn.replyText !== undefined) yield { kind: "reply", text: turn.replyText };
    if (turn.dispatch !== undefined) yield* this.#agents(turn.dispatch, turn);
    if (turn.suggestion !== undefined) yield { kind: "suggestion", suggestion: turn.suggestion };
  }

  async *#agents(first: Dispatch, turn: RouteResult): AsyncGenerator<Shown, void, void> {
    let dispatch: Dispatch | undefined = first;
    for (let step = 0; dispatch?.agent !== undefined && step < STEPS_MAX; step++) {
      const { agent, handoff }: Dispatch = dispatch;
      const before = handoff?.from ?? this.#agent;
      if (before !== undefined && before.agentId !== agent.agentId) {
        yield {
          kind: "handoff",
          from: before.displayName || before.agentId,
          to: agent,
          words: handoff?.message ?? "",
        };
      }
      this.#agent = agent;
      const answer = answerOf(dispatch);
      const shown = {
        kind: "agent",
        agent,
        reason: reasonName(dispatch.reason),
        degraded: turn.degraded,
      } as const;
      if (turn.degraded) {
        // The service knows nothing of this message: there is nothing to complete.
        yield { ...shown, text: answer.text, asks: answer.outcome.case === "followUp" };
        return;
      }
      const { said, text, next } = await this.#complete(dispatch, answer);
      if (text !== "") yield { ...shown, text, asks: said.outcome.case === "followUp" };
      dispatch = next;
    }
  }

  /** Reports an answer; where its handoff is refused, the agent answers by itself. */
  async #complete(
    dispatch: Dispatch,
    answer: Answer,
  ): Promise<{ said: Answer; text: string; next: Dispatch | undefined }> {
    const fields = {
      sessionId: this.sessionId,
      userId: this.userId,
      requestId: dispatch.requestId,
      agentId: dispatch.agent?.agentId ?? "",
    };
    try {
      const { text, next } = await this.client.completeTurn({ ...fields, ...answer });
      return { said: answer, text, next };
    } catch (error) {
      if (error instanceof HandoffRefused) {
        const said = afterRefusal(error.rules);
        const { text, next } = await this.client.completeTurn({ ...fields, ...said });
        return { said, text, next };
      }
      if (error instanceof UnknownRequest) {
        return { said: answer, text: answer.text, next: undefined };
      }
      throw error;
    }
  }
}
