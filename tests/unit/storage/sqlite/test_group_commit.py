"""Group commit: many writes share one sync, and nothing else."""

import asyncio
import re
import sqlite3
import threading

import pytest
from msgspec.structs import force_setattr
from structlog.testing import capture_logs

from routing_service.storage.in_hand import BUSY_WRITES_MIN
from routing_service.storage.sqlite import bulk as sqlite_bulk
from routing_service.storage.sqlite import rows as sqlite_rows
from routing_service.storage.sqlite import writer as sqlite_writer
from routing_service.storage.sqlite.bounds import SqliteBounds
from routing_service.storage.sqlite.store import open_sqlite_store
from routing_service.storage.sqlite.writer import Write
from routing_service.storage.store import (
    Append,
    Change,
    RequestSeen,
    RevisionConflict,
    SessionKey,
    StoreUnavailable,
    TaskRow,
)
from routing_service.storage.store_url import SqliteOptions
from tests.engines.appends import after


def key(number):
    """One of many sessions."""
    return SessionKey("acme", f"chat-{number:03}")


def append(number, base=0, *, request_id=None, events=b"events", task_id=None):
    """The change of one session that follows ``base``."""
    session = key(number)
    tasks = ()
    if task_id is not None:
        tasks = (TaskRow(task_id, session.session_id, "ana", "running", 1, 2, None, b""),)
    request_id = f"r-{base}" if request_id is None else request_id
    change = Change(base + 1, 10 + base, "Route", request_id, "", b"", events, b"answer")
    return Append(session, base, change, b"state", "ana", tasks)


@pytest.fixture
def bounds():
    """The store's bounds; a test that needs others parametrizes this."""
    return SqliteBounds()


@pytest.fixture
async def store(tmp_path, bounds):
    """An open store."""
    options = SqliteOptions(busy_timeout_s=0)
    store = await open_sqlite_store(tmp_path / "store.db", options, bounds)
    yield store
    await store.close()


@pytest.fixture
async def statements(store):
    """Every statement that the writer's connection runs, as a growing list."""
    seen = []
    await store._engine._writer._connection.run(lambda c: c.set_trace_callback(seen.append))
    return seen


class Gate:
    """A write that keeps the writer busy until opened, so that others wait."""

    def __init__(self, store):
        self._open = threading.Event()
        self._reached = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.task = asyncio.create_task(store._engine._writer.write(key(0), 1, Write(self._hold)))

    def _hold(self, _connection):
        self._loop.call_soon_threadsafe(self._reached.set)
        assert self._open.wait(30)

    async def reached(self):
        await self._reached.wait()
        return self

    async def open(self):
        self._open.set()
        await self.task


async def test_waiting_appends_share_one_commit(store, statements):
    """One sync for many writes makes it cheap."""
    await asyncio.gather(*(store.append(append(number)) for number in range(100)))
    assert statements.count("COMMIT") == 1
    assert statements.count("BEGIN IMMEDIATE") == 1


async def test_append_alone_waits_for_nobody(store, statements):
    """There is no timer: the second write starts when the first is on disk."""
    for base in range(3):
        await store.append(append(1, base))
    assert statements.count("COMMIT") == 3


@pytest.mark.parametrize("bounds", [SqliteBounds(write_company_pace_s=600)])
async def test_a_few_at_once_wait_for_nobody(store):
    """Below BUSY_WRITES_MIN a group goes as soon as the disk is free."""

    async def appends(number):
        for base in range(20):
            await store.append(append(number, base))

    async with asyncio.timeout(30):
        await asyncio.gather(*(appends(n) for n in range(BUSY_WRITES_MIN - 1)))


async def test_where_many_write_a_group_waits_for_company(store, statements):
    """Callers arrive one by one: without the wait, the first write would go alone."""
    await asyncio.gather(*(store.append(append(number)) for number in range(64)))
    statements.clear()

    await asyncio.gather(*(after(n, store.append(append(n, 1))) for n in range(64)))
    assert statements.count("COMMIT") <= 4


