"""The PostgreSQL statements for a store on several clusters: see ``cluster_map``.

Each method is one statement, which is one round trip and one transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from routing_service.storage.postgres.connection import Connection


@dataclass(frozen=True, slots=True)
class ClusterRow:
    """A cluster, as the first one has it stored."""

    number: int
    """From 0, in the order in which they were added."""
    store_id: bytes
    place: str
    """Its URL without secrets, as it was when the cluster was added."""


class ClusterRows:
    """The statements on the tables of one schema."""

    def __init__(self, schema: str) -> None:
        """Name the tables. schema: a name that needs no quotes."""

        def statement(text: str) -> bytes:
            return text.replace("@", f"{schema}.").encode()

        self._select_identity = statement("SELECT store_id, clusters_home FROM @store")
        self._set_home = statement(
            "UPDATE @store SET clusters_home = $1::bytea WHERE clusters_home IS NULL"
        )
        self._select_clusters = statement(
            "SELECT number, store_id, place FROM @clusters ORDER BY number"
        )
        self._add_cluster = statement(
            "INSERT INTO @clusters (number, store_id, place) "
            "SELECT count(*), $1::bytea, $2::text FROM @clusters ON CONFLICT DO NOTHING"
        )
        self._select_tenant = statement("SELECT number FROM @cluster_tenants WHERE tenant = $1")
        self._add_tenants = statement(
            "INSERT INTO @cluster_tenants (tenant, number) "
            "SELECT unnest($1::text[]), $2::integer ON CONFLICT DO NOTHING"
        )

    async def identity(self, connection: Connection) -> tuple[bytes, bytes | None]:
        """Read the store's id and, if it is one of several clusters, the first one's."""
        cursor = await connection.execute(self._select_identity, binary=True)
        row = await cursor.fetchone()
        assert row is not None, "a store that was opened has its identity"
        store_id, home = row
        return bytes(store_id), None if home is None else bytes(home)

    async def set_home(self, connection: Connection, home: bytes) -> None:
        """Name the first cluster, unless one is named already."""
        await connection.execute(self._set_home, (home,), binary=True)

    async def clusters(self, connection: Connection) -> list[ClusterRow]:
        """Read the clusters of the store, in the order of their numbers."""
        cursor = await connection.execute(self._select_clusters, binary=True)
        return [
            ClusterRow(number, bytes(store_id), place)
            for number, store_id, place in await cursor.fetchall()
        ]

    async def add_cluster(self, connection: Connection, store_id: bytes, place: str) -> None:
        """Add a cluster with the next number, unless it or that number is there already."""
        await connection.execute(self._add_cluster, (store_id, place), binary=True)

    async def tenant(self, connection: Connection, tenant: str) -> int | None:
        """Read the number of the cluster that has a tenant; None = none has it yet."""
        cursor = await connection.execute(self._select_tenant, (tenant,), binary=True)
        row = await cursor.fetchone()
        return None if row is None else int(row[0])

    async def add_tenants(
        self, connection: Connection, tenants: Sequence[str], number: int
    ) -> None:
        """Give tenants that no cluster has to one."""
        await connection.execute(self._add_tenants, (list(tenants), number), binary=True)
