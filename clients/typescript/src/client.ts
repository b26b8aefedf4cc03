// The client: one method for each RPC that applications call.
//
// A method takes the fields of its request and returns the generated answer; only route() may
// decide in place of the service. index.ts and web.ts choose the transport.

import { create } from "@bufbuild/protobuf";
import { durationFromMs } from "@bufbuild/protobuf/wkt";

import { type ApprovalNews, watchWaiting } from "./approvals.js";
import { type AskCalls, type AskOptions, ask, askParts } from "./askCalls.js";
import type { Asked, AskedPart } from "./asking.js";
import {
  away,
  type CallOptions,
  type CallSettings,
  call,
  isAnswering,
  TENANT_KEY,
  TIMEOUT_MS_DEFAULT,
  type TokenSource,
} from "./call.js";
import { Circuit } from "./circuit.js";
import { RoutingError } from "./errors.js";
import {
  AddNoteRequestSchema,
  type AddNoteResponse,
  CancelTaskRequestSchema,
  type CancelTaskResponse,
  ClaimTurnRequestSchema,
  type ClaimTurnResponse,
  ClearActiveAgentRequestSchema,
  type ClearActiveAgentResponse,
  CompleteTurnRequestSchema,
  type CompleteTurnResponse,
  type InboxItem,
  KeepTurnRequestSchema,
  type KeepTurnResponse,
  ListAgentsRequestSchema,
  type ListAgentsResponse,
  ListApprovalsRequestSchema,
  type ListApprovalsResponse,
  ListNotesRequestSchema,
  type ListNotesResponse,
  ListTasksRequestSchema,
  type ListTasksResponse,
  ListTurnsRequestSchema,
  type ListTurnsResponse,
  ListWaitingRequestSchema,
  type ListWaitingResponse,
  ReleaseTurnRequestSchema,
  type ReleaseTurnResponse,
  ReportDegradedRequestSchema,
  type ReportDegradedResponse,
  ResumeTaskRequestSchema,
  type ResumeTaskResponse,
  type RouteRequest,
  RouteRequestSchema,
  SetActiveAgentRequestSchema,
  type SetActiveAgentResponse,
  StatusRequestSchema,
  type StatusResponse,
  type WaitingApproval,
  type WaitingConversation,
  WatchApprovalsRequestSchema,
  WatchInboxRequestSchema,
  WatchSessionRequestSchema,
} from "./gen/agent_routing/v1/routing_service_pb.js";
import type { Change } from "./gen/agent_routing/v1/session_event_pb.js";
import type { Task } from "./gen/agent_routing/v1/task_pb.js";
import type { Turn } from "./gen/agent_routing/v1/turn_pb.js";
import { newUuid7 } from "./ids.js";
import { watchTurns } from "./inbox.js";
import { type Fallback, KnownAgents } from "./knownAgents.js";
import { overPages } from "./pages.js";
import { PLACES_MAX, type Place, Replicas } from "./replicas.js";
import {
  type AskFields,
  type CancelTaskFields,
  type ClaimTurnFields,
  type ClearActiveAgentFields,
  type CompleteTurnFields,
  type Fields,
  type KeepTurnFields,
  type ReleaseTurnFields,
  type RouteFields,
  type SayFields,
  type SetActiveAgentFields,
  type WatchFields,
  withRevision,
} from "./requestFields.js";
import { type RetryPolicy, RetryThrottle, retryPolicy, wasRefusedUnread } from "./retry.js";
import { RouteResult } from "./routeResult.js";
import { RouteStream } from "./routeStream.js";
import { Places, positiveMs } from "./waiting.js";
import { AWAY_MS_DEFAULT, watchChanges, watchMessages } from "./watch.js";

export type {
  AskFields,
  CancelTaskFields,
  ClaimTurnFields,
  ClearActiveAgentFields,
  CompleteTurnFields,
  Fields,
  KeepTurnFields,
  ReleaseTurnFields,
  RouteFields,
  SayFields,
  SetActiveAgentFields,
  WatchFields,
} from "./requestFields.js";