async def test_the_wait_for_company_ends(store, statements):
    """A lone writer after a busy time waits for a few milliseconds, a few times."""
    await asyncio.gather(*(store.append(append(number)) for number in range(64)))
    statements.clear()
    for base in range(1, 6):
        await store.append(append(1, base))
    assert statements.count("COMMIT") == 5
    assert not store._engine._writer.in_hand.are_many
    store._engine._writer._bounds = SqliteBounds(write_company_pace_s=600)
    async with asyncio.timeout(30):
        await store.append(append(1, 6))


async def test_closing_ends_the_wait_for_company(store):
    """No other write can come then."""
    await asyncio.gather(*(store.append(append(number)) for number in range(64)))
    waiting = asyncio.create_task(store.append(append(1, 1)))
    await asyncio.sleep(0)
    await store.close()
    await waiting


async def test_what_waits_during_a_commit_is_the_next_group(store, statements):
    """The group's size adapts to the load."""
    gate = await Gate(store).reached()
    waiting = [asyncio.create_task(store.append(append(number))) for number in range(50)]
    await asyncio.sleep(0)
    await gate.open()
    await asyncio.gather(*waiting)
    assert statements.count("COMMIT") == 2


async def test_group_is_bounded_by_writes_and_bytes(store, statements):
    """The first caller's wait and the page cache are both limited."""
    await asyncio.gather(*(store.append(append(number)) for number in range(600)))
    assert statements.count("COMMIT") == 3
    statements.clear()
    large = b"e" * 300_000
    await asyncio.gather(*(store.append(append(n, 1, events=large)) for n in range(20)))
    assert statements.count("COMMIT") == 2


async def test_group_of_one_can_be_asked_for(tmp_path):
    """For users who want a sync for each write."""
    store = await open_sqlite_store(tmp_path / "store.db", SqliteOptions(group_writes_max=1))
    seen = []
    await store._engine._writer._connection.run(lambda c: c.set_trace_callback(seen.append))
    await asyncio.gather(*(store.append(append(number)) for number in range(10)))
    assert seen.count("COMMIT") == 10
    await store.close()


async def test_clean_group_takes_few_statements(store, statements):
    """Each step of a statement costs the interpreter lock."""
    await asyncio.gather(*(store.append(append(n, task_id=f"t-{n}")) for n in range(64)))
    statements.clear()
    await asyncio.gather(*(store.append(append(n, 1, task_id=f"t-{n}")) for n in range(64)))
    assert len(statements) <= 10, statements


async def test_group_is_written_in_the_order_of_its_keys(store):
    """Neighbours in the index come together; within a session, in call order."""
    numbers = [5, 3, 9, 1, 7]
    await asyncio.gather(*(store.append(append(number)) for number in numbers))
    log, _ = await store.read_log(b"", 10)
    assert [session for session, _ in log] == [key(number) for number in sorted(numbers)]


async def test_conflict_in_a_group_costs_no_second_transaction(store, statements):
    """Conflicts are found before the first write, so there is nothing to roll back."""
    outcomes = await asyncio.gather(
        *(store.append(append(number, 9 if number == 4 else 0)) for number in range(20)),
        return_exceptions=True,
    )
    assert isinstance(outcomes[4], RevisionConflict)
    assert statements.count("COMMIT") == 1
    assert "ROLLBACK" not in statements


async def test_repeat_at_the_head_rolls_the_group_back_and_stores_the_rest(store, statements):
    """Only the write detects it; the other callers must not notice."""
    await store.append(append(4, 0, request_id="same"))
    statements.clear()
    outcomes = await asyncio.gather(
        *(
            store.append(append(n, 1 if n == 4 else 0, request_id="same" if n == 4 else None))
            for n in range(20)
        ),
        return_exceptions=True,
    )
    assert isinstance(outcomes[4], RequestSeen)
    assert [number for number, outcome in enumerate(outcomes) if outcome] == [4]
    # The group, then halves of the failing part, down to a few single writes.
    assert 1 <= statements.count("ROLLBACK") <= 4
    assert statements.count("COMMIT") <= 5
    for number in range(20):
        assert await store.head_revision(key(number)) == 1


