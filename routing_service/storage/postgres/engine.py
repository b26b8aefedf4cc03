"""The PostgreSQL engine: any number of replicas on one database.

The conditional append is the only coordination between replicas. Writes go in groups (see writer),
each a function call on the server, which is one round trip and one transaction. Reads are one
statement each, on connections of their own. The log is read up to where no row can come in between
any more (see log).

Durable means that the commit is in the server's log on disk, whichever synchronous_commit the role
or the database has. What a standby has of it is the operator's choice (synchronous_standby_names).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Final, TypeVar

from routing_service.storage.engine import Span
from routing_service.storage.page_cursor import AUDIT, LOG, CursorForm, Places
from routing_service.storage.postgres.bounds import DEFAULT_BOUNDS, PostgresBounds
from routing_service.storage.postgres.connection import Connection, Connector
from routing_service.storage.postgres.hints import HintListener, HintSender, new_origin
from routing_service.storage.postgres.log import PLACES, LogReader
from routing_service.storage.postgres.pool import ConnectionPool
from routing_service.storage.postgres.queue_rows import QueueRows
from routing_service.storage.postgres.relay import NotifyRelay, relay_channel
from routing_service.storage.postgres.rows import Rows
from routing_service.storage.postgres.upkeep import UpkeepRows
from routing_service.storage.postgres.writer import GroupWriter, ProbeWrite, SettingWrite
from routing_service.storage.queue_entries import LeaseWish, QueueEntry, QueueItem
from routing_service.storage.store import (
    ERASE_CHANGES_MAX,
    Append,
    AuditEntry,
    Change,
    Head,
    RevisionConflict,
    SessionKey,
    SessionRow,
    TaskCursor,
    TaskRow,
)
from routing_service.storage.write_figures import WriteFigures

_BOOKKEEPING_BYTES: Final = 512
"""Estimated memory of a write besides its payload, for the writer's limits."""

T = TypeVar("T")


