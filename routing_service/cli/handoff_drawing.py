"""The handoffs between agents as an SVG drawing.

Its rule: it can be read without colours and without scripts: names next to the agents, numbers on
the arrows, and a title on everything for screen readers and the mouse.

The home agent is in the middle, because most handoffs involve it. The others stand around it, those
with the most handoffs between them side by side. Arrows bend to their left, so that the two
directions are two arrows. It stays readable up to about twenty agents; the busiest AGENTS_MAX are
drawn.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape, quoteattr

from agent_routing.v1.admin_service_pb2 import GetRoutingStatsResponse
from agent_routing.v1.agent_pb2 import Agent, AgentKind

AGENTS_MAX: Final = 24
LABEL_CHARACTERS_MAX: Final = 24

_NODE_RADIUS: Final = 26.0
_GAP: Final = 190.0
"""Between neighbours on the ring, in units of the drawing."""
_RING_MIN: Final = 260.0
_MARGIN_ACROSS: Final = 230.0
_MARGIN_DOWN: Final = 70.0
"""The margin around the ring, for the agents' names."""
_HEAD_LENGTH: Final = 13.0
_BEND: Final = 0.2
"""How far an arrow's middle is off the straight line, as a share of its length."""
_WIDTH_MIN: Final = 1.4
_WIDTH_MAX: Final = 6.5
_SHARES: Final = (0.34, 0.42, 0.26, 0.5, 0.2, 0.58, 0.66, 0.74)
"""Where on its arrow a number may stand, the best first: near the start."""
_LABEL_ACROSS: Final = 38.0
_LABEL_DOWN: Final = 17.0
"""The space of a number."""
_COLOUR: Final = re.compile(r"#[0-9a-fA-F]{6}\Z")
_COLOUR_DEFAULT: Final = "#5b6b7b"

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Point:
    x: float
    y: float

    def __str__(self) -> str:
        return f"{self.x:.1f} {self.y:.1f}"

    def toward(self, other: _Point, share: float) -> _Point:
        """Return the point at a share of the way to another."""
        return _Point(self.x + (other.x - self.x) * share, self.y + (other.y - self.y) * share)


def draw_handoffs(stats: GetRoutingStatsResponse, agents: Mapping[str, Agent]) -> str:
    """Return the drawing. agents: for names and colours; others are drawn grey with their ids."""
    carried: Counter[Pair] = Counter()
    refused: Counter[Pair] = Counter()
    for row in stats.handoffs:
        pair = (row.from_agent_id, row.to_agent_id)
        carried[pair] += row.count
        refused[pair] += row.refused
    carried, refused = +carried, +refused
    shown = _busiest(carried + refused)
    home = next(
        (name for name in shown if name in agents and _is_home(agents[name])),
        "",
    )
    around = _ring_order([name for name in shown if name != home], carried + refused)
    radius = max(_RING_MIN, _GAP * len(around) / (2 * math.pi))
    width = 2 * (radius + _MARGIN_ACROSS)
    middle = _Point(width / 2, radius + _MARGIN_DOWN)
    places = {name: _on_ring(middle, radius, n, len(around)) for n, name in enumerate(around)}
    if home:
        places[home] = middle
    height = 2 * (radius + _MARGIN_DOWN) + 40
    parts = [
        _OPENING.format(width=f"{width:.0f}", height=f"{height:.0f}"),
        f"<title>{escape(_caption(stats))}</title>",
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>',
    ]
    if not places:
        parts.append(_text(middle, "no handoffs in this time", anchor="middle"))
    most = max(carried.values(), default=1)
    # Thin arrows last: they would vanish under thick ones. Numbers over all arrows.
    taken = [*places.values(), _Point(middle.x, middle.y + _NODE_RADIUS + 16)]
    never = [pair for pair in refused if pair not in carried]
    drawn = [
        _arrow(pair, count, refused[pair], places=places, most=most, taken=taken)
        for pair, count in [*carried.most_common(), *((pair, 0) for pair in never)]
        if pair[0] in places and pair[1] in places
    ]
    parts += [arrow for arrow, _ in drawn]
    parts += [number for _, number in drawn]
    parts += [_node(name, places[name], middle, agents.get(name)) for name in places]
    parts.append(_text(_Point(width / 2, height - 18), _caption(stats), anchor="middle", size=15))
    parts.append("</svg>\n")
    return "\n".join(parts)


_OPENING: Final = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
    'height="{height}" font-family="sans-serif" role="img">'
)


def _is_home(agent: Agent) -> bool:
    return agent.kind == AgentKind.AGENT_KIND_SUPERVISOR


def _busiest(traffic: Counter[Pair]) -> list[str]:
    counts: Counter[str] = Counter()
    for pair, count in traffic.items():
        for name in pair:
            counts[name] += count
    return [name for name, _ in sorted(counts.items(), key=lambda row: (-row[1], row[0]))][
        :AGENTS_MAX
    ]


def _ring_order(names: Sequence[str], traffic: Counter[Pair]) -> list[str]:
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


def _on_ring(middle: _Point, radius: float, place: int, count: int) -> _Point:
    angle = 2 * math.pi * place / count - math.pi / 2
    return _Point(middle.x + radius * math.cos(angle), middle.y + radius * math.sin(angle))