async def test_poisoned_write_fails_alone_and_leaves_nothing_of_itself(store):
    """A write that fails half-way is removed from its group, including its first half."""

    def half(connection):
        sqlite_rows.write_setting(connection, "acme", "half", b"written")
        raise ValueError("planted")

    writes = [store.append(append(number)) for number in range(10)]
    poison = store._engine._writer.write(key(3), 1, Write(half))
    with capture_logs() as logs:
        *outcomes, poisoned = await asyncio.gather(*writes, poison, return_exceptions=True)
    assert outcomes == [None] * 10
    assert isinstance(poisoned, ValueError)
    assert await store.get_setting("acme", "half") is None
    assert [entry["event"] for entry in logs] == ["store_write_failed"]
    for number in range(10):
        assert await store.head_revision(key(number)) == 1


async def test_value_that_the_driver_cannot_bind_fails_alone(store):
    """A value that slips through the checks fails one caller, and not as a failing disk."""
    poison = append(3)
    force_setattr(poison.change, "method", _Unbindable())
    with capture_logs() as logs:
        outcomes = await asyncio.gather(
            *(store.append(poison if n == 3 else append(n)) for n in range(8)),
            return_exceptions=True,
        )
    assert [type(outcome).__name__ for outcome in outcomes if outcome] == ["AppendRefused"]
    assert await store.head_revision(key(3)) == 0
    assert await store.head_revision(key(7)) == 1
    assert logs[0]["event"] == "store_write_failed"
    assert "type" in logs[0]["error"]


class _Unbindable:
    pass


async def test_cancelled_while_waiting_is_not_written(store):
    """Its caller is gone, so it leaves the queue."""
    gate = await Gate(store).reached()
    calls = [asyncio.create_task(store.append(append(number))) for number in range(6)]
    await asyncio.sleep(0)
    calls[2].cancel()
    await gate.open()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [isinstance(outcome, asyncio.CancelledError) for outcome in outcomes] == [
        number == 2 for number in range(6)
    ]
    assert await store.head_revision(key(2)) == 0
    assert await store.head_revision(key(3)) == 1


async def test_cancelled_during_its_commit_is_written(store):
    """The transaction is completed; a repeat gets the first answer."""
    action_ran = asyncio.Event()
    loop = asyncio.get_running_loop()
    release = threading.Event()
    wanted = append(1)

    def slow(connection):
        sqlite_rows.write_append(connection, wanted)
        loop.call_soon_threadsafe(action_ran.set)
        assert release.wait(30)

    call = asyncio.create_task(store._engine._writer.write(key(1), 1, Write(slow)))
    other = asyncio.create_task(store.append(append(2)))
    await action_ran.wait()
    call.cancel()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await call
    await other
    assert await store.head_revision(key(1)) == 1
    with pytest.raises(RequestSeen):
        await store.append(wanted)


async def test_cancelling_all_of_a_group_leaves_the_writer_working(store):
    """A burst of deadlines."""
    gate = await Gate(store).reached()
    calls = [asyncio.create_task(store.append(append(number))) for number in range(20)]
    await asyncio.sleep(0)
    for call in calls:
        call.cancel()
    await gate.open()
    await asyncio.wait(calls)
    await store.append(append(99))
    assert await store.head_revision(key(5)) == 0
    assert await store.head_revision(key(99)) == 1


@pytest.mark.parametrize("bounds", [SqliteBounds(waiting_writes_max=5)])
async def test_too_many_waiting_writes_are_refused_at_once(store):
    """An error now is better than an answer after the deadline."""
    gate = await Gate(store).reached()
    calls = [asyncio.create_task(store.append(append(number))) for number in range(8)]
    await asyncio.sleep(0)
    refused = [call for call in calls if call.done()]
    assert len(refused) == 3
    for call in refused:
        assert isinstance(call.exception(), StoreUnavailable)
        assert str(call.exception()) == "5 writes wait for the store; try again"
    await gate.open()
    await asyncio.wait(calls)
    assert sum(call.exception() is None for call in calls) == 5
    await store.append(append(50))


