"""A PostgreSQL server that stops, hangs, is full or refuses: one error in time, then recovery.

Each test has the server to itself and leaves it as it was.
"""

import asyncio
import time

import psycopg
import pytest
from structlog.testing import capture_logs

from routing_service.storage.open_store import open_store
from routing_service.storage.postgres import connection as postgres_connection
from routing_service.storage.store import RequestSeen, StoreUnavailable
from tests.engines.appends import append, key, outcomes
from tests.engines.postgres_databases import database_on

TIMES = "connect_timeout_s=1&call_timeout_s=1&lock_timeout_s=0.5"
UNHURRIED = "connect_timeout_s=10&call_timeout_s=10"
"""For tests of errors that take no time, on a busy machine."""

BOUND_S = 1 + 1 + postgres_connection.RECONNECT_PAUSE_S + 2.5
"""The time of a call, the grace for its answer, and an attempt to connect; the rest is for a busy
machine."""


@pytest.fixture(scope="module")
def database(own_postgres):
    """A database on the server of these tests."""
    with database_on(own_postgres.url()) as made:
        yield made


@pytest.fixture
async def open_here(database, tmp_path):
    """Return a function that opens a store on the test's data, over TCP, with short timeouts."""
    opened = []

    async def open_it(query=TIMES):
        store = await open_store(database.store_url(tmp_path, query))
        opened.append(store)
        return store

    yield open_it
    for store in opened:
        await store.close()
    database.clear(tmp_path)


async def works_again(store, within_s=5.0):
    """Return the seconds until the store writes and reads."""
    begun_s = time.monotonic()
    while True:
        try:
            await store.probe_write()
            await store.head_revision(key())
        except StoreUnavailable:
            taken_s = time.monotonic() - begun_s
            assert taken_s < within_s, f"still away after {taken_s} s"
            await asyncio.sleep(0.05)
        else:
            return time.monotonic() - begun_s


async def backends(database):
    """Return the processes that serve our connections."""
    rows = database.execute(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() "
        "AND application_name = 'agent-routing'"
    )
    return [pid for (pid,) in rows]


async def test_restart_between_calls_is_not_noticed(open_here, own_postgres):
    """Dead idle connections are detected before use."""
    store = await open_here()
    await asyncio.gather(
        *(store.append(append(n)) for n in range(20)),
        *(store.head_revision(key(n)) for n in range(20)),
    )
    own_postgres.restart()
    results = await outcomes(
        *(store.append(append(n, 1)) for n in range(20)),
        *(store.head_revision(key(n)) for n in range(100, 120)),
    )
    assert results == [None] * 20 + [0] * 20


async def test_connection_that_is_killed_between_calls_is_not_noticed(open_here, database):
    """Operators or firewalls end connections."""
    store = await open_here()
    await store.append(append())
    for pid in await backends(database):
        database.execute(f"SELECT pg_terminate_backend({pid}, 5000)")
    await store.append(append(0, 1))
    assert await store.head_revision(key()) == 2


async def test_connection_that_is_killed_in_a_call_is_unavailable(open_here, database, tmp_path):
    """The write may have happened; a repeat returns its result."""
    store = await open_here("call_timeout_s=20&lock_timeout_s=20")
    await store.append(append())
    with capture_logs() as logs:
        async with await psycopg.AsyncConnection.connect(database.url) as other:
            schema = database.schema(tmp_path)
            await other.execute(f"SELECT FROM {schema}.sessions FOR UPDATE")
            call = asyncio.create_task(store.append(append(0, 1)))
            blocked = []
            while not blocked:
                cursor = await other.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND wait_event_type = 'Lock'"
                )
                blocked = await cursor.fetchall()
            with pytest.raises(StoreUnavailable) as raised:
                await call
    assert str(raised.value) == "the connection to the store's server was lost; try again"
    assert "terminating connection due to administrator command" in logs[0]["error"]
    await store.append(append(0, 1))


