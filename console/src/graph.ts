// Where the agents of the graph of handoffs are drawn, by dagre.

import dagre from "@dagrejs/dagre";
import type { Edge } from "./figures";

const NODE_WIDTH_PX = 150;
const NODE_HEIGHT_PX = 44;
/** Of an edge with most handoffs. */
const STROKE_PX_MAX = 9;

/** The agent is "" where none was active: no name of a node in either library. */
const PREFIX = "agent ";

export function nodeOf(agentId: string): string {
  return PREFIX + agentId;
}

/** How far an edge back bends out at its two agents. */
export const BEND_PX = 46;
/** Edges back to agents of the same row lie one below the other. */
const LANE_PX = 14;
const LANES = 3;

/** How far below the middle of its lower agent an edge back runs. */
export function belowPx(lane: number): number {
  return NODE_HEIGHT_PX / 2 + 16 + lane * LANE_PX;
}

export interface Drawing {
  nodes: { id: string; x: number; y: number }[];
  /** The lane of each edge to an agent that is drawn no further right than its own. */
  back: Map<Edge, number>;
  heightPx: number;
}

export function layOut(edges: Edge[]): Drawing {
  const graph = new dagre.graphlib.Graph({ multigraph: false });
  graph.setGraph({ rankdir: "LR", nodesep: 60, ranksep: 130, marginx: 10, marginy: 10 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const id of new Set(edges.flatMap((each) => [each.from, each.to]))) {
    graph.setNode(nodeOf(id), { width: NODE_WIDTH_PX, height: NODE_HEIGHT_PX });
  }
  for (const each of edges) graph.setEdge(nodeOf(each.from), nodeOf(each.to), { weight: each.count + 1 });
  dagre.layout(graph);
  const nodes = graph.nodes().map((name) => {
    const { x, y } = graph.node(name);
    const id = name.slice(PREFIX.length);
    return { id, x: (x ?? 0) - NODE_WIDTH_PX / 2, y: (y ?? 0) - NODE_HEIGHT_PX / 2 };
  });
  const xOf = new Map(nodes.map(({ id, x }) => [id, x]));
  const goesBack = (each: Edge) => (xOf.get(each.to) ?? 0) <= (xOf.get(each.from) ?? 0);
  const back = new Map(edges.filter(goesBack).map((each, place) => [each, place % LANES]));
  // Room for the edges below the lowest row.
  const room = back.size > 0 ? 2 * belowPx(LANES) : 0;
  return { nodes, back, heightPx: (graph.graph().height ?? 200) + room };
}

export function strokeOf(edge: Edge, most: number): number {
  return 1 + (most === 0 ? 0 : (edge.count / most) * (STROKE_PX_MAX - 1));
}
