"""The PostgreSQL statements of queues: their entries, and the leases on them.

Each method is one statement, which is one round trip and one transaction; mend_queue has one for
each act.
"""

from __future__ import annotations

from typing import Any

from routing_service.storage.postgres.arrays import int_array, text_array
from routing_service.storage.postgres.connection import Connection
from routing_service.storage.queue_entries import LeaseWish, QueueEntry, QueueItem


class QueueRows:
    """The statements on the tables of one schema."""

    def __init__(self, schema: str) -> None:
        """Name the tables. schema: a name that needs no quotes."""

        def statement(text: str) -> bytes:
            arrays = "unnest($2::text[], $3::bigint[], $4::text[], $5::text[])"
            place = "(place_us, session_id, request_id)"
            text = text.replace("<arrays>", arrays).replace("<place>", place)
            return text.replace("@", f"{schema}.").encode()

        item = (
            "SELECT place_us, session_id, request_id, token, worker, until_us - @clock_us(), "
            "attempt FROM @queue_entries WHERE tenant = $1::text AND queue = $2::text AND "
        )
        self._select_queue = statement(
            item + "<place> > ($3::bigint, $4::text, $5::text) "
            "ORDER BY place_us, session_id, request_id LIMIT $6"
        )
        self._select_entry = statement(item + "<place> = ($3::bigint, $4::text, $5::text)")
        self._lease_item = statement(
            "SELECT * FROM @lease_item($1::text, $2::text, $3::bigint, $4::text, $5::text, "
            "$6::text, $7::text, $8::text, $9::bigint)"
        )
        self._put = statement(
            "INSERT INTO @queue_entries (tenant, queue, place_us, session_id, request_id) "
            "SELECT $1::text, wanted.* FROM <arrays> AS wanted ON CONFLICT DO NOTHING"
        )
        self._drop = statement(
            "DELETE FROM @queue_entries WHERE tenant = $1::text "
            "AND (queue, place_us, session_id, request_id) IN (SELECT * FROM <arrays>)"
        )

    async def read_queue(
        self, connection: Connection, tenant: str, queue: str, after: QueueEntry | None, limit: int
    ) -> list[QueueItem]:
        """Read a queue's entries after one of them."""
        place = after[1:] if after else (-1, "", "")
        values = (tenant, queue, *place, limit)
        cursor = await connection.execute(self._select_queue, values, binary=True)
        return [_item(queue, row) for row in await cursor.fetchall()]

    async def find_item(
        self, connection: Connection, tenant: str, entry: QueueEntry
    ) -> QueueItem | None:
        """Read one entry."""
        cursor = await connection.execute(self._select_entry, (tenant, *entry), binary=True)
        row = await cursor.fetchone()
        return None if row is None else _item(entry.queue, row)

    async def lease_item(
        self, connection: Connection, tenant: str, entry: QueueEntry, wish: LeaseWish
    ) -> QueueItem | None:
        """Change an entry's lease if it may be; return the entry as it then is."""
        values = (tenant, *entry, *wish)
        cursor = await connection.execute(self._lease_item, values, binary=True)
        row = await cursor.fetchone()
        return None if row is None else _item(entry.queue, (*entry[1:], *row))

    async def mend_queue(
        self,
        connection: Connection,
        tenant: str,
        put: tuple[QueueEntry, ...],
        drop: tuple[QueueEntry, ...],
    ) -> None:
        """Put and drop entries."""
        for statement, entries in ((self._put, put), (self._drop, drop)):
            if entries:
                entries_sorted = sorted(entries)
                values = (
                    tenant,
                    text_array([entry.queue for entry in entries_sorted]),
                    int_array([entry.place_us for entry in entries_sorted]),
                    text_array([entry.session_id for entry in entries_sorted]),
                    text_array([entry.request_id for entry in entries_sorted]),
                )
                await connection.execute(statement, values, binary=True)


def _item(queue: str, row: tuple[Any, ...]) -> QueueItem:
    place_us, session_id, request_id, token, worker, left_us, attempt = row
    entry = QueueEntry(queue, place_us, session_id, request_id)
    return QueueItem(entry, token, worker, left_us if token else 0, attempt)
