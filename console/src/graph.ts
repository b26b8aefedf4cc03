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

export interface Drawing {
  nodes: { id: string; x: number; y: number }[];
  heightPx: number;
}

export function layOut(edges: Edge[]): Drawing {
  const graph = new dagre.graphlib.Graph({ multigraph: false });
  graph.setGraph({ rankdir: "LR", nodesep: 36, ranksep: 130, marginx: 10, marginy: 10 });
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
  return { nodes, heightPx: graph.graph().height ?? 200 };
}

export function strokeOf(edge: Edge, most: number): number {
  return 1 + (most === 0 ? 0 : (edge.count / most) * (STROKE_PX_MAX - 1));
}