async def test_server_that_is_away_is_unavailable_at_once(open_here, own_postgres):
    """The error comes without a timeout, and the log is not flooded."""
    store = await open_here()
    await store.append(append())
    own_postgres.stop("immediate")
    begun_s = time.monotonic()
    with capture_logs() as logs:
        results = await outcomes(
            *(store.append(append(n, 1)) for n in range(300)),
            *(store.load(key(n)) for n in range(300)),
            store.probe_write(),
        )
        taken_s = time.monotonic() - begun_s
    assert {type(result) for result in results} == {StoreUnavailable}
    assert {str(result) for result in results} <= {
        "the store's server cannot be reached; try again",
        "the connection to the store's server was lost; try again",
    }
    assert taken_s < BOUND_S
    assert len(logs) < 20
    own_postgres.start()
    await works_again(store)
    await store.append(append(0, 1))


async def write_for(store, number, acknowledged, errors, stop):
    """Repeat failed calls until stopped."""
    base = 0
    while not stop.is_set():
        begun_s = time.monotonic()
        try:
            await store.append(append(number, base))
        except RequestSeen:
            pass  # The failed write had happened; its revision is checked at the end.
        except StoreUnavailable:
            errors.append(time.monotonic() - begun_s)
            await asyncio.sleep(0.05)
            continue
        acknowledged[number] = base = base + 1


async def all_go_on(acknowledged, callers):
    """Wait until each caller has another acknowledged write."""
    before = dict(acknowledged)
    async with asyncio.timeout(30):
        while any(acknowledged.get(n, 0) <= before.get(n, 0) for n in callers):  # noqa: ASYNC110 - callers only count
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("how", ["fast", "immediate"])
async def test_restart_under_load_loses_nothing(open_here, own_postgres, how):
    """After a stop or a crash, every acknowledged write is there once."""
    store = await open_here()
    acknowledged, errors, stop = {}, [], asyncio.Event()
    with capture_logs():
        async with asyncio.timeout(50), asyncio.TaskGroup() as group:
            for number in range(16):
                group.create_task(write_for(store, number, acknowledged, errors, stop))
            for _ in range(2):
                await all_go_on(acknowledged, range(16))
                await asyncio.to_thread(own_postgres.restart, how)
                assert await works_again(store) < 5
            await all_go_on(acknowledged, range(16))
            stop.set()
    assert max(errors, default=0) < BOUND_S
    for number, revision in acknowledged.items():
        assert await store.head_revision(key(number)) == revision
        changes = await store.read_changes(key(number), limit=1_000)
        assert [change.revision for change in changes] == list(range(1, len(changes) + 1))


@pytest.mark.parametrize(
    "frozen_s",
    [4, pytest.param(10, marks=pytest.mark.torture), pytest.param(30, marks=pytest.mark.torture)],
)
async def test_frozen_server_is_unavailable_in_time_and_goes_on(open_here, own_postgres, frozen_s):
    """A hung machine does not even refuse."""
    store = await open_here()
    acknowledged, errors, stop = {}, [], asyncio.Event()
    with capture_logs():
        async with asyncio.timeout(50), asyncio.TaskGroup() as group:
            for number in range(16):
                group.create_task(write_for(store, number, acknowledged, errors, stop))
            await all_go_on(acknowledged, range(16))
            own_postgres.freeze()
            try:
                await asyncio.sleep(0.2)
                reads_begun_s = time.monotonic()
                reads = await outcomes(*(store.load(key(n)) for n in range(50)))
                reads_taken_s = time.monotonic() - reads_begun_s
                await asyncio.sleep(frozen_s - reads_taken_s)
            finally:
                own_postgres.thaw()
            recovered_s = await works_again(store)
            await all_go_on(acknowledged, range(16))
            stop.set()
    assert {type(read) for read in reads} == {StoreUnavailable}
    assert reads_taken_s < BOUND_S
    assert errors, "no caller saw an error"
    assert max(errors) < BOUND_S
    assert recovered_s < 5
    for number, revision in acknowledged.items():
        assert await store.head_revision(key(number)) == revision


async def test_close_ends_while_the_server_is_frozen(open_here, own_postgres):
    """A drain has limited time."""
    store = await open_here()
    await store.append(append())
    own_postgres.freeze()
    try:
        writes = [asyncio.create_task(store.append(append(n, 1))) for n in range(20)]
        await asyncio.sleep(0.05)
        begun_s = time.monotonic()
        with capture_logs():
            await store.close()
        assert time.monotonic() - begun_s < BOUND_S
        assert {type(error) for error in await outcomes(*writes)} == {StoreUnavailable}
    finally:
        own_postgres.thaw()