def _arrow(
    pair: Pair,
    count: int,
    refused: int,
    *,
    places: Mapping[str, _Point],
    most: int,
    taken: list[_Point],
) -> tuple[str, str]:
    """Return one arrow and its number; dashed and red if all were refused.

    taken: the positions of earlier numbers; this one is added.
    """
    start, end = places[pair[0]], places[pair[1]]
    # To the left, so that the arrow back bends to the other side.
    bend = _Point(
        (start.x + end.x) / 2 + (end.y - start.y) * _BEND,
        (start.y + end.y) / 2 - (end.x - start.x) * _BEND,
    )
    half = math.hypot(bend.x - start.x, bend.y - start.y)
    begin = start.toward(bend, _NODE_RADIUS / half)
    tip = end.toward(bend, (_NODE_RADIUS + 3) / half)
    neck = end.toward(bend, (_NODE_RADIUS + 3 + _HEAD_LENGTH) / half)
    label = _free_place([_on_curve(begin, bend, neck, share) for share in _SHARES], taken)
    told = f"{pair[0]} to {pair[1]}: {count} carried out, {refused} refused"
    if count:
        width = _WIDTH_MIN + (_WIDTH_MAX - _WIDTH_MIN) * math.sqrt(count / most)
        line, head = f'stroke="#90a4ae" stroke-width="{width:.1f}"', "#455a64"
        number, colour = str(count), "#263238"
    else:
        line, head = 'stroke="#c62828" stroke-width="1.4" stroke-dasharray="5 4"', "#c62828"
        number, colour = f"{refused} refused", "#c62828"
    arrow = (
        f"<g><title>{escape(told)}</title>"
        f'<path d="M{begin}Q{bend} {neck}" fill="none" {line}/>'
        f'<path d="{_head(neck, tip)}" fill="{head}"/></g>'
    )
    return arrow, _text(label, number, anchor="middle", size=14, colour=colour)


def _free_place(candidates: Sequence[_Point], taken: list[_Point]) -> _Point:
    """Return the first position away from all other numbers, and add it to taken."""

    def room(place: _Point) -> float:
        return min(
            max(abs(place.x - other.x) / _LABEL_ACROSS, abs(place.y - other.y) / _LABEL_DOWN)
            for other in taken
        )

    free = next((place for place in candidates if room(place) >= 1), None)
    chosen = free or max(candidates, key=room)
    taken.append(chosen)
    return chosen


def _head(neck: _Point, tip: _Point) -> str:
    """Return an arrow's head as a path: not every program rotates an SVG marker."""
    across = _Point((tip.y - neck.y) * 0.42, (neck.x - tip.x) * 0.42)
    left = _Point(neck.x + across.x, neck.y + across.y)
    right = _Point(neck.x - across.x, neck.y - across.y)
    return f"M{left}L{tip}L{right}z"


def _on_curve(begin: _Point, bend: _Point, end: _Point, share: float) -> _Point:
    return begin.toward(bend, share).toward(bend.toward(end, share), share)


def _node(name: str, place: _Point, middle: _Point, agent: Agent | None) -> str:
    shown = (agent.display_name if agent else "") or name
    if len(shown) > LABEL_CHARACTERS_MAX:
        shown = f"{shown[: LABEL_CHARACTERS_MAX - 1]}…"
    colour = agent.color if agent and _COLOUR.match(agent.color) else _COLOUR_DEFAULT
    across = place.x - middle.x
    below = place.y - middle.y
    if abs(across) < _NODE_RADIUS:
        # Above or below the ring, or in its very middle.
        down = _NODE_RADIUS + 20 if below >= 0 else -_NODE_RADIUS - 10
        label, anchor = _Point(place.x, place.y + down), "middle"
    else:
        beside = math.copysign(_NODE_RADIUS + 8, across)
        label, anchor = _Point(place.x + beside, place.y + 5), "start" if across > 0 else "end"
    return (
        f"<g><title>{escape(name)}</title>"
        f'<circle cx="{place.x:.1f}" cy="{place.y:.1f}" r="{_NODE_RADIUS:.0f}" '
        f'fill={quoteattr(colour)} stroke="#ffffff" stroke-width="3"/>'
        f"{_text(label, shown, anchor=anchor, size=16, bold=True)}</g>"
    )


def _text(
    place: _Point,
    words: str,
    *,
    anchor: str,
    size: int = 16,
    colour: str = "#263238",
    bold: bool = False,
) -> str:
    """Return text with a white outline, so that it can be read over lines."""
    weight = ' font-weight="bold"' if bold else ""
    at = f'x="{place.x:.1f}" y="{place.y:.1f}" text-anchor="{anchor}" font-size="{size}"{weight}'
    said = escape(words)
    # Twice, outline and text: not every program knows paint-order.
    edge = 'fill="none" stroke="#ffffff" stroke-width="4" stroke-linejoin="round"'
    return (
        f'<text {at} {edge} aria-hidden="true">{said}</text>'
        f'<text {at} fill="{colour}">{said}</text>'
    )


def _caption(stats: GetRoutingStatsResponse) -> str:
    told = f"{stats.handoffs_total} handoffs carried out, {stats.refusals_total} refused"
    if not stats.HasField("start_time"):
        return told
    begin, end = stats.start_time.ToDatetime(), stats.end_time.ToDatetime()
    return f"{told}, {begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC"
