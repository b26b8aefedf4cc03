"""The Store on every engine: it checks each call once, and an engine does the rest.

It refuses calls after ``close``, values that no engine could store and cursors of other lists, so
that an engine is only called with what it can do. What it writes has a checksum, and what it reads
is compared with it: see ``checksums``.
"""

from __future__ import annotations

import asyncio

from routing_service.storage import page_cursor
from routing_service.storage.checksums import (
    open_audit,
    open_change,
    open_head,
    open_row,
    open_setting,
    open_task,
    seal_append,
    seal_audit,
    seal_setting,
)
from routing_service.storage.engine import Engine, Span
from routing_service.storage.queue_entries import LeaseWish, QueueEntry, QueueItem
from routing_service.storage.relay import Relay
from routing_service.storage.store import (
    DAMAGED,
    INT_MAX,
    TASKS_START,
    Append,
    AuditEntry,
    Change,
    Head,
    RequestSeen,
    SessionKey,
    SessionRow,
    StoreClosed,
    TaskCursor,
    TaskRow,
)
from routing_service.storage.write_checks import (
    check_append,
    check_audit,
    check_blank,
    check_entries,
    check_lease,
    check_limit,
    check_setting,
    check_wish,
)
from routing_service.storage.write_figures import WriteFigures


class CheckedStore:
    """A Store on one engine."""

    def __init__(self, engine: Engine) -> None:
        """Take the engine over: ``close`` closes it."""
        self._engine = engine
        self._closing: asyncio.Task[None] | None = None

    @property
    def shared_writers(self) -> bool:
        """See Store.shared_writers."""
        return self._engine.shared_writers

    @property
    def write_figures(self) -> WriteFigures | None:
        """See Store.write_figures."""
        return self._engine.write_figures

    @property
    def hears_changes(self) -> bool:
        """See Store.hears_changes."""
        hints = self._engine.hints
        return hints is not None and hints.is_live

    async def wait_for_changes(self, seen: int, timeout_s: float) -> int:
        """See Store.wait_for_changes."""
        self._check_open()
        hints = self._engine.hints
        if hints is None:
            await asyncio.sleep(timeout_s)
            return seen
        return await hints.wait(seen, timeout_s)

    @property
    def relay(self) -> Relay | None:
        """See Store.relay."""
        return self._engine.relay

    async def append(self, append: Append) -> None:
        """See Store.append."""
        if self._closing is not None:  # As _check_open does, whose call every message would pay.
            raise StoreClosed
        check_append(append)
        try:
            await self._engine.append(seal_append(append))
        except RequestSeen as seen:
            raise RequestSeen(seen.key, open_change(seen.key, seen.change)) from None

    async def load(self, key: SessionKey) -> Head | None:
        """See Store.load."""
        self._check_open()
        head = await self._engine.load(key)
        return None if head is None else open_head(key, head)

    async def head_revision(self, key: SessionKey) -> int:
        """See Store.head_revision."""
        self._check_open()
        return await self._engine.head_revision(key)

    async def read_changes(
        self,
        key: SessionKey,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int,
        newest_first: bool = False,
    ) -> list[Change]:
        """See Store.read_changes."""
        self._check_open()
        check_limit(limit)
        last = INT_MAX if before is None else _clamp(before)
        span = Span(_clamp(after), last, limit, newest_first)
        return [open_change(key, change) for change in await self._engine.read_changes(key, span)]

    async def find_request(
        self, key: SessionKey, method: str, request_id: str, actor: str = ""
    ) -> Change | None:
        """See Store.find_request."""
        self._check_open()
        if not request_id:
            return None
        change = await self._engine.find_request(key, method, request_id, actor)
        return None if change is None else open_change(key, change)

    async def find_task(self, tenant: str, task_id: str) -> TaskRow | None:
        """See Store.find_task."""
        self._check_open()
        task = await self._engine.find_task(tenant, task_id)
        return None if task is None else open_task(SessionKey(tenant, task.session_id), task)

    async def list_tasks(
        self, key: SessionKey, *, after: TaskCursor = TASKS_START, limit: int
    ) -> list[TaskRow]:
        """See Store.list_tasks."""
        self._check_open()
        check_limit(limit)
        after = TaskCursor(_clamp(after.create_us), after.task_id)
        return [open_task(key, task) for task in await self._engine.list_tasks(key, after, limit)]

    async def append_audit(self, entry: AuditEntry) -> None:
        """See Store.append_audit."""
        self._check_open()
        check_audit(entry)
        await self._engine.append_audit(seal_audit(entry))

    async def count_audit(self, key: SessionKey, kind: str, request_id: str) -> int:
        """See Store.count_audit."""
        self._check_open()
        return await self._engine.count_audit(key, kind, request_id)

    async def read_audit(
        self, tenant: str, session_id: str | None, cursor: bytes, limit: int
    ) -> tuple[list[AuditEntry], bytes]:
        """See Store.read_audit."""
        self._check_open()
        check_limit(limit)
        form = self._engine.audit_form(tenant)
        places = form.unpack(cursor)
        page, places = await self._engine.read_audit(tenant, session_id, places, limit)
        return [open_audit(entry) for entry in page], form.pack(places)

    async def list_sessions(
        self, tenant: str, cursor: bytes, limit: int
    ) -> tuple[list[SessionRow], bytes]:
        """See Store.list_sessions."""
        self._check_open()
        check_limit(limit)
        last_id = page_cursor.to_session_id(cursor)
        page = await self._engine.list_sessions(tenant, last_id, limit)
        last_id = page[-1].key.session_id if page else last_id
        return [open_row(row) for row in page], page_cursor.from_session_id(last_id)

    async def find_session(self, key: SessionKey) -> SessionRow | None:
        """See Store.find_session."""
        self._check_open()
        row = await self._engine.find_session(key)
        return None if row is None else open_row(row)

    async def list_tenants(self, after: str, limit: int) -> list[str]:
        """See Store.list_tenants."""
        self._check_open()
        check_limit(limit)
        return await self._engine.list_tenants(after, limit)

    async def read_log(
        self, cursor: bytes, limit: int
    ) -> tuple[list[tuple[SessionKey, Change]], bytes]:
        """See Store.read_log."""
        self._check_open()
        check_limit(limit)
        form = self._engine.log_form
        page, places = await self._engine.read_log(form.unpack(cursor), limit)
        return [(key, open_change(key, change)) for key, change in page], form.pack(places)

    async def log_end(self) -> bytes:
        """See Store.log_end."""
        self._check_open()
        return self._engine.log_form.pack(await self._engine.log_end())

    async def get_setting(self, tenant: str, name: str) -> bytes | None:
        """See Store.get_setting."""
        self._check_open()
        value = await self._engine.get_setting(tenant, name)
        return None if value is None else open_setting(tenant, name, value)

    async def list_settings(self, tenant: str, after: str, limit: int) -> list[tuple[str, bytes]]:
        """See Store.list_settings."""
        self._check_open()
        check_limit(limit)
        page = await self._engine.list_settings(tenant, after, limit)
        return [(name, open_setting(tenant, name, value)) for name, value in page]

    async def put_setting(self, tenant: str, name: str, value: bytes) -> None:
        """See Store.put_setting."""
        self._check_open()
        check_setting(tenant, name, value)
        await self._engine.put_setting(tenant, name, seal_setting(tenant, name, value))

    async def swap_setting(
        self, tenant: str, name: str, before: bytes | None, value: bytes
    ) -> bool:
        """See Store.swap_setting."""
        self._check_open()
        check_setting(tenant, name, value)
        sealed = seal_setting(tenant, name, value)
        if before == DAMAGED:
            stored = await self._engine.get_setting(tenant, name)
            if stored is None or open_setting(tenant, name, stored) != DAMAGED:
                return False
            return await self._engine.swap_setting(tenant, name, stored, sealed)
        expected = None if before is None else seal_setting(tenant, name, before)
        if await self._engine.swap_setting(tenant, name, expected, sealed):
            return True
        # An older release may have written it, without a checksum.
        is_plain = before is not None and before != expected
        return is_plain and await self._engine.swap_setting(tenant, name, before, sealed)

    async def due_sessions(self, now_us: int, limit: int) -> list[SessionKey]:
        """See Store.due_sessions."""
        self._check_open()
        check_limit(limit)
        return await self._engine.due_sessions(now_us, limit)

    async def acquire_lease(self, name: str, holder: str, now_us: int, until_us: int) -> bool:
        """See Store.acquire_lease."""
        self._check_open()
        check_lease(name, holder, now_us, until_us)
        return await self._engine.acquire_lease(name, holder, now_us, until_us)

    async def read_queue(
        self, tenant: str, queue: str, after: QueueEntry | None, limit: int
    ) -> list[QueueItem]:
        """See Store.read_queue."""
        self._check_open()
        check_limit(limit)
        return await self._engine.read_queue(tenant, queue, after, limit)

    async def find_item(self, tenant: str, entry: QueueEntry) -> QueueItem | None:
        """See Store.find_item."""
        self._check_open()
        return await self._engine.find_item(tenant, entry)

    async def lease_item(self, tenant: str, entry: QueueEntry, wish: LeaseWish) -> QueueItem | None:
        """See Store.lease_item."""
        self._check_open()
        check_wish(wish)
        return await self._engine.lease_item(tenant, entry, wish)

    async def mend_queue(
        self, tenant: str, put: tuple[QueueEntry, ...], drop: tuple[QueueEntry, ...]
    ) -> None:
        """See Store.mend_queue."""
        self._check_open()
        check_entries(tenant, (*put, *drop))
        if put or drop:
            await self._engine.mend_queue(tenant, put, drop)

    async def erase_before(self, key: SessionKey, revision: int, blank: bytes) -> int:
        """See Store.erase_before."""
        self._check_open()
        check_blank(blank)
        return await self._engine.erase_before(key, revision, blank)

    async def delete_session(self, key: SessionKey, revision: int) -> None:
        """See Store.delete_session."""
        self._check_open()
        await self._engine.delete_session(key, revision)

    async def probe_write(self) -> None:
        """See Store.probe_write."""
        self._check_open()
        await self._engine.probe_write()

    async def close(self) -> None:
        """See Store.close. A caller that is cancelled leaves the closing to finish."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._engine.close(), name="close store")
        await asyncio.shield(self._closing)

    def _check_open(self) -> None:
        if self._closing is not None:
            raise StoreClosed


def _clamp(number: int) -> int:
    """Keep a caller's bound within what a revision or a time can be."""
    return min(max(number, 0), INT_MAX)
