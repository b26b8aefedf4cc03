"""Full durable turns, compared with agent frameworks that keep their own sessions.

Ours goes over gRPC to a process of its own and back, twice a turn; a peer runs in its own process
and calls no network. Both play the same turns in as many sessions, as many at once, alternating.
A peer's rate with one session after another is reported next to the figure.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from benchmarks import peer_environment, service
from benchmarks.figure import Figure, Scale, ratios
from benchmarks.story import Load
from tests.engines import redis_server

LEAST: Final = {
    "turn_vs_langgraph_swarm_sqlite": ("langgraph_swarm_sqlite", 20.0),
    "turn_vs_adk_sqlite": ("google_adk_sqlite", 20.0),
    "turn_vs_openai_agents_sqlite": ("openai_agents_sqlite", 1.2),
}
PEER_TURNS: Final = 5
"""Of a session, in a round: ADK does some sixty turns a second."""


def measure(scale: Scale) -> list[Figure]:
    """Return a figure for each peer."""
    load = Load(
        sessions=min(scale.sessions, 50),
        turns_per_session=min(scale.turns_per_session, PEER_TURNS),
        concurrency=scale.at_once,
    )
    rounds = 1 if scale.is_quick else 6
    if scale.is_quick:
        load = replace(load, sessions=16, turns_per_session=3)
    return [_against(key, peer, load, rounds) for key, peer in LEAST.items()]


def measure_redis(scale: Scale) -> list[Figure]:
    """Return the figures against a map in Redis, with its default set-up and syncing each write.

    They have no bound: the map lacks order, rules, repeats and history, so it does less.
    """
    load = Load(scale.sessions, scale.turns_per_session, scale.at_once)
    rounds = 1 if scale.is_quick else 3
    figures = []
    for key, settings in (
        ("turn_vs_redis_map", {}),
        ("turn_vs_redis_map_synced", redis_server.DURABLE),
    ):
        redis = redis_server.start_server(settings)
        try:
            environment = {"REDIS_URL": redis.url()}
            figures.append(
                _against(key, ("redis_map", None), load, rounds, environment=environment)
            )
        finally:
            redis.remove()
    return figures


def _against(
    key: str,
    peer: tuple[str, float | None],
    load: Load,
    rounds: int,
    *,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Figure:
    name, least = peer
    peer_environment.prepare(name)
    rates: dict[str, list[float]] = {"ours /s": [], "peer /s": []}
    beside: dict[str, float] = {}
    with service.server() as address:
        service.play(address, load)  # Connections and caches are warm before it counts.
        for _ in range(rounds):
            rates["peer /s"].append(peer_environment.play(name, load, environment).turns_per_s)
            rates["ours /s"].append(service.play(address, load).turns_per_s)
        if rounds > 1:
            # What one client after another would get of it, without an event loop's help.
            # A quick run, which has one round, leaves it out.
            alone = replace(load, sessions=max(4, load.sessions // 5), concurrency=1)
            one_by_one = peer_environment.play(name, alone, environment).turns_per_s
            rates["peer one by one /s"] = [one_by_one]
            over = statistics.median(rates["ours /s"]) / one_by_one
            beside["against one session after another"] = round(over, 2)
    return Figure.of(
        key,
        ratios(rates, "ours /s", "peer /s"),
        "of the peer",
        least,
        rounds=rates,
        beside=beside,
    )
