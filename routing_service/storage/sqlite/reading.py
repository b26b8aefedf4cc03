"""A SQLite store's file read from another process, while a server may be writing to it.

No lock is taken and nothing is written, so no server is kept from the file. A connection that
cannot write cannot checkpoint either, so the server's writer stays the only one that does.

While a long page is read the server's log cannot be cut back, and grows.
"""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import AsyncExitStack
from pathlib import Path

import structlog

from routing_service.storage.sqlite import rows as sqlite_rows
from routing_service.storage.sqlite.connection import (
    ConnectionThread,
    error_fields,
    open_outside_reader,
    store_error,
)
from routing_service.storage.sqlite.engine import SqliteEngine
from routing_service.storage.sqlite.schema import check_owner, migrations, version_of
from routing_service.storage.sqlite.store import DEFAULTS, SqliteStore
from routing_service.storage.sqlite.writer import GroupWriter
from routing_service.storage.store import StoreCorrupt, StoreUnavailable

_log = structlog.get_logger(__name__)


async def open_sqlite_to_read(path: str | Path) -> SqliteStore:
    """Open an existing file for reading: writes raise StoreUnavailable.

    Raises StoreUnavailable (not there, not readable, tables of an older release), StoreCorrupt,
    SchemaTooNew.
    """
    where = await asyncio.to_thread(Path(path).resolve)
    if not await asyncio.to_thread(where.is_file):
        raise StoreUnavailable(f'there is no store file "{path}"; check the path')
    opened = AsyncExitStack()
    try:
        return await _open(where, opened)
    except sqlite3.Error as error:
        await opened.aclose()
        _log.error("store_open_failed", path=str(path), **error_fields(error))
        raise store_error(error, f'store file "{path}": ') from error
    except BaseException:
        await opened.aclose()
        raise


async def _open(path: Path, opened: AsyncExitStack) -> SqliteStore:
    connections: list[ConnectionThread] = []
    for _ in range(3):
        connection = await open_outside_reader(path, busy_timeout_s=DEFAULTS.busy_timeout_s)
        opened.push_async_callback(connection.close)
        connections.append(connection)
    refuser, rows, pages = connections
    await rows.run(check_readable, str(path))
    store_id = await rows.run(sqlite_rows.store_id)
    writer = GroupWriter(refuser, group_writes_max=1, on_abandoned=opened.aclose)
    return SqliteStore(SqliteEngine(store_id, writer, rows, pages, opened), path)


def check_readable(connection: sqlite3.Connection, path: str) -> None:
    """Refuse a file that is not ours, or of another schema version.

    Raises StoreCorrupt, SchemaTooNew, StoreUnavailable.
    """
    check_owner(connection, path)
    version, needed = version_of(connection), len(migrations())
    if version == 0:
        raise StoreCorrupt(f'file "{path}" has no tables, so it is not a store')
    if version < needed:
        raise StoreUnavailable(
            f'file "{path}" has schema version {version}, this release reads {needed}; bring it up '
            f"to date with agent-routing migrate --store sqlite:///{path}, while no server uses it"
        )
