"""A SQLite store as one file, taken while the server writes; and put back.

A backup is one moment of the store, and holds all that was acknowledged before it began. It gets
its name only once it is checked and on disk. A file is put back only where no server uses it, and
never next to the log of another one.

The copy is made by VACUUM INTO on a connection that cannot write: one consistent read while the
server keeps writing. It leaves out the free pages, and with them the remains of erased content.
Copying the file itself would miss what is in its log.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from routing_service.storage.sqlite.connection import store_error
from routing_service.storage.sqlite.file_lock import (
    FileLockedError,
    StoreFileLock,
    make_private,
)
from routing_service.storage.sqlite.schema import check_owner, migrations, version_of
from routing_service.storage.store import StoreCorrupt, StoreUnavailable

BUSY_TIMEOUT_S: Final = 60.0
"""How long it waits for a locked file, for example while a crashed server's log is recovered."""

POSITIONS_SKIPPED: Final = 2**40
"""How far a restore raises the next positions: beyond all that could have been written since the
backup (years at the fastest), with room for millions of restores."""

_PROBLEMS_SHOWN: Final = 1


@dataclass(frozen=True, slots=True)
class BackedUp:
    """The content of a backup. size_bytes: of the file."""

    path: str
    size_bytes: int
    sessions: int
    changes: int
    schema_version: int


def backup_sqlite(source: Path, target: Path, *, overwrite: bool = False) -> BackedUp:
    """Write the store's present state to a file of its own. Blocks; other processes continue.

    Only its owner may read the file. A target that is a symbolic link is refused.
    overwrite: replace an existing file, which stays whole until then.
    Raises StoreUnavailable (nothing there, no room, no right), StoreCorrupt (the copy does not
    check out; nothing is left of it), SchemaTooNew.
    """
    if target.is_symlink():
        raise StoreUnavailable(
            f'file "{target}" is a symbolic link, and a backup follows none; name the file itself'
        )
    # Of the target only the folder: the file's own name is used as it is given.
    source, target = source.resolve(), target.parent.resolve() / target.name
    if not source.is_file():
        raise StoreUnavailable(f'there is no store file "{source}"; check the path')
    if source == target:
        raise StoreUnavailable(f'file "{target}" is the store itself; name another file')
    if not target.parent.is_dir():
        raise StoreUnavailable(f'there is no folder "{target.parent}"; make it first')
    _refuse_existing(target, overwrite=overwrite)
    partial = target.with_name(f"{target.name}.partial")
    with _telling(f'backup of "{source}"'), _removed_unless_renamed(partial):
        with closing(_connect(source)) as reader:
            _check(reader, source)
            make_private(partial, exclusive=True)
            reader.execute("VACUUM INTO ?", (str(partial),))
        backed_up = _checked(partial, target)
        _move_durably(partial, target, overwrite=overwrite)
    return backed_up


def restore_sqlite(backup: Path, target: Path, *, overwrite: bool = False) -> BackedUp:
    """Put a backup in a store's place. Blocks.

    overwrite: keep an existing store as NAME.before-restore and put the backup in its place.
    Cursors stay valid, also those given out after the backup was made: later writes come after all
    of them. Raises as ``backup_sqlite``, and StoreUnavailable if a server uses the store.
    """
    backup, target = backup.resolve(), target.resolve()
    if not backup.is_file():
        raise StoreUnavailable(f'there is no backup "{backup}"; check the path')
    if backup == target:
        raise StoreUnavailable(f'file "{target}" is the backup itself; name the store\'s file')
    partial = target.with_name(f"{target.name}.partial")
    with _telling(f'restoring "{target}"'):
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target), _removed_unless_renamed(partial):
            _refuse_existing(target, overwrite=overwrite)
            with closing(_connect(backup)) as reader:
                _check(reader, backup)
                # Not a copy of the file: this includes the content of its log, and reads
                # backups on read-only media.
                make_private(partial, exclusive=True)
                reader.execute("VACUUM INTO ?", (str(partial),))
            with closing(sqlite3.connect(partial, isolation_level=None)) as writer:
                _move_positions_up(writer)
            restored = _checked(partial, target)
            _set_aside(target)
            _move_durably(partial, target, overwrite=True)
    return restored


