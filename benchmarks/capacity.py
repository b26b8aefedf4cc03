"""What a plan needs: the costs of a turn on each engine, and the model's error on this machine.

`python -m benchmarks.capacity` prints and writes build/capacity.json; with `--write` also
routing_service/cli/plan_costs.json, which `agent-routing plan` and docs/scaling.md are made from;
with `--simulate` from the costs of that file, without measuring. `make scaling` does all of it.
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
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks import inbox, service
from benchmarks.engine_costs import Cost, measure
from benchmarks.engine_turns import ENGINES, Engine
from benchmarks.fleet import peaks
from benchmarks.simulation import Costs, Layout, Traffic, simulate
from benchmarks.story import Load

ROOT: Final = Path(__file__).parent.parent
REPORT: Final = ROOT / "build" / "capacity.json"
SHIPPED: Final = ROOT / "routing_service" / "cli" / "plan_costs.json"

COMMAND: Final = "make scaling"

ENGINE_ROUNDS: Final = 2
"""The cheaper round counts: what else runs only ever adds processor time."""

USERS: Final = (10e6, 100e6)

CHECK_LOAD: Final = Load(sessions=96, turns_per_session=6, concurrency=48)
FEW_CALLERS: Final = Load(sessions=24, turns_per_session=12, concurrency=4)
PLAYS: Final = ((1, CHECK_LOAD), (2, CHECK_LOAD), (3, CHECK_LOAD), (1, FEW_CALLERS))
"""Processes, and what is played on them."""
CHECK_CYCLES: Final = 6
"""The least that has an interval."""
SIMULATED_S: Final = 2.0
SEEDS: Final = 7
"""The spread of connections over processes is chance: in the model as on the machine."""

CORES: Final = (1, 2, 4, 8, 16)
SYNC_S: Final = 0.001
"""A commit of a good disk, with the way to the engine and back, for what is not this machine."""

INBOX_WAITING: Final = 400
INBOX_WORKERS: Final = 20
INBOX_ROUNDS: Final = 3
SYNCS: Final = 40


@dataclass(frozen=True)
class Round:
    """One play on so many processes: the measured rate, and the processor time of a turn."""

    processes: int
    callers: int
    turns_per_s: float
    service_ms: float
    engine_ms: float
    client_ms: float
    others: float
    """How many cores other programs took, on average, by processor time."""


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
    found["peaks"] = [each for users in USERS for each in peaks(users, _elsewhere(postgres))]
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
    """Play on 1, 2 and 3 processes in turn, cycle after cycle; predict each round.

    A prediction gets the processor time that this round's turns took, and the cores that other
    programs took during it, so that other work cannot bend it. What more processes cost each turn
    is a figure of its own, and so is the error with the costs of one process.
    """
    with ENGINES["postgres"]() as engine:
        sync_s = _sync_s()
        cycles = [[_play(engine, *play) for play in PLAYS] for _ in range(CHECK_CYCLES)]
    checked = []
    for place, (processes, load) in enumerate(PLAYS):
        mine = [cycle[place] for cycle in cycles]
        predicted = [_predicted(_costs(each, sync_s), each) for each in mine]
        errors = [_percent(*pair) for pair in zip(predicted, mine, strict=True)]
        as_one = [
            _percent(_predicted(_costs(cycle[0], sync_s), cycle[place]), cycle[place])
            for cycle in cycles
        ]
        checked.append(
            {
                "processes": processes,
                "callers": load.concurrency,
                "measured_turns_per_s": round(_median(mine, lambda each: each.turns_per_s)),
                "predicted_turns_per_s": round(statistics.median(predicted)),
                "error_percent": round(statistics.median(errors)),
                "error_percent_least": round(min(errors)),
                "error_percent_most": round(max(errors)),
                "error_as_one_percent": round(statistics.median(as_one)),
                "cpu_over_one_process": round(
                    statistics.median(
                        _cpu_ms(cycle[place]) / _cpu_ms(cycle[0]) for cycle in cycles
                    ),
                    2,
                ),
                "others": round(_median(mine, lambda each: each.others), 2),
            }
        )
    return {"engine": "postgres", "cycles": CHECK_CYCLES, "by_processes": checked}


def _percent(predicted: float, played: Round) -> float:
    return 100 * (predicted / played.turns_per_s - 1)


def _cpu_ms(played: Round) -> float:
    return played.service_ms + played.engine_ms


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
        connections=service.CONNECTIONS,
    )
    traffic = Traffic(callers=played.callers)
    return statistics.median(
        simulate(costs, layout, traffic, seconds=SIMULATED_S, seed=seed).turns_per_s
        for seed in range(SEEDS)
    )


def _play(engine: Engine, count: int, load: Load) -> Round:
    with service.server_process(engine.store_url, "--processes", str(count)) as (address, pid):
        service.play(address, Load(16, 3, 16))
        before, busy_s, begun_s = _times(pid, engine), _busy_s(), time.perf_counter()
        played = service.play(address, load)
        after, busy_s, seconds = (
            _times(pid, engine),
            _busy_s() - busy_s,
            time.perf_counter() - begun_s,
        )
    service_s, engine_s, client_s = (b - a for a, b in zip(before, after, strict=True))
    others_s = max(0.0, busy_s - service_s - engine_s - client_s)
    return Round(
        processes=count,
        callers=load.concurrency,
        turns_per_s=played.turns_per_s,
        service_ms=1e3 * service_s / played.turns,
        engine_ms=1e3 * engine_s / played.turns,
        client_ms=1e3 * client_s / played.turns,
        others=others_s / seconds,
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


def _busy_s() -> float:
    """Return the processor time of all programs of the machine so far."""
    names = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    user, nice, system, _idle, _waits, irq, softirq, steal = map(int, names)
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


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


if __name__ == "__main__":
    main()
