"""The handoffs between agents as an SVG drawing.

Its rule: it can be read without colours and without scripts, and by construction no arrow runs
through an agent and nothing crosses a text. Agents stand side by side at the top, each over a line.
Each pair has a row of its own, with an arrow from line to line and its number in the first gap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final
from unicodedata import east_asian_width
from xml.sax.saxutils import escape, quoteattr

from routing_service.cli.handoff_graph import GraphAgent, GraphEdge, HandoffGraph

_NODE_RADIUS: Final = 14.0
_NAME_SIZE: Final = 16
_NUMBER_SIZE: Final = 14
_CHARACTER_WIDTH: Final = 0.62
"""Of bold sans-serif letters, as a share of the font's size; wide ones are rarely many."""
_WIDE_MORE: Final = 0.7
_COLUMN_MIN: Final = 112.0
"""Between two lines, in units of the drawing."""
_NAME_GAP: Final = 24.0
_ROW: Final = 34.0
_MARGIN: Final = 24.0
_HEAD: Final = 96.0
"""From the top to the first row: circles and names."""
_FOOT: Final = 56.0
_NUMBER_ABOVE: Final = 7.0
"""From an arrow's middle up to its number's base line."""
_NUMBER_ASIDE: Final = 8.0
"""From the line where an arrow begins to its number."""
_HEAD_LENGTH: Final = 13.0
_WIDTH_MIN: Final = 1.4
_WIDTH_MAX: Final = 6.5
_SELF: Final = 26.0
"""How far the arrow of an agent to itself goes out. Such handoffs are refused, and counted."""
_SELF_ASIDE: Final = 6.0


@dataclass(frozen=True, slots=True)
class _Columns:
    """Where agents stand. left: of the first line; gap: between two lines."""

    left: float
    gap: float
    places: dict[str, int]

    def x(self, agent_id: str) -> float:
        return self.left + self.gap * self.places[agent_id]


def draw_handoffs(graph: HandoffGraph) -> str:
    """Return the drawing."""
    widest = max((_text_width(agent.shown) for agent in graph.agents), default=0.0)
    gap = max(_COLUMN_MIN, widest + _NAME_GAP, *map(_room, graph.edges))
    left = _MARGIN + max(widest / 2, _NODE_RADIUS)
    columns = _Columns(left, gap, {a.agent_id: n for n, a in enumerate(graph.agents)})
    # The last column needs the room of a gap for arrows to itself and their numbers.
    across = left + gap * max(len(graph.agents) - 1, 0) + max(widest / 2, gap) + _MARGIN
    width = max(across, _text_width(graph.caption) + 2 * _MARGIN)
    bottom = _HEAD + _ROW * len(graph.edges)
    height = bottom + _FOOT
    most = max((edge.count for edge in graph.edges), default=0) or 1
    size = f'width="{width:.0f}" height="{height:.0f}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" {size}',
        'font-family="sans-serif" role="img">',
        f"<title>{escape(graph.caption)}</title>",
        f'<rect {size} fill="#ffffff"/>',
    ]
    if not graph.agents:
        parts.append(_text(_MARGIN, _HEAD / 2, "no handoffs in this time"))
    for agent in graph.agents:
        parts += _agent(agent, columns.x(agent.agent_id), bottom)
    for place, edge in enumerate(graph.edges):
        parts += _arrow(edge, columns, _HEAD + _ROW * (place + 0.5), most)
    parts += [_text(_MARGIN, height - 18, graph.caption, size=15), "</svg>\n"]
    return "\n".join(parts)


def _text_width(text: str, size: int = _NAME_SIZE) -> float:
    # Chinese, Japanese and Korean letters and emoji are about as wide as high.
    wide = sum(east_asian_width(letter) in "WF" for letter in text)
    return (len(text) + wide * _WIDE_MORE) * size * _CHARACTER_WIDTH


def _room(edge: GraphEdge) -> float:
    """Return the gap that an edge's number needs."""
    before = _SELF + _SELF_ASIDE if edge.start == edge.end else _NUMBER_ASIDE
    return before + _text_width(edge.label, _NUMBER_SIZE) + _NUMBER_ASIDE


def _agent(agent: GraphAgent, x: float, bottom: float) -> list[str]:
    """Return an agent's circle, name and line."""
    ring = f'<circle cx="{x:.1f}" cy="{_NODE_RADIUS + 30:.1f}" r="{_NODE_RADIUS:.0f}" '
    edge = ' stroke="#263238" stroke-width="3"' if agent.is_home else ""
    top = 2 * _NODE_RADIUS + 30
    return [
        f"<g><title>{escape(agent.agent_id)}</title>",
        f'<line x1="{x:.1f}" y1="{top:.1f}" x2="{x:.1f}" y2="{bottom:.1f}" stroke="#cfd8dc"/>',
        f"{ring}fill={quoteattr(agent.colour)}{edge}/>",
        _text(x, 22, agent.shown, anchor="middle", size=_NAME_SIZE, bold=True),
        "</g>",
    ]


def _arrow(edge: GraphEdge, columns: _Columns, y: float, most: int) -> list[str]:
    """Return one arrow and its number; dashed and red if all were refused."""
    if edge.count:
        width = _WIDTH_MIN + (_WIDTH_MAX - _WIDTH_MIN) * math.sqrt(edge.count / most)
        line, head, colour = f'stroke="#90a4ae" stroke-width="{width:.1f}"', "#455a64", "#263238"
    else:
        line = 'stroke="#c62828" stroke-width="1.4" stroke-dasharray="5 4"'
        head = colour = "#c62828"
    start, end = columns.x(edge.start), columns.x(edge.end)
    toward = 1.0 if end >= start else -1.0
    if edge.start == edge.end:
        out, back = start + _SELF, y + 8
        path = f"M{start:.1f} {y:.1f}H{out:.1f}V{back:.1f}H{start + _HEAD_LENGTH:.1f}"
        tip = _head(start, back, -1.0)
        number = _text(out + _SELF_ASIDE, y + 9, edge.label, size=_NUMBER_SIZE, colour=colour)
    else:
        path = f"M{start:.1f} {y:.1f}H{end - toward * _HEAD_LENGTH:.1f}"
        tip = _head(end, y, toward)
        number = _text(
            start + toward * _NUMBER_ASIDE,
            y - _NUMBER_ABOVE,
            edge.label,
            anchor="start" if toward > 0 else "end",
            size=_NUMBER_SIZE,
            colour=colour,
        )
    return [
        f"<g><title>{escape(edge.meaning)}</title>",
        f'<path d="{path}" fill="none" {line}/>',
        f'<path d="{tip}" fill="{head}"/>',
        number,
        "</g>",
    ]


def _head(x: float, y: float, toward: float) -> str:
    """Return an arrow's head as a path: not every program rotates an SVG marker."""
    neck = x - toward * _HEAD_LENGTH
    return f"M{neck:.1f} {y - 5.5:.1f}L{x:.1f} {y:.1f}L{neck:.1f} {y + 5.5:.1f}z"


def _text(
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "start",
    size: int = _NAME_SIZE,
    colour: str = "#263238",
    bold: bool = False,
) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"{weight} '
        f'fill="{colour}">{escape(text)}</text>'
    )
