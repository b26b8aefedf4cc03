"""The store that keeps everything in this process: for tests and trial runs.

Its contents end with the process, and it grows with every change that is not deleted. Otherwise it
answers like the engines with a disk: the conformance suite cannot tell it from them.
"""

from __future__ import annotations

import bisect
import os
import time
from dataclasses import dataclass, field

from msgspec.structs import replace

from routing_service.storage.checked_store import Store
from routing_service.storage.engine import ChangeHints, Span
from routing_service.storage.page_cursor import AUDIT, LOG, STORE_ID_BYTES, CursorForm, Places
from routing_service.storage.queue_entries import LeaseWish, QueueEntry, QueueItem, leased
from routing_service.storage.relay import Relay
from routing_service.storage.store import (
    Append,
    AuditEntry,
    Change,
    Head,
    RequestSeen,
    RevisionConflict,
    SessionKey,
    SessionRow,
    TaskCursor,
    TaskRow,
    TaskTaken,
)
from routing_service.storage.write_figures import WriteFigures


@dataclass(slots=True)
class _Session:
    user_id: str
    state: bytes
    due_us: int | None = None
    changes: list[Change] = field(default_factory=list)
    """Revision n is at index n - 1."""
    requests: dict[tuple[str, str, str], Change] = field(default_factory=dict)
    """By (method, request_id, actor)."""
    task_places: list[TaskCursor] = field(default_factory=list)
    """Kept sorted: the order of the list of tasks."""


@dataclass(slots=True)
class _Tenant:
    sessions: dict[str, _Session] = field(default_factory=dict)
    session_ids: list[str] = field(default_factory=list)
    """Kept sorted. Code points sort as their UTF-8 bytes do on the other engines."""
    tasks: dict[str, TaskRow] = field(default_factory=dict)
    settings: dict[str, bytes] = field(default_factory=dict)
    queues: dict[str, list[QueueEntry]] = field(default_factory=dict)
    """Each kept sorted."""
    leases: dict[QueueEntry, QueueItem] = field(default_factory=dict)
    """Of entries that have been leased; left_us is the end by the monotonic clock."""


@dataclass(slots=True)
class _Logged:
    key: SessionKey
    change: Change


class MemoryStore(Store):
    """A Store in dictionaries."""

    def __init__(self) -> None:
        """Start empty."""
        engine = MemoryEngine()
        super().__init__(engine)
        self._engine: MemoryEngine = engine


