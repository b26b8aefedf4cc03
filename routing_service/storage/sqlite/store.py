"""Opening the store in one SQLite file: one server, one disk, nothing to install.

One process opens a file at a time; a lock file next to it keeps others out.
"""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from routing_service.storage.checked_store import Store
from routing_service.storage.sqlite import rows as sqlite_rows
from routing_service.storage.sqlite.bounds import DEFAULT_BOUNDS, SqliteBounds
from routing_service.storage.sqlite.connection import (
    error_fields,
    open_reader,
    open_writer,
    store_error,
)
from routing_service.storage.sqlite.engine import SqliteEngine
from routing_service.storage.sqlite.file_lock import (
    FileLockedError,
    StoreFileLock,
    is_open_to_others,
)
from routing_service.storage.sqlite.schema import check_owner, migrate
from routing_service.storage.sqlite.writer import GroupWriter
from routing_service.storage.store import StoreUnavailable
from routing_service.storage.store_url import SqliteOptions

DEFAULTS: Final = SqliteOptions()

SQLITE_VERSION_MIN: Final = (3, 33, 0)
"""The oldest SQLite whose SQL the statements keep to."""

_log = structlog.get_logger(__name__)


class SqliteStore(Store):
    """A Store in one file. Made by ``open_sqlite_store``."""

    def __init__(self, engine: SqliteEngine, path: Path) -> None:
        """Take over what is open."""
        super().__init__(engine)
        self._engine: SqliteEngine = engine
        self._path = path

    async def compact(self) -> tuple[int, int]:
        """Rewrite the file without its free space; return its bytes before and after.

        Every write waits meanwhile. Raises StoreUnavailable if the disk has no room.
        """
        self._check_open()
        before_bytes = self._path.stat().st_size
        await self._engine.compact()
        return before_bytes, self._path.stat().st_size


async def open_sqlite_store(
    path: str | Path,
    options: SqliteOptions = DEFAULTS,
    bounds: SqliteBounds = DEFAULT_BOUNDS,
) -> SqliteStore:
    """Open the file, made with its folder if missing, and bring its tables up to date.

    A file made here is readable by its owner alone; SQLite gives its log the same permissions.

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
        return await _open_claimed(where, options, bounds, opened)
    except sqlite3.Error as error:
        await opened.aclose()
        _log.error("store_open_failed", path=str(path), **error_fields(error))
        raise store_error(error, f'store file "{path}": ') from error
    except BaseException:
        await opened.aclose()
        raise


def _claim(path: Path, opened: AsyncExitStack) -> Path:
    """Lock the file against other processes and return its real path."""
    try:
        where = path.resolve()
        where.parent.mkdir(parents=True, exist_ok=True)
        lock = StoreFileLock(where, make=True)
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
    if where.is_file() and is_open_to_others(where):
        _log.warning(
            "store_file_open_to_others",
            path=str(path),
            remedy="chmod 600 it, with its -wal and -shm",
        )
    return where


async def _open_claimed(
    path: Path, options: SqliteOptions, bounds: SqliteBounds, opened: AsyncExitStack
) -> SqliteStore:
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
        writer, group_writes_max=options.group_writes_max, on_abandoned=opened.aclose, bounds=bounds
    )
    return SqliteStore(SqliteEngine(store_id, group_writer, rows, pages, opened), path)
