"""Each figure's rounds as a picture: SVG, written as text, so that no library is needed."""

from __future__ import annotations

import statistics
from html import escape
from pathlib import Path
from typing import Final

from benchmarks.figure import Figure

WIDTH: Final = 640
NAME_WIDTH: Final = 200
BAR_HEIGHT: Final = 22
TOP: Final = 56
POINTS_MAX: Final = 60
"""Dots of one row: more would only be a line."""

_COLOURS: Final = ("#1b6ca8", "#8a8d91", "#138a5e", "#b3541e", "#6b4fa0", "#a3324b")


def draw(figure: Figure, path: Path) -> None:
    """Draw a bar for each row's median, and a dot for each round."""
    rows = [(name, list(values)) for name, values in figure.rounds.items() if values]
    most = max((max(values) for _, values in rows), default=1.0) or 1.0
    height = TOP + len(rows) * (BAR_HEIGHT + 8) + 12
    scale = (WIDTH - NAME_WIDTH - 90) / most
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}">',
        '<g font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="12" y="22" font-size="15" font-weight="bold">{escape(figure.key)}</text>',
        f'<text x="12" y="42" fill="#444">{escape(_summary(figure))}</text>',
    ]
    for place, (name, values) in enumerate(rows):
        y = TOP + place * (BAR_HEIGHT + 8)
        middle = y + BAR_HEIGHT / 2
        median = statistics.median(values)
        colour = _COLOURS[place % len(_COLOURS)]
        parts += [
            f'<text x="12" y="{middle + 4}">{escape(name)}</text>',
            f'<g fill="{colour}">',
            _bar(y, median * scale),
            *(
                f'<circle cx="{NAME_WIDTH + value * scale:.1f}" cy="{middle}" r="3"/>'
                for value in values[:POINTS_MAX]
            ),
            "</g>",
            f'<text x="{WIDTH - 12}" y="{middle + 4}" text-anchor="end">{median:,.4g}</text>',
        ]
    path.write_text("\n".join([*parts, "</g>", "</svg>"]) + "\n", "utf-8")


def _bar(y: int, width: float) -> str:
    place = f'x="{NAME_WIDTH}" y="{y}" width="{width:.1f}" height="{BAR_HEIGHT}"'
    return f'<rect {place} opacity="0.55"/>'


def _summary(figure: Figure) -> str:
    told = f"{figure.value:,.3f} {figure.unit}"
    if figure.bound is None:
        return told
    way = "at most" if figure.is_most else "at least"
    kept = "holds" if figure.holds else "does not hold"
    return f"{told}; {way} {figure.bound:,.3g}: {kept}"
