"""The store in one SQLite file: one server, one disk, nothing to install.

Owns the statements and what they mean. It must not know what the stored bytes are. Its rules: one
process per file, by a lock file beside it; one connection writes, in groups (sqlite_writer); reads
have connections of their own and never wait for the disk's sync, single rows not even for pages.

Durable means synchronous=FULL with a write-ahead log: COMMIT returns after the log is synced.
"""

from __future__ import annotations

import asyncio
import math
import sqlite3
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Concatenate, Final, ParamSpec, TypeVar

import structlog

from routing_service.storage import page_cursor
from routing_service.storage.sqlite import rows as sqlite_rows
from routing_service.storage.sqlite import upkeep as sqlite_upkeep
from routing_service.storage.sqlite.connection import (
    ConnectionThread,
    error_fields,
    open_reader,
    open_writer,
    store_error,
)
from routing_service.storage.sqlite.file_lock import FileLock, FileLockedError
from routing_service.storage.sqlite.heads import HeadReader
from routing_service.storage.sqlite.schema import check_owner, migrate
from routing_service.storage.sqlite.writer import GROUP_WRITES_MAX, GroupWriter, Write
from routing_service.storage.store import (
    ERASE_CHANGES_MAX,
    TASKS_START,
    Append,
    AuditEntry,
    Change,
    Head,
    SessionKey,
    SessionRow,
    StoreClosed,
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

BUSY_TIMEOUT_S: Final = 5.0
"""How long a write waits for another program that has the file locked, such as a backup."""

SQLITE_VERSION_MIN: Final = (3, 33, 0)
"""The oldest SQLite whose SQL the statements keep to."""

_BOOKKEEPING_BYTES: Final = 512
"""What a write holds beside its payload, for the writer's limits; an estimate."""

_PROBE_KEY: Final = SessionKey("", "")
"""Where a write sorts that belongs to no session."""

P = ParamSpec("P")
T = TypeVar("T")

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteOptions:
    """What may be set of a SQLite store. Raises ValueError for values out of bounds."""

    busy_timeout_s: float = BUSY_TIMEOUT_S
    """How long a write waits while another program has the file locked; 0 = not at all."""
    group_writes_max: int = GROUP_WRITES_MAX
    """Writes in one transaction; 1 = every write syncs by itself."""
    file_bytes_max: int | None = None
    """The file grows to this and no further (its log comes on top): appends then raise
    StoreUnavailable, as with a full disk. None = what the disk holds."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.busy_timeout_s) and self.busy_timeout_s >= 0):
            raise ValueError(f"busy_timeout_s is {self.busy_timeout_s}; it must be 0 or more")
        if not 1 <= self.group_writes_max <= GROUP_WRITES_MAX:
            raise ValueError(
                f"group_writes_max is {self.group_writes_max}; it must be 1 to {GROUP_WRITES_MAX}"
            )
        if self.file_bytes_max is not None and self.file_bytes_max < 1:
            raise ValueError(f"file_bytes_max is {self.file_bytes_max}; it must be 1 or more")


async def open_sqlite_store(
    path: str | Path,
    options: SqliteOptions = SqliteOptions(),
) -> SqliteStore:
    """Open the file, made with its folder if there is none, and bring its tables up to date.

    Raises StoreUnavailable (in use by another process, not writable), StoreCorrupt (damaged, or
    another application's), SchemaTooNew.
    """
    if sqlite3.sqlite_version_info < SQLITE_VERSION_MIN:
        raise StoreUnavailable(
            f"this Python has SQLite {sqlite3.sqlite_version}, the store needs "
            f"{'.'.join(map(str, SQLITE_VERSION_MIN))}; use a newer Python build"
        )
    opened = AsyncExitStack()
    try:
        where = await asyncio.to_thread(_claim, Path(path), opened)
        return await _open_claimed(where, options, opened)
    except sqlite3.Error as error:
        await opened.aclose()
        _log.error("store_open_failed", path=str(path), **error_fields(error))
        raise store_error(error, f'store file "{path}": ') from error
    except BaseException:
        await opened.aclose()
        raise


def _claim(path: Path, opened: AsyncExitStack) -> Path:
    """Lock the file against other processes and say where it really is."""
    try:
        where = path.resolve()
        where.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(where.with_name(f"{where.name}.lock"))
    except FileLockedError as error:
        owner = f"process {error.owner}" if error.owner else "another process"
        raise StoreUnavailable(
            f'store file "{path}" is in use by {owner}; one server uses a file at a time: stop '
            "that one, or give this one a file of its own"
        ) from error
    except OSError as error:
        raise StoreUnavailable(
            f'store file "{path}" cannot be made ready: {error.strerror}; check the path and its '
            "permissions"
        ) from error
    opened.callback(lock.release)
    return where


async def _open_claimed(path: Path, options: SqliteOptions, opened: AsyncExitStack) -> SqliteStore:
    reader_options = {"busy_timeout_s": options.busy_timeout_s}
    # Opened in the order that makes the stack close them right: the writer last of the
    # connections, as SQLite brings the log into the file when the last one closes.
    writer = await open_writer(
        path,
        check=partial(check_owner, path=str(path)),
        file_bytes_max=options.file_bytes_max,
        **reader_options,
    )
    opened.push_async_callback(writer.close)
    await writer.run(migrate)
    store_id = await writer.run(sqlite_rows.store_id)
    rows = await open_reader(path, **reader_options)
    opened.push_async_callback(rows.close)
    pages = await open_reader(path, **reader_options)
    opened.push_async_callback(pages.close)
    group_writer = GroupWriter(
        writer, group_writes_max=options.group_writes_max, on_abandoned=opened.aclose
    )
    return SqliteStore(store_id, group_writer, rows, pages, opened, path=path)


class SqliteStore:
    """A Store in one file. Made by ``open_sqlite_store``."""

    def __init__(
        self,
        store_id: bytes,
        writer: GroupWriter,
        rows: ConnectionThread,
        pages: ConnectionThread,
        connections: AsyncExitStack,
        *,
        path: Path,
    ) -> None:
        """Take over what is open. rows reads single rows, pages what may take longer."""
        self._store_id = store_id
        self._path = path
        self._writer = writer
        self._rows = rows
        self._heads = HeadReader(rows, writer.in_hand)
        self._pages = pages
        self._connections = connections
        self._closing: asyncio.Task[None] | None = None

    @property
    def write_figures(self) -> WriteFigures:
        """How large groups of writes were, and how long they took."""
        return self._writer.figures

    @property
    def shared_writers(self) -> bool:
        """The lock file keeps others out."""
        return False

    async def append(self, append: Append) -> None:
        """See Store.append."""
        self._check_open()
        check_append(append)
        size_bytes = append.change.size_bytes + len(append.state) + _BOOKKEEPING_BYTES
        size_bytes += sum(len(task.data) for task in append.tasks)
        action = partial(sqlite_rows.write_append, append=append)
        await self._writer.write(append.key, size_bytes, Write(action, append))

    async def load(self, key: SessionKey) -> Head | None:
        """See Store.load."""
        self._check_open()
        try:
            return await self._heads.load(key)
        except sqlite3.Error as error:
            _log.error("store_read_failed", read="load", **error_fields(error))
            raise store_error(error) from error

    async def head_revision(self, key: SessionKey) -> int:
        """See Store.head_revision."""
        return await self._read(self._rows, sqlite_rows.head_revision, key)

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
            self._pages,
            sqlite_rows.read_changes,
            key,
            after=after,
            before=before,
            limit=limit,
            newest_first=newest_first,
        )

    async def find_request(
        self, key: SessionKey, method: str, request_id: str, actor: str = ""
    ) -> Change | None:
        """See Store.find_request."""
        find = sqlite_rows.find_request
        return await self._read(self._rows, find, key, method, request_id, actor)

    async def find_task(self, tenant: str, task_id: str) -> TaskRow | None:
        """See Store.find_task."""
        return await self._read(self._rows, sqlite_rows.find_task, tenant, task_id)

    async def list_tasks(
        self, key: SessionKey, *, after: TaskCursor = TASKS_START, limit: int
    ) -> list[TaskRow]:
        """See Store.list_tasks."""
        check_limit(limit)
        return await self._read(self._pages, sqlite_rows.list_tasks, key, after, limit)

    async def append_audit(self, entry: AuditEntry) -> None:
        """See Store.append_audit."""
        self._check_open()
        check_audit(entry)
        key = SessionKey(entry.tenant, entry.session_id)
        size_bytes = len(entry.data) + _BOOKKEEPING_BYTES
        await self._writer.write(
            key, size_bytes, Write(partial(sqlite_rows.write_audit, entry=entry))
        )

    async def count_audit(self, key: SessionKey, kind: str, request_id: str) -> int:
        """See Store.count_audit."""
        return await self._read(self._rows, sqlite_rows.count_audit, key, kind, request_id)

    async def read_audit(
        self, tenant: str, session_id: str | None, cursor: bytes, limit: int
    ) -> tuple[list[AuditEntry], bytes]:
        """See Store.read_audit."""
        check_limit(limit)
        position = self._position(page_cursor.AUDIT, cursor)
        read = sqlite_rows.read_audit
        page = await self._read(self._pages, read, tenant, session_id, position, limit)
        position = page[-1][0] if page else position
        return (
            [entry for _, entry in page],
            page_cursor.from_position(page_cursor.AUDIT, self._store_id, position),
        )

    async def list_sessions(
        self, tenant: str, cursor: bytes, limit: int
    ) -> tuple[list[SessionRow], bytes]:
        """See Store.list_sessions."""
        check_limit(limit)
        last_id = page_cursor.to_session_id(cursor)
        page = await self._read(self._pages, sqlite_rows.list_sessions, tenant, last_id, limit)
        last_id = page[-1].key.session_id if page else last_id
        return page, page_cursor.from_session_id(last_id)

    async def find_session(self, key: SessionKey) -> SessionRow | None:
        """See Store.find_session."""
        return await self._read(self._rows, sqlite_rows.find_session, key)

    async def list_tenants(self, after: str, limit: int) -> list[str]:
        """See Store.list_tenants."""
        check_limit(limit)
        return await self._read(self._pages, sqlite_rows.list_tenants, after, limit)

    async def read_log(
        self, cursor: bytes, limit: int
    ) -> tuple[list[tuple[SessionKey, Change]], bytes]:
        """See Store.read_log."""
        check_limit(limit)
        position = self._position(page_cursor.LOG, cursor)
        page = await self._read(self._pages, sqlite_rows.read_log, position, limit)
        position = page[-1][0] if page else position
        return [(key, change) for _, key, change in page], self._log_cursor(position)

    async def log_end(self) -> bytes:
        """See Store.log_end."""
        return self._log_cursor(await self._read(self._rows, sqlite_rows.log_end))

    async def get_setting(self, tenant: str, name: str) -> bytes | None:
        """See Store.get_setting."""
        return await self._read(self._rows, sqlite_rows.get_setting, tenant, name)

    async def list_settings(self, tenant: str, after: str, limit: int) -> list[tuple[str, bytes]]:
        """See Store.list_settings."""
        check_limit(limit)
        return await self._read(self._pages, sqlite_rows.list_settings, tenant, after, limit)

    async def put_setting(self, tenant: str, name: str, value: bytes) -> None:
        """See Store.put_setting."""
        self._check_open()
        check_setting(tenant, name, value)
        put = partial(sqlite_rows.write_setting, tenant=tenant, name=name, value=value)
        await self._writer.write(
            SessionKey(tenant, ""), len(value) + _BOOKKEEPING_BYTES, Write(put)
        )

    async def due_sessions(self, now_us: int, limit: int) -> list[SessionKey]:
        """See Store.due_sessions."""
        check_limit(limit)
        return await self._read(self._pages, sqlite_upkeep.due_sessions, now_us, limit)

    async def acquire_lease(self, name: str, holder: str, now_us: int, until_us: int) -> bool:
        """See Store.acquire_lease."""
        self._check_open()
        check_lease(name, holder, now_us, until_us)
        acquire = partial(
            sqlite_upkeep.acquire_lease, name=name, holder=holder, now_us=now_us, until_us=until_us
        )
        return bool(await self._writer.write(_PROBE_KEY, _BOOKKEEPING_BYTES, Write(acquire)))

    async def erase_before(self, key: SessionKey, revision: int, blank: bytes) -> int:
        """See Store.erase_before. What was there leaves the file's pages, and then its log."""
        self._check_open()
        check_blank(blank)
        beside = Write(partial(sqlite_upkeep.blank_beside, key=key))
        await self._writer.write(key, _BOOKKEEPING_BYTES, beside)
        last = min(revision - 1, await self.head_revision(key))
        erased = 0
        for after in range(0, last, ERASE_CHANGES_MAX):
            upto = min(after + ERASE_CHANGES_MAX, last)
            erase = partial(
                sqlite_upkeep.blank_changes, key=key, after=after, upto=upto, blank=blank
            )
            size_bytes = _BOOKKEEPING_BYTES + (upto - after) * len(blank)
            written = await self._writer.write(key, size_bytes, Write(erase))
            assert isinstance(written, int), written
            erased += written
        forget = Write(partial(sqlite_upkeep.blank_owner, key=key))
        await self._writer.write(key, _BOOKKEEPING_BYTES, forget)
        await self._writer.empty_log()
        return erased

    async def delete_session(self, key: SessionKey, revision: int) -> None:
        """See Store.delete_session."""
        self._check_open()
        delete = partial(sqlite_upkeep.delete_session, key=key, revision=revision)
        await self._writer.write(key, _BOOKKEEPING_BYTES, Write(delete))
        await self._writer.empty_log()

    async def swap_setting(
        self, tenant: str, name: str, before: bytes | None, value: bytes
    ) -> bool:
        """See SwapsSettings.swap_setting."""
        self._check_open()
        check_setting(tenant, name, value)
        swap = partial(
            sqlite_rows.swap_setting, tenant=tenant, name=name, before=before, value=value
        )
        size_bytes = len(value) + len(before or b"") + _BOOKKEEPING_BYTES
        return bool(await self._writer.write(SessionKey(tenant, ""), size_bytes, Write(swap)))

    async def compact(self) -> tuple[int, int]:
        """Write the file anew, without free space; return its bytes before and after.

        Everybody who writes waits meanwhile. Raises StoreUnavailable where the disk has no room.
        """
        self._check_open()
        before_bytes = self._path.stat().st_size
        try:
            await self._writer.compact()
        except sqlite3.Error as error:
            _log.error("store_not_compacted", **error_fields(error))
            raise store_error(error) from error
        return before_bytes, self._path.stat().st_size

    async def probe_write(self) -> None:
        """See Store.probe_write."""
        self._check_open()
        await self._writer.write(_PROBE_KEY, _BOOKKEEPING_BYTES, Write(sqlite_rows.write_probe))

    async def close(self) -> None:
        """See Store.close. The log is brought into the file, and the lock is let go."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="close sqlite store")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
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
        self._check_open()
        try:
            return await reader.run(function, *args, **kwargs)
        except sqlite3.Error as error:
            _log.error("store_read_failed", read=function.__name__, **error_fields(error))
            raise store_error(error) from error

    def _check_open(self) -> None:
        if self._closing is not None:
            raise StoreClosed

    def _position(self, kind: bytes, cursor: bytes) -> int:
        self._check_open()
        return page_cursor.to_position(kind, self._store_id, cursor)

    def _log_cursor(self, position: int) -> bytes:
        return page_cursor.from_position(page_cursor.LOG, self._store_id, position)
