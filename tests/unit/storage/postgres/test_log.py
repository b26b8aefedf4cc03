"""The log on PostgreSQL: late commits of long transactions, restored dumps, and delays."""

import asyncio
import random

import psycopg
import pytest
from structlog.testing import capture_logs

from routing_service.storage.open_store import postgres_place
from routing_service.storage.postgres.bounds import DEFAULT_BOUNDS, PostgresBounds
from routing_service.storage.postgres.store import open_postgres_store
from routing_service.storage.store import CURSOR_START, CursorInvalid
from tests.engines.appends import append, audit, key
from tests.engines.postgres_databases import database_on


@pytest.fixture(scope="module")
def database(own_postgres):
    """A database on a separate server: an open transaction delays the logs of others."""
    with database_on(own_postgres.url()) as made:
        yield made


@pytest.fixture
async def open_replica(database, tmp_path):
    """Return a function that opens one more store on the test's data."""
    opened = []

    async def open_it(bounds=DEFAULT_BOUNDS):
        # Not by open_store(): postgres_database makes its stores wait longer.
        place = postgres_place(database.store_url(tmp_path, "hints=off"))
        store = await open_postgres_store(place, bounds=bounds)
        opened.append(store)
        return store

    yield open_it
    for store in opened:
        await store.close()
    database.clear(tmp_path)


@pytest.fixture
def schema(database, tmp_path):
    """The schema of the test's tables."""
    return database.schema(tmp_path)


CALL = (
    "SELECT * FROM {}.append_group(%s::text[], %s::text[], %s::bigint[], '{{bo}}', '{{s}}', "
    "'{{1}}', '{{Route}}', %s::text[], '{{\"\"}}', '{{f}}', '{{e}}', '{{a}}', "
    "'{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}')"
)


async def append_in(connection, schema, number, base):
    """Append within a transaction that the test commits later."""
    tenant, session_id = key(number)
    await connection.execute(
        CALL.format(schema), ([tenant], [session_id], [base], [f"request-{base + 1}"])
    )


async def rest_of_log(store, cursor=CURSOR_START):
    """Read the log to its end."""
    found = []
    while True:
        page, cursor = await store.read_log(cursor, 50)
        if not page:
            return found, cursor
        found += [(changed.session_id, change.revision) for changed, change in page]


async def test_change_that_commits_late_is_not_passed_over(open_replica, database, schema):
    """Its number is lower than that of a change that the reader has already seen."""
    store = await open_replica()
    async with await psycopg.AsyncConnection.connect(database.url) as slow:
        await append_in(slow, schema, 1, 0)
        await store.append(append(2))
        found, cursor = await rest_of_log(store)
        assert found == []
        await slow.commit()
    later, _ = await rest_of_log(store, cursor)
    assert later == [("chat-0001", 1), ("chat-0002", 1)]


async def keep_committing_late(database, schema, numbers, dice, rounds):
    """Write in transactions that stay open for a while."""
    async with await psycopg.AsyncConnection.connect(database.url) as connection:
        for base in range(rounds):
            for number in numbers:
                await append_in(connection, schema, number, base)
                await asyncio.sleep(dice.random() * 0.03)
                await connection.commit()


async def read_by_position(database, schema, done):
    """Read the log naively: everything after the last position seen."""
    found, last = [], 0
    async with await psycopg.AsyncConnection.connect(database.url, autocommit=True) as connection:
        while True:
            ended = done.is_set()
            cursor = await connection.execute(
                f"SELECT position, session_id, revision FROM {schema}.changes "
                "WHERE position > %s ORDER BY position",
                (last,),
            )
            rows = await cursor.fetchall()
            found += [(session_id, revision) for _, session_id, revision in rows]
            last = rows[-1][0] if rows else last
            if ended:
                return found
            await asyncio.sleep(0.002)


async def read_by_log(store, done):
    """Read the log as the store does."""
    found, cursor = [], CURSOR_START
    while True:
        ended = done.is_set()
        page, cursor = await store.read_log(cursor, 7)
        found += [(changed.session_id, change.revision) for changed, change in page]
        if ended and not page:
            return found


