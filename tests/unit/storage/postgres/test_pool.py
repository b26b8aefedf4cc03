"""The connection pool: limited waits, and no connection is reused inside a transaction."""

import asyncio
import time

import psycopg
import pytest
from structlog.testing import capture_logs

from routing_service.storage.postgres import pool as postgres_pool
from routing_service.storage.postgres.connection import Connector
from routing_service.storage.postgres.pool import ConnectionPool
from routing_service.storage.postgres.url import parse_url
from routing_service.storage.store import StoreClosed, StoreUnavailable


@pytest.fixture
async def make_pool(postgres_database):
    """Return a function that makes a pool with its own size and timeouts."""
    made = []

    def make(size_max=2, call_timeout_s=5.0, query="", **bounds):
        url = f"{postgres_database.url}?call_timeout_s={call_timeout_s}{query}"
        place = parse_url(url)
        pool = ConnectionPool(
            Connector(place), size_max=size_max, call_timeout_s=call_timeout_s, **bounds
        )
        made.append(pool)
        return pool

    yield make
    for pool in made:
        await pool.close()


class Gate:
    """Holds a connection between two moments that the test chooses."""

    def __init__(self):
        self._reached = asyncio.Event()
        self._opened = asyncio.Event()

    async def hold(self, connection):
        """The work of a call: use the connection until the gate opens."""
        self._reached.set()
        await self._opened.wait()
        return await own_pid(connection)

    async def reached(self):
        """Wait until the call has its connection."""
        async with asyncio.timeout(30):
            await self._reached.wait()

    def open(self):
        """Let the call finish."""
        self._opened.set()


async def own_pid(connection):
    """Return the server process of the connection."""
    cursor = await connection.execute("SELECT pg_backend_pid()")
    ((pid,),) = await cursor.fetchall()
    return pid


def sleep_for(seconds):
    """Return work that takes that many seconds."""

    async def work(connection):
        await connection.execute(f"SELECT pg_sleep({seconds})")
        return await own_pid(connection)

    return work


async def test_calls_share_a_few_connections(make_pool):
    """For any number of callers, each waits for its turn."""
    pool = make_pool(size_max=3)
    pids = await asyncio.gather(*(pool.run(own_pid) for _ in range(50)))
    assert len(set(pids)) == 3
    assert pool.idle == 3


async def test_connections_are_made_when_they_are_needed(make_pool):
    """Sequential callers need a single connection."""
    pool = make_pool(size_max=3)
    assert pool.idle == 0
    for _ in range(5):
        await pool.run(own_pid)
    assert pool.idle == 1


async def test_waiting_for_a_connection_has_its_end(make_pool):
    """The queue reports it before the caller's own deadline."""
    pool = make_pool(size_max=1, call_timeout_s=0.5)
    gate = Gate()
    holding = asyncio.create_task(pool.run(gate.hold))
    await gate.reached()
    begun_s = time.monotonic()
    async with asyncio.timeout(30):
        with pytest.raises(StoreUnavailable, match="no connection to the store became free"):
            await pool.run(own_pid)
    assert time.monotonic() - begun_s > 0.4
    assert not holding.done()
    gate.open()
    await holding
    assert await pool.run(own_pid)


async def test_queue_for_connections_is_bounded(make_pool):
    """More calls are refused at once."""
    pool = make_pool(size_max=1, waiting_calls_max=2)
    gate = Gate()
    holding = asyncio.create_task(pool.run(gate.hold))
    await gate.reached()
    calls = [asyncio.create_task(pool.run(own_pid)) for _ in range(2)]
    async with asyncio.timeout(30):
        while len(pool._waiting) < 2:  # noqa: ASYNC110 - the pool has no event for it
            await asyncio.sleep(0.001)
    with pytest.raises(StoreUnavailable, match="2 calls wait for the store; try again"):
        await pool.run(own_pid)
    gate.open()
    await asyncio.gather(holding, *calls)


async def test_cancelled_call_ends_by_itself_and_its_connection_is_kept(make_pool):
    """A passed deadline must not cost a new connection."""
    pool = make_pool(size_max=1)
    pid = await pool.run(own_pid)
    for _ in range(5):
        gate = Gate()
        call = asyncio.create_task(pool.run(gate.hold))
        await gate.reached()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        gate.open()
    assert await pool.run(own_pid) == pid


async def test_cancelled_call_that_fails_later_is_no_loose_end(make_pool):
    """Its failure is logged and does not become an unhandled exception."""
    pool = make_pool(size_max=1)

    gate = Gate()

    async def fails(connection):
        await gate.hold(connection)
        await connection.execute("SELECT 1 / 0")

    with capture_logs() as logs:
        call = asyncio.create_task(pool.run(fails))
        await gate.reached()
        call.cancel()
        await asyncio.wait([call])
        gate.open()
        await pool.run(own_pid)
    assert [entry["code"] for entry in logs] == ["22012"]


