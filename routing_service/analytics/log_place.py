"""Where counting continues in a log that no longer has the place of its cursor.

A failover to a copy that lacks the last changes, or a restore of a part, ends a cursor
(CursorInvalid). The place is found again by the time of the last change that was counted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from routing_service.storage.checked_store import Store
from routing_service.storage.store import CURSOR_START, AuditEntry, Change, SessionKey

PAGE: Final = 500

Row = TypeVar("Row")


async def log_place(store: Store, counted_us: int) -> bytes:
    """Return the cursor before the first change later than counted_us. Raises StoreError."""

    def time_us(row: tuple[SessionKey, Change]) -> int:
        return row[1].time_us

    return await _place(store.read_log, time_us, counted_us)


async def audit_place(store: Store, tenant: str, counted_us: int) -> bytes:
    """Return the cursor before the first audit entry later than counted_us. Raises StoreError."""

    async def read(cursor: bytes, limit: int) -> tuple[list[AuditEntry], bytes]:
        return await store.read_audit(tenant, None, cursor, limit)

    return await _place(read, lambda entry: entry.time_us, counted_us)


async def _place(
    read: Callable[[bytes, int], Awaitable[tuple[list[Row], bytes]]],
    time_us: Callable[[Row], int],
    counted_us: int,
) -> bytes:
    cursor = CURSOR_START
    while True:
        page, after = await read(cursor, PAGE)
        later = [place for place, row in enumerate(page) if time_us(row) > counted_us]
        if later:
            return (await read(cursor, later[0]))[1] if later[0] else cursor
        cursor = after
        if not page:
            return cursor
