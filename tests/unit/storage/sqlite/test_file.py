"""The SQLite store's file: its lock, its format checks, and its migrations."""

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
import sys

import pytest

from routing_service.storage.open_store import open_store
from routing_service.storage.sqlite import schema as sqlite_schema
from routing_service.storage.sqlite import store as sqlite_store
from routing_service.storage.store import (
    CURSOR_START,
    Append,
    Change,
    CursorInvalid,
    Head,
    SchemaTooNew,
    SessionKey,
    StoreCorrupt,
    StoreUnavailable,
)

KEY = SessionKey("acme", "chat-1")

HOLD_OPEN = """
import asyncio, sys
from routing_service.storage.open_store import open_store

async def main():
    store = await open_store(sys.argv[1])
    print("open", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""

NEVER_CLOSE = """
import asyncio, sys
from routing_service.storage.open_store import open_store

async def main():
    store = await open_store(sys.argv[1])
    await store.probe_write()
    if sys.argv[2] == "raise":
        raise SystemExit(3)

asyncio.run(main())
print("done", flush=True)
"""


def append(base):
    """The change that follows ``base``."""
    change = Change(base + 1, 10, "Route", f"r-{base}", "", b"", b"events", b"answer")
    return Append(KEY, base, change, b"state %d" % (base + 1), "ana")


@pytest.fixture
def path(tmp_path):
    """Where the store's file will be."""
    return tmp_path / "store.db"


@pytest.fixture
def url(path):
    """The store's URL."""
    return f"sqlite:///{path}"


async def make_file(url, revisions=3):
    """Leave a closed store with one session."""
    store = await open_store(url)
    for base in range(revisions):
        await store.append(append(base))
    await store.close()


async def test_second_process_is_refused_and_told_who_has_the_file(url, path):
    """Two servers with separate caches would answer differently."""
    holder = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLD_OPEN, url, stdout=subprocess.PIPE
    )
    try:
        assert await holder.stdout.readline() == b"open\n"
        with pytest.raises(StoreUnavailable) as raised:
            await open_store(url)
        assert f'store file "{path}" is in use by process {holder.pid}' in str(raised.value)
        assert "one server uses a file at a time" in str(raised.value)
    finally:
        holder.send_signal(signal.SIGKILL)
        await holder.wait()
    # The operating system releases the lock: no file has to be removed by hand.
    store = await open_store(url)
    await store.append(append(0))
    await store.close()


async def test_second_store_in_this_process_is_refused(url):
    """The rule is one writer per file, wherever the second one is."""
    store = await open_store(url)
    with pytest.raises(StoreUnavailable, match=f"in use by process {os.getpid()}"):
        await open_store(url)
    await store.append(append(0))
    await store.close()
    store = await open_store(url)
    assert await store.head_revision(KEY) == 1
    await store.close()


async def test_link_to_the_file_is_the_same_file(url, path, tmp_path):
    """The lock is on the file's real path."""
    store = await open_store(url)
    link = tmp_path / "link.db"
    link.symlink_to(path)
    with pytest.raises(StoreUnavailable, match="in use"):
        await open_store(f"sqlite:///{link}")
    await store.close()


async def test_failed_opening_lets_go_of_everything(url, path, monkeypatch):
    """After any failure, the next attempt finds the file free, and no thread blocks the exit."""
    await make_file(url)
    for name in ("open_writer", "open_reader", "GroupWriter"):
        with monkeypatch.context() as patch:

            def fail(*_args, **_kwargs):
                raise OSError("planted")

            patch.setattr(sqlite_store, name, fail)
            with pytest.raises(OSError, match="planted"):
                await open_store(url)
    store = await open_store(url)
    assert await store.head_revision(KEY) == 3
    await store.close()


