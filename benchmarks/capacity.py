"""What a plan needs: the costs of a turn on each engine, and the model's error on this machine.

`python -m benchmarks.capacity` prints and writes build/capacity.json; with `--write` also
routing_service/cli/plan_costs.json, which `agent-routing plan` and docs/scaling.md are made from.
Run it on a machine with nothing else to do: other work makes every turn cost more processor time.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks import inbox, service
from benchmarks.engine_costs import Cost, measure
from benchmarks.engine_turns import ENGINES, Engine
from benchmarks.simulation import Costs, Layout, Traffic, simulate
from benchmarks.story import Load

ROOT: Final = Path(__file__).parent.parent
REPORT: Final = ROOT / "build" / "capacity.json"
SHIPPED: Final = ROOT / "routing_service" / "cli" / "plan_costs.json"

COMMAND: Final = "python -m benchmarks.capacity --write"

ENGINE_ROUNDS: Final = 2
"""The cheaper round counts: what else runs only ever adds processor time."""

PROCESSES: Final = (1, 2, 3)
CHECK_ROUNDS: Final = 3
CHECK_LOAD: Final = Load(sessions=96, turns_per_session=6, concurrency=48)
SIMULATED_S: Final = 2.0
SEEDS: Final = 7
"""The spread of connections over processes is chance: in the model as on the machine."""

CORES: Final = (1, 2, 4, 8, 16)
SYNC_S: Final = 0.001
"""A commit of a good disk, with the way to the engine and back, for what is not this machine."""

INBOX_WAITING: Final = 400
INBOX_WORKERS: Final = 20
INBOX_ROUNDS: Final = 3
SAMPLE_S: Final = 0.1
SYNCS: Final = 40


@dataclass(frozen=True)
class Round:
    """One play on so many processes: the measured rate, and the processor time of a turn."""

    processes: int
    turns_per_s: float
    service_ms: float
    engine_ms: float
    client_ms: float
    others: float
    """How many other programs' threads wanted a core, on average."""


def main() -> None:
    """Measure, check, print and write."""
    if "--simulate" in sys.argv:
        found = json.loads(SHIPPED.read_text())
    else:
        found = {"measured": _measured()}
        found["engines"] = {name: _rounded(_cheapest(name)) for name in ENGINES}
        found["engines"]["dynamodb"] = DYNAMODB
        found["inbox_factor"] = round(_inbox_factor(), 2)
        found["check"] = _check()
    postgres = found["engines"]["postgres"]
    found["processes"] = _by_cores(postgres)
    found["days"] = [_day(name, traffic, postgres) for name, traffic in DAYS.items()]
    text = json.dumps(found, indent=2) + "\n"
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(text)
    if "--write" in sys.argv:
        SHIPPED.write_text(text)
    print(text)


def _measured() -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}",
        "other_load": round(os.getloadavg()[0], 1),
        "command": COMMAND,
    }


DYNAMODB: Final = {"write_units": 18.4, "turn_bytes": 4000.0, "session_bytes": 400.0}
"""Counted by `python -m benchmarks.dynamodb_units`; see docs/dynamodb.md."""


def _cheapest(name: str) -> Cost:
    costs = []
    for _ in range(ENGINE_ROUNDS):
        with ENGINES[name]() as engine:
            costs.append(measure(name, engine))
    return min(costs, key=lambda cost: cost.server_cpu_ms + cost.engine_cpu_ms)


def _rounded(cost: Cost) -> dict[str, float]:
    return {
        "service_ms": round(cost.server_cpu_ms, 3),
        "engine_ms": round(cost.engine_cpu_ms, 3),
        "session_bytes": round(cost.session_bytes),
        "turn_bytes": round(cost.turn_bytes),
        "logged_bytes": round(cost.logged_bytes),
    }


