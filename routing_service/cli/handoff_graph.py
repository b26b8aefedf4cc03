"""Who hands to whom, as a graph: what is drawn of it, and its text for Mermaid and Graphviz.

Its rule: names and ids are data; none of them can end a label or begin a statement.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from agent_routing.v1.admin_service_pb2 import GetRoutingStatsResponse
from agent_routing.v1.agent_pb2 import Agent, AgentKind

AGENTS_MAX: Final = 24
"""The busiest agents are shown: a drawing of more is no longer read."""

LABEL_CHARACTERS_MAX: Final = 24

MERMAID_EDGES_MAX: Final = 500
"""Mermaid refuses charts with more, unless the page that shows them is configured."""

_COLOUR: Final = re.compile(r"#[0-9a-fA-F]{6}\Z")
_COLOUR_DEFAULT: Final = "#5b6b7b"

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class GraphAgent:
    """An agent of the graph. shown: its name, cut to fit. colour: such as #5b6b7b."""

    agent_id: str
    shown: str
    colour: str
    is_home: bool


@dataclass(frozen=True, slots=True)
class GraphEdge:
    """The handoffs from one agent to another. count: carried out; refused: refused."""

    start: str
    end: str
    count: int
    refused: int

    @property
    def label(self) -> str:
        """The number, or that all were refused."""
        return str(self.count) if self.count else f"{self.refused} refused"

    @property
    def meaning(self) -> str:
        """The edge in full."""
        return f"{self.start} to {self.end}: {self.count} carried out, {self.refused} refused"


@dataclass(frozen=True, slots=True)
class HandoffGraph:
    """Agents, those with many handoffs between them side by side; edges, the busiest first."""

    agents: Sequence[GraphAgent]
    edges: Sequence[GraphEdge]
    caption: str


def handoff_graph(stats: GetRoutingStatsResponse, agents: Mapping[str, Agent]) -> HandoffGraph:
    """Return the graph. agents: for names and colours; others are grey and shown by their ids."""
    carried: Counter[Pair] = Counter()
    refused: Counter[Pair] = Counter()
    for row in stats.handoffs:
        pair = (row.from_agent_id, row.to_agent_id)
        carried[pair] += row.count
        refused[pair] += row.refused
    traffic = +(carried + refused)
    order = _neighbours_first(_busiest(traffic), traffic)
    pairs = [pair for pair in traffic if pair[0] in order and pair[1] in order]
    pairs.sort(key=lambda pair: (-carried[pair], -refused[pair], pair))
    return HandoffGraph(
        [_agent(name, agents.get(name)) for name in order],
        [GraphEdge(*pair, carried[pair], refused[pair]) for pair in pairs],
        _caption(stats),
    )


def _agent(name: str, agent: Agent | None) -> GraphAgent:
    shown = " ".join(((agent.display_name if agent else "") or name).split())
    if len(shown) > LABEL_CHARACTERS_MAX:
        shown = f"{shown[: LABEL_CHARACTERS_MAX - 1]}…"
    colour = agent.color if agent and _COLOUR.match(agent.color) else _COLOUR_DEFAULT
    is_home = agent is not None and agent.kind == AgentKind.AGENT_KIND_SUPERVISOR
    return GraphAgent(name, shown, colour, is_home)


def _busiest(traffic: Counter[Pair]) -> list[str]:
    counts: Counter[str] = Counter()
    for pair, count in traffic.items():
        for name in pair:
            counts[name] += count
    ranked = sorted(counts.items(), key=lambda row: (-row[1], row[0]))
    return [name for name, _ in ranked][:AGENTS_MAX]


def _neighbours_first(names: Sequence[str], traffic: Counter[Pair]) -> list[str]:
    """Return the names in an order that puts agents with many handoffs side by side; greedy."""
    rest = list(names)
    if not rest:
        return []

    def between(one: str, other: str) -> int:
        return traffic[one, other] + traffic[other, one]

    order = [rest.pop(0)]
    while rest:
        first, last = order[0], order[-1]
        best = max(rest, key=lambda name: max(between(name, first), between(name, last)))
        rest.remove(best)
        if between(best, first) > between(best, last):
            order.insert(0, best)
        else:
            order.append(best)
    return order


def _caption(stats: GetRoutingStatsResponse) -> str:
    counted = f"{stats.handoffs_total} handoffs carried out, {stats.refusals_total} refused"
    if not stats.HasField("start_time"):
        return counted
    begin, end = stats.start_time.ToDatetime(), stats.end_time.ToDatetime()
    return f"{counted}, {begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC"


def mermaid_text(graph: HandoffGraph) -> str:
    """Return the graph as a Mermaid flowchart; a dotted arrow: all were refused."""
    # Ids of agents may hold what Mermaid reads as syntax, so nodes are numbered.
    node = {agent.agent_id: f"a{place}" for place, agent in enumerate(graph.agents)}
    lines = [f"%% {graph.caption}", "flowchart LR"]
    for agent in graph.agents:
        opening, closing = ("([", "])") if agent.is_home else ("[", "]")
        lines.append(f'  {node[agent.agent_id]}{opening}"{_mermaid_quoted(agent.shown)}"{closing}')
        lines.append(f"  style {node[agent.agent_id]} stroke:{agent.colour},stroke-width:3px")
    lines += [
        f'  {node[edge.start]} {"-->" if edge.count else "-.->"}|"{edge.label}"| {node[edge.end]}'
        for edge in graph.edges[:MERMAID_EDGES_MAX]
    ]
    if len(graph.edges) > MERMAID_EDGES_MAX:
        lines.insert(1, f"%% the busiest {MERMAID_EDGES_MAX} of {len(graph.edges)} pairs")
    return "\n".join(lines) + "\n"


def _mermaid_quoted(text: str) -> str:
    """Return text for a label: Mermaid takes characters by number, as #34; for a quote."""
    return "".join(
        letter if letter.isalnum() or letter in " .,-_…" else f"#{ord(letter)};" for letter in text
    )


def dot_text(graph: HandoffGraph) -> str:
    """Return the graph in Graphviz's language; a dashed edge: all were refused."""
    lines = [
        "digraph handoffs {",
        f"  label={_dot_quoted(graph.caption)};",
        '  node [shape=box, style=rounded, penwidth=3, fontname="sans-serif"];',
        '  edge [fontname="sans-serif"];',
    ]
    for agent in graph.agents:
        shape = ", shape=ellipse" if agent.is_home else ""
        lines.append(
            f"  {_dot_quoted(agent.agent_id)} "
            f'[label={_dot_quoted(agent.shown)}, color="{agent.colour}"{shape}];'
        )
    for edge in graph.edges:
        refused = "" if edge.count else ', style=dashed, color="#c62828"'
        lines.append(
            f"  {_dot_quoted(edge.start)} -> {_dot_quoted(edge.end)} "
            f'[label="{edge.label}", tooltip={_dot_quoted(edge.meaning)}{refused}];'
        )
    return "\n".join([*lines, "}"]) + "\n"


def _dot_quoted(text: str) -> str:
    """Return a quoted string of the DOT language, in which a backslash begins an escape."""
    plain = " ".join(text.split())
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'
