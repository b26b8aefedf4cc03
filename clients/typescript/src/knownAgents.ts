// Where a message goes while the service cannot be reached.
//
// Owns the last known agent of each session, learnt from answers, and the decision made from it.
// Only a call that was not decided falls back; a refusal is a decision and reaches the caller. A
// degraded decision is always marked as such.

import { create, type Message } from "@bufbuild/protobuf";
import { type AwayCommand, leadsHome, parseCommand, replyTo } from "./awayCommands.js";
import { DeadlineExceeded, type RoutingError, SessionErased, UnknownSession } from "./errors.js";
import { type Agent, AgentKind, AgentSchema } from "./gen/agent_routing/v1/agent_pb.js";
import { DispatchSchema, ReplySchema } from "./gen/agent_routing/v1/dispatch_pb.js";
import { RouteReason } from "./gen/agent_routing/v1/route_reason_pb.js";
import {
  type CancelTaskResponse,
  type ClearActiveAgentResponse,
  type CompleteTurnResponse,
  type ListAgentsResponse,
  type ResumeTaskResponse,
  type RouteRequest,
  type RouteResponse,
  RouteResponseSchema,
  type SetActiveAgentResponse,
  type StatusResponse,
} from "./gen/agent_routing/v1/routing_service_pb.js";
import { wasUnanswered } from "./retry.js";

/** What the client may decide alone while the service cannot be reached. */
export interface Fallback {
  /**
   * The agent for sessions without a known agent. Default: the home agent, once an answer has named
   * it; until then route() throws.
   */
  readonly supervisorId?: string;
  /** How many sessions are remembered, the last used ones. Default 10,000. */
  readonly sessionsMax?: number;
  /** Keeps the home agent's id, so that a new process knows it: homeFile(path) in Node. */
  readonly homeCache?: HomeCache;
  /**
   * Whether commands in messages are understood while the service is away. Default true; switch it
   * off for lessons that users may not leave.
   */
  readonly commands?: boolean;
}

/** Keeps the home agent's id over the end of a process. */
export interface HomeCache {
  /** Returns the id that was kept; empty: none. Must not throw. */
  read(): string;
  /** Keeps an id. Must not throw. */
  write(agentId: string): void;
}

const SESSIONS_MAX_DEFAULT = 10_000;

/** Commands that may have changed the active agent although the answer has a reply only. */
const LEAVING_COMMANDS: ReadonlySet<string> = new Set(["/supervisor", "/reset", "/agent"]);

/** Tells whether a call was not decided, so that the client may decide about its message. */
export function isUndecided(error: RoutingError): boolean {
  return error instanceof DeadlineExceeded || wasUnanswered(error);
}

/** What is known about a session at a revision. agent undefined: the home agent. */
interface Known {
  revision: bigint;
  agent: Agent | undefined;
  taskId: string;
}

/** The last known agent of each session. */
export class KnownAgents {
  readonly #sessionsMax: number;
  #homeId: string;
  /** By session, the last used one at the end. */
  readonly #sessions = new Map<string, Known>();
  readonly #sessionByTask = new Map<string, string>();

  readonly #homeCache: HomeCache | undefined;
  readonly #understandsCommands: boolean;

  constructor({
    supervisorId = "",
    sessionsMax = SESSIONS_MAX_DEFAULT,
    homeCache,
    commands = true,
  }: Fallback) {
    if (!(sessionsMax >= 1)) {
      throw new RangeError(`sessionsMax is ${sessionsMax}; give 1 or more`);
    }
    this.#homeCache = homeCache;
    this.#understandsCommands = commands;
    this.#homeId = supervisorId || (homeCache?.read() ?? "");
    this.#sessionsMax = sessionsMax;
  }

