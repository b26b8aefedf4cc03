"""`serve --processes 2` next to one process on PostgreSQL: turns for a second of server CPU."""

from __future__ import annotations

import statistics
from pathlib import Path

from benchmarks import service
from benchmarks.figure import Figure, Scale
from benchmarks.postgres_appends import SETTINGS
from benchmarks.story import Load
from tests.engines.postgres_server import start_server


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
    return [
        Figure("processes_2_vs_1_turns_per_cpu_s", _over(for_cpu), "of one", 0.9, rounds=for_cpu),
        Figure("processes_2_vs_1_turns_per_s", _over(for_time), "of one", rounds=for_time),
    ]


def _over(rounds: dict[str, list[float]]) -> float:
    """Return the median of the ratios of each round, whose parts share what disturbs it."""
    return statistics.median(
        two / one for one, two in zip(rounds["one"], rounds["two"], strict=True)
    )


def _family_cpu_s(pid: int) -> float:
    """Return the processor time of a process and its children so far."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sum(service.cpu_s(each) for each in (pid, *map(int, children)))
