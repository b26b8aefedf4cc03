"""Sessions read together: one read for many callers, each with its own result."""

import asyncio
import sqlite3

import pytest

from routing_service.storage.in_hand import BUSY_WRITES_MIN
from routing_service.storage.sqlite import heads as sqlite_heads
from routing_service.storage.sqlite.bounds import SqliteBounds
from routing_service.storage.sqlite.store import open_sqlite_store
from routing_service.storage.store import Append, Change, Head, SessionKey, StoreUnavailable


def key(number):
    """One of many sessions, of two tenants."""
    return SessionKey(f"tenant-{number % 2}", f"chat-{number}")


ENDLESS_WAIT = SqliteBounds(read_company_pace_s=600, read_company_s_max=600)
"""A wait for other reads that only they end."""


@pytest.fixture
def bounds():
    """The store's bounds; a test that needs others parametrizes this."""
    return SqliteBounds()


@pytest.fixture
async def store(tmp_path, bounds):
    """A store of ten sessions."""
    store = await open_sqlite_store(tmp_path / "store.db", bounds=bounds)
    for number in range(10):
        change = Change(1, 10, "Route", f"r-{number}", "", b"", b"events", b"answer")
        await store.append(Append(key(number), 0, change, b"state-%d" % number, "ana"))
    yield store
    await store.close()


@pytest.fixture
async def statements(store):
    """Every statement that reads rows, as a growing list."""
    seen = []
    await store._engine._rows.run(lambda c: c.set_trace_callback(seen.append))
    return seen


def many_write(store, count):
    """Simulate that many callers waiting for their writes."""
    for _ in range(count):
        store._engine._writer.in_hand.came()


async def test_each_caller_gets_its_own_session(store, statements):
    """This includes several callers of one session, and a session that does not exist."""
    numbers = [*range(12), 3, 3]
    heads = await asyncio.gather(*(store.load(key(number)) for number in numbers))
    assert heads == [Head(1, b"state-%d" % n) if n < 10 else None for n in numbers]
    assert len(statements) == 1


async def test_a_read_alone_waits_for_nobody(store, statements):
    """Three in a row are three reads."""
    for number in range(3):
        assert await store.load(key(number)) == Head(1, b"state-%d" % number)
    assert len(statements) == 3


@pytest.mark.parametrize("bounds", [ENDLESS_WAIT])
async def test_where_many_write_a_read_waits_for_company(store, statements):
    """First messages come one after the other: each would be read by itself. Closing ends it."""
    many_write(store, 64)
    loading = []
    for number in range(10):
        loading.append(asyncio.create_task(store.load(key(number))))
        for _ in range(3):
            await asyncio.sleep(0)
    assert statements == []
    async with asyncio.timeout(30):
        await store.close()
        heads = await asyncio.gather(*loading)
    assert heads == [Head(1, b"state-%d" % number) for number in range(10)]
    assert len(statements) == 1


@pytest.mark.parametrize("bounds", [ENDLESS_WAIT])
async def test_where_few_write_a_read_waits_for_nobody(store):
    """A lone user's first message least of all."""
    many_write(store, BUSY_WRITES_MIN - 1)
    async with asyncio.timeout(30):
        await store.load(key(1))
        await asyncio.gather(*(store.load(key(number)) for number in range(10)))


async def test_reads_that_are_rare_wait_in_vain_once(store):
    """If the cache answers nearly every load, no other reads come."""
    many_write(store, 64)
    await store.load(key(1))
    store._engine._heads._bounds = ENDLESS_WAIT
    async with asyncio.timeout(30):
        for number in range(5):
            await store.load(key(number))


@pytest.mark.parametrize("bounds", [SqliteBounds(reads_max=4)])
async def test_a_read_is_bounded(store, statements):
    """More than that go into the next read."""
    heads = await asyncio.gather(*(store.load(key(number)) for number in range(10)))
    assert heads == [Head(1, b"state-%d" % number) for number in range(10)]
    assert len(statements) == 3


async def test_a_failure_is_told_to_all_who_waited_and_to_nobody_else(store, monkeypatch):
    """The next read is tried again."""

    def fail(_connection, _keys):
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as patched:
        patched.setattr(sqlite_heads, "load_heads", fail)
        outcomes = await asyncio.gather(
            *(store.load(key(number)) for number in range(5)), return_exceptions=True
        )
    assert [type(outcome) for outcome in outcomes] == [StoreUnavailable] * 5
    assert await store.load(key(1)) == Head(1, b"state-1")


async def test_a_caller_that_leaves_takes_nobody_with_it(store):
    """The others of its read get their results."""
    leaving = asyncio.create_task(store.load(key(1)))
    staying = asyncio.create_task(store.load(key(2)))
    await asyncio.sleep(0)
    leaving.cancel()
    assert await staying == Head(1, b"state-2")
    with pytest.raises(asyncio.CancelledError):
        await leaving
