"""Which cluster of a store has a tenant.

A tenant is given to a cluster with its first write, for good: the first cluster has the list, and
whoever asks first decides. So a cluster that is added later moves nothing, and gets its share of
the tenants that are new from then on.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from routing_service.storage.postgres.cluster_rows import ClusterRow, ClusterRows
from routing_service.storage.postgres.engine import PostgresEngine
from routing_service.storage.store import StoreUnavailable

TENANTS_CACHED_MAX: Final = 100_000
"""Tenants whose cluster a process knows without a read: about 15 MB."""

ALL_TENANTS: Final = "*"
"""What concerns no tenant alone is stored under this name, in the first cluster."""


@dataclass(slots=True)
class _Asking:
    """The writes that wait for one tenant's cluster."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0
    number: int | None = None


class ClusterMap:
    """Finds a tenant's cluster, by its place in the list of engines."""

    def __init__(
        self, home: PostgresEngine, rows: ClusterRows, clusters: Sequence[ClusterRow]
    ) -> None:
        """Know no tenant yet. home: the first cluster's engine. clusters: by their numbers."""
        self._home = home
        self._rows = rows
        self._clusters = clusters
        self._known: dict[str, int] = {ALL_TENANTS: 0}
        self._asking: dict[str, _Asking] = {}
        """Writes that wait for the cluster of a tenant. One session's stay in their order."""

    async def find(self, tenant: str) -> int:
        """Return the cluster to read from; the first one for a tenant that no cluster has."""
        known = self._known.get(tenant)
        if known is not None:
            return known
        number = await self._home.read(lambda on: self._rows.tenant(on, tenant))
        if number is None:
            return 0
        self._check(number)
        if tenant not in self._asking:
            self._keep(tenant, number)
        return number

    async def place(self, tenant: str) -> int:
        """Return the cluster to write to; a tenant that no cluster has is given to one.

        Raises StoreUnavailable if this process was not given that cluster's URL.
        """
        known = self._known.get(tenant)
        if known is not None:
            return known
        asking = self._asking.setdefault(tenant, _Asking())
        asking.waiting += 1
        try:
            async with asking.lock:
                if asking.number is None:
                    asking.number = await self._ask(tenant)
                return asking.number
        finally:
            asking.waiting -= 1
            if not asking.waiting:
                del self._asking[tenant]
                if asking.number is not None:
                    self._keep(tenant, asking.number)

    async def settle(self) -> None:
        """Wait until the writes that wait for a cluster have gone on to it."""
        for asking in list(self._asking.values()):
            async with asking.lock:  # It is given in the order of the calls.
                pass

    async def _ask(self, tenant: str) -> int:
        number = await self._home.read(lambda on: self._rows.tenant(on, tenant))
        if number is None:
            chosen = choose(tenant, [each.store_id for each in self._clusters])
            await self._home.write_now(lambda on: self._rows.add_tenants(on, [tenant], chosen))
            # Another process may have been first.
            number = await self._home.read(lambda on: self._rows.tenant(on, tenant))
            assert number is not None, "a tenant that was given to a cluster stays there"
        self._check(number)
        return number

    def _check(self, number: int) -> None:
        if number >= len(self._clusters):
            raise StoreUnavailable(
                "this tenant is on a cluster that was added to the store later; restart this "
                "server with the store URL that names it"
            )

    def _keep(self, tenant: str, number: int) -> None:
        if len(self._known) > TENANTS_CACHED_MAX:
            # The one that was read first, after ALL_TENANTS.
            del self._known[next(name for name in self._known if name != ALL_TENANTS)]
        self._known[tenant] = number


def choose(tenant: str, store_ids: Sequence[bytes]) -> int:
    """Return the place of the cluster with the highest hash for a tenant (rendezvous hashing).

    Tenants spread evenly, and processes that ask at the same time agree.
    """
    name = tenant.encode()

    def weight(place: int) -> bytes:
        return hashlib.blake2b(name, digest_size=8, key=store_ids[place]).digest()

    return max(range(len(store_ids)), key=weight)
