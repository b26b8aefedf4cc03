"""Groups of writes: one statement for all of them, and an own result for each."""

import asyncio
import random
import time
from contextlib import asynccontextmanager

import psycopg
import pytest
from structlog.testing import capture_logs

from routing_service.storage.open_store import open_store, postgres_place
from routing_service.storage.postgres.bounds import PostgresBounds
from routing_service.storage.postgres.rows import Rows
from routing_service.storage.postgres.store import open_postgres_store
from routing_service.storage.postgres.writer import RETRY_ATTEMPTS_MAX, GroupWriter
from routing_service.storage.store import (
    CURSOR_START,
    RequestSeen,
    RevisionConflict,
    StoreCorrupt,
    StoreUnavailable,
    TaskTaken,
)
from tests.engines.appends import after, append, audit, key, outcomes, task


@pytest.fixture
async def open_replica(postgres_database, tmp_path):
    """Return a function that opens one more store on the test's data, with options."""
    opened = []

    async def open_it(query="hints=off", bounds=None):
        url = postgres_database.store_url(tmp_path, query)
        if bounds is None:
            store = await open_store(url)
        else:
            store = await open_postgres_store(postgres_place(url), bounds=bounds)
        opened.append(store)
        return store

    yield open_it
    for store in opened:
        await store.close()
    postgres_database.clear(tmp_path)


@pytest.fixture
def schema(postgres_database, tmp_path):
    """The schema of the test's tables."""
    return postgres_database.schema(tmp_path)


@pytest.fixture
async def transaction(postgres_database, schema):
    """Return a function that opens another client's transaction on the same tables."""

    @asynccontextmanager
    async def open_it():
        async with await psycopg.AsyncConnection.connect(postgres_database.url) as connection:
            await connection.execute(f"SET search_path TO {schema}")
            yield connection

    return open_it


@pytest.fixture
def labels(postgres_database, schema):
    """Return a function that counts the transactions of the changes."""

    def count():
        ((number,),) = postgres_database.execute(
            f"SELECT count(DISTINCT label) FROM {schema}.changes"
        )
        return number

    return count


async def wait_until_blocked(connection, count=1):
    """Wait until that many of the test's other connections wait for a lock."""
    ends_s = time.monotonic() + 10
    while time.monotonic() < ends_s:
        cursor = await connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND wait_event_type = 'Lock' AND pid <> pg_backend_pid()"
        )
        ((found,),) = await cursor.fetchall()
        if found >= count:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("nothing waits for a lock")


async def test_where_many_write_a_group_waits_for_company(open_replica, labels):
    """Callers arrive one by one: without the wait, the first write would go alone."""
    store = await open_replica()
    await asyncio.gather(*(store.append(append(n)) for n in range(64)))
    before = labels()
    await asyncio.gather(*(after(n, store.append(append(n, 1))) for n in range(64)))
    assert labels() - before <= 4


async def test_a_lone_writer_after_many_soon_waits_for_nobody(open_replica, labels):
    """Each vain wait makes the next shorter."""
    store = await open_replica()
    await asyncio.gather(*(store.append(append(n)) for n in range(64)))
    before = labels()
    for base in range(1, 8):
        await store.append(append(1, base))
    assert labels() - before == 7
    assert not store._engine._writer._company.in_hand.are_many


async def test_closing_ends_the_wait_for_company(open_replica):
    """No other write can come then."""
    store = await open_replica(bounds=PostgresBounds(write_company_pace_s=600))
    await asyncio.gather(*(store.append(append(n)) for n in range(64)))
    waiting = asyncio.create_task(store.append(append(1, 1)))
    await asyncio.sleep(0.01)
    assert store._engine._writer._company.is_gathering
    async with asyncio.timeout(30):
        await store._engine._writer.close()
        await asyncio.sleep(0)
        assert waiting.done()
        await waiting