async def test_reader_beside_long_transactions_misses_nothing(open_replica, database, schema):
    """Reading by position alone misses changes under the same load, which is the control."""
    store = await open_replica()
    dice = random.Random(5)
    done = asyncio.Event()
    writers, sessions_each, rounds = 8, 2, 8
    async with asyncio.timeout(50), asyncio.TaskGroup() as group:
        by_log = group.create_task(read_by_log(store, done))
        by_position = group.create_task(read_by_position(database, schema, done))
        async with asyncio.TaskGroup() as writing:
            for writer in range(writers):
                numbers = range(writer * sessions_each, (writer + 1) * sessions_each)
                writing.create_task(keep_committing_late(database, schema, numbers, dice, rounds))
            for number in range(100, 130):
                writing.create_task(store.append(append(number)))
        done.set()
    total = writers * sessions_each * rounds + 30
    found = by_log.result()
    assert len(found) == len(set(found)) == total
    for number in range(writers * sessions_each):
        revisions = [revision for name, revision in found if name == key(number).session_id]
        assert revisions == list(range(1, rounds + 1))
    assert len(set(by_position.result())) < total


async def test_sessions_changes_keep_their_order_across_transactions(
    open_replica, database, schema
):
    """A transaction may get its number first and the session's lock second."""
    store = await open_replica()
    await store.append(append(5))
    async with await psycopg.AsyncConnection.connect(database.url) as early:
        await append_in(early, schema, 6, 0)
        await store.append(append(5, 1))
        await append_in(early, schema, 5, 2)
        ((own, before),) = await (
            await early.execute(
                "SELECT pg_current_xact_id()::text::bigint, "
                f"(SELECT label FROM {schema}.changes WHERE session_id = %s AND revision = 2)",
                (key(5).session_id,),
            )
        ).fetchall()
        assert own < before, "the case that this test is about"
        await early.commit()
    found, _ = await rest_of_log(store)
    assert [revision for name, revision in found if name == key(5).session_id] == [1, 2, 3]
    assert (key(6).session_id, 1) in found


async def test_read_waits_a_little_for_what_is_held_back(open_replica, database, schema):
    """A caller that appended and then reads the log usually finds its own change."""
    store = await open_replica()
    async with await psycopg.AsyncConnection.connect(database.url) as slow:
        await append_in(slow, schema, 1, 0)
        await store.append(append(2))
        await store.append_audit(audit(2))

        async def commit_soon():
            await asyncio.sleep(0.05)
            await slow.commit()

        (page, _), (entries, _), end, _ = await asyncio.gather(
            store.read_log(CURSOR_START, 10),
            store.read_audit("acme", None, CURSOR_START, 10),
            store.log_end(),
            commit_soon(),
        )
        assert [changed for changed, _ in page] == [key(1), key(2)]
        assert len(entries) == 1
        assert (await store.read_log(end, 10))[0] == []


async def test_read_does_not_wait_for_a_full_page(open_replica, database, schema):
    """Held-back rows after the page do not delay it."""
    store = await open_replica(PostgresBounds(held_back_wait_s=60.0))
    for number in range(4):
        await store.append(append(number))
    async with await psycopg.AsyncConnection.connect(database.url) as slow:
        await append_in(slow, schema, 7, 0)
        await store.append(append(5))
        async with asyncio.timeout(30):
            page, _ = await store.read_log(CURSOR_START, 4)
        assert len(page) == 4


async def test_log_that_stands_still_is_told_of(open_replica, database, schema):
    """The warning names the transaction that holds it back, and is not repeated at every read."""
    store = await open_replica()
    async with await psycopg.AsyncConnection.connect(database.url) as slow:
        await append_in(slow, schema, 1, 0)
        ((xid,),) = await (await slow.execute("SELECT pg_current_xact_id()::text")).fetchall()
        await store.append(append(2))
        with capture_logs() as logs:
            for _ in range(3):
                page, _ = await store.read_log(CURSOR_START, 10)
                assert page == []
        told = [entry for entry in logs if entry["event"] == "store_log_held_back"]
        assert [entry["by_transaction"] for entry in told] == [int(xid)]


