"""The store in PostgreSQL: any number of replicas on one database.

Owns what each call means and in what order the parts are opened and closed. It must not know what
the stored bytes are. Its rules: the conditional append is all the coordination there is between
replicas; writes go in groups (postgres_writer), each a function call on the server, which is one
round trip and one transaction; reads are one statement each, on connections of their own; and the
log is read up to where nothing can come in between any more (postgres_log).

Durable means that the commit is in the server's log on disk, whatever synchronous_commit the role
or the database has. What a standby has of it is the operator's choice (synchronous_standby_names).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Final, TypeVar

import psycopg
import structlog

from routing_service.storage import page_cursor
from routing_service.storage.postgres import schema as postgres_schema
from routing_service.storage.postgres.connection import Connection, Connector, store_error
from routing_service.storage.postgres.hints import HintListener, HintSender, Listener, new_origin
from routing_service.storage.postgres.log import LogReader, to_cursor, to_place
from routing_service.storage.postgres.pool import ConnectionPool
from routing_service.storage.postgres.rows import Rows
from routing_service.storage.postgres.upkeep import UpkeepRows
from routing_service.storage.postgres.url import PostgresPlace
from routing_service.storage.postgres.writer import (
    GroupWriter,
    ProbeWrite,
    SettingWrite,
)
from routing_service.storage.store import (
    ERASE_CHANGES_MAX,
    TASKS_START,
    Append,
    AuditEntry,
    Change,
    Head,
    RevisionConflict,
    SessionKey,
    SessionRow,
    StoreClosed,
    StoreError,
    StoreUnavailable,
    TaskCursor,
    TaskRow,
)
from routing_service.storage.write_checks import (
    check_append,
    check_audit,
    check_blank,
    check_lease,
    check_limit,
    check_setting,
)
from routing_service.storage.write_figures import WriteFigures

_BOOKKEEPING_BYTES: Final = 512
"""What a write holds beside its payload, for the writer's limits; an estimate."""

T = TypeVar("T")

_log = structlog.get_logger(__name__)


async def open_postgres_store(place: PostgresPlace, *, may_migrate: bool = True) -> PostgresStore:
    """Connect, bring the tables up to date if this user may, and check what is there.

    may_migrate: False = tables of an older release are refused, as StoreUnavailable.
    Raises StoreUnavailable (not reached, no rights), StoreCorrupt (another application's schema),
    SchemaTooNew.
    """
    options = place.options
    connector = Connector(place)
    async with AsyncExitStack() as opened:
        reads = ConnectionPool(
            connector, size_max=options.read_connections, call_timeout_s=options.call_timeout_s
        )
        opened.push_async_callback(reads.close)
        writes = ConnectionPool(
            connector, size_max=options.write_connections, call_timeout_s=options.call_timeout_s
        )
        opened.push_async_callback(writes.close)
        rows = Rows(options.schema)
        try:
            await _make_ready(connector, writes, may_migrate=may_migrate)
            store_id = await writes.run(rows.store_id)
            if await writes.run(rows.settle_log):
                _log.warning("store_log_moved_up", store=place.shown)
        except StoreUnavailable as error:
            raise _named(error, place) from error.__cause__
        return PostgresStore(
            store_id, connector, rows, reads=reads, writes=writes, opened=opened.pop_all()
        )


async def migrate_postgres(place: PostgresPlace, *, grant_to: str = "") -> tuple[int, int]:
    """Bring the tables up to date, and return the schema versions before and after.

    grant_to: a role that then gets the rights that serving needs; "" = none.
    Raises StoreError.
    """
    connector = Connector(place)
    try:
        connection = await connector.connect()
        try:
            versions = await postgres_schema.migrate(connection, place.options.schema, place.shown)
            if grant_to:
                await postgres_schema.grant(connection, place.options.schema, grant_to)
        finally:
            await connection.close()
    except psycopg.Error as error:
        _log.error("store_migration_failed", store=place.shown, **connector.error_fields(error))
        raise _migration_refused(place, error) from error
    except StoreUnavailable as error:
        raise _named(error, place) from error.__cause__
    return versions


def _named(error: StoreUnavailable, place: PostgresPlace) -> StoreUnavailable:
    """Say which store it is, once."""
    name = f'store "{place.shown}"'
    return error if name in error.reason else StoreUnavailable(f"{name}: {error.reason}")


async def _make_ready(connector: Connector, pool: ConnectionPool, *, may_migrate: bool) -> None:
    place = connector.place

    async def find(connection: Connection) -> int:
        return await postgres_schema.schema_version(
            connection, place.options.schema, f'store "{place.shown}"'
        )

    version, needed = await pool.run(find), postgres_schema.supported_version()
    if version < needed and not may_migrate:
        raise StoreUnavailable(
            f"it has schema version {version}, this release reads {needed}; bring it up to date "
            "with agent-routing migrate --store URL"
        )
    if version < needed:
        await migrate_postgres(place)


