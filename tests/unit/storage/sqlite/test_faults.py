"""A disk that is full, failing, locked or damaged: one error for callers, then recovery."""

import asyncio
import re
import sqlite3
import subprocess
import sys

import pytest
from structlog.testing import capture_logs

from routing_service.storage.sqlite.store import open_sqlite_store
from routing_service.storage.store import (
    Append,
    Change,
    SessionKey,
    StoreCorrupt,
    StoreUnavailable,
)
from routing_service.storage.store_url import SqliteOptions

PAGE_BYTES = 4096


def key(number):
    """One of many sessions."""
    return SessionKey("acme", f"chat-{number:03}")


def append(number, base=0, *, size_bytes=100, state=b"state"):
    """The change of one session that follows ``base``."""
    change = Change(base + 1, 1, "Route", f"r-{base}", "", b"", b"e" * size_bytes, b"answer")
    return Append(key(number), base, change, state, "ana")


@pytest.fixture
def path(tmp_path):
    """Where the store's file is."""
    return tmp_path / "store.db"


async def outcomes(*writes):
    """Run writes at once; exceptions are results."""
    return await asyncio.gather(*writes, return_exceptions=True)


async def test_full_disk_is_unavailable_and_ends(path):
    """Callers get the error; once there is space, appends succeed without a restart."""
    store = await open_sqlite_store(path, SqliteOptions(file_bytes_max=60 * PAGE_BYTES))
    stored = 0
    with capture_logs() as logs:
        while True:
            try:
                await store.append(append(stored, size_bytes=5_000))
            except StoreUnavailable as error:
                full = error
                break
            stored += 1
    assert stored > 10
    assert str(full) == "the store's disk is full; try again when there is room"
    assert isinstance(full.__cause__, sqlite3.Error)
    assert "database or disk is full" in str(full.__cause__)
    assert [entry["event"] for entry in logs] == ["store_write_failed"]
    assert (logs[0]["code"], logs[0]["error"]) == ("SQLITE_FULL", str(full.__cause__))

    assert await store.head_revision(key(stored - 1)) == 1
    assert await store.head_revision(key(stored)) == 0
    assert len(await store.read_changes(key(0), limit=5)) == 1

    await store._engine._writer._connection.run(
        lambda c: c.execute("PRAGMA max_page_count = 100000")
    )
    await store.append(append(stored, size_bytes=5_000))
    assert await store.head_revision(key(stored)) == 1
    await store.close()

    store = await open_sqlite_store(path)
    for number in range(stored + 1):
        assert await store.head_revision(key(number)) == 1
    await store.close()


async def test_full_disk_in_a_group_stores_nothing_of_it(path):
    """Every caller of the group gets the error, and can retry."""
    store = await open_sqlite_store(path, SqliteOptions(file_bytes_max=60 * PAGE_BYTES))
    results = await outcomes(*(store.append(append(n, size_bytes=50_000)) for n in range(10)))
    assert [type(result) for result in results] == [StoreUnavailable] * 10
    assert len({id(result) for result in results}) == 10
    for number in range(10):
        assert await store.head_revision(key(number)) == 0
    await store.append(append(3))
    await store.close()


FAIL_WRITES = """
import asyncio, os, resource, sys
from routing_service.storage.open_store import open_store
from routing_service.storage.store import Append, Change, SessionKey, StoreUnavailable

def append(number, base):
    change = Change(base + 1, 1, "Route", f"r-{base}", "", b"", os.urandom(200_000), b"")
    return Append(SessionKey("acme", f"chat-{number}"), base, change, b"%d" % base, "ana")

async def heads(store):
    return [await store.head_revision(SessionKey("acme", f"chat-{n}")) for n in range(4)]

async def main():
    store = await open_store(sys.argv[1])
    for number in range(4):
        await store.append(append(number, 0))
    wal = os.stat(sys.argv[2] + "-wal").st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (wal + 100_000, limits[1]))
    results = await asyncio.gather(
        *(store.append(append(number, 1)) for number in range(4)), return_exceptions=True)
    print([type(result).__name__ for result in results], flush=True)
    print({str(result) for result in results}, flush=True)
    try:
        for number in range(200):
            await store.put_setting("acme", f"n-{number}", os.urandom(60_000))
    except StoreUnavailable as error:
        print("probe", type(error.__cause__).__name__, flush=True)
    print(await heads(store), flush=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    for number in range(4):
        await store.append(append(number, 1))
    print(await heads(store), flush=True)
    await store.close()

asyncio.run(main())
"""


