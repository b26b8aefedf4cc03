"""Everything in one store copied to another: between engines, machines and releases.

The source is only read. An interrupted copy continues where it stopped, and a repeated one copies
what has changed since. Sessions that cannot be copied are named, and the rest are copied.

The first pass goes through all sessions by tenant and session id. What changes behind it is found
in the source's log, whose end was noted before the pass began. So the source may be in use: copy
while it serves, stop it, copy again (only the changes), and switch to the target. Sessions that a
purge deletes in the source between the two copies stay in the target.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from routing_service.storage.audit_seals import chained_since, note_chained
from routing_service.storage.checked_store import Store
from routing_service.storage.store import (
    CURSOR_START,
    DAMAGED,
    OWN_SETTING_PREFIX,
    AuditEntry,
    CursorInvalid,
    SessionKey,
)
from routing_service.storage.store_format import OLDEST_FORMAT, raise_format, read_format
from routing_service.stored_data.canonical_hash import CanonicalHash
from routing_service.stored_data.copy_progress import (
    PROGRESS_TENANT,
    AuditProgress,
    Progress,
    ProgressNotes,
)
from routing_service.stored_data.session_copy import SessionDiffers, SessionUnreadable, copy_session
from routing_service.stored_data.whole_session import (
    SESSIONS_PER_READ,
    SessionBusy,
    settings_of,
    tenants_of,
)

SESSIONS_AT_ONCE: Final = 32
"""Sessions that are written at the same time: they share a group commit, and each has at most one
page of changes in memory."""

SESSIONS_PER_NOTE: Final = 200
"""Sessions between two notes of the progress: a repeat compares at most these again."""

LOG_PER_READ: Final = 32
"""Changes of the log in one page; with the largest ones it is 10 MB."""

AUDIT_PER_NOTE: Final = 100
"""Audit entries between two notes of the progress: a repeat searches at most these again."""


@dataclass(slots=True)
class Copied:
    """The progress of a copy.

    sessions: checked; written: of these, the new or grown ones. refused: for each session that
    could not be copied, the reason.
    """

    sessions: int = 0
    written: int = 0
    changes: int = 0
    tasks: int = 0
    blanked: int = 0
    audit: int = 0
    settings: int = 0
    refused: dict[SessionKey, str] = field(default_factory=dict)


async def count_sessions(store: Store) -> int:
    """Count the sessions of all tenants, for showing how far a copy is."""
    count = 0
    async for tenant in tenants_of(store):
        cursor = CURSOR_START
        while True:
            page, cursor = await store.list_sessions(tenant, cursor, SESSIONS_PER_READ)
            if not page:
                break
            count += len(page)
    return count


async def copy_store(
    source: Store,
    target: Store,
    *,
    source_name: str,
    again: bool = False,
    on_progress: Callable[[Copied], None] = lambda _copied: None,
    sessions_per_note: int = SESSIONS_PER_NOTE,
    audit_per_note: int = AUDIT_PER_NOTE,
) -> Copied:
    """Copy everything from source to target. No other process may write to the target.

    source_name: the source's URL as it may be shown. again: check every session, even those that
    an earlier copy has done. on_progress: called now and then with the progress so far.
    Raises StoreUnavailable, StoreCorrupt, StoreClosed: a repeat continues from there; FormatRefused
    for a source that a newer release writes.
    """
    is_new = not await target.list_tenants("", 1)
    await _bring_format(source, target)
    await _bring_chained(source, target, is_new=is_new)
    notes = ProgressNotes(target, source_name)
    copy = _StoreCopy(
        source,
        target,
        notes,
        on_progress,
        sessions_per_note=sessions_per_note,
        audit_per_note=audit_per_note,
    )
    await copy.sessions(again=again)
    await copy.tenants_own(again=again)
    return copy.copied


async def _bring_format(source: Store, target: Store) -> None:
    """Give the target at least the source's format, so that it is not taken for an older store."""
    number = await read_format(source) or OLDEST_FORMAT
    if number > (await read_format(target) or 0):
        await raise_format(target, number)


async def _bring_chained(source: Store, target: Store, *, is_new: bool) -> None:
    """Let the target expect chains only of what was written since the source expects them."""
    since_us = await chained_since(source)
    known_us = await chained_since(target)
    if known_us is None and (since_us is None or not is_new):
        return  # A server notes it.
    if since_us is None:
        since_us = time.time_ns() // 1_000
    if known_us is None or since_us > known_us:
        await note_chained(target, since_us)