async def test_group_is_one_statement_and_one_transaction(open_replica, labels, monkeypatch):
    """A hundred callers share one round trip and one sync."""
    store = await open_replica()
    statements = []
    execute = psycopg.AsyncConnection.execute

    async def counted(self, query, *args, **kwargs):
        statements.append(bytes(query)[:60])
        return await execute(self, query, *args, **kwargs)

    monkeypatch.setattr(psycopg.AsyncConnection, "execute", counted)
    assert await outcomes(*(store.append(append(n)) for n in range(100))) == [None] * 100
    assert len(statements) == 1
    assert b"append_group" in statements[0]
    assert labels() == 1


async def test_group_has_no_more_writes_than_allowed(open_replica, labels):
    """With a limit of one, every write has its own transaction."""
    store = await open_replica("hints=off&group_writes_max=1")
    assert await outcomes(*(store.append(append(n)) for n in range(7))) == [None] * 7
    assert labels() == 7


async def test_group_is_bounded_by_its_bytes(open_replica, labels):
    """Large changes do not delay a small one."""
    store = await open_replica()
    large = b"e" * 290_000
    writes = [store.append(append(n, events=large)) for n in range(30)]
    assert await outcomes(*writes) == [None] * 30
    assert labels() == 3


async def test_writes_of_one_session_go_one_after_the_other(open_replica, labels):
    """Each write sees what the one before has committed."""
    store = await open_replica()
    assert await outcomes(*(store.append(append(0, base)) for base in range(5))) == [None] * 5
    assert labels() == 5


async def test_writes_of_one_task_do_not_share_a_group(open_replica, labels):
    """The second one must see the first one's claim."""
    store = await open_replica()
    results = await outcomes(*(store.append(append(n, tasks=(task(n),))) for n in range(3)))
    assert [type(result) for result in results] == [type(None), TaskTaken, TaskTaken]
    assert labels() == 1


@pytest.fixture
def unchecked(monkeypatch):
    """Passes values to the server that the store would refuse."""
    monkeypatch.setattr("routing_service.storage.checked_store.check_append", lambda _append: None)


@pytest.mark.parametrize(
    ("poison", "kind"),
    [
        (append(4, request_id="a\0b"), "AppendRefused"),
        (append(4, request_id="\ud800"), "UnicodeEncodeError"),
        (append(4, state=None, events=None), "TypeError"),
    ],
    ids=["server", "encoding", "type"],
)
async def test_poison_is_split_out(open_replica, unchecked, poison, kind):
    """A value that the server or the driver refuses fails alone; the others are stored."""
    store = await open_replica()
    with capture_logs():
        results = await outcomes(*(store.append(poison if n == 4 else append(n)) for n in range(9)))
    assert type(results.pop(4)).__name__ == kind
    assert results == [None] * 8
    assert [await store.head_revision(key(n)) for n in range(9)] == [1] * 4 + [0] + [1] * 4


async def test_change_without_its_head_is_one_sessions_affair(
    open_replica, postgres_database, schema
):
    """A session that lost its head reports this, and the others work."""
    store = await open_replica()
    for base in range(3):
        await store.append(append(2, base))
    postgres_database.execute(f"DELETE FROM {schema}.sessions")
    with capture_logs() as logs:
        results = await outcomes(
            *(store.append(append(n, request_id="new")) for n in range(5)),
        )
    assert isinstance(results.pop(2), StoreCorrupt)
    assert results == [None] * 4
    assert "a session has changes after its head" in logs[-1]["error"]


async def test_locked_session_is_its_own_affair(open_replica, transaction):
    """The caller of a locked row gets an error in time; other callers do not wait."""
    store = await open_replica("hints=off&lock_timeout_s=0.3")
    await asyncio.gather(*(store.append(append(n)) for n in range(8)))
    with capture_logs():
        async with transaction() as other:
            await other.execute(
                "SELECT FROM sessions WHERE session_id = %s FOR UPDATE", (key(3).session_id,)
            )
            results = await outcomes(*(store.append(append(n, 1)) for n in range(8)))
    locked = results.pop(3)
    assert isinstance(locked, StoreUnavailable)
    assert str(locked) == "the session is locked by another transaction; try again"
    assert results == [None] * 7
    await store.append(append(3, 1))