def _migration_refused(place: PostgresPlace, error: psycopg.Error) -> StoreError:
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return StoreUnavailable(
            f'store "{place.shown}" needs new tables, which this user may not make; run '
            "agent-routing migrate --store URL once with a user that may"
        )
    told = store_error(error)
    if isinstance(told, StoreUnavailable):
        return StoreUnavailable(f'store "{place.shown}" was not migrated: {told.reason}')
    return StoreUnavailable(f'store "{place.shown}" was not migrated; the log has the reason')


class PostgresStore:
    """A Store in one schema of a PostgreSQL database. Made by ``open_postgres_store``."""

    def __init__(
        self,
        store_id: bytes,
        connector: Connector,
        rows: Rows,
        *,
        reads: ConnectionPool,
        writes: ConnectionPool,
        opened: AsyncExitStack,
    ) -> None:
        """Take over what is open."""
        options = connector.place.options
        origin = new_origin()
        self._store_id = store_id
        self._rows = rows
        self._upkeep = UpkeepRows(options.schema)
        self._reads = reads
        self._writes = writes
        self._opened = opened
        self._log = LogReader(options.schema, reads.run)
        # Nobody can listen through a pooler that changes connections.
        self._hints = HintSender(reads, options.schema, origin) if options.hints else None
        self._listener = (
            HintListener(connector, options.schema, origin)
            if options.hints and not options.transaction_pooler
            else None
        )
        self._writer = GroupWriter(
            writes,
            rows,
            groups_in_flight_max=options.write_connections,
            group_writes_max=options.group_writes_max,
            on_stored=self._tell,
        )
        self._closing: asyncio.Task[None] | None = None

    @property
    def write_figures(self) -> WriteFigures:
        """How large groups of writes were, and how long they took."""
        return self._writer.figures

    @property
    def shared_writers(self) -> bool:
        """Any number of replicas may write."""
        return True

    async def append(self, append: Append) -> None:
        """See Store.append."""
        self._check_open()
        check_append(append)
        size_bytes = append.change.size_bytes + len(append.state) + _BOOKKEEPING_BYTES
        size_bytes += sum(len(task.data) for task in append.tasks)
        await self._writer.write(append, size_bytes)

    async def load(self, key: SessionKey) -> Head | None:
        """See Store.load."""
        return await self._read(lambda connection: self._rows.load(connection, key))

    async def head_revision(self, key: SessionKey) -> int:
        """See Store.head_revision."""
        return await self._read(lambda connection: self._rows.head_revision(connection, key))

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
        check_limit(limit)
        return await self._read(
            lambda connection: self._rows.read_changes(
                connection,
                key,
                after=after,
                before=before,
                limit=limit,
                newest_first=newest_first,
            )
        )

    async def find_request(
        self, key: SessionKey, method: str, request_id: str, actor: str = ""
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

    async def list_tasks(
        self, key: SessionKey, *, after: TaskCursor = TASKS_START, limit: int
    ) -> list[TaskRow]:
        """See Store.list_tasks."""
        check_limit(limit)
        return await self._read(
            lambda connection: self._rows.list_tasks(connection, key, after, limit)
        )

    async def append_audit(self, entry: AuditEntry) -> None:
        """See Store.append_audit."""
        self._check_open()
        check_audit(entry)
        await self._writer.write(entry, len(entry.data) + _BOOKKEEPING_BYTES)

    async def count_audit(self, key: SessionKey, kind: str, request_id: str) -> int:
        """See Store.count_audit."""
        return await self._read(
            lambda connection: self._rows.count_audit(connection, key, kind, request_id)
        )

    async def read_audit(
        self, tenant: str, session_id: str | None, cursor: bytes, limit: int
    ) -> tuple[list[AuditEntry], bytes]:
        """See Store.read_audit."""
        self._check_open()
        check_limit(limit)
        place = to_place(page_cursor.AUDIT, self._store_id, cursor)
        page, place = await self._log.read_audit(tenant, session_id, place, limit)
        return page, to_cursor(page_cursor.AUDIT, self._store_id, place)

    async def list_sessions(
        self, tenant: str, cursor: bytes, limit: int
    ) -> tuple[list[SessionRow], bytes]:
        """See Store.list_sessions."""
        self._check_open()
        check_limit(limit)
        last_id = page_cursor.to_session_id(cursor)
        page = await self._read(
            lambda connection: self._rows.list_sessions(connection, tenant, last_id, limit)
        )
        last_id = page[-1].key.session_id if page else last_id
        return page, page_cursor.from_session_id(last_id)

    async def find_session(self, key: SessionKey) -> SessionRow | None:
        """See Store.find_session."""
        return await self._read(lambda connection: self._rows.find_session(connection, key))

    async def list_tenants(self, after: str, limit: int) -> list[str]:
        """See Store.list_tenants."""
        check_limit(limit)
        return await self._read(
            lambda connection: self._rows.list_tenants(connection, after, limit)
        )

    async def read_log(
        self, cursor: bytes, limit: int
    ) -> tuple[list[tuple[SessionKey, Change]], bytes]:
        """See Store.read_log. It waits a little for what a running transaction holds back."""
        self._check_open()
        check_limit(limit)
        place = to_place(page_cursor.LOG, self._store_id, cursor)
        page, place = await self._log.read_log(place, limit)
        return page, to_cursor(page_cursor.LOG, self._store_id, place)

    async def log_end(self) -> bytes:
        """See Store.log_end."""
        self._check_open()
        return to_cursor(page_cursor.LOG, self._store_id, await self._log.log_end())

    async def get_setting(self, tenant: str, name: str) -> bytes | None:
        """See Store.get_setting."""
        return await self._read(lambda connection: self._rows.get_setting(connection, tenant, name))

    async def list_settings(self, tenant: str, after: str, limit: int) -> list[tuple[str, bytes]]:
        """See Store.list_settings."""
        check_limit(limit)
        return await self._read(
            lambda connection: self._rows.list_settings(connection, tenant, after, limit)
        )

    async def put_setting(self, tenant: str, name: str, value: bytes) -> None:
        """See Store.put_setting."""
        self._check_open()
        check_setting(tenant, name, value)
        write = SettingWrite(tenant, name, value)
        await self._writer.write(write, len(value) + _BOOKKEEPING_BYTES)

    async def due_sessions(self, now_us: int, limit: int) -> list[SessionKey]:
        """See Store.due_sessions."""
        check_limit(limit)
        return await self._read(
            lambda connection: self._upkeep.due_sessions(connection, now_us, limit)
        )

    async def acquire_lease(self, name: str, holder: str, now_us: int, until_us: int) -> bool:
        """See Store.acquire_lease."""
        self._check_open()
        check_lease(name, holder, now_us, until_us)
        return await self._writes.run(
            lambda connection: self._upkeep.acquire_lease(
                connection, name, holder, now_us, until_us
            )
        )

    async def erase_before(self, key: SessionKey, revision: int, blank: bytes) -> int:
        """See Store.erase_before. What was there is in the server's files until a VACUUM."""
        self._check_open()
        check_blank(blank)
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
        self._check_open()
        actual = await self._writes.run(
            lambda connection: self._upkeep.delete_session(connection, key, revision)
        )
        if actual != revision:
            raise RevisionConflict(key, revision, actual)

    async def swap_setting(
        self, tenant: str, name: str, before: bytes | None, value: bytes
    ) -> bool:
        """See SwapsSettings.swap_setting."""
        self._check_open()
        check_setting(tenant, name, value)
        # Beside the groups, which it would interrupt: whoever swaps reads first, and waits anyway.
        return await self._writes.run(
            lambda connection: self._rows.swap_setting(connection, tenant, name, before, value)
        )

    async def probe_write(self) -> None:
        """See Store.probe_write."""
        self._check_open()
        await self._writer.write(ProbeWrite(), _BOOKKEEPING_BYTES)

    async def wait_for_changes(self, *, seen: int = 0, timeout_s: float) -> int:
        """Wait until other replicas have committed something, or for timeout_s.

        Returns how many hints there have been so far: give it as ``seen`` to the next call, and
        no hint that came between the two is slept through. A hint may come late or never, so the
        log has to be read now and then even so; where hints are off this waits for timeout_s.
        """
        self._check_open()
        if self._listener is None:
            await asyncio.sleep(timeout_s)
            return seen
        return await self._listener.wait(seen, timeout_s)

    @asynccontextmanager
    async def hearing_changes(self, listener: Listener) -> AsyncIterator[None]:
        """Have ``listener(key, revision)`` called for what other replicas commit, in the block.

        key None: some changes, not named. Hints, as with ``wait_for_changes``.
        """
        self._check_open()
        if self._listener is None:
            yield
            return
        async with self._listener.listening(listener):
            yield

    async def close(self) -> None:
        """See Store.close."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="close postgres store")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            await self._writer.close()
        finally:
            if self._listener is not None:
                await self._listener.close()
            if self._hints is not None:
                await self._hints.close()
            await self._opened.aclose()

    def _tell(self, appends: Sequence[Append]) -> None:
        if self._hints is not None:
            self._hints.send((append.key, append.change.revision) for append in appends)

    async def _read(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        self._check_open()
        return await self._reads.run(work)

    def _check_open(self) -> None:
        if self._closing is not None:
            raise StoreClosed
