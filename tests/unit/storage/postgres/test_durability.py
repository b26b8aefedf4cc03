"""Acknowledged writes are on the server's disk, for any setting of role, database and server."""

import asyncio

import psycopg
import pytest

from routing_service.storage.open_store import open_store
from routing_service.storage.store import CURSOR_START
from tests.engines.appends import append, audit, key
from tests.engines.postgres_databases import database_on
from tests.engines.postgres_server import CannotStart, start_server

LAZY = {
    # Commits return at once, and reach the disk later.
    "synchronous_commit": "off",
    "wal_writer_delay": "10s",
    "wal_writer_flush_after": "1GB",
    "autovacuum": "off",
}


@pytest.fixture(scope="module")
def server():
    """A server that does not sync commits by default."""
    try:
        made = start_server(LAZY)
    except CannotStart as error:
        pytest.skip(f"postgres: {error}")
    yield made
    made.remove()


@pytest.fixture
def database(server):
    """A database on it."""
    with database_on(server.url()) as made:
        yield made


async def write(store, number):
    """Make each kind of write."""
    await store.append(append(number))
    await store.append_audit(audit(number, data=b"%d" % number))
    await store.put_setting("acme", f"name-{number}", b"%d" % number)


async def test_acknowledged_writes_survive_a_crash_of_the_server(server, database, tmp_path):
    """Plain commits on this server do not survive, which is the control."""
    url = database.store_url(tmp_path, "hints=off")
    store = await open_store(url)
    database.execute("CREATE TABLE control (number int)", "CHECKPOINT")
    with psycopg.connect(database.url, autocommit=True) as plain:
        for number in range(20):
            await write(store, number)
        for number in range(20):
            plain.execute("INSERT INTO control VALUES (%s)", (number,))
        # All processes were killed; data in their memory is gone.
        await asyncio.to_thread(server.restart, "immediate")
    await store.close()
    store = await open_store(url)
    for number in range(20):
        assert await store.head_revision(key(number)) == 1
        assert await store.get_setting("acme", f"name-{number}") == b"%d" % number
    entries, _ = await store.read_audit("acme", None, CURSOR_START, 100)
    assert len(entries) == 20
    await store.close()
    ((left,),) = database.execute("SELECT count(*) FROM control")
    assert left == 0


PAGE_HEADERS = (24, 40)
"""What is left where the flushed log ends with its page: the header of the next one, in bytes."""


async def test_commit_returns_after_its_log_is_flushed(database, tmp_path):
    """The server reports its flushed position at the moment of the answer."""
    store = await open_store(database.store_url(tmp_path, "hints=off"))
    writes = {
        "append": lambda n: store.append(append(n)),
        "audit": lambda n: store.append_audit(audit(n)),
        "setting": lambda n: store.put_setting("acme", f"name-{n}", b"v"),
        "probe": lambda _: store.probe_write(),
    }
    with psycopg.connect(database.url, autocommit=True) as watching:

        def unflushed_bytes():
            cursor = watching.execute(
                "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), pg_current_wal_flush_lsn())"
            )
            return cursor.fetchone()[0]

        watching.execute("CREATE TABLE control (number int)")
        watching.execute("INSERT INTO control VALUES (1)")
        assert unflushed_bytes() > 0, "the control: this server would have let it lie"
        for name, one in writes.items():
            for number in range(5):
                await one(number)
                assert unflushed_bytes() in {0, *PAGE_HEADERS}, name
    await store.close()


async def test_stronger_setting_is_left_as_it_is(database, tmp_path):
    """An operator's stronger setting for standbys is kept."""
    schema = database.schema(tmp_path)
    store = await open_store(database.store_url(tmp_path, "hints=off"))
    await store.close()
    with psycopg.connect(database.url) as connection:
        for setting, expected in (
            ("off", "on"),
            ("local", "on"),
            ("remote_write", "on"),
            ("on", "on"),
            ("remote_apply", "remote_apply"),
        ):
            connection.execute(f"SET synchronous_commit = {setting}")
            connection.commit()
            connection.execute(f"SELECT {schema}.write_probe()")
            cursor = connection.execute("SHOW synchronous_commit")
            assert cursor.fetchone() == (expected,), setting
            connection.rollback()
