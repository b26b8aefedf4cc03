"""Give each counter of calls that no panel shows a panel of its own in the Grafana dashboard.

.venv/bin/python scripts/make_dashboard.py            # say whether the dashboard is up to date
.venv/bin/python scripts/make_dashboard.py --write    # bring it up to date

The panels below MADE_FROM_ID are written by hand and stay as they are. Those from it on are made
from COUNTERS in telemetry/metrics.py, below all others. A made panel goes as soon as a panel
written by hand shows its counter.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from routing_service.telemetry.metrics import COUNTERS, CallCounter

DASHBOARD: Final = Path(__file__).parents[1] / "deploy" / "grafana" / "agent-routing.json"

MADE_FROM_ID: Final = 1_000
"""The first id of a made panel."""

WIDTH: Final = 12
HEIGHT: Final = 8
"""A made panel's size: two in a row of the grid's 24 columns."""


def series_of(counter: CallCounter) -> str:
    """Return a counter's name on the metrics page."""
    return f"agent_routing_{counter.name}"


def made_panel(counter: CallCounter, number: int, top: int) -> dict[str, Any]:
    """Return the panel of a counter. number: its place among the made ones, which begin at top."""
    rate = f'rate({series_of(counter)}{{instance=~"$instance"}}[$__rate_interval])'
    labels = tuple(counter.labels)
    return {
        "id": MADE_FROM_ID + number,
        "title": counter.name.removesuffix("_total").replace("_", " ").capitalize(),
        "description": counter.meaning,
        "type": "timeseries",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": {
            "x": number % 2 * WIDTH,
            "y": top + number // 2 * HEIGHT,
            "w": WIDTH,
            "h": HEIGHT,
        },
        "fieldConfig": {"defaults": {"unit": "reqps", "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}},
        "targets": [
            {
                "refId": "A",
                "expr": f"sum by ({', '.join(labels)}) ({rate})" if labels else f"sum({rate})",
                "legendFormat": ", ".join(f"{{{{{label}}}}}" for label in labels),
            }
        ],
    }


def up_to_date(
    dashboard: Mapping[str, Any], counters: Sequence[CallCounter] = COUNTERS
) -> dict[str, Any]:
    """Return the dashboard with a panel for each counter."""
    by_hand = [panel for panel in dashboard["panels"] if panel["id"] < MADE_FROM_ID]
    queries = " ".join(target["expr"] for panel in by_hand for target in panel["targets"])
    shown = set(re.findall(r"\w+", queries))
    top = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in by_hand)
    left = [counter for counter in counters if series_of(counter) not in shown]
    made = [made_panel(counter, number, top) for number, counter in enumerate(left)]
    return {**dashboard, "panels": [*by_hand, *made]}


def main() -> int:
    """Compare the dashboard with the counters, or write it. Returns the exit code."""
    text = DASHBOARD.read_text("utf-8")
    wanted = json.dumps(up_to_date(json.loads(text)), indent=2, ensure_ascii=False) + "\n"
    if text == wanted:
        return 0
    if "--write" in sys.argv[1:]:
        DASHBOARD.write_text(wanted, "utf-8")
        return 0
    sys.stderr.write(f"{DASHBOARD} is out of date; run this with --write\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
