"""The SQLite engine: the statements of each call, through one writer and two readers.

One connection writes, in groups (see writer). Reads have connections of their own and never wait
for the disk's sync; single rows do not wait for pages either.

Durable means synchronous=FULL with a write-ahead log: COMMIT returns after the log is synced.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Concatenate, Final, ParamSpec, TypeVar, cast

import structlog

from routing_service.storage.engine import ChangeHints, Span
from routing_service.storage.page_cursor import AUDIT, LOG, CursorForm, Places
from routing_service.storage.queue_entries import LeaseWish, QueueEntry, QueueItem
from routing_service.storage.relay import Relay
from routing_service.storage.sqlite import queue_rows
from routing_service.storage.sqlite import rows as sqlite_rows
from routing_service.storage.sqlite import upkeep as sqlite_upkeep
from routing_service.storage.sqlite.connection import ConnectionThread, error_fields, store_error
from routing_service.storage.sqlite.heads import HeadReader
from routing_service.storage.sqlite.writer import GroupWriter, Write
from routing_service.storage.store import (
    ERASE_CHANGES_MAX,
    Append,
    AuditEntry,
    Change,
    Head,
    SessionKey,
    SessionRow,
    TaskCursor,
    TaskRow,
)
from routing_service.storage.write_figures import WriteFigures

_BOOKKEEPING_BYTES: Final = 512
"""Estimated memory of a write besides its payload, for the writer's limits."""

_NO_SESSION: Final = SessionKey("", "")
"""The sort key of writes that belong to no session."""

P = ParamSpec("P")
T = TypeVar("T")

_log = structlog.get_logger(__name__)


