"""`make bench`: every figure against its reference in the same run.

Rounds of ours and of the reference take turns, so that whatever else the machine does falls on
both; the figure is the ratio of the medians. Written to build/bench.json as {"figures": {key:
value}, "rounds": …} and printed as a table.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks import engine_turns, peer_environment, postgres_appends, service
from benchmarks.story import Load

ROOT: Final = Path(__file__).parent.parent
REPORT: Final = ROOT / "build" / "bench.json"

ROUNDS: Final = 5
ROUNDS_QUICK: Final = 3
LOAD: Final = Load(sessions=100, turns_per_session=10, concurrency=64)
LOAD_QUICK: Final = Load(sessions=32, turns_per_session=10, concurrency=32)


def turn_vs_langgraph_swarm_sqlite(
    load: Load, rounds: int, *, peer_concurrency: int | None = None
) -> dict[str, list[float]]:
    """Play full durable turns over gRPC, and the same turns in LangGraph swarm in its process.

    peer_concurrency: sessions that the peer has at once; None = as many as ours. With 1 it needs
    no event loop, and is faster by a third; a service has many users at once.
    """
    peer = "langgraph_swarm_sqlite"
    peer_load = replace(load, concurrency=peer_concurrency or load.concurrency)
    peer_environment.prepare(peer)
    rates: dict[str, list[float]] = {"ours": [], "reference": []}
    with service.server() as address:
        service.play(address, LOAD_QUICK)  # Connections and caches are warm before it counts.
        for _ in range(rounds):
            rates["reference"].append(peer_environment.play(peer, peer_load).turns_per_s)
            rates["ours"].append(service.play(address, load).turns_per_s)
    return rates


FIGURES: Final[dict[str, Callable[[Load, int], dict[str, list[float]]]]] = {
    "turn_vs_langgraph_swarm_sqlite": turn_vs_langgraph_swarm_sqlite,
    "turn_vs_langgraph_swarm_sqlite_in_one_thread": partial(
        turn_vs_langgraph_swarm_sqlite, peer_concurrency=1
    ),
    **engine_turns.FIGURES,
    **postgres_appends.FIGURES,
}


def main() -> None:
    """Measure the figures asked for, print them and write the report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help=", ".join(FIGURES))
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    arguments = parser.parse_args()
    unknown = set(arguments.figures) - set(FIGURES)
    if unknown:
        parser.error(f"unknown figures: {', '.join(sorted(unknown))}; known: {', '.join(FIGURES)}")
    load, rounds = (LOAD_QUICK, ROUNDS_QUICK) if arguments.quick else (LOAD, ROUNDS)
    table = Table(title=f"{load.turns} turns in {load.sessions} sessions, {rounds} rounds in turn")
    for column in ("figure", "ours /s", "reference /s", "spread ours", "ratio"):
        is_name = column == "figure"
        table.add_column(column, justify="left" if is_name else "right", overflow="fold")
    figures: dict[str, float] = {}
    measured: dict[str, dict[str, list[float]]] = {}
    for key in arguments.figures or FIGURES:
        rates = measured[key] = FIGURES[key](load, rounds)
        ours, reference = statistics.median(rates["ours"]), statistics.median(rates["reference"])
        figures[key] = round(ours / reference, 3)
        spread = f"{min(rates['ours']):,.0f}-{max(rates['ours']):,.0f}"
        table.add_row(key, f"{ours:,.0f}", f"{reference:,.0f}", spread, f"{figures[key]:.2f}")
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps({"figures": figures, "rounds": measured}, indent=2) + "\n")
    console = Console()
    console.print(table)
    console.print(f"written to {REPORT.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
