"""The audit of all sessions of a tenant, page by page.

Owns: how the log and the audit's own entries become one list, and the place between two pages.
Must not know: filters, what a record looks like. Rule: a page is bounded work, and goes on from its
place: what it has passed over is not looked at again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import msgspec

from agent_routing.v1 import admin_service_pb2 as pb
from routing_service.storage.store import (
    CURSOR_START,
    AuditEntry,
    Change,
    CursorInvalid,
    SessionKey,
    Store,
)

READ_MAX: Final = 50
"""Changes or entries read at once: each may have 300 KB of words, which no record shows."""

SCANNED_MAX: Final = 5_000
"""Changes that a page looks at, those of other tenants among them. A filter that few pass makes
short pages, with a token to go on, rather than a call that reads a whole store."""

MakeRecords = Callable[[SessionKey, Change | AuditEntry], Awaitable[Iterable[pb.AuditRecord]]]
"""The records of a change, or of an entry of the audit; none where nothing is wanted of it."""


class Place(msgspec.Struct, frozen=True, array_like=True):
    """Between two pages: where the log and the tenant's audit are read on."""

    log: bytes = CURSOR_START
    audit: bytes = CURSOR_START


def read_place(data: bytes) -> Place:
    """Return a place from its bytes, none = the beginning. Raises CursorInvalid."""
    try:
        return msgspec.msgpack.decode(data, type=Place) if data else Place()
    except msgspec.DecodeError as error:
        message = "these bytes are no place in the audit of all sessions"
        raise CursorInvalid(message) from error


async def fill_page(
    store: Store,
    response: pb.ListEventsResponse,
    place: Place,
    *,
    tenant: str,
    records_max: int,
    bytes_max: int,
    make_records: MakeRecords,
) -> bytes:
    """Fill a page in the order of the log, and return the next page's place; b"" = it is the last.

    The audit's own entries come where their time is. records_max is passed by no more than the rest
    of what one change, and one entry, tell. Raises CursorInvalid.
    """
    scanned = 0
    room_bytes = bytes_max
    at_once = READ_MAX
    while scanned < SCANNED_MAX:
        page, log = await store.read_log(place.log, at_once)
        changes = [entry for entry in page if entry[0].tenant == tenant]
        is_last = len(page) < at_once
        until_us = None if is_last else max(change.time_us for _, change in page)
        entries, audit, more_entries = await _audit(store, tenant, place.audit, until_us, at_once)
        found: list[tuple[int, SessionKey, Change | AuditEntry]] = [
            *((change.time_us, key, change) for key, change in changes),
            *((entry.time_us, SessionKey(tenant, entry.session_id), entry) for entry in entries),
        ]
        # Stable: of one time, and so within a session, the log's order stays.
        found.sort(key=lambda each: each[0])
        records = [record for _, key, what in found for record in await make_records(key, what)]
        scanned += len(page) + len(entries)
        if len(response.records) + len(records) > records_max:
            if at_once > 1:
                at_once = max(1, at_once // 4)
                continue  # Again from the same place, in smaller steps.
            if response.records:
                break  # It is the next page's.
        place = Place(log, audit)
        response.records.extend(records)
        room_bytes -= sum(record.ByteSize() for record in records)
        if is_last and not more_entries:
            return b""
        if len(response.records) >= records_max or room_bytes <= 0:
            break
    return msgspec.msgpack.encode(place)


async def _audit(
    store: Store, tenant: str, cursor: bytes, until_us: int | None, limit: int
) -> tuple[list[AuditEntry], bytes, bool]:
    """Read the entries up to a time, None = all; the cursor after them, and whether more wait."""
    entries, after = await store.read_audit(tenant, None, cursor, limit)
    due = [entry for entry in entries if until_us is None or entry.time_us <= until_us]
    # The audit is in the order of its times but for clocks that differ: it ends at the first late.
    late = next((n for n, entry in enumerate(entries) if entry not in due), len(entries))
    if late == len(entries):
        return entries, after, len(entries) == limit
    if not late:
        return [], cursor, True
    entries, after = await store.read_audit(tenant, None, cursor, late)
    return entries, after, True