async def test_end_of_the_log_leaves_out_nothing_that_commits_later(open_replica, database, schema):
    """A watcher takes the end, then loads a session, and must get every change in between."""
    store = await open_replica()
    await store.append(append(1))
    async with await psycopg.AsyncConnection.connect(database.url) as slow:
        await append_in(slow, schema, 2, 0)
        await store.append(append(3))
        end = await store.log_end()
        await slow.commit()
    page, _ = await store.read_log(end, 10)
    assert key(2) in [changed for changed, _ in page]


async def test_audit_that_commits_late_is_not_passed_over(open_replica, database, schema):
    """An operator must see every refusal."""
    store = await open_replica()
    async with await psycopg.AsyncConnection.connect(database.url) as slow:
        await slow.execute(
            f"SELECT {schema}.append_audit('{{acme}}', '{{chat-0001}}', '{{1}}', '{{0}}', "
            "'{k}', '{r}', '{u}', '{late}')"
        )
        await store.append_audit(audit(2, data=b"early"))
        page, cursor = await store.read_audit("acme", None, CURSOR_START, 10)
        assert page == []
        await slow.commit()
    page, _ = await store.read_audit("acme", None, cursor, 10)
    assert [entry.data for entry in page] == [b"late", b"early"]


async def test_dump_restored_into_another_server_is_read_on(open_replica, database, schema):
    """Transaction numbers may be far lower there: new changes still come after the old ones."""
    store = await open_replica()
    await store.append(append(1))
    _, cursor = await store.read_log(CURSOR_START, 10)
    await store.append(append(2))
    await store.append_audit(audit())
    await store.close()
    for table, column in (("changes", "label"), ("audit", "label"), ("sessions", "log_label")):
        database.execute(f"UPDATE {schema}.{table} SET {column} = {column} + 1000000")
    with capture_logs() as logs:
        store, other = await asyncio.gather(open_replica(), open_replica())
    assert "store_log_moved_up" in [entry["event"] for entry in logs]
    await store.append(append(3))
    await other.append(append(1, 1))
    found, _ = await rest_of_log(store)
    assert found == [("chat-0001", 1), ("chat-0002", 1), ("chat-0003", 1), ("chat-0001", 2)]
    # A cursor from before the dump starts at its beginning: changes may repeat, none is lost.
    later, _ = await rest_of_log(store, cursor)
    assert later == found
    await store.append_audit(audit(data=b"new"))
    entries, _ = await store.read_audit("acme", None, CURSOR_START, 10)
    assert [entry.data for entry in entries] == [b"why", b"new"]
    with capture_logs() as logs:
        await open_replica()
    assert "store_log_moved_up" not in [entry["event"] for entry in logs]


async def test_cursor_ahead_of_a_restored_store_is_refused(open_replica, database, schema):
    """A watcher that read from there would skip new changes of the older copy."""
    store = await open_replica()
    for base in range(5):
        await store.append(append(1, base))
    end = await store.log_end()
    database.execute(
        f"DELETE FROM {schema}.changes WHERE revision > 2",
        f"UPDATE {schema}.sessions SET revision = 2",
        f"SELECT setval('{schema}.changes_position_seq', max(position)) FROM {schema}.changes",
    )
    with pytest.raises(CursorInvalid, match="ahead of this store"):
        await store.read_log(end, 10)


@pytest.mark.parametrize("spoiled", [b"\xff" * 8, b"\0" * 8])
async def test_cursor_with_damaged_numbers_is_refused(open_replica, spoiled):
    """Page tokens come back from callers and may be anything."""
    store = await open_replica()
    await store.append(append())
    end = await store.log_end()
    with pytest.raises(CursorInvalid):
        await store.read_log(end[:9] + b"\xff" * 8 + spoiled, 10)
    with pytest.raises(CursorInvalid):
        await store.read_log(end[:-1], 10)
