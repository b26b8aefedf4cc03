"""Reads a store's audit entry by entry, in pages."""

from __future__ import annotations

from collections.abc import AsyncIterator

from routing_service.storage.checked_store import Store
from routing_service.storage.store import CURSOR_START, AuditEntry


async def audit_of(
    store: Store, tenant: str, session_id: str | None, *, per_read: int
) -> AsyncIterator[AuditEntry]:
    """Yield the audit entries of a session, oldest first; None = of all the tenant's sessions.

    per_read: entries in one page. Raises StoreError.
    """
    cursor = CURSOR_START
    while True:
        page, cursor = await store.read_audit(tenant, session_id, cursor, per_read)
        for entry in page:
            yield entry
        if len(page) < per_read:
            return