  /** Records what an answer says about its session, or about the home agent. */
  learn(request: Message, answer: Message): void {
    if ((request as { validateOnly?: boolean }).validateOnly) return;
    switch (answer.$typeName) {
      case "agent_routing.v1.RouteResponse":
        this.#learnRoute(answer as RouteResponse);
        break;
      case "agent_routing.v1.CompleteTurnResponse": {
        const done = answer as CompleteTurnResponse;
        this.#remember(done, done.next?.agent ?? done.activeAgent);
        break;
      }
      case "agent_routing.v1.SetActiveAgentResponse": {
        const set = answer as SetActiveAgentResponse;
        this.#remember(set, set.agent);
        break;
      }
      case "agent_routing.v1.ClearActiveAgentResponse": {
        const cleared = answer as ClearActiveAgentResponse;
        this.#learnHome(cleared.agent?.agentId);
        this.#remember(cleared, undefined);
        break;
      }
      case "agent_routing.v1.CancelTaskResponse": {
        const cancelled = answer as CancelTaskResponse;
        this.#learnHome(cancelled.agent?.agentId);
        this.#remember(cancelled, undefined);
        break;
      }
      case "agent_routing.v1.StatusResponse": {
        const status = answer as StatusResponse;
        const { sessionId, revision } = status;
        this.#remember(
          { sessionId, revision, taskId: status.task?.taskId ?? "" },
          status.nextAgent,
        );
        break;
      }
      case "agent_routing.v1.ResumeTaskResponse": {
        const resumed = answer as ResumeTaskResponse;
        this.#remember(resumed, resumed.dispatch?.agent);
        break;
      }
      case "agent_routing.v1.ListAgentsResponse":
        this.#learnHome((answer as ListAgentsResponse).homeAgentId);
        break;
      default:
    }
  }

  /** Drops a session that does not exist, or no longer exists, according to the service. */
  forget(sessionId: string, error: RoutingError): void {
    if (error instanceof UnknownSession || error instanceof SessionErased) this.#drop(sessionId);
  }

  /**
   * Returns the decision for a message that could not be routed.
   *
   * undefined: the client may not decide, because the failure was a decision, the call a dry run,
   * or no agent is known.
   */
  degradedAnswer(request: RouteRequest, error: RoutingError): RouteResponse | undefined {
    if (!isUndecided(error) || request.validateOnly) return undefined;
    const sessionId = request.sessionId || (this.#sessionByTask.get(request.taskId) ?? "");
    const known = this.#sessions.get(sessionId);
    const command = this.#commandIn(request);
    const isWayHome = command !== undefined && leadsHome(command);
    if (isWayHome && known !== undefined) known.agent = undefined;
    const text = command?.rest ?? request.text;
    const isForAgent =
      command === undefined || (isWayHome && (text !== "" || request.items.length > 0));
    if (isForAgent && known?.agent === undefined && this.#homeId === "") return undefined;
    const agent = known?.agent ?? create(AgentSchema, { agentId: this.#homeId });
    const taskId = request.taskId || (known?.taskId ?? "");
    const answer = create(RouteResponseSchema, { sessionId, taskId, requestId: request.requestId });
    if (command !== undefined) {
      const shown = replyTo(command, request.locale);
      answer.reply = create(ReplySchema, { command: `/${command.name}`, ...shown });
    }
    if (isForAgent) {
      answer.supervisorBypassed = agent.agentId !== this.#homeId;
      answer.dispatch = create(DispatchSchema, {
        requestId: request.requestId,
        taskId,
        agent,
        reason: RouteReason.DEGRADED,
        reasonDetail: `degraded: ${error.message}`,
        text,
        items: request.items,
      });
    }
    return answer;
  }

  /** Tells whether a message could be decided without the service. */
  mayDecide(request: RouteRequest): boolean {
    if (request.validateOnly) return false;
    if (this.#homeId !== "") return true;
    const sessionId = request.sessionId || (this.#sessionByTask.get(request.taskId) ?? "");
    const agent = this.#sessions.get(sessionId)?.agent;
    return agent !== undefined && this.#commandIn(request) === undefined;
  }

  #commandIn(request: RouteRequest): AwayCommand | undefined {
    if (request.literalText || !this.#understandsCommands) return undefined;
    return parseCommand(request.text);
  }

  #learnHome(agentId: string | undefined): void {
    if (!agentId || agentId === this.#homeId) return;
    this.#homeId = agentId;
    this.#homeCache?.write(agentId);
  }

  /** Returns the last known revision of a session; undefined: it is not known. */
  revision(sessionId: string): bigint | undefined {
    return this.#sessions.get(sessionId)?.revision;
  }

  #learnRoute(answer: RouteResponse): void {
    const { dispatch } = answer;
    if (dispatch !== undefined) {
      const isHome =
        dispatch.agent?.kind === AgentKind.SUPERVISOR ||
        dispatch.reason === RouteReason.NO_ACTIVE_AGENT ||
        dispatch.reason === RouteReason.DEFAULT_AGENT;
      if (isHome) this.#learnHome(dispatch.agent?.agentId);
      this.#remember(answer, dispatch.agent);
    } else if (LEAVING_COMMANDS.has(answer.reply?.command ?? "")) {
      // The reply does not say which agent is active now. The home agent is always safe.
      this.#remember(answer, undefined);
    }
  }

  /** Stores what is known about a session, unless newer information is stored. */
  #remember(
    at: { sessionId: string; revision: bigint; taskId: string },
    agent: Agent | undefined,
  ): void {
    const known = this.#sessions.get(at.sessionId);
    this.#sessions.delete(at.sessionId);
    // Answers of parallel calls arrive in any order, and a replayed one is old.
    if (known !== undefined && at.revision < known.revision) {
      this.#sessions.set(at.sessionId, known);
      return;
    }
    if (known !== undefined && known.taskId !== at.taskId) this.#sessionByTask.delete(known.taskId);
    if (at.taskId !== "") this.#sessionByTask.set(at.taskId, at.sessionId);
    this.#sessions.set(at.sessionId, {
      revision: at.revision,
      agent: agent?.agentId ? agent : undefined,
      taskId: at.taskId,
    });
    if (this.#sessions.size > this.#sessionsMax) {
      const [oldest] = this.#sessions.keys();
      if (oldest !== undefined) this.#drop(oldest);
    }
  }

  #drop(sessionId: string): void {
    const known = this.#sessions.get(sessionId);
    this.#sessions.delete(sessionId);
    if (known !== undefined) this.#sessionByTask.delete(known.taskId);
  }
}
