"""One SQLite connection on a thread of its own, set up as the store needs it.

One connection per file writes and checkpoints, all others only read: SQLite before 3.51.3 can lose
commits when two connections checkpoint (sqlite.org/wal.html#walresetbug).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Concatenate, Final, ParamSpec, TypeVar, cast

import aiosqlite

from routing_service.storage.store import (
    AppendRefused,
    StoreCorrupt,
    StoreError,
    StoreUnavailable,
)

WRITER_CACHE_KB: Final = 16 * 1024
"""Page cache of the writer: the upper levels of the indexes of millions of sessions. The operating
system caches most other pages; a larger cache was not faster at a million sessions. With many
sessions all of it is soon in use."""

READER_CACHE_KB: Final = 4 * 1024
"""Page cache of each reader."""

WAL_PAGES_MAX: Final = 4_000
"""The log size (16 MB) at which a commit checkpoints at once. Checkpoints otherwise wait for an
idle moment; under constant load this bounds the log, and so the start after a crash."""

WAL_BYTES_KEPT: Final = 64 * 1024 * 1024
"""A log that has grown beyond this while a reader held it is cut back by the next checkpoint."""

P = ParamSpec("P")
T = TypeVar("T")


class ConnectionThread(aiosqlite.Connection):
    """An aiosqlite connection that can run a whole function on its thread, in one call.

    aiosqlite's public methods take one statement a call, and each call is two thread switches.
    A group of writes has to be one call, for its speed and so that nothing of another caller can
    come between BEGIN and COMMIT. The library's own methods are all made of ``_execute``, which
    does just this; using it from a subclass keeps its thread, its queue and its closing, where an
    executor of our own would have to repeat them.
    """

    async def run(
        self,
        function: Callable[Concatenate[sqlite3.Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Call function(connection, …) on the thread.

        Calls run in their order. A caller that is cancelled does not stop its call.
        Raises what the function raises.
        """
        bound = partial(function, self._conn, *args, **kwargs)
        return cast("T", await self._execute(bound))  # type: ignore[no-untyped-call]


async def open_writer(
    path: Path,
    *,
    check: Callable[[sqlite3.Connection], None],
    busy_timeout_s: float,
    file_bytes_max: int | None,
) -> ConnectionThread:
    """Open the one connection that writes and checkpoints.

    check looks at the file before anything in it is changed, and raises what is wrong with it.
    Raises sqlite3.Error, StoreError.
    """
    writer = await _connect(path, busy_timeout_s)
    try:
        await writer.run(check)
        await writer.run(_set_up_writer, file_bytes_max)
    except BaseException:
        await writer.close()
        raise
    return writer


async def open_reader(path: Path, *, busy_timeout_s: float) -> ConnectionThread:
    """Open a connection that only reads. Raises sqlite3.Error."""
    reader = await _connect(path, busy_timeout_s)
    try:
        await reader.run(_set_up_reader)
    except BaseException:
        await reader.close()
        raise
    return reader


async def open_outside_reader(path: Path, *, busy_timeout_s: float) -> ConnectionThread:
    """Open a connection that cannot write, while another process may. Raises sqlite3.Error."""
    reader = await _connect(f"{path.as_uri()}?mode=ro", busy_timeout_s)
    try:
        await reader.run(_set_up_reader)
    except BaseException:
        await reader.close()
        raise
    return reader


async def _connect(path: Path | str, busy_timeout_s: float) -> ConnectionThread:
    """Connect to a path, or to a URI where it is a text."""
    # isolation_level=None: the driver begins no transactions of its own.
    connector = partial(
        sqlite3.connect,
        str(path),
        timeout=busy_timeout_s,
        isolation_level=None,
        uri=isinstance(path, str),
    )
    opened = cast("ConnectionThread", await ConnectionThread(connector, iter_chunk_size=64))
    # A damaged text fails its row's checksum and not the whole page that it is read in.
    opened.text_factory = partial(str, encoding="utf-8", errors="replace")
    return opened


def _set_up_writer(connection: sqlite3.Connection, file_bytes_max: int | None) -> None:
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise StoreUnavailable(
            f"the file system cannot hold a write-ahead log (journal mode {mode}); "
            "put the store on a local disk"
        )
    # A commit returns when its frames are on disk. macOS needs fullfsync for that to be true.
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA fullfsync = ON")
    connection.execute("PRAGMA checkpoint_fullfsync = ON")
    connection.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES_MAX}")
    connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_KEPT}")
    connection.execute(f"PRAGMA cache_size = -{WRITER_CACHE_KB}")
    # Deleted and replaced content is overwritten with zeros: erased texts leave the file's pages.
    connection.execute("PRAGMA secure_delete = ON")
    _set_up_safely(connection)
    if file_bytes_max is not None:
        (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
        connection.execute(f"PRAGMA max_page_count = {max(file_bytes_max // page_bytes, 1)}")


def _set_up_reader(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA query_only = ON")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute(f"PRAGMA cache_size = -{READER_CACHE_KB}")
    _set_up_safely(connection)


def _set_up_safely(connection: sqlite3.Connection) -> None:
    # Against a damaged or malicious file: check pages as they are read, run no code from it.
    connection.execute("PRAGMA cell_size_check = ON")
    connection.execute("PRAGMA trusted_schema = OFF")


_PRIMARY_CODE: Final = 0xFF
"""The lower byte of an error code is its kind; the rest says where it came from."""

_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_UNSTORABLE: Final = frozenset(
    {
        sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_MISMATCH,
        sqlite3.SQLITE_RANGE,
        sqlite3.SQLITE_TOOBIG,
    }
)
_LOCKED: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_CLOSED_TO_US: Final = frozenset(
    {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY}
)


def error_fields(error: Exception) -> dict[str, object]:
    """Return an error's full text for the log: the driver's message, or a bug's traceback.

    A driver's error comes without a traceback: it would always show the same place, and a log that
    prints variables too would print users' texts.
    """
    if isinstance(error, sqlite3.Error):
        return {"error": str(error), "code": getattr(error, "sqlite_errorname", "")}
    return {"exc_info": error}


def store_error(error: sqlite3.Error, where: str = "") -> StoreError:
    """Return the store's error for a driver's error; callers may see its message.

    where: the message's beginning at opening, when only operators see it.
    """
    if isinstance(error, sqlite3.InterfaceError | sqlite3.ProgrammingError):
        # Raised by the driver before SQLite was called: a value of a type that it cannot bind.
        return AppendRefused(f"{where}the store cannot hold these values")
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & _PRIMARY_CODE
    if code in _DAMAGED:
        return StoreCorrupt(f"{where}the store's file is damaged; restore it from a backup")
    if code in _UNSTORABLE:
        return AppendRefused(f"{where}the store cannot hold these values")
    if code in _LOCKED:
        return StoreUnavailable(f"{where}the store's file is locked by another program; try again")
    if code == sqlite3.SQLITE_FULL:
        return StoreUnavailable(f"{where}the store's disk is full; try again when there is room")
    if code in _CLOSED_TO_US:
        return StoreUnavailable(f"{where}the store's file cannot be written; check its permissions")
    if code == sqlite3.SQLITE_IOERR:
        return StoreUnavailable(f"{where}the store's disk fails; try again")
    return StoreUnavailable(f"{where}the store failed; try again")
