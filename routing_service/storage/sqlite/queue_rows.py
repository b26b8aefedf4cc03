"""The SQLite statements of queues: their entries, and the leases on them.

A write runs inside the group's transaction.
"""

from __future__ import annotations

import sqlite3
import time
from typing import Final

from routing_service.storage.queue_entries import LeaseWish, QueueEntry, QueueItem, leased

INSERT_ENTRY: Final = (
    "INSERT INTO queue_entries (tenant, queue, place_us, session_id, request_id) "
    "VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
)
DELETE_ENTRY: Final = (
    "DELETE FROM queue_entries WHERE tenant = ? AND queue = ? AND place_us = ? "
    "AND session_id = ? AND request_id = ?"
)
SELECT_QUEUE: Final = (
    "SELECT queue, place_us, session_id, request_id, token, worker, until_us, attempt "
    "FROM queue_entries WHERE tenant = ? AND queue = ? "
    "AND (place_us, session_id, request_id) > (?, ?, ?) "
    "ORDER BY place_us, session_id, request_id LIMIT ?"
)
SELECT_ENTRY: Final = (
    "SELECT queue, place_us, session_id, request_id, token, worker, until_us, attempt "
    "FROM queue_entries WHERE tenant = ? AND queue = ? AND place_us = ? "
    "AND session_id = ? AND request_id = ?"
)
UPDATE_LEASE: Final = (
    "UPDATE queue_entries SET token = ?, worker = ?, until_us = ?, attempt = ? "
    "WHERE tenant = ? AND queue = ? AND place_us = ? AND session_id = ? AND request_id = ?"
)


def write_entries(
    connection: sqlite3.Connection,
    tenant: str,
    put: tuple[QueueEntry, ...],
    drop: tuple[QueueEntry, ...],
) -> None:
    """Put and drop entries."""
    for entry in put:
        connection.execute(INSERT_ENTRY, (tenant, *entry))
    for entry in drop:
        connection.execute(DELETE_ENTRY, (tenant, *entry))


def read_queue(
    connection: sqlite3.Connection, tenant: str, queue: str, after: QueueEntry | None, limit: int
) -> list[QueueItem]:
    """Read a queue's entries after one of them."""
    place = after[1:] if after else (-1, "", "")
    now_us = _now_us()
    return [
        _item(row, now_us)
        for row in connection.execute(SELECT_QUEUE, (tenant, queue, *place, limit))
    ]


def find_item(connection: sqlite3.Connection, tenant: str, entry: QueueEntry) -> QueueItem | None:
    """Read one entry."""
    row = connection.execute(SELECT_ENTRY, (tenant, *entry)).fetchone()
    return None if row is None else _item(row, _now_us())


def lease_item(
    connection: sqlite3.Connection, tenant: str, entry: QueueEntry, wish: LeaseWish
) -> QueueItem | None:
    """Change an entry's lease if it may be; return the entry as it then is."""
    before = find_item(connection, tenant, entry)
    after = before and leased(before, wish)
    if after is None:
        return before
    until_us = after.left_us + _now_us() if after.token else 0
    lease = (after.token, after.worker, until_us, after.attempt)
    connection.execute(UPDATE_LEASE, (*lease, tenant, *entry))
    return after


def _item(row: tuple[str, int, str, str, str, str, int, int], now_us: int) -> QueueItem:
    queue, place_us, session_id, request_id, token, worker, until_us, attempt = row
    entry = QueueEntry(queue, place_us, session_id, request_id)
    return QueueItem(entry, token, worker, until_us - now_us if token else 0, attempt)


def _now_us() -> int:
    # One process has the file, and a lease outlives its restart.
    return time.time_ns() // 1_000
