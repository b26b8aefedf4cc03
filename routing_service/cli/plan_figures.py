"""What a number of users a day needs: processes, machines, the engine's size, and what ends first.

Owns the arithmetic, from costs that `python -m benchmarks.capacity` measured and that ship in
plan_costs.json. Rule: nothing is read but that file, and the same question has the same answer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any, Final

DAY_S: Final = 86_400

HALF_LOAD: Final = 0.5
"""The share of a core that is planned for: the rest is for bursts, and for the processes of a
machine that fails."""

MACHINES_MIN: Final = 2
"""Machines of a service that goes on when one fails."""

PRIMARY_CORES: Final = 16
"""Cores of a PostgreSQL primary that is common to rent, planned for at half load."""

LOG_MB_PER_S_MAX: Final = 200.0
"""What a primary writes to its log: a disk of a cloud with provisioned throughput, and a network
that sends it to two standbys."""

STORED_GB_MAX: Final = 4_000.0
"""Data of one primary, or one file, that can still be backed up and restored within hours."""

REDIS_GB_MAX: Final = 64.0
"""Memory of one Redis."""

DYNAMODB_CHANGES_PER_S_MAX: Final = 8_000.0
"""Appends a second of one table's log: see docs/dynamodb.md."""

UNITS_USD: Final = 0.625
"""Of a million write units, us-east-1, by request."""

CHANGES_PER_TURN: Final = 2