async def test_group_that_waits_does_not_stop_the_next_one(open_replica, transaction):
    """While one group waits for a row, later writes use another connection."""
    store = await open_replica("hints=off&write_connections=2")
    await store.append(append(0))
    async with transaction() as other:
        await other.execute("SELECT FROM sessions FOR UPDATE")
        waiting = asyncio.create_task(store.append(append(0, 1)))
        await wait_until_blocked(other)
        async with asyncio.timeout(1.5):
            assert await outcomes(*(store.append(append(n)) for n in range(1, 9))) == [None] * 8
        assert not waiting.done()
        await other.rollback()
    await waiting


async def test_write_whose_caller_went_away_is_taken_out_of_the_queue(open_replica, transaction):
    """It was not sent, so it has no effect."""
    store = await open_replica("hints=off&write_connections=1")
    await store.append(append(0))
    async with transaction() as other:
        await other.execute("SELECT FROM sessions FOR UPDATE")
        first = asyncio.create_task(store.append(append(0, 1)))
        await wait_until_blocked(other)
        second = asyncio.create_task(store.append(append(1)))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait([second])
    await first
    await store.probe_write()
    assert await store.head_revision(key(1)) == 0
    assert await store.head_revision(key(0)) == 2


async def test_write_that_was_sent_is_finished_without_its_caller(open_replica, transaction):
    """Cancelling it on the server would cost a connection for nothing."""
    store = await open_replica("hints=off&write_connections=1")
    await store.append(append(0))
    async with transaction() as other:
        await other.execute("SELECT FROM sessions FOR UPDATE")
        call = asyncio.create_task(store.append(append(0, 1)))
        await wait_until_blocked(other)
        call.cancel()
        await asyncio.wait([call])
    await store.probe_write()
    assert await store.head_revision(key(0)) == 2


async def test_queue_that_is_full_refuses(open_replica, transaction):
    """Further writes would only time out in the queue."""
    bounds = PostgresBounds(waiting_writes_max=3)
    store = await open_replica("hints=off&write_connections=1", bounds)
    await store.append(append(0))
    async with transaction() as other:
        await other.execute("SELECT FROM sessions FOR UPDATE")
        sent = asyncio.create_task(store.append(append(0, 1)))
        await wait_until_blocked(other)
        queued = [asyncio.create_task(store.append(append(n))) for n in (1, 2, 3)]
        await asyncio.sleep(0)
        with pytest.raises(StoreUnavailable, match="3 writes wait for the store; try again"):
            await store.append(append(4))
    await asyncio.gather(sent, *queued)


async def test_session_that_another_replica_is_making_is_a_conflict(open_replica, transaction):
    """There is no row to lock yet: the second creator waits, retries and then sees the session."""
    store = await open_replica()
    async with transaction() as other:
        await other.execute(
            "SELECT * FROM append_group(%s::text[], %s::text[], '{0}', '{bo}', '{s}', '{1}', "
            "'{Route}', '{theirs}', '{\"\"}', '{f}', '{e}', '{a}', "
            "'{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}')",
            ([key(0).tenant], [key(0).session_id]),
        )
        call = asyncio.create_task(store.append(append(0)))
        await wait_until_blocked(other)
        await other.commit()
        with pytest.raises(RevisionConflict) as raised:
            await call
    assert raised.value.actual_revision == 1


async def test_session_that_another_replica_gave_up_making_is_made(open_replica, transaction):
    """A rolled-back session does not exist."""
    store = await open_replica()
    async with transaction() as other:
        await other.execute(
            "INSERT INTO changes (label, tenant, session_id, revision, time_us, method, "
            "request_id, actor, fingerprint, events, answer) "
            "VALUES (1, %s, %s, 1, 1, '', '', '', '', '', '')",
            tuple(key(0)),
        )
        call = asyncio.create_task(store.append(append(0)))
        await wait_until_blocked(other)
        await other.rollback()
    await call
    assert await store.head_revision(key(0)) == 1