/** Options for all calls of a client, with any transport. */
export interface ClientSettings {
  /** For a service without sign-in. Default: "default". */
  tenant?: string;
  /** Sent with every call. */
  headers?: Readonly<Record<string, string>>;
  /** Returns the token for each attempt, which is sent as "authorization: Bearer …". */
  token?: TokenSource;
  /** Time for a call with all its attempts. Default 5,000. */
  timeoutMs?: number;
  /** How often and when an unanswered call is sent again. */
  retry?: Partial<RetryPolicy>;
  /** What route() may decide while the service cannot be reached; false: nothing, it throws. */
  fallback?: Fallback | false;
  /** Gets warnings: a message that the client routed alone. */
  onDegraded?: (result: RouteResult) => void;
}

/**
 * Calls the agent routing service.
 *
 * Ids: a missing requestId is generated (UUIDv7), so that a repeat is the same request, which the
 * service handles once; a missing sessionId is made by the service. Answers are the generated messages; route() wraps its
 * answer in a RouteResult. Errors are RoutingErrors of the reason's class; RangeError and TypeError
 * are for a value that no request can carry; a cancelled call rejects with its signal's reason.
 * Retries: UNAVAILABLE: 4 attempts with exponential backoff and full jitter, after the delay that the
 * service asks for, within timeoutMs; calls that an overloaded server refused unread: until then.
 * At most 100 calls are on their way at a time; more wait, within timeoutMs. Watches, inboxes and
 * message streams have connections of their own, one for every hundred.
 */
export class RoutingClient {
  readonly #settings: CallSettings;
  readonly #onDegraded: (result: RouteResult) => void;