def _move_positions_up(connection: sqlite3.Connection) -> None:
    """Raise the next positions beyond any that a cursor can name."""
    connection.execute("BEGIN IMMEDIATE")
    for table in ("changes", "audit"):
        row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (table,))
        (seq,) = row.fetchone() or (0,)
        connection.execute("DELETE FROM sqlite_sequence WHERE name = ?", (table,))
        connection.execute(
            "INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)",
            (table, seq + POSITIONS_SKIPPED),
        )
    connection.execute("COMMIT")


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{path.as_uri()}?mode=ro", uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None
    )


def _check(connection: sqlite3.Connection, path: Path) -> None:
    check_owner(connection, str(path))
    if version_of(connection) == 0:
        raise StoreCorrupt(f'file "{path}" has no tables, so it is not a store')
    assert version_of(connection) <= len(migrations())


def _checked(partial: Path, target: Path) -> BackedUp:
    """Read the whole copy once: every page, every index. Raises StoreCorrupt."""
    with closing(_connect(partial)) as copy:
        found = copy.execute(f"PRAGMA integrity_check({_PROBLEMS_SHOWN})").fetchone()[0]
        if found != "ok":
            raise StoreCorrupt(f"the copy is damaged ({found}); the store it is of may be, too")
        (sessions,) = copy.execute("SELECT count(*) FROM sessions").fetchone()
        (changes,) = copy.execute("SELECT count(*) FROM changes").fetchone()
        version = version_of(copy)
    return BackedUp(str(target), partial.stat().st_size, sessions, changes, version)


@contextmanager
def _locked(target: Path) -> Iterator[None]:
    """Keep servers out while the file changes."""
    try:
        lock = StoreFileLock(target, make=False)
    except FileLockedError as error:
        owner = f"process {error.owner}" if error.owner else "another process"
        raise StoreUnavailable(
            f'store file "{target}" is in use by {owner}; stop it before restoring'
        ) from error
    try:
        yield
    finally:
        lock.release()


def _refuse_existing(target: Path, *, overwrite: bool) -> None:
    if os.path.lexists(target) and not overwrite:
        raise StoreUnavailable(
            f'file "{target}" is there already; name another, or say --overwrite'
        )


def _set_aside(target: Path) -> None:
    """Move a store out of the way with its log, which would damage any other file."""
    for suffix in ("", "-wal", "-shm"):
        old = target.with_name(target.name + suffix)
        kept = target.with_name(f"{target.name}.before-restore{suffix}")
        kept.unlink(missing_ok=True)
        if old.exists():
            old.replace(kept)


def _move_durably(partial: Path, target: Path, *, overwrite: bool) -> None:
    """Give the file its name once its content is on disk."""
    with partial.open("rb+") as written:
        os.fsync(written.fileno())
    _refuse_existing(target, overwrite=overwrite)
    partial.replace(target)
    if os.name == "posix":
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextmanager
def _removed_unless_renamed(partial: Path) -> Iterator[None]:
    """Delete a partial copy, also one of a run that was killed."""
    partial.unlink(missing_ok=True)
    try:
        yield
    finally:
        with suppress(OSError):
            for suffix in ("", "-wal", "-shm", "-journal"):
                partial.with_name(partial.name + suffix).unlink(missing_ok=True)


@contextmanager
def _telling(what: str) -> Iterator[None]:
    """Raise the store's errors for those of the driver and the system."""
    try:
        yield
    except sqlite3.Error as error:
        raise store_error(error, f"{what}: ") from error
    except OSError as error:
        raise StoreUnavailable(
            f"{what}: {error.strerror} ({error.filename}); check the path, its permissions and "
            "the room on its disk"
        ) from error
