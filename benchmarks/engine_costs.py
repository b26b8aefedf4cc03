"""What a session and a turn cost by engine: bytes stored, and time of the processor.

`python -m benchmarks.engine_costs` plays the story of story.py over gRPC into each engine, first
short sessions, then long ones, to separate a session's own cost from a turn's. It is
not part of `make bench`, because it has no reference. capacity.py measures with it what
docs/scaling.md and `agent-routing plan` are made from.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks import service
from benchmarks.engine_turns import ENGINES, Engine
from benchmarks.story import Load

REPORT: Final = Path(__file__).parent.parent / "build" / "engine-costs.json"

SESSIONS: Final = 300
TURNS_SHORT: Final = 2
TURNS_LONG: Final = 12
TURNS_TYPICAL: Final = 10
"""Turns of a session, for the number of sessions in a gigabyte."""


@dataclass(frozen=True)
class Cost:
    """The measurements of one engine. A turn has two changes, a session's first has three."""

    engine: str
    session_bytes: float
    """Of a session itself, with its first turn's handoff."""
    turn_bytes: float
    server_cpu_ms: float
    """Of the service, for a turn."""
    engine_cpu_ms: float
    """Of the engine's own processes, for a turn; 0 where it has none."""
    logged_bytes: float
    """Written to the engine's log for a turn, as a standby is sent it; 0 = not measured."""
    turns_per_s: float

    @property
    def sessions_per_gb(self) -> int:
        """Sessions of TURNS_TYPICAL turns in 10^9 bytes."""
        return round(1e9 / (self.session_bytes + TURNS_TYPICAL * self.turn_bytes))


def measure(name: str, engine: Engine) -> Cost:
    """Play both loads into one engine."""
    short, long = (Load(SESSIONS, turns, concurrency=32) for turns in (TURNS_SHORT, TURNS_LONG))
    with service.server_process(engine.store_url) as (address, pid):
        service.play(address, short)
        empty_bytes = engine.stored_bytes()
        service.play(address, short)
        short_bytes = engine.stored_bytes()
        server_s, engine_s = _cpu_s([pid]), _cpu_s(engine.processes())
        logged = engine.logged_bytes()
        played = service.play(address, long)
        logged = engine.logged_bytes() - logged
        server_s, engine_s = _cpu_s([pid]) - server_s, _cpu_s(engine.processes()) - engine_s
        long_bytes = engine.stored_bytes()
    small = (short_bytes - empty_bytes) / SESSIONS
    turn_bytes = ((long_bytes - short_bytes) / SESSIONS - small) / (TURNS_LONG - TURNS_SHORT)
    return Cost(
        engine=name,
        session_bytes=small - TURNS_SHORT * turn_bytes,
        turn_bytes=turn_bytes,
        server_cpu_ms=server_s * 1e3 / played.turns,
        engine_cpu_ms=engine_s * 1e3 / played.turns,
        logged_bytes=logged / played.turns,
        turns_per_s=played.turns_per_s,
    )


def _cpu_s(pids: list[int]) -> float:
    """Return the processor time of processes, with that of children that have ended."""
    ticks = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except FileNotFoundError:
            continue
        # utime, stime, cutime, cstime: 14 to 17, counted from the process id.
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure every engine, print a table and write the report."""
    table = Table(title=f"{SESSIONS} sessions of {TURNS_SHORT} and of {TURNS_LONG} turns")
    columns = "engine", "bytes a session", "bytes a turn", "sessions in a GB"
    for column in (
        *columns,
        "service CPU ms a turn",
        "engine CPU ms a turn",
        "logged a turn",
        "turns /s",
    ):
        table.add_column(column, justify="left" if column == "engine" else "right")
    costs = []
    for name, start in ENGINES.items():
        with start() as engine:
            cost = measure(name, engine)
        costs.append(cost)
        table.add_row(
            name,
            f"{cost.session_bytes:,.0f}",
            f"{cost.turn_bytes:,.0f}",
            f"{cost.sessions_per_gb:,}",
            f"{cost.server_cpu_ms:.2f}",
            f"{cost.engine_cpu_ms:.2f}",
            f"{cost.logged_bytes:,.0f}",
            f"{cost.turns_per_s:,.0f}",
        )
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps([asdict(cost) for cost in costs], indent=2) + "\n")
    Console().print(table)


if __name__ == "__main__":
    main()