  /** places: the replicas of the service; if one does not answer, the next one is used. */
  constructor(places: readonly Place[], settings: ClientSettings = {}) {
    const { tenant, headers, token, timeoutMs = TIMEOUT_MS_DEFAULT, fallback = {} } = settings;
    this.#settings = {
      replicas: new Replicas(places),
      timeoutMs: positiveMs("timeoutMs", timeoutMs),
      headers: { ...(tenant ? { [TENANT_KEY]: tenant } : {}), ...headers },
      token,
      retry: retryPolicy(settings.retry),
      throttle: new RetryThrottle(),
      circuit: new Circuit(),
      known: fallback === false ? undefined : new KnownAgents(fallback),
      queue: { places: new Places(PLACES_MAX), lastMs: Number.NEGATIVE_INFINITY },
    };
    this.#onDegraded = settings.onDegraded ?? (() => undefined);
  }

  /** Closes the connections; calls on their way reject. Idempotent. */
  close(): void {
    this.#settings.replicas.close();
  }

  [Symbol.dispose](): void {
    this.close();
  }

  /**
   * Routes a user's message: returns the agent that gets it, or a reply to show.
   *
   * Opens a turn, which completeTurn() ends. If the service cannot be reached, the result is the
   * last known agent of the session, or else the supervisor, with degraded set. Report it
   * later, with reportDegraded().
   *
   * Throws InvalidField, UnknownTask, UnknownSuggestion, TaskOpen, TaskClosed, TurnOpen,
   * SessionErased, OwnerMismatch, RevisionMismatch, RequestIdReused, TooLarge, StateCorrupt;
   * Unavailable, DeadlineExceeded and Overloaded only without a fallback.
   */
  async route(fields: RouteFields, options: CallOptions = {}): Promise<RouteResult> {
    const request = withRequestId(routeRequest(fields));
    const info = options.info ?? {};
    const { circuit, known, replicas, timeoutMs } = this.#settings;
    const limitMs = known?.mayDecide(request) ? circuit.limitMs() : Number.POSITIVE_INFINITY;
    try {
      if (limitMs === 0) {
        const { target } = replicas.current();
        const { requestId, sessionId } = request;
        throw away({ method: "Route", target, requestId, sessionId, timeoutMs, attempts: 0 });
      }
      const answer = await call(
        this.#settings,
        "Route",
        request,
        (stub, sent, more) => stub.routing.route(sent, more),
        { ...options, info, timeoutMs: Math.min(options.timeoutMs ?? timeoutMs, limitMs) },
      );
      return new RouteResult(answer, info.replayed ?? false);
    } catch (error) {
      if (!(error instanceof RoutingError)) throw error;
      // Never beside a service that refuses this call for its load, and answers others.
      if (wasRefusedUnread(error) && isAnswering(this.#settings)) throw error;
      const degraded = this.#settings.known?.degradedAnswer(request, error);
      if (degraded === undefined) throw error;
      const base = this.#settings.known?.revision(degraded.sessionId);
      const result = new RouteResult(degraded, false, error, base, new Date());
      this.#onDegraded(result);
      return result;
    }
  }

  /**
   * Hands the conversation to an agent, if the rules allow it.
   *
   * turnRequestId: the open turn during which this happens; the target then holds and completes
   * that turn. Default: the target gets the next message. validateOnly: the answer has a verdict
   * for each rule, and no error is thrown.
   *
   * Throws HandoffRefused with every rule that refused, UnknownAgent, UnknownRequest,
   * UnknownSuggestion, InvalidField, OwnerMismatch, ScopeMissing, SessionErased, RevisionMismatch,
   * RequestIdReused, TooLarge, StateCorrupt, Unavailable, DeadlineExceeded, Overloaded.
   */
  async setActiveAgent(
    fields: SetActiveAgentFields,
    options: CallOptions = {},
  ): Promise<SetActiveAgentResponse> {
    const request = create(SetActiveAgentRequestSchema, {
      ...withRevision(fields),
      requestId: fields.requestId || newUuid7(),
    });
    return await call(
      this.#settings,
      "SetActiveAgent",
      request,
      (stub, sent, more) => stub.routing.setActiveAgent(sent, more),
      options,
    );
  }

  /**
   * Returns the conversation to the supervisor, or to a swarm's default agent.
   *
   * If it is there already, nothing changes and no error is thrown. Throws UnknownSession,
   * InvalidField, OwnerMismatch, SessionErased, RevisionMismatch, RequestIdReused, StateCorrupt,
   * Unavailable, DeadlineExceeded, Overloaded.
   */
  async clearActiveAgent(
    fields: ClearActiveAgentFields,
    options: CallOptions = {},
  ): Promise<ClearActiveAgentResponse> {
    const request = create(ClearActiveAgentRequestSchema, {
      ...withRevision(fields),
      requestId: fields.requestId || newUuid7(),
    });
    return await call(
      this.#settings,
      "ClearActiveAgent",
      request,
      (stub, sent, more) => stub.routing.clearActiveAgent(sent, more),
      options,
    );
  }

  /**
   * Cancels an open task; its id alone is enough.
   *
   * Its open turns are abandoned, a pending approval is withdrawn, and the next message goes to the
   * home agent. Throws UnknownTask, TaskClosed, UnknownSession, InvalidField, OwnerMismatch,
   * ScopeMissing, SessionErased, RevisionMismatch, RequestIdReused, StateCorrupt, Unavailable,
   * DeadlineExceeded, Overloaded.
   */
  async cancelTask(
    fields: CancelTaskFields,
    options: CallOptions = {},
  ): Promise<CancelTaskResponse> {
    const request = create(CancelTaskRequestSchema, {
      ...withRevision(fields),
      requestId: fields.requestId || newUuid7(),
    });
    return await call(
      this.#settings,
      "CancelTask",
      request,
      (stub, sent, more) => stub.routing.cancelTask(sent, more),
      options,
    );
  }

  /** Returns the current state of a session. Changes nothing. */
  async status(
    fields: Fields<typeof StatusRequestSchema>,
    options: CallOptions = {},
  ): Promise<StatusResponse> {
    return await call(
      this.#settings,
      "Status",
      create(StatusRequestSchema, fields),
      (stub, sent, more) => stub.routing.status(sent, more),
      options,
    );
  }

  /**
   * Reports what an agent answered and how its turn ended; returns where the message goes next.
   *
   * Show the text of the answer first. If next is set, then send the message to that agent, and
   * complete it under the requestId of next.
   *
   * Throws UnknownRequest (also for a degraded decision, which the service does not know),
   * UnknownSession, UnknownAgent, HandoffRefused, RequestNotOpen, InvalidField, OwnerMismatch,
   * SessionErased, RevisionMismatch, TooLarge, StateCorrupt, Unavailable, DeadlineExceeded,
   * Overloaded.
   */
  async completeTurn(
    fields: CompleteTurnFields,
    options: CallOptions = {},
  ): Promise<CompleteTurnResponse> {
    return await call(
      this.#settings,
      "CompleteTurn",
      create(CompleteTurnRequestSchema, fields),
      (stub, sent, more) => stub.routing.completeTurn(sent, more),
      options,
    );
  }

  /**
   * Extends a worker's lease on a turn or gives it back, and reports steps, a note or a part of the
   * answer; the answer says whether the turn is still this worker's. A Worker does this for its turns.
   *
   * leaseToken: of the InboxItem; empty for a turn that the caller carries, which has no lease.
   */
  async keepTurn(fields: KeepTurnFields, options: CallOptions = {}): Promise<KeepTurnResponse> {
    const { extendMs, release = false, ...others } = fields;
    const request = create(KeepTurnRequestSchema, {
      ...others,
      ...(extendMs !== undefined && {
        act: { case: "extend" as const, value: durationFromMs(extendMs) },
      }),
      ...(release && { act: { case: "release" as const, value: true } }),
    });
    return await call(
      this.#settings,
      "KeepTurn",
      request,
      (stub, sent, more) => stub.routing.keepTurn(sent, more),
      options,
    );
  }

  /**
   * Routes a message to agents with inboxes, and returns what became of it.
   *
   * Waits as long as one of them may still answer; after a handoff, for the next agent too. A command is
   * answered at once. Returns also as soon as no answer can come, or people have to act first: see
   * AskedOutcome. requestId: with the same one a repeat waits for the same turn. waitMs: how long, by
   * default 300,000; while the service is away, the client connects again and goes on waiting.
   *
   * Throws NoAnswerYet after waitMs: the turn goes on; ask again with the error's requestId. NoInbox if
   * the agent has no inbox: carry the turn, which route() with the error's requestId returns. What
   * route(), status() and listTurns() throw, each with requestId: Unavailable if the service cannot be
   * reached at first, as an inbox needs it, or is away when waitMs are over.
   */
  async ask(fields: AskFields, options: AskOptions = {}): Promise<Asked> {
    return await ask(this.#asking(), fields, options);
  }

  /**
   * Asks as ask() does, and yields the answer as it is written, with notes for the user.
   *
   * Parts are best effort: those of the whole answer that did not come before come at its end, and a
   * part with replaces set stands for everything of its turn so far. The last part has asked,
   * which is what ask() returns. Agents that send no parts come as one part. Arguments and errors:
   * as of ask().
   */
  askParts(fields: AskFields, options: AskOptions = {}): AsyncGenerator<AskedPart, void, void> {
    return askParts(this.#asking(), fields, options);
  }

  #asking(): AskCalls {
    const watch: AskCalls["watch"] = (request, awayMsMax, options) =>
      watchMessages(this.#settings, request, awayMsMax, options);
    const { replicas, retry } = this.#settings;
    return { client: this, retry, watch, throwIfClosed: () => replicas.throwIfClosed() };
  }

  /**
   * Approves or rejects what a paused task is waiting for; returns the dispatch to its agent.
   *
   * The first decision counts; the same one repeated gets the same answer. Throws UnknownTask,
   * UnknownRequest, UnknownSession, TaskNotPaused, RequestNotOpen, AgentUnavailable, and the errors
   * of every change.
   */
  async resumeTask(
    fields: Fields<typeof ResumeTaskRequestSchema>,
    options: CallOptions = {},
  ): Promise<ResumeTaskResponse> {
    return await call(
      this.#settings,
      "ResumeTask",
      create(ResumeTaskRequestSchema, fields),
      (stub, sent, more) => stub.routing.resumeTask(sent, more),
      options,
    );
  }

  /**
   * Reports turns that were decided without the service; returns what became of each.
   *
   * turns: 1-100, in the order in which they happened; RouteResult.degradedTurn() makes them. A turn
   * is stored in the history, or is a conflict: the service knows better. Nothing moves. Each is
   * stored once by its requestId, so after a lost answer report all of them again.
   */
  async reportDegraded(
    fields: Fields<typeof ReportDegradedRequestSchema>,
    options: CallOptions = {},
  ): Promise<ReportDegradedResponse> {
    return await call(
      this.#settings,
      "ReportDegraded",
      create(ReportDegradedRequestSchema, fields),
      (stub, sent, more) => stub.routing.reportDegraded(sent, more),
      options,
    );
  }

  /** The state of the circuit breaker, for metrics. */
  get circuit(): Circuit {
    return this.#settings.circuit;
  }

  /**
   * Asks once for the home agent, as at a process's start; returns its id. During an outage it gets
   * the messages of sessions that this client does not know.
   */
  async learnHome(options: CallOptions = {}): Promise<string> {
    return (await this.listAgents({}, options)).homeAgentId;
  }

  /** Returns one page of a session's tasks, oldest first. */
  async listTasksPage(
    fields: Fields<typeof ListTasksRequestSchema>,
    options: CallOptions = {},
  ): Promise<ListTasksResponse> {
    return await call(
      this.#settings,
      "ListTasks",
      create(ListTasksRequestSchema, fields),
      (stub, sent, more) => stub.routing.listTasks(sent, more),
      options,
    );
  }

  /** Iterates over the tasks of a session; pages are fetched when needed. */
  listTasks(
    fields: Omit<Fields<typeof ListTasksRequestSchema>, "pageToken">,
    options: CallOptions = {},
  ): AsyncGenerator<Task, void, void> {
    return overPages(
      (pageToken) => this.listTasksPage({ ...fields, pageToken }, options),
      (page) => page.tasks,
    );
  }

  /** Returns one page of a session's history. It may have fewer turns than requested. */
  async listTurnsPage(
    fields: Fields<typeof ListTurnsRequestSchema>,
    options: CallOptions = {},
  ): Promise<ListTurnsResponse> {
    return await call(
      this.#settings,
      "ListTurns",
      create(ListTurnsRequestSchema, fields),
      (stub, sent, more) => stub.routing.listTurns(sent, more),
      options,
    );
  }

  /** Iterates over the history of a session; pages are fetched when needed. */
  listTurns(
    fields: Omit<Fields<typeof ListTurnsRequestSchema>, "pageToken">,
    options: CallOptions = {},
  ): AsyncGenerator<Turn, void, void> {
    return overPages(
      (pageToken) => this.listTurnsPage({ ...fields, pageToken }, options),
      (page) => page.turns,
    );
  }

  /** Returns the agents in the order of the registry, and which one is the home agent. */
  async listAgents(
    fields: Fields<typeof ListAgentsRequestSchema> = {},
    options: CallOptions = {},
  ): Promise<ListAgentsResponse> {
    return await call(
      this.#settings,
      "ListAgents",
      create(ListAgentsRequestSchema, fields),
      (stub, sent, more) => stub.routing.listAgents(sent, more),
      options,
    );
  }

  /**
   * Iterates over the changes of a session as they happen.
   *
   * Yields each change exactly once and in order: after a lost connection the client connects
   * again, from the last revision that it yielded. Ends with an error, when the signal is aborted
   * (with its reason), or when the loop is left. awayMsMax: how long the service may be away before
   * the watch fails.
   *
   * The iteration throws UnknownSession, InvalidField, OwnerMismatch, SessionErased,
   * RevisionCompacted, StateCorrupt; after awayMsMax Unavailable or Overloaded.
   */
  watchSession(
    fields: WatchFields,
    options: Pick<CallOptions, "signal" | "headers"> & { awayMsMax?: number } = {},
  ): AsyncGenerator<Change, void, void> {
    const { heartbeatIntervalMs, afterRevision, ...ids } = fields;
    const request = create(WatchSessionRequestSchema, {
      ...ids,
      ...(afterRevision === undefined ? {} : { afterRevision: BigInt(afterRevision) }),
      ...(heartbeatIntervalMs === undefined
        ? {}
        : { heartbeatInterval: durationFromMs(heartbeatIntervalMs) }),
    });
    const awayMsMax = positiveMs("awayMsMax", options.awayMsMax ?? AWAY_MS_DEFAULT);
    return watchChanges(this.#settings, request, awayMsMax, options);
  }

  /**
   * Iterates over the turns that wait for a worker's agents, each with a lease; a Worker runs
   * functions on them. At least once: after a lost connection the turns that this worker still has
   * come again, with the same lease tokens. A service that is away is waited for, by default for
   * ever. Throws the refusals of the service.
   */
  watchInbox(
    fields: Fields<typeof WatchInboxRequestSchema>,
    options: Pick<CallOptions, "signal" | "headers"> & { awayMsMax?: number } = {},
  ): AsyncGenerator<InboxItem, void, void> {
    const request = create(WatchInboxRequestSchema, fields);
    const { awayMsMax = Number.POSITIVE_INFINITY } = options;
    return watchTurns(this.#settings, request, awayMsMax, options);
  }

  /**
   * Returns one page of what waits in the inbox of an agent of kind human, the longest waiting first.
   * A page may be short while more follow.
   */
  async listWaitingPage(
    fields: Fields<typeof ListWaitingRequestSchema>,
    options: CallOptions = {},
  ): Promise<ListWaitingResponse> {
    return await call(
      this.#settings,
      "ListWaiting",
      create(ListWaitingRequestSchema, fields),
      (stub, sent, more) => stub.routing.listWaiting(sent, more),
      options,
    );
  }

  /** Iterates over everything that waits in the inbox of an agent of kind human. */
  listWaiting(
    fields: Omit<Fields<typeof ListWaitingRequestSchema>, "pageToken">,
    options: CallOptions = {},
  ): AsyncGenerator<WaitingConversation, void, void> {
    return overPages(
      (pageToken) => this.listWaitingPage({ ...fields, pageToken }, options),
      (page) => page.entries,
    );
  }

  /**
   * Claims a conversation for the person who calls; with takeOver also from another person.
   *
   * claimant: required without sign-in. Throws Claimed, NothingToClaim, StoreFormat, UnknownSession,
   * UnknownAgent, and the errors of every change.
   */
  async claimTurn(fields: ClaimTurnFields, options: CallOptions = {}): Promise<ClaimTurnResponse> {
    return await call(
      this.#settings,
      "ClaimTurn",
      create(ClaimTurnRequestSchema, {
        ...withRevision(fields),
        requestId: fields.requestId || newUuid7(),
      }),
      (stub, sent, more) => stub.routing.claimTurn(sent, more),
      options,
    );
  }

  /**
   * Gives a claim up; the conversation waits again.
   *
   * claimant: required without sign-in. Throws Claimed, UnknownSession, UnknownAgent, and the errors of
   * every change.
   */
  async releaseTurn(
    fields: ReleaseTurnFields,
    options: CallOptions = {},
  ): Promise<ReleaseTurnResponse> {
    return await call(
      this.#settings,
      "ReleaseTurn",
      create(ReleaseTurnRequestSchema, {
        ...withRevision(fields),
        requestId: fields.requestId || newUuid7(),
      }),
      (stub, sent, more) => stub.routing.releaseTurn(sent, more),
      options,
    );
  }

  /**
   * Says something to the user without ending the turn.
   *
   * requestId: the open request; for people without one, taskId. messageId: a repeat with it says
   * nothing twice; one is made. The answer's status is REQUEST_NOT_OPEN if the turn is over, or the
   * conversation is with others. Throws Claimed, StoreFormat, UnknownSession, UnknownAgent, and the
   * errors of every change.
   */
  async say(fields: SayFields, options: CallOptions = {}): Promise<KeepTurnResponse> {
    const { text, ...others } = fields;
    const messageId = fields.messageId || newUuid7();
    return await this.keepTurn({ ...others, say: text, messageId }, options);
  }

  /**
   * Notes something about a conversation for other people; users never get it.
   *
   * agentId: for which the person works; required except for operators. author: required without
   * sign-in. Throws StoreFormat, UnknownSession, UnknownTask, and the errors of every change.
   */
  async addNote(
    fields: Fields<typeof AddNoteRequestSchema>,
    options: CallOptions = {},
  ): Promise<AddNoteResponse> {
    return await call(
      this.#settings,
      "AddNote",
      create(AddNoteRequestSchema, {
        ...fields,
        requestId: fields.requestId || newUuid7(),
      }),
      (stub, sent, more) => stub.routing.addNote(sent, more),
      options,
    );
  }

  /** Returns the latest notes about a conversation, at most 32, the oldest first. */
  async listNotes(
    fields: Fields<typeof ListNotesRequestSchema>,
    options: CallOptions = {},
  ): Promise<ListNotesResponse> {
    return await call(
      this.#settings,
      "ListNotes",
      create(ListNotesRequestSchema, fields),
      (stub, sent, more) => stub.routing.listNotes(sent, more),
      options,
    );
  }

  /** Returns one page of what waits for an approval in all sessions of the tenant, oldest first. */
  async listApprovalsPage(
    fields: Fields<typeof ListApprovalsRequestSchema> = {},
    options: CallOptions = {},
  ): Promise<ListApprovalsResponse> {
    return await call(
      this.#settings,
      "ListApprovals",
      create(ListApprovalsRequestSchema, fields),
      (stub, sent, more) => stub.routing.listApprovals(sent, more),
      options,
    );
  }

  /** Iterates over everything that waits for an approval. Needs the scope approve or admin. */
  listApprovals(
    fields: Omit<Fields<typeof ListApprovalsRequestSchema>, "pageToken"> = {},
    options: CallOptions = {},
  ): AsyncGenerator<WaitingApproval, void, void> {
    return overPages(
      (pageToken) => this.listApprovalsPage({ ...fields, pageToken }, options),
      (page) => page.approvals,
    );
  }

  /**
   * Iterates over what waits for an approval, and then over what begins, changes and ends. After a
   * lost connection the client connects again, and yields only what is different from what it
   * yielded before. Ends and throws as watchSession() does.
   */
  watchApprovals(
    fields: Fields<typeof WatchApprovalsRequestSchema> = {},
    options: Pick<CallOptions, "signal" | "headers"> & { awayMsMax?: number } = {},
  ): AsyncGenerator<ApprovalNews, void, void> {
    const awayMsMax = positiveMs("awayMsMax", options.awayMsMax ?? AWAY_MS_DEFAULT);
    const request = create(WatchApprovalsRequestSchema, fields);
    return watchWaiting(this.#settings, request, awayMsMax, options);
  }

  /** Returns a stream for many messages. Close it when it is no longer needed. */
  stream(): MessageStream {
    return new MessageStream(this.#settings);
  }
}

/** A RouteStream that takes the fields of its messages. */
export class MessageStream extends RouteStream {
  constructor(settings: CallSettings) {
    super(settings, withRequestId);
  }

  /** As Client.route(), over this stream; see RouteStream. */
  async route(
    fields: RouteFields,
    options: Omit<CallOptions, "headers"> = {},
  ): Promise<RouteResult> {
    return await this.routeRequest(routeRequest(fields), options);
  }
}

function routeRequest(fields: RouteFields): RouteRequest {
  return create(RouteRequestSchema, withRevision(fields));
}

/** Names a message, so that a repeat is the same one. A missing session is made by the service. */
function withRequestId(request: RouteRequest): RouteRequest {
  request.requestId ||= newUuid7();
  return request;
}