async def test_full_disk_is_unavailable_and_ends(open_here, database, tmp_path):
    """Callers get the error; once there is space, appends succeed without a restart."""
    store = await open_here(UNHURRIED)
    schema = database.schema(tmp_path)
    # The server's error for a full disk, raised where it would occur: at the group's INSERT.
    database.execute(
        f"CREATE FUNCTION {schema}.fill_up() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$",
        f"CREATE TRIGGER full_disk BEFORE INSERT ON {schema}.changes "
        f"EXECUTE FUNCTION {schema}.fill_up()",
    )
    with capture_logs() as logs:
        results = await outcomes(*(store.append(append(n)) for n in range(10)))
    assert {str(result) for result in results} == {
        "the store's disk is full; try again when there is room"
    }
    assert len({id(result) for result in results}) == 10
    assert {(entry["event"], entry["code"]) for entry in logs} == {("store_call_failed", "53100")}
    database.execute(f"DROP FUNCTION {schema}.fill_up() CASCADE")
    await asyncio.gather(*(store.append(append(n)) for n in range(10)))


async def test_server_that_takes_no_writes_is_not_opened(open_here, database, tmp_path):
    """A standby or a read-only primary may answer with old data."""
    store = await open_here()
    await store.close()
    name = database.url.rpartition("/")[2]
    database.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    try:
        with capture_logs() as logs, pytest.raises(StoreUnavailable, match="cannot be reached"):
            await open_store(database.store_url(tmp_path, TIMES))
        assert "session is read-only" in logs[0]["error"]
    finally:
        with psycopg.connect(database.url, autocommit=True) as connection:
            connection.execute("SET default_transaction_read_only = off")
            connection.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")


async def test_call_that_takes_too_long_is_ended_by_the_server(open_here, database, tmp_path):
    """Its connection stays usable and is kept."""
    store = await open_here("call_timeout_s=0.3&read_connections=1")
    await store.append(append())
    before = sorted(await backends(database))

    async def sleep(connection):
        await connection.execute("SELECT pg_sleep(30)")

    with capture_logs(), pytest.raises(StoreUnavailable, match="took too long"):
        await store._engine._reads.run(sleep)
    assert await store.head_revision(key()) == 1
    assert set(before) <= set(await backends(database))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda url: url.replace("postgres://postgres:", "postgres://postgres:no"), "password"),
        (lambda url: url.replace("agent_routing_test_", "no_such_"), "does not exist"),
        (lambda url: url.replace("postgres://postgres:", "postgres://nobody:"), "password"),
    ],
    ids=["password", "database", "user"],
)
async def test_refused_sign_in_says_where_and_not_with_what(database, tmp_path, change, words):
    """The log has the server's reason; neither log nor error has the password."""
    url = change(database.store_url(tmp_path, TIMES))
    password = url.partition("@")[0].rpartition(":")[2]
    with capture_logs() as logs, pytest.raises(StoreUnavailable) as raised:
        await open_store(url)
    assert "the store's server cannot be reached" in str(raised.value)
    assert "127.0.0.1" in str(raised.value)
    assert words in logs[0]["error"]
    assert password not in str(raised.value)
    assert password not in str(logs)


async def test_password_is_in_no_log_of_a_driver_that_repeats_it(database, tmp_path, monkeypatch):
    """The driver quotes unknown hosts, which may contain a part of a password."""
    url = database.store_url(tmp_path, TIMES)
    password = url.partition("@")[0].rpartition(":")[2]

    async def repeats(*_args, **parameters):
        raise psycopg.OperationalError(f"could not parse {parameters['password']}@db")

    monkeypatch.setattr(psycopg.AsyncConnection, "connect", repeats)
    with capture_logs() as logs, pytest.raises(StoreUnavailable):
        await open_store(url)
    assert logs[0]["error"] == "could not parse …@db"
    assert password not in str(logs)
