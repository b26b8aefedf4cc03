// Tool calls of a decided run, at most once each.
//
// LangGraph repeats a task that did not end, so a process that dies while a tool runs would leave the
// tool to be run again. Rule: before such a call begins, the checkpointer has a mark of it, and
// afterwards its result. A marked call is not begun again: its result is used, if there is one.

import { ToolMessage } from "@langchain/core/messages";
import { type BaseCheckpointSaver, emptyCheckpoint, isGraphInterrupt } from "@langchain/langgraph";
import { ApprovedRunLost } from "./graphInterrupts.js";

/** The key of a mark in the metadata of its checkpoint. */
const MARK_KEY = "agent_routing_call";

/** The channel of a call's result, and its version. */
const RESULT = "result";
const VERSION = "1";

/** The id of a mark's checkpoint: the next mark of a call takes the place of the one before. */
const MARK_ID = "00000000-0000-6000-8000-000000000000";

type Mark = "begun" | "interrupted" | "ended";

/** Where a mark is: a thread of its own, as the run's thread goes on. */
interface Place {
  configurable: { thread_id: string; checkpoint_ns: string };
}

/** The calls of one decided run. */
export class DecidedCalls {
  readonly #marked: string[] = [];

  /** prefix: of the marks' threads: the run's thread, and the request with which the run began. */
  constructor(
    private readonly saver: BaseCheckpointSaver<number | string>,
    private readonly prefix: string,
  ) {}

  /**
   * Runs a call that no attempt has begun, or returns the result that it had. A call that interrupts
   * may be run again: it waits for the next decision.
   *
   * Throws ApprovedRunLost for a call that was begun and has no result here, and what the call throws.
   */
  async once<T>(callId: string, name: string, run: () => Promise<T>): Promise<T | ToolMessage> {
    const threadId = `${this.prefix}:${callId}`;
    const place = { configurable: { thread_id: threadId, checkpoint_ns: "" } };
    this.#marked.push(threadId);
    const found = await this.saver.getTuple(place);
    const mark = (found?.metadata as Record<string, unknown> | undefined)?.[MARK_KEY];
    if (mark === "ended") return found?.checkpoint.channel_values[RESULT] as ToolMessage;
    if (mark === "begun") {
      throw new ApprovedRunLost(
        `an earlier attempt began the call "${callId}" of ${name} and may have executed it, so it ` +
          "is not executed again",
      );
    }
    await this.#mark(place, "begun");
    let result: T;
    try {
      result = await run();
    } catch (error) {
      if (isGraphInterrupt(error)) await this.#mark(place, "interrupted");
      throw error;
    }
    // A Command, such as a handoff, is done with once it has been asked for.
    if (result instanceof ToolMessage) await this.#mark(place, "ended", result);
    return result;
  }

  /** Removes the marks of a run that has ended: the graph has nothing left to run. */
  async forget(): Promise<void> {
    await Promise.all(this.#marked.splice(0).map((threadId) => this.saver.deleteThread(threadId)));
  }

  async #mark(place: Place, mark: Mark, result?: ToolMessage): Promise<void> {
    const metadata = { source: "update" as const, step: -1, parents: {}, [MARK_KEY]: mark };
    const versions = result === undefined ? {} : { [RESULT]: VERSION };
    const values = result === undefined ? {} : { [RESULT]: result };
    const whole = { id: MARK_ID, channel_values: values, channel_versions: versions };
    await this.saver.put(place, { ...emptyCheckpoint(), ...whole }, metadata, versions);
  }
}