@pytest.mark.parametrize(("ending", "code"), [("return", 0), ("raise", 3)])
def test_process_that_never_closes_its_store_still_exits(url, ending, code):
    """The driver's threads would otherwise keep the process alive."""
    ended = subprocess.run(
        [sys.executable, "-c", NEVER_CLOSE, url, ending],
        timeout=30,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == code, ended.stderr
    assert "store_not_closed" in ended.stdout + ended.stderr


async def test_close_leaves_one_file_with_everything_in_it(url, path):
    """It can be copied with cp while no server runs."""
    await make_file(url)
    assert sorted(file.name for file in path.parent.iterdir()) == ["store.db", "store.db.lock"]
    copy = path.with_name("copy.db")
    shutil.copyfile(path, copy)
    store = await open_store(f"sqlite:///{copy}")
    assert await store.load(KEY) == Head(3, b"state 3")
    await store.close()


async def test_cursor_ahead_of_a_restored_backup_is_refused(url, path):
    """As a position it would wait, and then skip new changes."""
    await make_file(url, revisions=2)
    backup = path.with_name("backup.db")
    shutil.copyfile(path, backup)
    store = await open_store(url)
    for base in range(2, 5):
        await store.append(append(base))
    cursor = await store.log_end()
    await store.close()
    shutil.copyfile(backup, path)
    store = await open_store(url)
    with pytest.raises(CursorInvalid, match="restored"):
        await store.read_log(cursor, 10)
    page, _ = await store.read_log(CURSOR_START, 10)
    assert len(page) == 2
    await store.close()


async def test_commit_syncs_the_log(url):
    """Durability depends on it."""
    store = await open_store(url)

    def pragmas(connection):
        names = ("journal_mode", "synchronous", "fullfsync", "checkpoint_fullfsync")
        return [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names]

    assert await store._engine._writer._connection.run(pragmas) == ["wal", 2, 1, 1]
    await store.close()


async def test_readers_cannot_write_or_checkpoint(url):
    """One connection writes and checkpoints; two could lose commits."""
    store = await open_store(url)
    for reader in (store._engine._rows, store._engine._pages):

        def auto_checkpoint(connection):
            return connection.execute("PRAGMA wal_autocheckpoint").fetchone()[0]

        assert await reader.run(auto_checkpoint) == 0
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            await reader.run(lambda connection: connection.execute("DELETE FROM changes"))
    await store.close()


@pytest.mark.parametrize("content", [b"not a database at all" * 300, b"\0" * 5_000, b"{}"])
async def test_file_that_is_no_database_is_refused_and_left_alone(url, path, content):
    """A wrong path must not destroy a file."""
    path.write_bytes(content)
    with pytest.raises(StoreCorrupt, match=r"store\.db"):
        await open_store(url)
    assert path.read_bytes() == content


async def test_database_of_another_application_is_refused_and_left_alone(url, path):
    """Its tables are not ours to add to."""
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE theirs (a)")
    other.commit()
    other.close()
    before = path.read_bytes()
    with pytest.raises(StoreCorrupt, match="another application"):
        await open_store(url)
    assert path.read_bytes() == before


async def test_empty_file_is_taken(url, path):
    """As made by mktemp or a mounted volume."""
    path.touch()
    await make_file(url)
    store = await open_store(url)
    assert await store.head_revision(KEY) == 3
    await store.close()


async def test_file_cut_short_is_refused(url, path):
    """As after a copy that ran out of space."""
    await make_file(url)
    path.write_bytes(path.read_bytes()[: 4096 * 3 + 100])
    with pytest.raises(StoreCorrupt):
        await open_store(url)


async def test_folder_instead_of_a_file_is_refused(tmp_path):
    """The error names the path."""
    with pytest.raises(StoreUnavailable) as raised:
        await open_store(f"sqlite:///{tmp_path}")
    assert f'store file "{tmp_path}": the store\'s file cannot be written' in str(raised.value)


async def test_folder_that_cannot_be_made_is_named(tmp_path):
    """A file has the folder's name."""
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable, match="check the path and its permissions"):
        await open_store(f"sqlite:///{tmp_path}/file/deep/store.db")


async def test_file_of_a_newer_release_is_refused_and_left_alone(url, path):
    """This release could misread it; the error says what to do."""
    await make_file(url)
    newer = len(sqlite_schema.migrations()) + 1
    other = sqlite3.connect(path)
    other.execute(f"PRAGMA user_version = {newer}")
    other.close()
    before = path.read_bytes()
    with pytest.raises(SchemaTooNew) as raised:
        await open_store(url)
    assert (raised.value.found, raised.value.supported) == (newer, newer - 1)
    assert "run the release that wrote it, or a newer one" in str(raised.value)
    assert path.read_bytes() == before


async def test_file_says_whose_it_is_and_how_new(url, path):
    """For operators, file(1) and the checks above."""
    await make_file(url)
    other = sqlite3.connect(path)
    assert other.execute("PRAGMA application_id").fetchone() == (sqlite_schema.APPLICATION_ID,)
    assert other.execute("PRAGMA user_version").fetchone() == (len(sqlite_schema.migrations()),)
    other.close()


async def test_older_file_is_brought_up_to_date_with_its_data(url, monkeypatch):
    """A later release adds its migration and keeps what is there."""
    await make_file(url)
    more = (*sqlite_schema.migrations(), "ALTER TABLE sessions ADD COLUMN note TEXT;")
    monkeypatch.setattr(sqlite_schema, "migrations", lambda: more)
    store = await open_store(url)
    assert await store.load(KEY) == Head(3, b"state 3")
    await store.append(append(3))
    notes = await store._engine._rows.run(
        lambda connection: connection.execute("SELECT note FROM sessions").fetchall()
    )
    assert notes == [(None,)]
    await store.close()


async def test_migration_that_fails_leaves_the_version_before_it(url, path, monkeypatch):
    """A migration is applied completely or not at all, so that it can be retried."""
    await make_file(url)
    with monkeypatch.context() as patch:
        broken = "CREATE TABLE half (a); CREATE TABLE half (a);"
        more = (*sqlite_schema.migrations(), broken)
        patch.setattr(sqlite_schema, "migrations", lambda: more)
        with pytest.raises(StoreUnavailable):
            await open_store(url)
    other = sqlite3.connect(path)
    assert other.execute("PRAGMA user_version").fetchone() == (len(sqlite_schema.migrations()),)
    assert not other.execute("SELECT * FROM sqlite_schema WHERE name = 'half'").fetchall()
    other.close()
    store = await open_store(url)
    assert await store.head_revision(KEY) == 3
    await store.close()