def _inbox_factor() -> float:
    """Return what a turn from an inbox costs the service, as a multiple of one that is carried."""
    ratios = []
    for _ in range(INBOX_ROUNDS):
        with service.server_process("", registry=inbox.REGISTRY) as (address, pid):
            before_s = service.cpu_s(pid)
            asyncio.run(inbox.emptied(address, INBOX_WAITING, INBOX_WORKERS, INBOX_WORKERS))
            inbox_s = (service.cpu_s(pid) - before_s) / INBOX_WAITING
        with service.server_process() as (address, pid):
            before_s = service.cpu_s(pid)
            service.play(address, Load(INBOX_WAITING, 1, INBOX_WORKERS))
            # The supervisor hands over in each first turn: three changes rather than two.
            carried_s = (service.cpu_s(pid) - before_s) / INBOX_WAITING * 2 / 3
        ratios.append(inbox_s / carried_s)
    return statistics.median(ratios)


def _check() -> dict[str, Any]:
    """Play on 1, 2 and 3 processes in turn; predict each from what one process costs.

    Costs are those of the one process of the same cycle, so that other work disturbs both alike.
    """
    cycles: list[list[Round]] = []
    with ENGINES["postgres"]() as engine:
        sync_s = _sync_s()
        cycles = [[_play(engine, count) for count in PROCESSES] for _ in range(CHECK_ROUNDS)]
    checked = []
    for place, count in enumerate(PROCESSES):
        mine = [cycle[place] for cycle in cycles]
        predicted = [_predicted(_costs(cycle[0], sync_s), cycle[place]) for cycle in cycles]
        errors = [
            100 * (rate / each.turns_per_s - 1) for rate, each in zip(predicted, mine, strict=True)
        ]
        checked.append(
            {
                "processes": count,
                "measured_turns_per_s": round(_median(mine, lambda each: each.turns_per_s)),
                "predicted_turns_per_s": round(statistics.median(predicted)),
                "error_percent": round(statistics.median(errors)),
                "error_percent_least": round(min(errors)),
                "error_percent_most": round(max(errors)),
                "cpu_over_one_process": round(
                    statistics.median(
                        (cycle[place].service_ms + cycle[place].engine_ms)
                        / (cycle[0].service_ms + cycle[0].engine_ms)
                        for cycle in cycles
                    ),
                    2,
                ),
                "others": round(_median(mine, lambda each: each.others), 1),
            }
        )
    return {"engine": "postgres", "cycles": CHECK_ROUNDS, "by_processes": checked}


def _costs(one: Round, sync_s: float) -> Costs:
    return Costs(
        service_s=one.service_ms / 2e3,
        engine_s=one.engine_ms / 2e3,
        client_s=one.client_ms / 2e3,
        sync_s=sync_s,
    )


def _predicted(costs: Costs, played: Round) -> float:
    layout = Layout(
        processes=played.processes,
        cores=os.cpu_count() or 1,
        others=played.others,
        connections=service.CHANNELS,
    )
    traffic = Traffic(callers=CHECK_LOAD.concurrency)
    return statistics.median(
        simulate(costs, layout, traffic, seconds=SIMULATED_S, seed=seed).turns_per_s
        for seed in range(SEEDS)
    )


def _play(engine: Engine, count: int) -> Round:
    with service.server_process(engine.store_url, "--processes", str(count)) as (address, pid):
        service.play(address, Load(16, 3, 16))
        sampler = _Sampler(lambda: [os.getpid(), *_family(pid), *engine.processes()])
        before = _times(pid, engine)
        with sampler:
            played = service.play(address, CHECK_LOAD)
        after = _times(pid, engine)
    service_s, engine_s, client_s = (b - a for a, b in zip(before, after, strict=True))
    return Round(
        processes=count,
        turns_per_s=played.turns_per_s,
        service_ms=1e3 * service_s / played.turns,
        engine_ms=1e3 * engine_s / played.turns,
        client_ms=1e3 * client_s / played.turns,
        others=sampler.others,
    )


def _times(pid: int, engine: Engine) -> tuple[float, float, float]:
    return _cpu_s(_family(pid)), _cpu_s(engine.processes()), time.process_time()