class SqliteEngine:
    """An Engine on one file."""

    shared_writers = False
    """The lock file keeps other processes out."""
    hints: ChangeHints | None = None
    relay: Relay | None = None

    def __init__(
        self,
        store_id: bytes,
        writer: GroupWriter,
        rows: ConnectionThread,
        pages: ConnectionThread,
        connections: AsyncExitStack,
    ) -> None:
        """Take over what is open. rows reads single rows, pages reads that may take longer."""
        self.log_form = CursorForm(LOG, store_id)
        self._audit_form = CursorForm(AUDIT, store_id)
        self._writer = writer
        self._rows = rows
        self._heads = HeadReader(rows, writer.in_hand, bounds=writer.bounds)
        self._pages = pages
        self._connections = connections

    @property
    def write_figures(self) -> WriteFigures:
        """See Engine.write_figures."""
        return self._writer.figures

    def audit_form(self, _tenant: str) -> CursorForm:
        """See Engine.audit_form. One form for all tenants: positions count all their entries."""
        return self._audit_form

    async def append(self, append: Append) -> None:
        """See Store.append."""
        size_bytes = append.change.size_bytes + len(append.state) + _BOOKKEEPING_BYTES
        size_bytes += sum(len(task.data) for task in append.tasks)
        action = partial(sqlite_rows.write_append, append=append)
        await self._writer.write(append.key, size_bytes, Write(action, append))

    async def load(self, key: SessionKey) -> Head | None:
        """See Store.load."""
        try:
            return await self._heads.load(key)
        except sqlite3.Error as error:
            _log.error("store_read_failed", read="load", **error_fields(error))
            raise store_error(error) from error

    async def head_revision(self, key: SessionKey) -> int:
        """See Store.head_revision."""
        return await self._read(self._rows, sqlite_rows.head_revision, key)

    async def read_changes(self, key: SessionKey, span: Span) -> list[Change]:
        """See Store.read_changes."""
        return await self._read(self._pages, sqlite_rows.read_changes, key, span)

    async def find_request(
        self, key: SessionKey, method: str, request_id: str, actor: str
    ) -> Change | None:
        """See Store.find_request."""
        find = sqlite_rows.find_request
        return await self._read(self._rows, find, key, method, request_id, actor)

    async def find_task(self, tenant: str, task_id: str) -> TaskRow | None:
        """See Store.find_task."""
        return await self._read(self._rows, sqlite_rows.find_task, tenant, task_id)

    async def list_tasks(self, key: SessionKey, after: TaskCursor, limit: int) -> list[TaskRow]:
        """See Store.list_tasks."""
        return await self._read(self._pages, sqlite_rows.list_tasks, key, after, limit)

    async def append_audit(self, entry: AuditEntry) -> None:
        """See Store.append_audit."""
        key = SessionKey(entry.tenant, entry.session_id)
        await self._write(key, sqlite_rows.write_audit, len(entry.data), entry=entry)

    async def count_audit(self, key: SessionKey, kind: str, request_id: str) -> int:
        """See Store.count_audit."""
        return await self._read(self._rows, sqlite_rows.count_audit, key, kind, request_id)

    async def read_audit(
        self, tenant: str, session_id: str | None, places: Places, limit: int
    ) -> tuple[list[AuditEntry], Places]:
        """See Engine.read_audit."""
        (position,) = places
        read = sqlite_rows.read_audit
        page = await self._read(self._pages, read, tenant, session_id, position, limit)
        return [entry for _, entry in page], (page[-1][0] if page else position,)

    async def list_sessions(self, tenant: str, after: str, limit: int) -> list[SessionRow]:
        """See Engine.list_sessions."""
        return await self._read(self._pages, sqlite_rows.list_sessions, tenant, after, limit)

    async def find_session(self, key: SessionKey) -> SessionRow | None:
        """See Store.find_session."""
        return await self._read(self._rows, sqlite_rows.find_session, key)

    async def list_tenants(self, after: str, limit: int) -> list[str]:
        """See Store.list_tenants."""
        return await self._read(self._pages, sqlite_rows.list_tenants, after, limit)

    async def read_log(
        self, places: Places, limit: int
    ) -> tuple[list[tuple[SessionKey, Change]], Places]:
        """See Engine.read_log."""
        (position,) = places
        page = await self._read(self._pages, sqlite_rows.read_log, position, limit)
        return [(key, change) for _, key, change in page], (page[-1][0] if page else position,)

    async def log_end(self) -> Places:
        """See Engine.log_end."""
        return (await self._read(self._rows, sqlite_rows.log_end),)

    async def get_setting(self, tenant: str, name: str) -> bytes | None:
        """See Store.get_setting."""
        return await self._read(self._rows, sqlite_rows.get_setting, tenant, name)

    async def list_settings(self, tenant: str, after: str, limit: int) -> list[tuple[str, bytes]]:
        """See Store.list_settings."""
        return await self._read(self._pages, sqlite_rows.list_settings, tenant, after, limit)

    async def put_setting(self, tenant: str, name: str, value: bytes) -> None:
        """See Store.put_setting."""
        put = sqlite_rows.write_setting
        await self._write(
            SessionKey(tenant, ""), put, len(value), tenant=tenant, name=name, value=value
        )

    async def swap_setting(
        self, tenant: str, name: str, before: bytes | None, value: bytes
    ) -> bool:
        """See Store.swap_setting."""
        return await self._write(
            SessionKey(tenant, ""),
            sqlite_rows.swap_setting,
            len(value) + len(before or b""),
            tenant=tenant,
            name=name,
            before=before,
            value=value,
        )

    async def due_sessions(self, now_us: int, limit: int) -> list[SessionKey]:
        """See Store.due_sessions."""
        return await self._read(self._pages, sqlite_upkeep.due_sessions, now_us, limit)

    async def acquire_lease(self, name: str, holder: str, now_us: int, until_us: int) -> bool:
        """See Store.acquire_lease."""
        acquire = sqlite_upkeep.acquire_lease
        return await self._write(
            _NO_SESSION, acquire, 0, name=name, holder=holder, now_us=now_us, until_us=until_us
        )

    async def read_queue(
        self, tenant: str, queue: str, after: QueueEntry | None, limit: int
    ) -> list[QueueItem]:
        """See Store.read_queue."""
        return await self._read(self._pages, queue_rows.read_queue, tenant, queue, after, limit)

    async def find_item(self, tenant: str, entry: QueueEntry) -> QueueItem | None:
        """See Store.find_item."""
        return await self._read(self._rows, queue_rows.find_item, tenant, entry)

    async def lease_item(self, tenant: str, entry: QueueEntry, wish: LeaseWish) -> QueueItem | None:
        """See Store.lease_item."""
        lease = queue_rows.lease_item
        key = SessionKey(tenant, entry.session_id)
        return await self._write(key, lease, 0, tenant=tenant, entry=entry, wish=wish)

    async def mend_queue(
        self, tenant: str, put: tuple[QueueEntry, ...], drop: tuple[QueueEntry, ...]
    ) -> None:
        """See Store.mend_queue."""
        key = SessionKey(tenant, (*put, *drop)[0].session_id)
        await self._write(key, queue_rows.write_entries, 0, tenant=tenant, put=put, drop=drop)

    async def erase_before(self, key: SessionKey, revision: int, blank: bytes) -> int:
        """See Store.erase_before. The old content leaves the file's pages, and then its log."""
        await self._write(key, sqlite_upkeep.blank_beside, 0, key=key)
        last = min(revision - 1, await self.head_revision(key))
        erased = 0
        for after in range(0, last, ERASE_CHANGES_MAX):
            upto = min(after + ERASE_CHANGES_MAX, last)
            erased += await self._write(
                key,
                sqlite_upkeep.blank_changes,
                (upto - after) * len(blank),
                key=key,
                after=after,
                upto=upto,
                blank=blank,
            )
        await self._write(key, sqlite_upkeep.blank_owner, 0, key=key)
        await self._writer.empty_log()
        return erased

    async def delete_session(self, key: SessionKey, revision: int) -> None:
        """See Store.delete_session."""
        await self._write(key, sqlite_upkeep.delete_session, 0, key=key, revision=revision)
        await self._writer.empty_log()

    async def probe_write(self) -> None:
        """See Store.probe_write."""
        await self._write(_NO_SESSION, sqlite_rows.write_probe, 0)

    async def compact(self) -> None:
        """Rewrite the file without its free space. Every write waits meanwhile."""
        try:
            await self._writer.compact()
        except sqlite3.Error as error:
            _log.error("store_not_compacted", **error_fields(error))
            raise store_error(error) from error

    async def close(self) -> None:
        """See Engine.close. The log is brought into the file, and the lock is released."""
        try:
            await self._writer.close()
            await self._heads.close()
        finally:
            await self._connections.aclose()

    async def _read(
        self,
        reader: ConnectionThread,
        function: Callable[Concatenate[sqlite3.Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        try:
            return await reader.run(function, *args, **kwargs)
        except sqlite3.Error as error:
            _log.error("store_read_failed", read=function.__name__, **error_fields(error))
            raise store_error(error) from error

    async def _write(
        self,
        sort_key: SessionKey,
        function: Callable[Concatenate[sqlite3.Connection, P], T],
        payload_bytes: int,
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run a function within a group of writes; payload_bytes counts against the queue."""
        write = Write(lambda connection: function(connection, *args, **kwargs))
        written = await self._writer.write(sort_key, payload_bytes + _BOOKKEEPING_BYTES, write)
        return cast("T", written)