@pytest.mark.parametrize("bounds", [SqliteBounds(waiting_bytes_max=100_000)])
async def test_too_many_waiting_bytes_are_refused_at_once(store):
    """Memory is bounded for writes of any size."""
    gate = await Gate(store).reached()
    large = asyncio.create_task(store.append(append(1, events=b"e" * 90_000)))
    await asyncio.sleep(0)
    with pytest.raises(StoreUnavailable):
        await store.append(append(2, events=b"e" * 90_000))
    await gate.open()
    await large
    await store.append(append(2, events=b"e" * 90_000))


async def test_reads_do_not_wait_for_a_commit(store):
    """They have connections of their own; a slow disk slows writes alone."""
    await store.append(append(1))
    gate = await Gate(store).reached()
    assert await asyncio.wait_for(store.head_revision(key(1)), 10) == 1
    assert len(await asyncio.wait_for(store.read_changes(key(1), limit=5), 10)) == 1
    await gate.open()


@pytest.mark.parametrize("bounds", [SqliteBounds(checkpoint_idle_s=0.01)])
async def test_log_is_checkpointed_when_nobody_writes(store, tmp_path, monkeypatch):
    """The log is then small for the next burst, and no write waits for the checkpoint."""
    checkpointed = asyncio.Event()
    loop = asyncio.get_running_loop()
    checkpoint = sqlite_writer.checkpoint

    def watched(connection):
        checkpoint(connection)
        loop.call_soon_threadsafe(checkpointed.set)

    monkeypatch.setattr(sqlite_writer, "checkpoint", watched)
    file = tmp_path / "store.db"
    before = file.stat().st_size
    for number in range(20):
        await store.append(append(number, events=b"e" * 20_000))
    async with asyncio.timeout(30):
        # A pause between two appends may have been taken for an idle moment already.
        while file.stat().st_size < before + 20 * 20_000:
            await checkpointed.wait()
            checkpointed.clear()


@pytest.mark.parametrize("bounds", [SqliteBounds(checkpoint_idle_s=0.01)])
async def test_failing_checkpoint_is_logged_and_harms_nothing(store, monkeypatch):
    """The log keeps everything until a later one succeeds."""
    tried = asyncio.Event()
    loop = asyncio.get_running_loop()

    def failing(_connection):
        loop.call_soon_threadsafe(tried.set)
        raise sqlite3.OperationalError("planted")

    monkeypatch.setattr(sqlite_writer, "checkpoint", failing)
    with capture_logs() as logs:
        await store.append(append(1))
        await asyncio.wait_for(tried.wait(), 30)
        await store.append(append(1, 1))
    assert "store_checkpoint_failed" in [entry["event"] for entry in logs]
    assert await store.head_revision(key(1)) == 2


STATEMENTS = {
    name: value
    for module in (sqlite_rows, sqlite_bulk)
    for name, value in vars(module).items()
    if isinstance(value, str) and re.match(r"SELECT|UPDATE|INSERT", value)
}


@pytest.mark.parametrize("name", sorted(STATEMENTS.keys() - {"SELECT_STORE_ID", "UPDATE_PROBE"}))
async def test_no_statement_reads_a_whole_table(store, name):
    """A call's cost must not grow with the stored data."""
    statement = STATEMENTS[name]
    if "{rows}" in statement:
        # As many columns as the statement names or, for the two that look, three.
        columns = max(map(int, re.findall(r"column(\d)", statement)))
        into = re.search(r"INTO \w+ \(([^)]*)\)", statement)
        columns = len(into[1].split(",")) if into else columns
        statement = sqlite_bulk._with_rows(statement, 4, columns)

    def plan(connection):
        parameters = [None] * statement.count("?")
        rows = connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
        return [row[3] for row in rows]

    steps = await store._engine._rows.run(plan)
    tables = "sessions|changes|tasks|audit|settings|sqlite_sequence"
    # sqlite_sequence has one row for each of the two tables that number theirs.
    scans = [step for step in steps if re.match(rf"SCAN ({tables})\b(?<!sqlite_sequence)", step)]
    assert not scans, steps
    assert not [step for step in steps if "TEMP B-TREE" in step], steps