async def test_task_that_another_replica_is_taking_is_taken(open_replica, transaction):
    """The second one waits for the first one's commit, retries, and sees the owner."""
    store = await open_replica()
    async with transaction() as other:
        await other.execute(
            "INSERT INTO tasks (tenant, task_id, session_id, user_id, status, create_us, "
            "update_us, data) VALUES ('acme', 'task-1', 'theirs', '', '', 1, 1, '')"
        )
        first = asyncio.create_task(store.append(append(0, tasks=(task(0),))))
        second = asyncio.create_task(store.append(append(1)))
        await wait_until_blocked(other)
        await other.commit()
        with pytest.raises(TaskTaken) as raised:
            await first
    assert raised.value.session_id == "theirs"
    await second
    assert await store.head_revision(key(0)) == 0


async def test_deadlock_with_somebody_else_is_tried_again(
    open_replica, transaction, postgres_database
):
    """Other clients may lock in another order; the aborted group is sent once more."""
    name = postgres_database.url.rpartition("/")[2]
    # The first to wait is the first to detect the deadlock, and is aborted: this must be the group.
    postgres_database.execute(f"ALTER DATABASE {name} SET deadlock_timeout = '2s'")
    try:
        store = await open_replica("hints=off&lock_timeout_s=30&call_timeout_s=30")
    finally:
        postgres_database.execute(f"ALTER DATABASE {name} RESET deadlock_timeout")
    await asyncio.gather(store.append(append(0)), store.append(append(1)))
    lock = "SELECT FROM sessions WHERE session_id = %s FOR UPDATE"
    async with transaction() as other:
        await other.execute("SET LOCAL deadlock_timeout = '60s'")
        await other.execute(lock, (key(1).session_id,))
        calls = [asyncio.create_task(store.append(append(n, 1))) for n in (0, 1)]
        await wait_until_blocked(other)
        await other.execute(lock, (key(0).session_id,))
        await other.rollback()
    await asyncio.gather(*calls)
    assert [await store.head_revision(key(n)) for n in (0, 1)] == [2, 2]


async def test_group_that_always_meets_another_gives_up(open_replica, monkeypatch):
    """Retries are limited; after them the group is not stored."""
    store = await open_replica()
    attempts = []

    async def meets_another(*_args):
        attempts.append(1)
        raise psycopg.errors.SerializationFailure("could not serialize access")

    monkeypatch.setattr(Rows, "append_group", meets_another)
    with capture_logs(), pytest.raises(StoreUnavailable, match="other replicas write the same"):
        await store.append(append(0))
    assert len(attempts) == 1 + RETRY_ATTEMPTS_MAX


async def test_error_that_no_repeat_mends_is_not_tried_again(open_replica, monkeypatch):
    """Only conflicts that the server reports are retried."""
    store = await open_replica()
    attempts = []

    async def no_room(*_args):
        attempts.append(1)
        raise psycopg.errors.DiskFull("could not extend file")

    monkeypatch.setattr(Rows, "append_group", no_room)
    with capture_logs(), pytest.raises(StoreUnavailable, match="disk is full"):
        await store.append(append(0))
    assert len(attempts) == 1


async def write_until(store, dice, appended, rounds):
    """Append to random sessions as a replica does, from its last known revisions."""
    for number in range(rounds):
        session = dice.randrange(6)
        name = f"{id(store)}-{dice.random()}"
        while True:
            base = await store.head_revision(key(session))
            write = append(session, base, request_id=name)
            try:
                await store.append(write)
            except RevisionConflict:
                continue
            appended.append((session, base + 1, name))
            break
        if number % 4 == 0:
            with pytest.raises(RequestSeen):
                await store.append(write)


async def test_two_replicas_keep_every_session_gapless(open_replica):
    """The conditional append is the only coordination between them."""
    replicas = [await open_replica(), await open_replica()]
    dice = random.Random(11)
    appended = []
    async with asyncio.timeout(50), asyncio.TaskGroup() as group:
        for store in replicas * 6:
            group.create_task(write_until(store, dice, appended, 15))
    assert len(appended) == 12 * 15
    for session in range(6):
        changes = await replicas[0].read_changes(key(session), limit=1_000)
        expected = sorted(entry[1:] for entry in appended if entry[0] == session)
        assert [(change.revision, change.request_id) for change in changes] == expected
        assert [change.revision for change in changes] == list(range(1, len(changes) + 1))