class _StoreCopy:
    """One run of a copy."""

    def __init__(
        self,
        source: Store,
        target: Store,
        notes: ProgressNotes,
        on_progress: Callable[[Copied], None],
        *,
        sessions_per_note: int,
        audit_per_note: int,
    ) -> None:
        self._source = source
        self._target = target
        self._notes = notes
        self._on_progress = on_progress
        self._sessions_per_note = sessions_per_note
        self._audit_per_note = audit_per_note
        self.copied = Copied()

    async def sessions(self, *, again: bool) -> None:
        """Copy all sessions, and then the changes made meanwhile."""
        progress = Progress() if again else await self._notes.sessions()
        try:
            await self._sessions_from(progress)
        except CursorInvalid:
            # The source was restored from a backup: its lists and its log have changed.
            await self._sessions_from(Progress())
        if self.copied.refused:
            # Refused sessions are tried again: the cause may be fixed by now.
            await self._notes.keep(Progress())

    async def _sessions_from(self, progress: Progress) -> None:
        if not progress.begun:
            progress.begun, progress.log = True, await self._source.log_end()
            await self._notes.keep(progress)
        if not progress.passed:
            await self._first_pass(progress)
            progress.passed = True
            await self._notes.keep(progress)
        await self._changed_since(progress)

    async def _first_pass(self, progress: Progress) -> None:
        """Copy the sessions after the noted one, by tenant and session id."""
        async for tenant in tenants_of(self._source):
            if tenant < progress.tenant:
                continue
            if tenant > progress.tenant:
                progress.tenant, progress.place = tenant, CURSOR_START
            while True:
                page, place = await self._source.list_sessions(
                    tenant, progress.place, self._sessions_per_note
                )
                if not page:
                    break
                await self._bring(row.key for row in page)
                progress.place = place
                await self._notes.keep(progress)

    async def _changed_since(self, progress: Progress) -> None:
        """Copy the sessions that the source's log names after the noted place."""
        while True:
            page, cursor = await self._source.read_log(progress.log, LOG_PER_READ)
            if page:
                await self._bring(dict.fromkeys(key for key, _ in page))
                progress.log = cursor
                await self._notes.keep(progress)
            if len(page) < LOG_PER_READ:
                return

    async def _bring(self, keys: Iterable[SessionKey]) -> None:
        """Copy some sessions, several at a time."""
        waiting = iter(keys)

        async def work() -> None:
            for key in waiting:
                await self._bring_one(key)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(SESSIONS_AT_ONCE):
                    group.create_task(work())
        except BaseExceptionGroup as several:
            # The store failed all of them for one reason.
            raise several.exceptions[0] from None

    async def _bring_one(self, key: SessionKey) -> None:
        copied = self.copied
        try:
            session = await copy_session(self._source, self._target, key)
        except (SessionDiffers, SessionUnreadable, SessionBusy) as error:
            copied.refused[key] = str(error)
        else:
            copied.written += bool(session.changes or session.blanked)
            copied.changes += session.changes
            copied.tasks += session.tasks
            copied.blanked += session.blanked
        copied.sessions += 1
        self._on_progress(copied)

    async def tenants_own(self, *, again: bool) -> None:
        """Copy tenants' data outside their sessions: settings, and the audit in its order."""
        async for tenant in tenants_of(self._source):
            if tenant == PROGRESS_TENANT:
                continue
            async for name, value in settings_of(self._source, tenant):
                is_own = name.startswith(OWN_SETTING_PREFIX)
                if value == DAMAGED and not is_own:
                    self._leave_out(SessionKey(tenant, ""), f'setting "{name}"')
                    continue
                if is_own or await self._target.get_setting(tenant, name) == value:
                    continue
                await self._target.put_setting(tenant, name, value)
                self.copied.settings += 1
            await self._bring_audit(tenant, again=again)

    async def _bring_audit(self, tenant: str, *, again: bool) -> None:
        """Copy a tenant's audit entries after the noted place, one by one to keep their order."""
        progress = AuditProgress() if again else await self._notes.audit(tenant)
        try:
            await self._source.read_audit(tenant, None, progress.source, 1)
        except CursorInvalid:
            progress = AuditProgress()
        # Entries written after the last note exist already. Equal entries are counted.
        present, progress.target = await self._entries_after(tenant, progress.target)
        while True:
            page, progress.source = await self._source.read_audit(
                tenant, None, progress.source, self._audit_per_note
            )
            if not page:
                return
            for entry in page:
                if entry.data == DAMAGED:
                    self._leave_out(SessionKey(tenant, entry.session_id), "an audit entry")
                    continue
                name = _name(entry)
                if present[name] > 0:
                    present[name] -= 1
                    continue
                await self._target.append_audit(entry)
                self.copied.audit += 1
            if present.total() == 0:
                # Everything in the target has been accounted for up to its end.
                _, progress.target = await self._entries_after(tenant, progress.target)
                await self._notes.keep_audit(tenant, progress)
            self._on_progress(self.copied)

    def _leave_out(self, key: SessionKey, what: str) -> None:
        """Note something that does not fit its checksum: a copy would make it look whole."""
        self.copied.refused[key] = f"{what} does not fit its checksum, and was left out"

    async def _entries_after(self, tenant: str, cursor: bytes) -> tuple[Counter[bytes], bytes]:
        entries: Counter[bytes] = Counter()
        while True:
            page, cursor = await self._target.read_audit(tenant, None, cursor, self._audit_per_note)
            if not page:
                return entries, cursor
            entries.update(map(_name, page))


def _name(entry: AuditEntry) -> bytes:
    """Return a short key that identifies an entry."""
    hashed = CanonicalHash("audit")
    hashed.audit(entry)
    return bytes.fromhex(hashed.hexdigest())[:16]
