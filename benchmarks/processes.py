"""`serve --processes 2` next to one process on PostgreSQL: turns for a second of server CPU."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from benchmarks import service
from benchmarks.figure import Figure, Scale, ratios
from benchmarks.postgres_appends import SETTINGS
from benchmarks.story import Load
from tests.engines.postgres_server import start_server

CPU_LEAST: Final = 0.9
WALL_LEAST: Final = 1.3
CORES_LEAST: Final = 4
"""For the bound of turns a second: two processes, their callers and PostgreSQL want a core each."""


def measure(scale: Scale) -> list[Figure]:
    """Return turns for each CPU second, and turns a second, of two processes over one's."""
    load = Load(scale.sessions, scale.turns_per_session, scale.at_once)
    for_cpu: dict[str, list[float]] = {"one": [], "two": []}
    for_time: dict[str, list[float]] = {"one": [], "two": []}
    postgres = start_server(SETTINGS)
    try:
        with (
            service.server_process(postgres.socket_url()) as one,
            service.server_process(postgres.socket_url(), "--processes", "2") as two,
        ):
            places = {"one": one, "two": two}
            for number in range(scale.rounds + 1):
                for name, (address, pid) in places.items():
                    before_s = _family_cpu_s(pid)
                    result = service.play(address, load)
                    if number:  # The first fills caches and prepares statements.
                        cpu_s = _family_cpu_s(pid) - before_s
                        for_cpu[name].append(load.turns / cpu_s)
                        for_time[name].append(result.turns_per_s)
    finally:
        postgres.remove()
    cores = os.cpu_count() or 1
    enough = cores >= CORES_LEAST
    return [
        _over_one("processes_2_vs_1_turns_per_cpu_s", for_cpu, "of one", CPU_LEAST),
        _over_one(
            "processes_2_vs_1_turns_per_s",
            for_time,
            "of one" if enough else f"of one; no bound with {cores} cores",
            WALL_LEAST if enough else None,
        ),
    ]


def _over_one(key: str, rounds: dict[str, list[float]], unit: str, least: float | None) -> Figure:
    """Return the figure of the rounds' ratios; a round's parts share what disturbs it."""
    return Figure.of(key, ratios(rounds, "two", "one"), unit, least, rounds=rounds)


def _family_cpu_s(pid: int) -> float:
    """Return the processor time of a process and its children so far."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sum(service.cpu_s(each) for each in (pid, *map(int, children)))