def test_failing_disk_is_unavailable_and_ends(path):
    """The operating system refuses writes: callers get the error, and later writes work."""
    ended = subprocess.run(
        [sys.executable, "-c", FAIL_WRITES, f"sqlite:///{path}", str(path)],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    said = [line for line in ended.stdout.splitlines() if line.startswith(("[", "{", "probe"))]
    kinds, words, probe, before, after = [line for line in said if "error" not in line[:30]]
    assert kinds == str(["StoreUnavailable"] * 4)
    assert words == '{"the store\'s disk fails; try again"}'
    assert probe == "probe OperationalError"
    assert before == "[1, 1, 1, 1]"
    assert after == "[2, 2, 2, 2]"


async def test_file_locked_by_another_program_is_unavailable_and_ends(path):
    """A backup tool or an operator's sqlite3 shell holds the lock; reads work meanwhile."""
    store = await open_sqlite_store(path, SqliteOptions(busy_timeout_s=0))
    await store.append(append(1))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    results = await outcomes(*(store.append(append(n, n == 1)) for n in range(5)))
    assert [type(result) for result in results] == [StoreUnavailable] * 5
    assert str(results[0]) == "the store's file is locked by another program; try again"
    with pytest.raises(StoreUnavailable):
        await store.probe_write()
    with pytest.raises(StoreUnavailable):
        await store.put_setting("acme", "name", b"")
    assert await store.head_revision(key(1)) == 1
    other.execute("ROLLBACK")
    other.close()
    await store.probe_write()
    assert await outcomes(*(store.append(append(n, n == 1)) for n in range(5))) == [None] * 5
    await store.close()


async def test_write_waits_while_the_file_is_locked_for_a_moment(path):
    """Within busy_timeout_s it is a delay and not a failure."""
    store = await open_sqlite_store(path, SqliteOptions(busy_timeout_s=30))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()
    await store._engine._writer._connection.run(
        lambda c: c.set_trace_callback(lambda _statement: loop.call_soon_threadsafe(begun.set))
    )
    write = asyncio.create_task(store.append(append(1)))
    await begun.wait()
    assert not write.done()
    other.execute("ROLLBACK")
    other.close()
    await asyncio.wait_for(write, 30)
    assert await store.head_revision(key(1)) == 1
    await store.close()


async def damaged(path):
    """Make a store of many sessions with one damaged page; return the damaged sessions."""
    store = await open_sqlite_store(path)
    for number in range(60):
        await store.append(append(number, state=b"<state of %03d>" % number + b"s" * 1_500))
    await store.close()
    content = bytearray(path.read_bytes())
    place = content.index(b"<state of 030>")
    page = place - place % PAGE_BYTES
    lost = [int(n) for n in re.findall(rb"<state of (\d+)>", content[page : page + PAGE_BYTES])]
    content[page : page + PAGE_BYTES] = b"\xff" * PAGE_BYTES
    path.write_bytes(content)
    return lost


async def test_damaged_page_costs_its_sessions_alone(path):
    """A session whose state is lost gets that error, not UNAVAILABLE; the others work."""
    lost = await damaged(path)
    assert 1 <= len(lost) <= 3
    store = await open_sqlite_store(path)
    with capture_logs() as logs:
        for number in range(60):
            if number in lost:
                with pytest.raises(StoreCorrupt, match="restore it from a backup"):
                    await store.load(key(number))
            else:
                head = await store.load(key(number))
                assert head is not None
                assert head.revision == 1
    assert {entry["event"] for entry in logs} == {"store_read_failed"}
    assert {entry["code"] for entry in logs} == {"SQLITE_CORRUPT"}
    await store.close()


async def test_damaged_session_fails_alone_in_a_group(path):
    """One damaged session must not fail the others' writes."""
    lost = await damaged(path)
    store = await open_sqlite_store(path)
    results = await outcomes(*(store.append(append(number, 1)) for number in range(60)))
    for number, result in enumerate(results):
        assert isinstance(result, StoreCorrupt) == (number in lost), (number, result)
    for number in set(range(60)) - set(lost):
        assert await store.head_revision(key(number)) == 2
    await store.close()


async def test_change_beyond_its_head_is_corrupt_not_a_conflict(path):
    """A conflict would be retried forever; this needs a person."""
    store = await open_sqlite_store(path)
    await store.append(append(1))
    await store.append(append(1, 1))
    await store._engine._writer._connection.run(
        lambda c: c.execute("UPDATE sessions SET revision = 1").fetchall()
    )
    fresh = Append(key(1), 1, Change(2, 1, "Route", "new", "", b"", b"", b""), b"", "ana")
    with pytest.raises(StoreCorrupt, match="changes after its head"):
        await store.append(fresh)
    (result, *others) = await outcomes(
        store.append(fresh), *(store.append(append(number)) for number in range(2, 9))
    )
    assert isinstance(result, StoreCorrupt)
    assert others == [None] * 7
    await store.close()


async def test_drivers_words_never_reach_a_caller(path):
    """They contain paths and statements, which only the log has."""
    store = await open_sqlite_store(path)
    await store._engine._writer._connection.run(lambda c: c.execute("DROP TABLE tasks").fetchall())
    with capture_logs() as logs, pytest.raises(StoreUnavailable) as raised:
        await store.find_task("acme", "task-1")
    assert str(raised.value) == "the store failed; try again"
    assert logs[0]["error"] == "no such table: tasks"
    assert logs[0]["read"] == "find_task"
    await store.close()