def _cpu_s(pids: list[int]) -> float:
    total = 0.0
    for pid in pids:
        try:
            total += service.cpu_s(pid)
        except FileNotFoundError:
            continue
    return total


def _family(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *map(int, children)]


class _Sampler:
    """Counts other programs that want a core, now and then, by their weight for the scheduler."""

    def __init__(self, own: Callable[[], list[int]]) -> None:
        self._own = own
        self._samples: list[float] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def others(self) -> float:
        """Their number, on average; one that is niced counts for less."""
        return statistics.mean(self._samples or [0.0])

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            own = set(self._own())
            pids = {int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()}
            self._samples.append(sum(map(_weight, pids - own)))


def _weight(pid: int) -> float:
    """Return a program's weight if it runs or waits for a core: each nice is a quarter less."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    # Its state, and its nice: 3 and 19 in proc(5).
    return 1.25 ** -int(fields[16]) if fields[0] == "R" else 0.0


def _sync_s() -> float:
    """Return what the disk takes to have a page, as the engine waits for it."""
    times = []
    with tempfile.NamedTemporaryFile() as file:
        for _ in range(SYNCS):
            file.write(b"x" * 8192)
            file.flush()
            begun_s = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - begun_s)
    return statistics.median(times)


def _median(rounds: list[Round], part: Callable[[Round], float]) -> float:
    return statistics.median(map(part, rounds))


def _elsewhere(postgres: dict[str, float]) -> Costs:
    """Return the costs where callers and engine are on other machines, with a good disk."""
    return Costs(
        service_s=postgres["service_ms"] / 2e3,
        engine_s=postgres["engine_ms"] / 2e3,
        sync_s=SYNC_S,
    )


def _by_cores(postgres: dict[str, float]) -> list[dict[str, float]]:
    """Simulate as many processes as cores, with enough callers to keep them busy."""
    found = []
    for cores in CORES:
        layout = Layout(
            processes=cores, cores=cores, engine_cores=max(2, cores), connections=32 * cores
        )
        rate = statistics.median(
            simulate(
                _elsewhere(postgres), layout, Traffic(callers=64 * cores), seconds=2.0, seed=seed
            ).turns_per_s
            for seed in range(3)
        )
        found.append({"cores": cores, "turns_per_s": round(rate)})
    one = found[0]["turns_per_s"]
    return [{**each, "of_one": round(each["turns_per_s"] / one, 2)} for each in found]


DAYS: Final = {
    "a plain peak": {},
    "a fifth of the turns by an inbox": {"inbox_share": 0.2},
    "one turn in twenty in one session": {"hot_share": 0.05},
    "the primary fails over, away for 5 s": {"away_at_s": 3.0, "away_s": 5.0},
}
"""What happens at the peak of a day."""

CLUSTER_CORES: Final = 16
DAY_SIMULATED_S: Final = 12.0


def _day(name: str, what: dict[str, float], postgres: dict[str, float]) -> dict[str, Any]:
    """Simulate one cluster's share of a peak, with processes and primary at half load."""
    rate = CLUSTER_RATE
    processes = max(2, round(2 * rate * postgres["service_ms"] / 1e3))
    layout = Layout(
        processes=processes,
        cores=processes,
        engine_cores=CLUSTER_CORES,
        connections=16 * processes,
    )
    played = simulate(
        _elsewhere(postgres),
        layout,
        Traffic(turns_per_s=rate, **what),
        seconds=DAY_SIMULATED_S,
    )
    return {
        "what": name,
        "turns_per_s": rate,
        "processes": processes,
        "p50_ms": round(played.quantile_ms(0.5), 1),
        "p99_ms": round(played.quantile_ms(0.99), 1),
        "failed_turns": played.failed_turns,
        "late_s": round(played.ended_late_s, 1),
    }


CLUSTER_RATE: Final = 2_500.0
"""Turns a second at the peak of 2.2 million users a day with 20 messages each: about what the data
of one primary allows, so 10 million users have five such clusters and 100 million fifty."""


if __name__ == "__main__":
    main()
