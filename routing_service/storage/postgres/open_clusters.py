"""Opening the store on several PostgreSQL clusters, and adding clusters to it.

The first cluster keeps the list of all. A cluster is known by its store's id, so URLs may change
and come in any order. Rule: nothing is served before it is certain that the URLs name exactly the
clusters of one store.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Final

import structlog

from routing_service.storage.checked_store import CheckedStore
from routing_service.storage.postgres.bounds import DEFAULT_BOUNDS, PostgresBounds
from routing_service.storage.postgres.cluster_map import ALL_TENANTS, ClusterMap
from routing_service.storage.postgres.cluster_rows import ClusterRow, ClusterRows
from routing_service.storage.postgres.clusters import ClusterEngine
from routing_service.storage.postgres.engine import PostgresEngine
from routing_service.storage.postgres.store import open_engine
from routing_service.storage.postgres.url import PostgresPlace
from routing_service.storage.store import StoreError, StoreUnavailable
from routing_service.storage.write_figures import WriteFigures

TENANTS_PER_WRITE: Final = 1_000
"""Tenants of a store that had one cluster, in one statement of their list."""

_log = structlog.get_logger(__name__)


class ClustersWrong(StoreError):
    """The URLs do not name the clusters of one store. Not retryable."""


class _Cluster:
    """One cluster that was opened."""

    def __init__(self, place: PostgresPlace, engine: PostgresEngine) -> None:
        self.place = place
        self.engine = engine
        self.rows = ClusterRows(place.options.schema)
        self.home: bytes | None = None

    @property
    def store_id(self) -> bytes:
        return self.engine.store_id


async def open_postgres_clusters(
    places: Sequence[PostgresPlace],
    *,
    may_migrate: bool = True,
    bounds: PostgresBounds = DEFAULT_BOUNDS,
) -> CheckedStore:
    """Open the store on these clusters; one that is empty and new to it is added.

    The first time, the first URL's cluster becomes the one with the list; what it has stays there.
    may_migrate: False = nothing is added. Raises ClustersWrong and as ``open_postgres_store``.
    """
    figures = WriteFigures()
    async with AsyncExitStack() as opened:
        clusters = []
        for place in places:
            engine = await open_engine(
                place, may_migrate=may_migrate, bounds=bounds, figures=figures
            )
            opened.push_async_callback(engine.close)
            clusters.append(_Cluster(place, engine))
        home = await _find_home(clusters)
        if may_migrate:
            await _add_new(home, clusters)
        listed = await home.engine.read(home.rows.clusters)
        engines = _in_order(listed, clusters)
        tenants = ClusterMap(home.engine, home.rows, listed)
        opened.pop_all()
        return CheckedStore(ClusterEngine(engines, tenants, figures))


async def _find_home(clusters: Sequence[_Cluster]) -> _Cluster:
    """Return the cluster that has the list, or will have it."""
    by_id = {each.store_id: each for each in clusters}
    if len(by_id) < len(clusters):
        raise ClustersWrong("it names one cluster twice; name each once")
    for each in clusters:
        _, each.home = await each.engine.read(each.rows.identity)
    homes = {each.home for each in clusters if each.home is not None}
    if len(homes) > 1:
        raise ClustersWrong("it names clusters of different stores; name the clusters of one store")
    if not homes:
        return clusters[0]
    (home,) = homes
    if home not in by_id:
        raise ClustersWrong(
            "it does not name the store's first cluster, which has the list of tenants; add its URL"
        )
    return by_id[home]


async def _add_new(home: _Cluster, clusters: Sequence[_Cluster]) -> None:
    """Add the clusters that are not in the list yet. Safe to repeat, also after a crash."""
    listed = {row.store_id for row in await home.engine.read(home.rows.clusters)}
    others = [each for each in clusters if each is not home]
    for each in others:
        if each.store_id not in listed and await each.engine.list_tenants("", 1):
            raise ClustersWrong(
                f"{each.place.shown} has data of its own; add a cluster that is empty"
            )
    if home.home is None:
        await _list_own_tenants(home)
    for each in (home, *others):
        if each.store_id not in listed:
            await _add(home, each)
    for each in (home, *others):
        if each.home is None:
            await each.engine.write_now(
                lambda on, each=each: each.rows.set_home(on, home.store_id)  # type: ignore[misc]
            )
            _, each.home = await each.engine.read(each.rows.identity)
            if each.home != home.store_id:
                # Two servers began at once, with URLs in another order or of another store.
                raise ClustersWrong(
                    f"{each.place.shown} has just become part of a store with another first "
                    "cluster; give all servers the same URLs in the same order"
                )


async def _add(home: _Cluster, added: _Cluster) -> None:
    """Give a cluster its number; another process may be adding one at the same time."""
    while True:
        rows = await home.engine.read(home.rows.clusters)
        if any(row.store_id == added.store_id for row in rows):
            _log.info("store_cluster_added", store=added.place.shown)
            return
        await home.engine.write_now(
            lambda on: home.rows.add_cluster(on, added.store_id, added.place.shown)
        )


async def _list_own_tenants(home: _Cluster) -> None:
    """Give the tenants that a store of one cluster has to that cluster, its number 0."""
    after = ""
    while names := await home.engine.list_tenants(after, TENANTS_PER_WRITE):
        after = names[-1]
        own = [name for name in names if name != ALL_TENANTS]
        await home.engine.write_now(lambda on, own=own: home.rows.add_tenants(on, own, 0))  # type: ignore[misc]


def _in_order(listed: Sequence[ClusterRow], clusters: Sequence[_Cluster]) -> list[PostgresEngine]:
    """Return the engines by the clusters' numbers."""
    by_id = {each.store_id: each for each in clusters}
    missing = [row.place for row in listed if row.store_id not in by_id]
    if missing:
        raise ClustersWrong(
            f"it does not name all clusters of the store; add those of {', '.join(missing)}"
        )
    if len(listed) < len(clusters):
        raise StoreUnavailable(
            "a cluster that the URL names is not part of the store yet; start a server, or run "
            "agent-routing migrate, with this URL first"
        )
    return [by_id[row.store_id].engine for row in listed]