async def test_caller_that_goes_away_in_the_queue_blocks_nobody(make_pool):
    """Its turn passes to the next."""
    pool = make_pool(size_max=1)
    first = asyncio.create_task(pool.run(sleep_for(0.2)))
    await asyncio.sleep(0.02)
    gone = [asyncio.create_task(pool.run(own_pid)) for _ in range(10)]
    await asyncio.sleep(0.02)
    last = asyncio.create_task(pool.run(own_pid))
    for call in gone:
        call.cancel()
    await asyncio.wait(gone)
    assert await last == await first


async def test_connection_left_in_a_transaction_is_not_used_again(make_pool):
    """The next call would write into another's transaction."""
    pool = make_pool(size_max=1)

    async def leave_open(connection):
        await connection.execute("BEGIN")
        return await own_pid(connection)

    pid = await pool.run(leave_open)
    assert await pool.run(own_pid) != pid


async def test_connection_that_was_cut_is_not_used_again(make_pool):
    """The caller gets an error; the next one gets another connection."""
    pool = make_pool(size_max=1)

    async def cut(connection):
        postgres_pool.sever(connection)
        await connection.execute("SELECT 1")

    with capture_logs(), pytest.raises(StoreUnavailable, match="was lost"):
        await pool.run(cut)
    assert await pool.run(own_pid)


async def test_connection_that_died_is_not_handed_on(make_pool, postgres_database):
    """The next caller is already waiting and gets a new one."""
    pool = make_pool(size_max=1)

    async def die(connection):
        pid = await own_pid(connection)
        statement = f"SELECT pg_terminate_backend({pid}, 5000)"
        await asyncio.to_thread(postgres_database.execute, statement)
        return pid

    first, second = await asyncio.gather(pool.run(die), pool.run(own_pid))
    assert first != second


async def test_answer_that_does_not_come_is_not_waited_for(make_pool):
    """The server should have ended the call; if it does not, the connection is closed."""
    pool = make_pool(size_max=1, call_timeout_s=0.3, grace_s=0.1)

    async def deaf(connection):
        await connection.execute("SET statement_timeout = 0")
        await connection.execute("SELECT pg_sleep(30)")

    begun_s = time.monotonic()
    with capture_logs() as logs, pytest.raises(StoreUnavailable, match="does not answer"):
        await pool.run(deaf)
    assert time.monotonic() - begun_s < 2
    assert logs[0]["late"] is True
    assert await pool.run(own_pid)


async def test_failed_attempt_to_connect_lets_the_next_one_try(postgres_database):
    """A failed attempt frees its slot."""
    place = parse_url(postgres_database.url, {"call_timeout_s": 1})
    connector = Connector(place)
    pool = ConnectionPool(connector, size_max=1, call_timeout_s=1)
    connect = connector._connect
    fails = 3

    async def refuse():
        nonlocal fails
        await asyncio.sleep(0.01)
        if fails:
            fails -= 1
            raise psycopg.OperationalError("refused")
        return await connect()

    connector._connect = refuse
    with capture_logs():
        results = await asyncio.gather(
            *(pool.run(own_pid) for _ in range(10)), return_exceptions=True
        )
        assert {type(result) for result in results} == {StoreUnavailable}
        async with asyncio.timeout(5):
            while fails:
                await asyncio.gather(pool.run(own_pid), return_exceptions=True)
                await asyncio.sleep(0.05)
    await asyncio.sleep(postgres_pool.GRACE_S / 4)
    assert await pool.run(own_pid)
    await pool.close()


async def test_closing_waits_for_the_calls_that_run(make_pool):
    """Running calls are finished, and later calls are refused."""
    pool = make_pool(size_max=2)
    calls = [asyncio.create_task(pool.run(sleep_for(0.1))) for _ in range(4)]
    await asyncio.sleep(0.02)
    await pool.close()
    assert all(call.done() for call in calls)
    assert all(call.result() for call in calls)
    assert pool.idle == 0
    with pytest.raises(StoreClosed):
        await pool.run(own_pid)


async def test_no_connection_is_left_behind(make_pool, postgres_database):
    """A stopped replica returns all its connections."""
    counted = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND application_name = 'left behind'"
    )
    pool = make_pool(size_max=5, query="&application_name=left%20behind")
    await asyncio.gather(*(pool.run(sleep_for(0.05)) for _ in range(5)))
    assert postgres_database.execute(counted) == [(5,)]
    await pool.close()
    left = [(5,)]
    async with asyncio.timeout(5):
        # The server notices a little later.
        while left != [(0,)]:
            left = await asyncio.to_thread(postgres_database.execute, counted)
