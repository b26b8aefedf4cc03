"""`make bench`: every figure against its reference in the same run.

Rounds of ours and of the reference alternate, so that other load on the machine affects both. A
figure is the median of the rounds' ratios, with its 95 % confidence interval. Written to
build/bench.json as {"figures": {key: value}, "intervals": {key: [low, high]}, …}, printed as a
table, and drawn into build/bench/.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import grpc
from rich.console import Console
from rich.table import Table

from benchmarks import (
    console as console_page,
)
from benchmarks import (
    engine_turns,
    growth,
    imports,
    inbox,
    interpreter_steps,
    peer_turns,
    plots,
    postgres_appends,
    processes,
    route_speed,
    server_start,
    topic_cost,
    user_gain,
)
from benchmarks.figure import FULL, QUICK, Benchmark, Figure, Scale, ratios
from benchmarks.story import Load

ROOT: Final = Path(__file__).parent.parent
REPORT: Final = ROOT / "build" / "bench.json"
PLOTS: Final = ROOT / "build" / "bench"

KEYS: Final = (
    "route_vs_echo",
    "route_p50_over_echo_ms",
    "fsync_ms",
    "turn_vs_langgraph_swarm_sqlite",
    "turn_vs_adk_sqlite",
    "turn_vs_openai_agents_sqlite",
    "stream_vs_unary",
    "throughput_1m_over_1k_sessions",
    "p99_1m_over_1k_sessions",
    "p50_10k_over_10_turns",
    "rss_mb_1m_sessions",
    "start_s_1m_sessions",
    "bytes_per_idle_session",
    "followup_latency_reduction",
    "import_client_ms",
    "grpc_import_ms",
    "topic_p99_ms_20",
    "topic_p99_ms_200",
    "topic_route_share",
    "route_vs_echo_cpu",
    "turns_vs_postgres_commits",
    "processes_2_vs_1_turns_per_cpu_s",
    "processes_2_vs_1_turns_per_s",
)
"""The keys in "figures" of the report. Other measurements are under "more"."""

BENCHMARKS: Final[dict[str, Benchmark]] = {
    "steps": interpreter_steps.measure,
    "route": route_speed.measure,
    "imports": imports.measure,
    "start": server_start.measure,
    "topics": topic_cost.measure,
    "gain": user_gain.measure,
    "growth": growth.measure,
    "peers": peer_turns.measure,
}
"""The benchmarks of a run that names none."""


LEAST: Final = {"turns_vs_postgres_commits": 0.15}
"""Targets of the rates below."""


def _of_rates(
    key: str, measure: Callable[[Load, int], dict[str, list[float]]], scale: Scale
) -> list[Figure]:
    """Run a benchmark that gives rates of ours and of a reference."""
    load = Load(scale.sessions, scale.turns_per_session, scale.at_once)
    rounds = measure(load, scale.rounds)
    per_round = ratios(rounds, "ours", "reference")
    return [Figure.of(key, per_round, "of the reference", LEAST.get(key), rounds=rounds)]


MORE: Final[dict[str, Benchmark]] = {
    "redis": peer_turns.measure_redis,
    "console": console_page.measure,
    "inbox": inbox.measure,
    "processes": processes.measure,
    **{
        key: partial(_of_rates, key, measure)
        for key, measure in (*engine_turns.FIGURES.items(), *postgres_appends.FIGURES.items())
    },
}
"""Benchmarks that run only if they are named, and those of WHOLE in a whole run."""

WHOLE: Final = ("turns_vs_postgres_commits", "processes")
"""Of MORE, what a run that names none has too, unless it is quick."""


def main() -> int:
    """Run the named benchmarks; print, draw and write the report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    known = {**BENCHMARKS, **MORE}
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(known))
    parser.add_argument(
        "--quick", action="store_true", help="smaller in everything: under a minute"
    )
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(known))
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}")
    scale = QUICK if arguments.quick else FULL
    console = Console()
    begun_s = time.monotonic()
    figures: list[Figure] = []
    failed: list[str] = []
    unnamed = BENCHMARKS if arguments.quick else (*BENCHMARKS, *WHOLE)
    for name in arguments.names or unnamed:
        since_s = time.monotonic()
        try:
            figures += known[name](scale)
        except Exception as error:  # noqa: BLE001 - the others are measured all the same
            failed.append(f"{name}: {type(error).__name__}: {error}")
            console.print(f"{name} failed: {error}", markup=False, style="bold red")
        console.print(f"{name}: {time.monotonic() - since_s:.0f} s", style="dim")
    seconds = time.monotonic() - begun_s
    _write(figures, scale, seconds, failed)
    console.print(_table(figures, scale, seconds))
    console.print(f"written to {REPORT.relative_to(ROOT)}, pictures to {PLOTS.relative_to(ROOT)}/")
    return 1 if failed else 0


def _write(figures: Sequence[Figure], scale: Scale, seconds: float, failed: list[str]) -> None:
    PLOTS.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {
        "figures": {f.key: _rounded(f.value) for f in figures if f.key in KEYS},
        "more": {f.key: _rounded(f.value) for f in figures if f.key not in KEYS},
        "bounds": {
            f.key: {"most" if f.is_most else "least": _rounded(f.bound), "holds": f.holds}
            for f in figures
            if f.bound is not None
        },
        "intervals": {f.key: [_rounded(end) for end in f.interval] for f in figures if f.interval},
        "rounds": {
            f.key: {
                name: [_rounded(value) for value in values] for name, values in f.rounds.items()
            }
            for f in figures
            if f.rounds
        },
        "beside": {f.key: dict(f.beside) for f in figures if f.beside},
        "is_quick": scale.is_quick,
        "sessions_many": scale.sessions_many,
        "turns_long": scale.turns_long,
        "seconds": round(seconds),
        "failed": failed,
        "machine": {
            "cores": os.cpu_count(),
            "load": [round(value, 2) for value in os.getloadavg()],
            "python": platform.python_version(),
            "grpcio": grpc.__version__,
            "system": platform.platform(),
        },
    }
    REPORT.write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    for figure in figures:
        if figure.rounds:
            plots.draw(figure, PLOTS / f"{figure.key}.svg")


def _table(figures: Sequence[Figure], scale: Scale, seconds: float) -> Table:
    size = "quick: smaller in everything" if scale.is_quick else "whole"
    table = Table(title=f"{size}, {scale.rounds} rounds in turn, {seconds:,.0f} s")
    table.add_column("figure", overflow="fold")
    table.add_column("value", justify="right")
    table.add_column("95 % interval", justify="right")
    table.add_column("bound", justify="right")
    table.add_column("")
    table.add_column("spread of the rounds", overflow="fold")
    for figure in figures:
        bound = ""
        if figure.bound is not None:
            bound = f"{'≤' if figure.is_most else '≥'} {_rounded(figure.bound):,}"
        kept = {None: "", True: "holds", False: "[bold red]misses[/]"}[figure.holds]
        value = f"{_rounded(figure.value):,} {figure.unit}"
        interval = "-".join(f"{_rounded(end):,}" for end in figure.interval or ())
        table.add_row(figure.key, value, interval, bound, kept, figure.spread)
    return table


def _rounded(value: float) -> float:
    """Round a number to three digits after the point."""
    return round(value, 3)


if __name__ == "__main__":
    sys.exit(main())