class MemoryEngine:
    """The dictionaries. No method waits, so each is atomic within the event loop."""

    shared_writers = False
    write_figures: WriteFigures | None = None
    """Not kept, because writes need no waiting."""
    hints: ChangeHints | None = None
    relay: Relay | None = None

    def __init__(self) -> None:
        store_id = os.urandom(STORE_ID_BYTES)
        self.log_form = CursorForm(LOG, store_id)
        self._audit_form = CursorForm(AUDIT, store_id)
        self._tenants: dict[str, _Tenant] = {}
        self._log: list[_Logged | None] = []
        """None = it was deleted: the places of the others stay as they are."""
        self._leases: dict[str, tuple[str, int]] = {}
        """The holder, and until when."""
        self._audit: list[AuditEntry] = []

    def audit_form(self, _tenant: str) -> CursorForm:
        """See Engine.audit_form."""
        return self._audit_form

    async def append(self, append: Append) -> None:
        """See Store.append."""
        tenant = self._tenants.get(append.key.tenant)
        if tenant is None:
            tenant = self._tenants[append.key.tenant] = _Tenant()
        session = tenant.sessions.get(append.key.session_id)
        self._check_conflicts(append, tenant, session)
        if session is None:
            session = _Session(append.user_id, append.state)
            tenant.sessions[append.key.session_id] = session
            bisect.insort(tenant.session_ids, append.key.session_id)
        change = append.change
        session.user_id = append.user_id
        session.state = append.state
        session.due_us = append.due_us
        session.changes.append(change)
        if change.request_id:
            session.requests[change.method, change.request_id, change.actor] = change
        for task in append.tasks:
            before = tenant.tasks.get(task.task_id)
            if before is None:
                bisect.insort(session.task_places, task.cursor)
                tenant.tasks[task.task_id] = task
            else:
                tenant.tasks[task.task_id] = replace(task, create_us=before.create_us)
        self._log.append(_Logged(append.key, change))
        if append.inbox_put or append.inbox_drop:
            _mend(tenant, append.inbox_put, append.inbox_drop)

    @staticmethod
    def _check_conflicts(append: Append, tenant: _Tenant, session: _Session | None) -> None:
        change = append.change
        seen = session and session.requests.get((change.method, change.request_id, change.actor))
        if seen:
            raise RequestSeen(append.key, seen)
        revision = len(session.changes) if session else 0
        is_other = bool(session and append.begun_us not in (None, session.changes[0].time_us))
        if revision != append.base_revision or is_other:
            raise RevisionConflict(append.key, append.base_revision, revision)
        for task in append.tasks:
            stored = tenant.tasks.get(task.task_id)
            if stored and stored.session_id != append.key.session_id:
                raise TaskTaken(task.task_id, stored.session_id)

    async def load(self, key: SessionKey) -> Head | None:
        """See Store.load."""
        session = self._session(key)
        return Head(len(session.changes), session.state) if session else None

    async def head_revision(self, key: SessionKey) -> int:
        """See Store.head_revision."""
        session = self._session(key)
        return len(session.changes) if session else 0

    async def read_changes(self, key: SessionKey, span: Span) -> list[Change]:
        """See Store.read_changes."""
        session = self._session(key)
        if session is None:
            return []
        chosen = session.changes[span.after : max(span.before - 1, 0)]
        return chosen[::-1][: span.limit] if span.newest_first else chosen[: span.limit]

    async def find_request(
        self, key: SessionKey, method: str, request_id: str, actor: str
    ) -> Change | None:
        """See Store.find_request."""
        session = self._session(key)
        return session.requests.get((method, request_id, actor)) if session else None

    async def find_task(self, tenant: str, task_id: str) -> TaskRow | None:
        """See Store.find_task."""
        return self._tenant(tenant).tasks.get(task_id)

    async def list_tasks(self, key: SessionKey, after: TaskCursor, limit: int) -> list[TaskRow]:
        """See Store.list_tasks."""
        session = self._session(key)
        if session is None:
            return []
        start = bisect.bisect_right(session.task_places, after)
        tasks = self._tenant(key.tenant).tasks
        return [tasks[place.task_id] for place in session.task_places[start : start + limit]]

    async def append_audit(self, entry: AuditEntry) -> None:
        """See Store.append_audit."""
        self._audit.append(entry)

    async def count_audit(self, key: SessionKey, kind: str, request_id: str) -> int:
        """See Store.count_audit."""
        wanted = (*key, kind, request_id)
        return sum(
            (entry.tenant, entry.session_id, entry.kind, entry.request_id) == wanted
            for entry in self._audit
        )

    async def read_audit(
        self, tenant: str, session_id: str | None, places: Places, limit: int
    ) -> tuple[list[AuditEntry], Places]:
        """See Engine.read_audit."""
        (position,) = places
        page: list[AuditEntry] = []
        for place, entry in enumerate(self._audit[position:], start=position + 1):
            if entry.tenant == tenant and session_id in {None, entry.session_id}:
                page.append(entry)
                position = place
                if len(page) == limit:
                    break
        return page, (position,)

    async def list_sessions(self, tenant: str, after: str, limit: int) -> list[SessionRow]:
        """See Engine.list_sessions."""
        stored = self._tenant(tenant)
        start = bisect.bisect_right(stored.session_ids, after)
        return [
            _session_row(SessionKey(tenant, session_id), stored.sessions[session_id])
            for session_id in stored.session_ids[start : start + limit]
        ]

    async def find_session(self, key: SessionKey) -> SessionRow | None:
        """See Store.find_session."""
        session = self._session(key)
        return _session_row(key, session) if session else None

    async def list_tenants(self, after: str, limit: int) -> list[str]:
        """See Store.list_tenants."""
        names = {entry.tenant for entry in self._audit}
        names.update(
            name for name, stored in self._tenants.items() if stored.sessions or stored.settings
        )
        return sorted(name for name in names if name > after)[:limit]

    async def read_log(
        self, places: Places, limit: int
    ) -> tuple[list[tuple[SessionKey, Change]], Places]:
        """See Engine.read_log."""
        (position,) = places
        page: list[tuple[SessionKey, Change]] = []
        while position < len(self._log) and len(page) < limit:
            logged = self._log[position]
            position += 1
            if logged is not None:
                page.append((logged.key, logged.change))
        return page, (position,)

    async def log_end(self) -> Places:
        """See Engine.log_end."""
        return (len(self._log),)

    async def get_setting(self, tenant: str, name: str) -> bytes | None:
        """See Store.get_setting."""
        return self._tenant(tenant).settings.get(name)

    async def list_settings(self, tenant: str, after: str, limit: int) -> list[tuple[str, bytes]]:
        """See Store.list_settings."""
        settings = self._tenant(tenant).settings
        return sorted(item for item in settings.items() if item[0] > after)[:limit]

    async def put_setting(self, tenant: str, name: str, value: bytes) -> None:
        """See Store.put_setting."""
        self._tenants.setdefault(tenant, _Tenant()).settings[name] = value

    async def due_sessions(self, now_us: int, limit: int) -> list[SessionKey]:
        """See Store.due_sessions."""
        due = [
            (session.due_us, SessionKey(tenant, session_id))
            for tenant, stored in self._tenants.items()
            for session_id, session in stored.sessions.items()
            if session.due_us is not None and session.due_us <= now_us
        ]
        return [key for _, key in sorted(due)[:limit]]

    async def acquire_lease(self, name: str, holder: str, now_us: int, until_us: int) -> bool:
        """See Store.acquire_lease."""
        held_by, held_until_us = self._leases.get(name, (holder, 0))
        if held_by != holder and held_until_us > now_us:
            return False
        self._leases[name] = (holder, until_us if until_us > now_us else 0)
        return True

    async def read_queue(
        self, tenant: str, queue: str, after: QueueEntry | None, limit: int
    ) -> list[QueueItem]:
        """See Store.read_queue."""
        stored = self._tenant(tenant)
        entries = stored.queues.get(queue, [])
        start = bisect.bisect_right(entries, after) if after else 0
        return [_item(stored, entry) for entry in entries[start : start + limit]]

    async def find_item(self, tenant: str, entry: QueueEntry) -> QueueItem | None:
        """See Store.find_item."""
        stored = self._tenant(tenant)
        return _item(stored, entry) if _has_entry(stored, entry) else None

    async def lease_item(self, tenant: str, entry: QueueEntry, wish: LeaseWish) -> QueueItem | None:
        """See Store.lease_item."""
        stored = self._tenant(tenant)
        if not _has_entry(stored, entry):
            return None
        before = _item(stored, entry)
        after = leased(before, wish)
        if after is None:
            return before
        stored.leases[entry] = replace(after, left_us=after.left_us + _now_us())
        return after

    async def mend_queue(
        self, tenant: str, put: tuple[QueueEntry, ...], drop: tuple[QueueEntry, ...]
    ) -> None:
        """See Store.mend_queue."""
        _mend(self._tenants.setdefault(tenant, _Tenant()), put, drop)

    async def erase_before(self, key: SessionKey, revision: int, blank: bytes) -> int:
        """See Store.erase_before."""
        self._blank_audit(key)
        session = self._session(key)
        if session is None:
            return 0
        tasks = self._tenant(key.tenant).tasks
        for place in session.task_places:
            tasks[place.task_id] = replace(tasks[place.task_id], user_id="", data=b"")
        blanked: dict[int, Change] = {}
        for index, change in enumerate(session.changes[: max(revision - 1, 0)]):
            if (change.events, change.answer, change.fingerprint) == (blank, b"", b""):
                continue
            erased = replace(change, events=blank, answer=b"", fingerprint=b"")
            session.changes[index] = blanked[change.revision] = erased
            if erased.request_id:
                session.requests[erased.method, erased.request_id, erased.actor] = erased
        for logged in self._log:
            if logged is not None and logged.key == key:
                logged.change = blanked.get(logged.change.revision, logged.change)
        session.user_id = ""
        return len(blanked)

    async def delete_session(self, key: SessionKey, revision: int) -> None:
        """See Store.delete_session."""
        actual = await self.head_revision(key)
        if actual != revision:
            raise RevisionConflict(key, revision, actual)
        self._blank_audit(key)
        session = self._session(key)
        if session is None:
            return
        stored = self._tenant(key.tenant)
        for place in session.task_places:
            del stored.tasks[place.task_id]
        del stored.sessions[key.session_id]
        stored.session_ids.remove(key.session_id)
        for position, logged in enumerate(self._log):
            if logged is not None and logged.key == key:
                self._log[position] = None

    def _blank_audit(self, key: SessionKey) -> None:
        for position, entry in enumerate(self._audit):
            if (entry.tenant, entry.session_id) == key:
                self._audit[position] = replace(entry, user_id="", data=b"")

    async def swap_setting(
        self, tenant: str, name: str, before: bytes | None, value: bytes
    ) -> bool:
        """See Store.swap_setting."""
        if await self.get_setting(tenant, name) != before:
            return False
        await self.put_setting(tenant, name, value)
        return True

    async def probe_write(self) -> None:
        """See Store.probe_write. It cannot fail."""

    async def close(self) -> None:
        """See Store.close. There is nothing to release."""

    def _session(self, key: SessionKey) -> _Session | None:
        return self._tenant(key.tenant).sessions.get(key.session_id)

    def _tenant(self, name: str) -> _Tenant:
        # Reading about a tenant that has nothing stored must not make it grow.
        return self._tenants.get(name) or _Tenant()


def _mend(tenant: _Tenant, put: tuple[QueueEntry, ...], drop: tuple[QueueEntry, ...]) -> None:
    for entry in put:
        if not _has_entry(tenant, entry):
            bisect.insort(tenant.queues.setdefault(entry.queue, []), entry)
    for entry in drop:
        if _has_entry(tenant, entry):
            tenant.queues[entry.queue].remove(entry)
            tenant.leases.pop(entry, None)


def _has_entry(tenant: _Tenant, entry: QueueEntry) -> bool:
    entries = tenant.queues.get(entry.queue, [])
    place = bisect.bisect_left(entries, entry)
    return place < len(entries) and entries[place] == entry


def _item(tenant: _Tenant, entry: QueueEntry) -> QueueItem:
    lease = tenant.leases.get(entry)
    return replace(lease, left_us=lease.left_us - _now_us()) if lease else QueueItem(entry)


def _now_us() -> int:
    return time.monotonic_ns() // 1_000


def _session_row(key: SessionKey, session: _Session) -> SessionRow:
    return SessionRow(
        key=key,
        user_id=session.user_id,
        revision=len(session.changes),
        create_us=session.changes[0].time_us,
        update_us=session.changes[-1].time_us,
        due_us=session.due_us,
    )
