"""The peak of a day of so many users, simulated: every cluster with its tenants, and what happens.

Owns how tenants are spread. Tenants differ in size, and the service gives each to a cluster by a
hash, so clusters are not equal: each is simulated with its own rate and its share of the processes.
"""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from benchmarks.simulation import Costs, Layout, Outcome, Traffic, simulate
from routing_service.cli.plan_figures import HALF_LOAD, PRIMARY_CORES, Demand, plan

TENANTS: Final = 10_000
LARGE_TENANTS: Final = 20
"""The size of tenant k goes with 1 / (k + this): the largest has 0.8 % of the users."""

SIMULATED_S: Final = 8.0
CONNECTIONS_PER_PROCESS: Final = 16
AWAY_AT_S: Final = 3.0
AWAY_S: Final = 5.0
AWAY_SIMULATED_S: Final = 12.0
LONG_S: Final = 1.0

EVERYWHERE: Final = {
    "a plain peak": Traffic(),
    "a fifth of the turns by an inbox": Traffic(inbox_share=0.2),
}
"""What happens on all clusters."""

ON_THE_BUSIEST: Final = {
    "one turn in twenty of the busiest cluster in one session": Traffic(hot_share=0.05),
    "the busiest cluster's primary fails over, away for 5 s": Traffic(
        away_at_s=AWAY_AT_S, away_s=AWAY_S
    ),
}
"""What happens on one cluster while the others have a plain peak."""


def rates(clusters: int, turns_per_s: float) -> list[float]:
    """Return the turns a second of each cluster, the busiest first."""
    sizes = [1 / (number + LARGE_TENANTS) for number in range(TENANTS)]
    of_clusters = [0.0] * clusters
    for number, size in enumerate(sizes):
        digest = hashlib.blake2b(f"tenant-{number}".encode(), digest_size=8).digest()
        of_clusters[int.from_bytes(digest) % clusters] += size
    whole = sum(sizes)
    return sorted((turns_per_s * each / whole for each in of_clusters), reverse=True)


@dataclass(frozen=True)
class _Cluster:
    costs: Costs
    turns_per_s: float
    what: Traffic

    def play(self, seed: int) -> Outcome:
        processes = max(2, round(self.turns_per_s * 2 * self.costs.service_s / HALF_LOAD))
        layout = Layout(
            processes=processes,
            cores=processes,
            engine_cores=PRIMARY_CORES,
            connections=CONNECTIONS_PER_PROCESS * processes,
        )
        traffic = Traffic(
            turns_per_s=self.turns_per_s,
            inbox_share=self.what.inbox_share,
            hot_share=self.what.hot_share,
            away_at_s=self.what.away_at_s,
            away_s=self.what.away_s,
        )
        seconds = AWAY_SIMULATED_S if traffic.away_s else SIMULATED_S
        return simulate(self.costs, layout, traffic, seconds=seconds, seed=seed)


def peaks(users: float, costs: Costs) -> list[dict[str, Any]]:
    """Simulate what happens at the peak of this many users a day on PostgreSQL."""
    demand = Demand(users=users)
    of_clusters = rates(plan("postgres", demand).stores, demand.peak_turns_per_s)
    with ProcessPoolExecutor() as pool:
        row = partial(_row, users, of_clusters)
        plain: list[Outcome] = []
        found = []
        for name, what in EVERYWHERE.items():
            clusters = [_Cluster(costs, rate, what) for rate in of_clusters]
            played = list(pool.map(_Cluster.play, clusters, range(len(clusters))))
            plain = plain or played
            found.append(row(name, played))
        for name, what in ON_THE_BUSIEST.items():
            (busiest,) = pool.map(_Cluster.play, [_Cluster(costs, of_clusters[0], what)], [0])
            found.append(row(name, [busiest, *plain[1:]]))
    return found


def _row(
    users: float, of_clusters: list[float], name: str, played: list[Outcome]
) -> Mapping[str, Any]:
    latencies_s = sorted(each for one in played for each in one.latencies_s)
    last = len(latencies_s) - 1
    return {
        "users": users,
        "what": name,
        "clusters": len(of_clusters),
        "busiest_of_average": round(of_clusters[0] / statistics.mean(of_clusters), 2),
        "calls": len(latencies_s),
        "p50_ms": round(1e3 * latencies_s[last // 2], 1),
        "p99_ms": round(1e3 * latencies_s[round(0.99 * last)], 1),
        "busiest_p99_ms": round(played[0].quantile_ms(0.99), 1),
        "long_percent": round(
            100 * sum(each > LONG_S for each in latencies_s) / len(latencies_s), 2
        ),
        "failed_turns": sum(each.failed_turns for each in played),
        "late_s": round(played[0].ended_late_s, 1),
    }
