// The answer of a worker's turn, given under its lease.
//
// Rule: at most one answer, and the steps that were not sent before go with it.

import type { CallOptions } from "./call.js";
import type { RoutingClient } from "./client.js";
import {
  DeadlineExceeded,
  LeaseLost,
  Overloaded,
  RequestNotOpen,
  RoutingError,
  Unavailable,
} from "./errors.js";
import type { CompleteTurnResponse, InboxItem } from "./gen/agent_routing/v1/routing_service_pb.js";
import { type Answer, proceed } from "./outcomes.js";
import { STEPS_MAX, type TurnReports } from "./turnReports.js";
import { sleep } from "./waiting.js";

/** Between two reports of an answer while the service is away. */
const REPORT_PAUSE_MS = 1_000;

/** Gives the answer of one turn. */
export class TurnAnswer {
  #isGiven = false;

  /** options: of the call, such as its trace. signal: ends the wait for a service that is away. */
  constructor(
    private readonly client: RoutingClient,
    private readonly item: InboxItem,
    private readonly reports: TurnReports,
    private readonly signal: AbortSignal,
    private readonly options: CallOptions,
  ) {}

  /** Whether the service has stored the answer. */
  get isGiven(): boolean {
    return this.#isGiven;
  }

  /**
   * Reports the answer, for as long as it takes.
   *
   * Throws LeaseLost or RequestNotOpen if the turn is no longer this worker's, what completeTurn()
   * throws for an answer that is refused, and Error for a second answer.
   */
  async give(answer: Answer): Promise<CompleteTurnResponse> {
    const { sessionId, dispatch, leaseToken } = this.item;
    const requestId = dispatch?.requestId ?? "";
    if (this.#isGiven) throw new Error(`request ${requestId} is answered already`);
    const rest = [...(await this.reports.finish()), ...(answer.steps ?? [])];
    const request = {
      ...{ sessionId, requestId, leaseToken, agentId: dispatch?.agent?.agentId ?? "" },
      text: answer.text ?? "",
      items: answer.items ?? [],
      steps: rest.slice(0, STEPS_MAX),
      outcome: answer.outcome ?? proceed(),
    };
    for (;;) {
      try {
        const answered = await this.client.completeTurn(request, this.options);
        this.#isGiven = true;
        return answered;
      } catch (error) {
        if (isPassing(error)) {
          await sleep(REPORT_PAUSE_MS, this.signal);
          continue;
        }
        const isOver = error instanceof LeaseLost || error instanceof RequestNotOpen;
        if (error instanceof RoutingError && !isOver) this.reports.goOn();
        throw error;
      }
    }
  }
}

/** Tells whether a call may succeed later. */
export function isPassing(error: unknown): boolean {
  return (
    error instanceof Unavailable || error instanceof DeadlineExceeded || error instanceof Overloaded
  );
}