class PostgresEngine:
    """An Engine on one schema of a database."""

    shared_writers = True

    def __init__(
        self,
        store_id: bytes,
        connector: Connector,
        rows: Rows,
        *,
        reads: ConnectionPool,
        writes: ConnectionPool,
        opened: AsyncExitStack,
        bounds: PostgresBounds = DEFAULT_BOUNDS,
    ) -> None:
        """Take over what is open."""
        self.store_id = store_id
        options = connector.place.options
        origin = new_origin()
        self.log_form = CursorForm(LOG, store_id, places=PLACES)
        self._audit_form = CursorForm(AUDIT, store_id, places=PLACES)
        self._rows = rows
        self._upkeep = UpkeepRows(options.schema)
        self._queues = QueueRows(options.schema)
        self._reads = reads
        self._writes = writes
        self._opened = opened
        self._log = LogReader(options.schema, reads.run, bounds)
        # LISTEN does not work through a pooler that changes connections.
        self._sender = HintSender(reads, options.schema, origin) if options.hints else None
        self.hints = (
            HintListener(connector, options.schema, origin)
            if options.hints and not options.transaction_pooler
            else None
        )
        self.relay = (
            NotifyRelay(reads, relay_channel(options.schema), origin, self.hints)
            if self.hints is not None
            else None
        )
        self._writer = GroupWriter(
            writes,
            rows,
            groups_in_flight_max=options.write_connections,
            group_writes_max=options.group_writes_max,
            on_stored=self._tell,
            bounds=bounds,
        )

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
        await self._writer.write(append, size_bytes)

    async def load(self, key: SessionKey) -> Head | None:
        """See Store.load."""
        return await self._read(lambda connection: self._rows.load(connection, key))

    async def head_revision(self, key: SessionKey) -> int:
        """See Store.head_revision."""
        return await self._read(lambda connection: self._rows.head_revision(connection, key))

    async def read_changes(self, key: SessionKey, span: Span) -> list[Change]:
        """See Store.read_changes."""
        return await self._read(lambda connection: self._rows.read_changes(connection, key, span))

    async def find_request(
        self, key: SessionKey, method: str, request_id: str, actor: str
    ) -> Change | None:
        """See Store.find_request."""
        return await self._read(
            lambda connection: self._rows.find_request(connection, key, method, request_id, actor)
        )

    async def find_task(self, tenant: str, task_id: str) -> TaskRow | None:
        """See Store.find_task."""
        return await self._read(
            lambda connection: self._rows.find_task(connection, tenant, task_id)
        )

    async def list_tasks(self, key: SessionKey, after: TaskCursor, limit: int) -> list[TaskRow]:
        """See Store.list_tasks."""
        return await self._read(
            lambda connection: self._rows.list_tasks(connection, key, after, limit)
        )

    async def append_audit(self, entry: AuditEntry) -> None:
        """See Store.append_audit."""
        await self._writer.write(entry, len(entry.data) + _BOOKKEEPING_BYTES)

    async def count_audit(self, key: SessionKey, kind: str, request_id: str) -> int:
        """See Store.count_audit."""
        return await self._read(
            lambda connection: self._rows.count_audit(connection, key, kind, request_id)
        )

    async def read_audit(
        self, tenant: str, session_id: str | None, places: Places, limit: int
    ) -> tuple[list[AuditEntry], Places]:
        """See Engine.read_audit."""
        return await self._log.read_audit(tenant, session_id, places, limit)

    async def list_sessions(self, tenant: str, after: str, limit: int) -> list[SessionRow]:
        """See Engine.list_sessions."""
        return await self._read(
            lambda connection: self._rows.list_sessions(connection, tenant, after, limit)
        )

    async def find_session(self, key: SessionKey) -> SessionRow | None:
        """See Store.find_session."""
        return await self._read(lambda connection: self._rows.find_session(connection, key))

    async def list_tenants(self, after: str, limit: int) -> list[str]:
        """See Store.list_tenants."""
        return await self._read(
            lambda connection: self._rows.list_tenants(connection, after, limit)
        )

    async def read_log(
        self, places: Places, limit: int
    ) -> tuple[list[tuple[SessionKey, Change]], Places]:
        """See Engine.read_log. It waits a little for rows that a running transaction holds back."""
        return await self._log.read_log(places, limit)

    async def log_end(self) -> Places:
        """See Engine.log_end."""
        return await self._log.log_end()

    async def get_setting(self, tenant: str, name: str) -> bytes | None:
        """See Store.get_setting."""
        return await self._read(lambda connection: self._rows.get_setting(connection, tenant, name))

    async def list_settings(self, tenant: str, after: str, limit: int) -> list[tuple[str, bytes]]:
        """See Store.list_settings."""
        return await self._read(
            lambda connection: self._rows.list_settings(connection, tenant, after, limit)
        )

    async def put_setting(self, tenant: str, name: str, value: bytes) -> None:
        """See Store.put_setting."""
        write = SettingWrite(tenant, name, value)
        await self._writer.write(write, len(value) + _BOOKKEEPING_BYTES)

    async def due_sessions(self, now_us: int, limit: int) -> list[SessionKey]:
        """See Store.due_sessions."""
        return [key for _, key in await self.due_rows(now_us, limit)]

    async def due_rows(self, now_us: int, limit: int) -> list[tuple[int, SessionKey]]:
        """Read what ``due_sessions`` does, each with its time."""
        return await self._read(lambda connection: self._upkeep.due_rows(connection, now_us, limit))

    async def acquire_lease(self, name: str, holder: str, now_us: int, until_us: int) -> bool:
        """See Store.acquire_lease."""
        return await self._writes.run(
            lambda connection: self._upkeep.acquire_lease(
                connection, name, holder, now_us, until_us
            )
        )

    async def read_queue(
        self, tenant: str, queue: str, after: QueueEntry | None, limit: int
    ) -> list[QueueItem]:
        """See Store.read_queue."""
        return await self._read(
            lambda connection: self._queues.read_queue(connection, tenant, queue, after, limit)
        )

    async def find_item(self, tenant: str, entry: QueueEntry) -> QueueItem | None:
        """See Store.find_item."""
        return await self._read(
            lambda connection: self._queues.find_item(connection, tenant, entry)
        )

    async def lease_item(self, tenant: str, entry: QueueEntry, wish: LeaseWish) -> QueueItem | None:
        """See Store.lease_item."""
        return await self._writes.run(
            lambda connection: self._queues.lease_item(connection, tenant, entry, wish)
        )

    async def mend_queue(
        self, tenant: str, put: tuple[QueueEntry, ...], drop: tuple[QueueEntry, ...]
    ) -> None:
        """See Store.mend_queue."""
        await self._writes.run(
            lambda connection: self._queues.mend_queue(connection, tenant, put, drop)
        )

    async def erase_before(self, key: SessionKey, revision: int, blank: bytes) -> int:
        """See Store.erase_before. The old content stays in the server's files until a VACUUM."""
        head_revision = await self._writes.run(
            lambda connection: self._upkeep.blank_beside(connection, key)
        )
        last = min(revision - 1, head_revision)
        erased = 0
        for after in range(0, last, ERASE_CHANGES_MAX):
            erase = partial(
                self._upkeep.blank_changes,
                key=key,
                after=after,
                upto=min(after + ERASE_CHANGES_MAX, last),
                blank=blank,
            )
            erased += await self._writes.run(erase)
        await self._writes.run(lambda connection: self._upkeep.blank_owner(connection, key))
        return erased

    async def delete_session(self, key: SessionKey, revision: int) -> None:
        """See Store.delete_session."""
        actual = await self._writes.run(
            lambda connection: self._upkeep.delete_session(connection, key, revision)
        )
        if actual != revision:
            raise RevisionConflict(key, revision, actual)

    async def swap_setting(
        self, tenant: str, name: str, before: bytes | None, value: bytes
    ) -> bool:
        """See Store.swap_setting."""
        # Outside the groups, which it would interrupt: a caller that swaps has read first anyway.
        return await self._writes.run(
            lambda connection: self._rows.swap_setting(connection, tenant, name, before, value)
        )

    async def probe_write(self) -> None:
        """See Store.probe_write."""
        await self._writer.write(ProbeWrite(), _BOOKKEEPING_BYTES)

    async def close(self) -> None:
        """See Engine.close."""
        try:
            await self._writer.close()
        finally:
            if self.relay is not None:
                await self.relay.close()
            if self.hints is not None:
                await self.hints.close()
            if self._sender is not None:
                await self._sender.close()
            await self._opened.aclose()

    def _tell(self, _appends: Sequence[Append]) -> None:
        if self._sender is not None:
            self._sender.send()

    async def _read(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        return await self._reads.run(work)
