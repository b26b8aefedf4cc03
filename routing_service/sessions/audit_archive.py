"""Archives the audit of sessions whose content is about to go.

Rule: a session's records are archived before they are erased or removed, so that each record stays
readable: its kind, agents, caller and reason, and its place in the chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import msgspec

from routing_service.sessions.audit_log import AuditLog
from routing_service.storage.audit_archive import (
    READ_ENTRIES_MAX,
    READ_MAX,
    SESSION_ARCHIVED,
    Archived,
    ArchivedChange,
    ArchivedEntry,
    archive_key,
    archived_change,
)
from routing_service.storage.audit_chain import (
    entry_chain,
    entry_digest,
    entry_free,
)
from routing_service.storage.audit_pages import audit_of
from routing_service.storage.checked_store import Store
from routing_service.storage.store import AuditEntry, SessionKey

ARCHIVE_BYTES_MAX: Final = 128 * 1024
"""Records in one entry: well below what an entry may hold."""


async def archive(
    store: Store, audit: AuditLog, key: SessionKey, before: int, *, is_purge: bool
) -> None:
    """Archive a session's changes before a revision, and its audit entries. Raises StoreError.

    What was erased already is archived already. A record that cannot be read is left out.
    """
    row = await store.find_session(key)
    create_us = row.create_us if row is not None else 0
    entries = await _entries_of(store, key)
    changes: list[ArchivedChange] = []
    size = 0
    after = 0
    while page := await store.read_changes(key, after=after, before=before, limit=READ_MAX):
        for change in page:
            after = change.revision
            made = archived_change(change)
            if made is not None:
                changes.append(made)
                size += len(bytes(made.free)) + 200
        if size > ARCHIVE_BYTES_MAX // 2:
            await _write(audit, key, Archived(key.session_id, create_us, is_purge, tuple(changes)))
            changes, size = [], 0
    while changes or entries:
        some, entries = entries[: READ_ENTRIES_MAX // 5], entries[READ_ENTRIES_MAX // 5 :]
        record = Archived(key.session_id, create_us, is_purge, tuple(changes), tuple(some))
        await _write(audit, key, record)
        changes = []


async def _entries_of(store: Store, key: SessionKey) -> Sequence[ArchivedEntry]:
    found: list[ArchivedEntry] = []
    async for entry in audit_of(store, *key, per_read=READ_ENTRIES_MAX):
        # A damaged one has no content that could be kept.
        with suppress(msgspec.DecodeError):
            if entry.data:
                found.append(_archived_entry(entry))
    return found


def _archived_entry(entry: AuditEntry) -> ArchivedEntry:
    """Return an entry without its content. Raises DecodeError."""
    return ArchivedEntry(
        entry.time_us,
        entry.revision,
        entry.kind,
        entry.request_id,
        entry_digest(entry) if entry_chain(entry.data) else b"",
        msgspec.Raw(_free_of(entry)),
    )


def _free_of(entry: AuditEntry) -> bytes:
    """Return an entry's data without content. Earlier releases named the user as the actor."""
    free = entry_free(entry.kind, entry.data)
    if entry_chain(entry.data) is not None:
        return free
    fields = msgspec.json.decode(free)
    if "actor" in fields and fields["actor"] == entry.user_id:
        del fields["actor"]
    return msgspec.json.encode(fields)


async def _write(audit: AuditLog, key: SessionKey, record: Archived) -> None:
    place = archive_key(key)
    await audit.add(
        AuditEntry(
            time_us=audit.now_us(),
            tenant=place.tenant,
            session_id=place.session_id,
            revision=0,
            kind=SESSION_ARCHIVED,
            request_id="",
            user_id="",
            data=msgspec.json.encode(record),
        )
    )