async def count_deadlocks(replicas, monkeypatch, rounds):
    """Let replicas write the same sessions in groups, and count their deadlocks."""
    deadlocks = []
    run_once = GroupWriter._run_once

    async def counted(self, *args):
        try:
            return await run_once(self, *args)
        except psycopg.errors.DeadlockDetected:
            deadlocks.append(1)
            raise

    with monkeypatch.context() as patch:
        patch.setattr(GroupWriter, "_run_once", counted)
        for _ in range(rounds):
            if deadlocks:
                break
            (rows, _) = await replicas[0].list_sessions("acme", CURSOR_START, 1_000)
            bases = [row.revision for row in rows]
            await outcomes(
                *(
                    store.append(append(n, bases[n], request_id=f"{id(store)} {bases[n]}"))
                    for store in replicas
                    for n in range(len(bases))
                )
            )
    return len(deadlocks)


async def test_sorted_groups_never_stand_in_each_others_way(open_replica, monkeypatch):
    """Sorted groups lock in one order; unsorted ones deadlock, as the control shows."""
    replicas = [await open_replica("hints=off&write_connections=1") for _ in range(4)]
    await asyncio.gather(*(replicas[0].append(append(number)) for number in range(250)))
    assert await count_deadlocks(replicas, monkeypatch, rounds=20) == 0
    for store in replicas[2:]:
        in_order = store._engine._rows.append_group

        async def backwards(connection, appends, in_order=in_order):
            return await in_order(connection, appends[::-1])

        monkeypatch.setattr(store._engine._rows, "append_group", backwards)
    with capture_logs():
        assert await count_deadlocks(replicas, monkeypatch, rounds=200) > 0


async def test_cost_of_an_append_does_not_grow_with_its_session(
    open_replica, postgres_database, tmp_path
):
    """A request is found by its own index, never by reading all changes of its session."""
    # Earlier reads might be reported late.
    schema = postgres_database.new_schema(tmp_path)
    store = await open_replica()
    read_by = (
        "SELECT indexrelname, idx_tup_read FROM pg_stat_user_indexes "
        f"WHERE schemaname = '{schema}' AND relname IN ('changes', 'audit') AND idx_tup_read > 0"
    )
    for base in range(100):
        await store.append(append(0, base))
        await store.append_audit(audit(0))
    with pytest.raises(RequestSeen):
        await store.append(append(0, 7))
    with pytest.raises(RevisionConflict):
        await store.append(append(0, 7, request_id="new"))
    await store.find_request(key(0), "Route", "request-9")
    await store.count_audit(key(0), "handoff_refused", "another")
    await store.close()
    # A process reports its counters when it ends.
    read = {}
    async with asyncio.timeout(10):
        while not read:
            read = dict(await asyncio.to_thread(postgres_database.execute, read_by))
    assert set(read) == {"changes_by_request"}
    assert read["changes_by_request"] <= 4


async def test_audit_entries_go_in_groups_and_in_their_order(open_replica):
    """They use another statement than appends."""
    store = await open_replica()
    writes = []
    for number in range(50):
        writes += [
            store.append_audit(audit(number % 3, data=b"%d" % number)),
            store.append(append(number)),
        ]
    assert await outcomes(*writes) == [None] * 100
    entries, _ = await store.read_audit("acme", None, CURSOR_START, 100)
    assert [entry.data for entry in entries] == [b"%d" % number for number in range(50)]


async def test_bug_in_one_write_leaves_the_writer_alive(open_replica, monkeypatch):
    """Its caller gets the error; the next write works."""
    store = await open_replica()

    async def broken(*_args):
        raise ZeroDivisionError

    with monkeypatch.context() as patch, capture_logs() as logs:
        patch.setattr(Rows, "append_group", broken)
        results = await outcomes(store.append(append(0)), store.append(append(1)))
        assert [type(result) for result in results] == [ZeroDivisionError] * 2
    assert {entry["event"] for entry in logs} == {"store_write_failed"}
    await store.append(append(0))
