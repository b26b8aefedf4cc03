// The agents of a graph, and what the registry says about each: ids, descriptions, instructions.

import type { RoutingClient } from "./client.js";
import { type Agent, AgentKind } from "./gen/agent_routing/v1/agent_pb.js";
import { RoutingError } from "./routingError.js";

/** Sessions whose instructions are kept; they depend on the user, the channel and the language. */
const SESSIONS_MAX = 1_000;

/** The session of a turn, and its user. */
interface Who {
  readonly sessionId: string;
  readonly userId: string;
}

/** The instructions of a session's agents, by id, of one version of the registry. */
interface Instructions {
  readonly version: string;
  readonly byId: Readonly<Record<string, string>>;
}

/** What an agent sees: its instructions, and the agents to which it may hand over now. */
export interface AgentView {
  readonly instructions: string;
  readonly targets: readonly Agent[];
}

/** The agents of a graph. nodes: their names, each an id or alias of the registry. */
export class GraphAgents {
  /** Every agent that can take a handoff, of this program or another. */
  all: readonly Agent[] = [];
  #version: string | undefined;
  #ids = new Map<string, string>();
  #nodes = new Map<string, string>();
  readonly #instructions = new Map<string, Instructions>();

  constructor(
    private readonly client: RoutingClient,
    readonly nodes: readonly string[],
  ) {
    for (const node of nodes) this.#nodes.set(node, node);
  }

  /** Reads the registry, unless it is known. */
  async learn(): Promise<void> {
    if (this.#version !== undefined) return;
    const { agents, agentIdByAlias, registryVersion } = await this.client.listAgents();
    const named = [...agents.map(({ agentId }) => [agentId, agentId] as const)];
    this.#ids = new Map(
      [...named, ...Object.entries(agentIdByAlias)].map(([name, id]) => [folded(name), id]),
    );
    this.#nodes = new Map(this.nodes.map((node) => [this.idOf(node), node]));
    this.all = agents.filter(({ enabled, kind }) => enabled && kind !== AgentKind.SYSTEM);
    this.#version = registryVersion;
  }

  /** Returns an agent's id, by its id or an alias; another name as it is. */
  idOf(name: string): string {
    return this.#ids.get(folded(name)) ?? name;
  }

  /** Returns the node of an agent; undefined if it runs elsewhere. */
  nodeOf(agentId: string): string | undefined {
    return this.#nodes.get(agentId);
  }

  /** Returns the name of an agent for a model: its node, or the id of one that runs elsewhere. */
  nameOf(agentId: string): string {
    return this.nodeOf(agentId) ?? agentId;
  }

  /** Returns what an agent sees in a session; no targets while the service cannot be reached. */
  async view(who: Who, agentId: string): Promise<AgentView> {
    try {
      const { agents, registryVersion } = await this.client.listAgents({
        ...who,
        fromAgentId: agentId,
      });
      if (registryVersion !== this.#version) {
        this.#version = undefined;
        await this.learn();
      }
      const { byId } = await this.#instructionsOf(who, registryVersion);
      return { instructions: byId[agentId] ?? "", targets: agents };
    } catch (error) {
      if (!(error instanceof RoutingError)) throw error;
      const known = this.#instructions.get(who.sessionId);
      return { instructions: known?.byId[agentId] ?? "", targets: [] };
    }
  }

  async #instructionsOf(who: Who, version: string): Promise<Instructions> {
    const known = this.#instructions.get(who.sessionId);
    if (known !== undefined && known.version === version) return known;
    const listed = await this.client.listAgents({ ...who, includeInstructions: true });
    const read = { version: listed.registryVersion, byId: listed.instructions ?? {} };
    this.#instructions.delete(who.sessionId);
    this.#instructions.set(who.sessionId, read);
    const [oldest] = this.#instructions.keys();
    if (this.#instructions.size > SESSIONS_MAX) this.#instructions.delete(oldest ?? "");
    return read;
  }
}

/** Returns the form in which the service compares names. */
function folded(name: string): string {
  return name.trim().normalize("NFC").toLowerCase();
}
