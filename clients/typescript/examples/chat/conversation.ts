// One conversation: a user's message goes from agent to agent until the last one has answered.
//
// Every frontend does this: route the message, show a command's reply, and run agents while
// completeTurn() names a next one.

import type {
  Agent,
  Dispatch,
  ReplyOption,
  RouteResult,
  RoutingClient,
  Suggestion,
} from "@agent-routing/client/web";
import { HandoffRefused, reasonName, UnknownRequest } from "@agent-routing/client/web";
import { type Answer, afterRefusal, answerOf } from "./agents.js";

/** What to show, in order. */
export type Shown =
  | { kind: "reply"; text: string; options: readonly ReplyOption[] }
  | { kind: "handoff"; from: string; to: Agent; words: string }
  | { kind: "agent"; agent: Agent; text: string; reason: string; asks: boolean; degraded: boolean }
  | { kind: "suggestion"; suggestion: Suggestion };

/** Limit of hops of a message, far above the service's own limit. */
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

  /** Returns the same conversation with another client. */
  over(client: RoutingClient): Conversation {
    const { sessionId, userId, locale, channel } = this;
    const other = new Conversation(client, sessionId, userId, locale, channel);
    other.#agent = this.#agent;
    return other;
  }

  /** Sends the user's text; yields what to show, as it arrives. */
  async *say(text: string, quickReplyId = ""): AsyncGenerator<Shown, void, void> {
    const { sessionId, userId, locale, channel } = this;
    const fields = { sessionId, userId, locale, channel, text, quickReplyId };
    const turn = await this.client.route(fields);
    if (turn.replyText !== undefined) {
      yield { kind: "reply", text: turn.replyText, options: turn.response.reply?.options ?? [] };
    }
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
        // The service does not know this message: there is nothing to complete.
        yield { ...shown, text: answer.text, asks: answer.outcome.case === "followUp" };
        return;
      }
      const { said, text, next } = await this.#complete(dispatch, answer);
      if (text !== "") yield { ...shown, text, asks: said.outcome.case === "followUp" };
      dispatch = next;
    }
  }

  /** Reports an answer. If its handoff is refused, the agent answers itself. */
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
