"""The audit of all sessions of a tenant, page by page: the log merged with the audit's entries.

The work for a page is bounded. The next page continues at a stored position: what was read is not
read again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import msgspec

from agent_routing.v1 import admin_service_pb2 as pb
from routing_service.storage.checked_store import Store
from routing_service.storage.store import (
    CURSOR_START,
    AuditEntry,
    Change,
    CursorInvalid,
    SessionKey,
)

READ_MAX: Final = 50
"""Changes or entries read at once: each may have 300 KB of text, which no record shows."""

SCANNED_MAX: Final = 5_000
"""Changes that are read for a page, other tenants' included. If few pass the filter, the page is
short and has a token to go on: no call reads a whole store."""

MakeRecords = Callable[[SessionKey, Change | AuditEntry], Awaitable[Iterable[pb.AuditRecord]]]
"""Returns the records of a change or an audit entry that pass the filter."""


class AuditPosition(msgspec.Struct, frozen=True, array_like=True):
    """Where the next page starts, in the log and in the tenant's audit entries."""

    log: bytes = CURSOR_START
    audit: bytes = CURSOR_START


def read_position(data: bytes) -> AuditPosition:
    """Return a position from its bytes; no bytes = the start. Raises CursorInvalid."""
    try:
        return msgspec.msgpack.decode(data, type=AuditPosition) if data else AuditPosition()
    except msgspec.DecodeError as error:
        message = "these bytes are not a position in the audit of all sessions"
        raise CursorInvalid(message) from error


async def fill_page(
    store: Store,
    response: pb.ListEventsResponse,
    position: AuditPosition,
    *,
    tenant: str,
    records_max: int,
    bytes_max: int,
    make_records: MakeRecords,
    read_max: int = READ_MAX,
    scanned_max: int = SCANNED_MAX,
    reads_log: bool = True,
) -> bytes:
    """Fill a page in the order of the log. Return the next page's position; b"" after the last.

    Audit entries are placed by their time. records_max is exceeded by at most the records of one
    change and one entry. read_max: changes read at once. scanned_max: changes read for the page.
    reads_log: False = the tenant's audit entries alone, which are few.
    Raises CursorInvalid.
    """
    scanned = 0
    room_bytes = bytes_max
    at_once = read_max
    while scanned < scanned_max:
        page, log = await _log(store, position.log, at_once if reads_log else 0)
        changes = [entry for entry in page if entry[0].tenant == tenant]
        is_last = not reads_log or len(page) < at_once
        until_us = None if is_last else max(change.time_us for _, change in page)
        entries, audit, more_entries = await _audit(
            store, tenant, position.audit, until_us, at_once
        )
        found: list[tuple[int, SessionKey, Change | AuditEntry]] = [
            *((change.time_us, key, change) for key, change in changes),
            *((entry.time_us, SessionKey(tenant, entry.session_id), entry) for entry in entries),
        ]
        # The sort is stable: entries of the same time, so also of one session, keep their order.
        found.sort(key=lambda each: each[0])
        records = [record for _, key, what in found for record in await make_records(key, what)]
        scanned += len(page) + len(entries)
        if len(response.records) + len(records) > records_max:
            if at_once > 1:
                at_once = max(1, at_once // 4)
                continue  # Read again from the same position, in smaller steps.
            if response.records:
                break  # These records belong to the next page.
        position = AuditPosition(log, audit)
        response.records.extend(records)
        room_bytes -= sum(record.ByteSize() for record in records)
        if is_last and not more_entries:
            return b""
        if len(response.records) >= records_max or room_bytes <= 0:
            break
    return msgspec.msgpack.encode(position)


async def _log(
    store: Store, cursor: bytes, limit: int
) -> tuple[list[tuple[SessionKey, Change]], bytes]:
    """Return the changes after a cursor, and the cursor after them. limit: 0 = none."""
    return await store.read_log(cursor, limit) if limit else ([], cursor)


async def _audit(
    store: Store, tenant: str, cursor: bytes, until_us: int | None, limit: int
) -> tuple[list[AuditEntry], bytes, bool]:
    """Return the entries up to a time, None = all; the cursor after them; if there are more."""
    entries, after = await store.read_audit(tenant, None, cursor, limit)
    due = [entry for entry in entries if until_us is None or entry.time_us <= until_us]
    # Entries are in time order, except for clocks that differ: stop at the first later one.
    late = next((n for n, entry in enumerate(entries) if entry not in due), len(entries))
    if late == len(entries):
        return entries, after, len(entries) == limit
    if not late:
        return [], cursor, True
    entries, after = await store.read_audit(tenant, None, cursor, late)
    return entries, after, True