SQLITE: Final = "sqlite"
ENGINES: Final = (SQLITE, "postgres", "redis", "dynamodb")


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What users do. Bounds are checked by the command."""

    users: float
    """A day."""
    messages: float = 20.0
    """Of a user a day."""
    sessions: float = 1.0
    """That a user begins a day."""
    peak: float = 5.0
    """The busiest second as a multiple of the average one."""
    inbox_share: float = 0.0
    """Of turns that workers take from inboxes."""
    keep_days: float = 30.0
    """Until sessions are purged."""
    cores: int = 8
    """Of a machine of the service."""

    @property
    def turns_per_s(self) -> float:
        """On average."""
        return self.users * self.messages / DAY_S

    @property
    def peak_turns_per_s(self) -> float:
        """At the peak."""
        return self.turns_per_s * self.peak


@dataclass(frozen=True, slots=True)
class Limit:
    """Something of which one store has only so much."""

    name: str
    needed: float
    has: float
    unit: str

    @property
    def share(self) -> float:
        """How much of it is used; over 1 = one store is not enough."""
        return self.needed / self.has


@dataclass(frozen=True, slots=True)
class Plan:
    """What one engine needs for a demand."""

    engine: str
    processes: int
    """Of the service, each at half load at the peak."""
    machines: int
    stores: int
    """Databases that the tenants have to be divided among; 1 = no division."""
    limits: tuple[Limit, ...]
    """Of one store, what is nearest to its end first."""
    fits: bool
    """False: this engine cannot be divided, and one of its limits is passed."""
    users_max: float
    """A day, on one store, until the first limit ends."""
    engine_cores: float
    """Of all the stores together, at half load; 0 = the engine has no processes of its own."""
    log_mb_per_s: float
    stored_gb_per_day: float
    stored_gb: float
    usd_per_day: float | None = None
    """Of writes, where they are paid one by one."""
    notes: tuple[str, ...] = ()


@cache
def costs() -> Mapping[str, Any]:
    """Return the measured costs that ship with this release."""
    text = (resources.files(__package__) / "plan_costs.json").read_text("utf-8")
    return MappingProxyType(json.loads(text))


def plan(engine: str, demand: Demand) -> Plan:
    """Return what an engine of ENGINES needs for a demand."""
    known = costs()
    cost = known["engines"][engine]
    service_ms = cost.get("service_ms")
    notes = []
    if service_ms is None:
        service_ms = max(each.get("service_ms", 0.0) for each in known["engines"].values())
        notes.append("its service CPU was not measured: that of the dearest engine is taken")
    inbox = 1 + demand.inbox_share * (known["inbox_factor"] - 1)
    service_cores = demand.peak_turns_per_s * service_ms / 1e3 * inbox
    limits = sorted(
        _LIMITS[engine](demand, cost, service_cores), key=lambda limit: limit.share, reverse=True
    )
    worst = limits[0].share
    stored_gb = _stored_gb_per_day(demand, cost)
    processes = max(1, math.ceil(service_cores / HALF_LOAD))
    stores = max(1, math.ceil(worst)) if engine != "dynamodb" else 1
    fits = engine == "postgres" or worst <= 1
    if engine == "postgres" and stores > 1:
        notes.append(_uneven(stores))
    return Plan(
        engine=engine,
        processes=1 if engine == SQLITE else max(processes, MACHINES_MIN),
        machines=1 if engine == SQLITE else max(MACHINES_MIN, math.ceil(processes / demand.cores)),
        stores=stores if engine == "postgres" else 1,
        limits=tuple(limits),
        fits=fits,
        users_max=demand.users / worst,
        engine_cores=demand.peak_turns_per_s * cost.get("engine_ms", 0.0) / 1e3 / HALF_LOAD,
        log_mb_per_s=demand.peak_turns_per_s * cost.get("logged_bytes", 0.0) / 1e6,
        stored_gb_per_day=stored_gb,
        stored_gb=stored_gb * demand.keep_days,
        usd_per_day=demand.turns_per_s * DAY_S * cost["write_units"] / 1e6 * UNITS_USD
        if "write_units" in cost
        else None,
        notes=tuple(notes),
    )


def _uneven(stores: int) -> str:
    """Say how far tenants of different sizes fill one database more than the others."""
    peaks = costs()["peaks"]
    near = min(peaks, key=lambda each: abs(each["clusters"] - stores))
    return (
        f"tenants differ in size: of {near['clusters']} databases the fullest had "
        f"{near['busiest_of_average']:g} times the average in the simulation"
    )


def _stored_gb_per_day(demand: Demand, cost: Mapping[str, float]) -> float:
    turn_bytes = demand.messages * cost["turn_bytes"]
    return demand.users * (turn_bytes + demand.sessions * cost["session_bytes"]) / 1e9


def _kept_gb(demand: Demand, cost: Mapping[str, float]) -> float:
    return _stored_gb_per_day(demand, cost) * demand.keep_days


def _sqlite(demand: Demand, cost: Mapping[str, float], service_cores: float) -> list[Limit]:
    return [
        Limit("the core of its one process", service_cores, HALF_LOAD, "cores"),
        Limit("its disk", _kept_gb(demand, cost), STORED_GB_MAX, "GB"),
    ]


def _postgres(demand: Demand, cost: Mapping[str, float], _service_cores: float) -> list[Limit]:
    peak = demand.peak_turns_per_s
    return [
        Limit(
            "the cores of a primary",
            peak * cost["engine_ms"] / 1e3,
            PRIMARY_CORES * HALF_LOAD,
            "cores",
        ),
        Limit("a primary's log", peak * cost["logged_bytes"] / 1e6, LOG_MB_PER_S_MAX, "MB/s"),
        Limit("a primary's data", _kept_gb(demand, cost), STORED_GB_MAX, "GB"),
    ]


def _redis(demand: Demand, cost: Mapping[str, float], _service_cores: float) -> list[Limit]:
    return [
        Limit(
            "its one thread",
            demand.peak_turns_per_s * cost["engine_ms"] / 1e3,
            HALF_LOAD,
            "cores",
        ),
        Limit("its memory", _kept_gb(demand, cost), REDIS_GB_MAX, "GB"),
    ]


def _dynamodb(demand: Demand, _cost: Mapping[str, float], _service_cores: float) -> list[Limit]:
    changes = demand.peak_turns_per_s * CHANGES_PER_TURN
    return [Limit("the log of a table", changes, DYNAMODB_CHANGES_PER_S_MAX, "appends/s")]


_LIMITS: Final[Mapping[str, Callable[[Demand, Mapping[str, float], float], list[Limit]]]] = (
    MappingProxyType(
        {SQLITE: _sqlite, "postgres": _postgres, "redis": _redis, "dynamodb": _dynamodb}
    )
)
