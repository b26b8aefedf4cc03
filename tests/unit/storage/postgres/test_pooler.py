"""PostgreSQL behind a transaction pooler, which may use another connection each time."""

import asyncio

import pytest
from structlog.testing import capture_logs

from routing_service.storage.migrate_store import migrate_store
from routing_service.storage.open_store import open_store
from routing_service.storage.store import CURSOR_START, StoreUnavailable
from tests.engines.appends import append, audit, key, outcomes
from tests.engines.pgbouncer import pgbouncer
from tests.engines.postgres_databases import TestDatabase
from tests.engines.postgres_server import CannotStart


@pytest.fixture(scope="module")
def pooled(postgres_database):
    """The test database, through a pooler with three connections to it."""
    try:
        with pgbouncer(postgres_database.url, server_connections=3) as url:
            yield TestDatabase(url)
    except CannotStart as error:
        pytest.skip(f"pgbouncer: {error}")


@pytest.fixture
def folder(pooled, tmp_path):
    """The test's schema."""
    yield tmp_path
    pooled.clear(tmp_path)


async def test_store_serves_through_a_transaction_pooler(pooled, folder):
    """Nothing depends on which connection it gets."""
    url = pooled.store_url(folder, "transaction_pooler=on")
    with capture_logs() as logs:
        store, replica = await open_store(url), await open_store(url)
        for base in range(20):
            writes = [each.append(append(n, base)) for n in range(30) for each in (store, replica)]
            results = await outcomes(*writes)
            assert sum(result is None for result in results) == 30
            heads = await asyncio.gather(*(replica.load(key(n)) for n in range(30)))
            assert [head.revision for head in heads] == [base + 1] * 30
        await store.append_audit(audit())
        await store.put_setting("acme", "stickiness", b"off")
        await replica.probe_write()
        assert await replica.get_setting("acme", "stickiness") == b"off"
        found, cursor = 0, CURSOR_START
        while True:
            page, cursor = await store.read_log(cursor, 100)
            if not page:
                break
            found += len(page)
        assert found == 30 * 20
        assert await store.wait_for_changes(0, timeout_s=0.05) == 0
        await store.close()
        await replica.close()
    assert {entry["event"] for entry in logs} <= {"store_migrated"}


async def test_commits_through_a_pooler_are_durable(pooled, folder, postgres_database):
    """The settings apply per transaction and override the connection's."""
    schema = pooled.schema(folder)
    store = await open_store(pooled.store_url(folder, "transaction_pooler=on&hints=off"))
    postgres_database.execute(
        f"CREATE TABLE {schema}.seen (setting text)",
        f"CREATE FUNCTION {schema}.look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO "
        f"{schema}.seen VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$",
        # At the end of the transaction, just before its commit.
        f"CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON {schema}.changes DEFERRABLE "
        f"INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION {schema}.look()",
    )
    try:

        async def spoil(connection):
            await connection.execute("SET synchronous_commit = off")

        for _ in range(9):
            await store._engine._reads.run(spoil)
        for base in range(9):
            await store.append(append(0, base))
        assert postgres_database.execute(f"SELECT DISTINCT setting FROM {schema}.seen") == [("on",)]
    finally:
        await store.close()
        postgres_database.execute(
            f"DROP FUNCTION {schema}.look() CASCADE", f"DROP TABLE {schema}.seen"
        )


async def test_pooler_that_was_not_told_of_is_refused_at_the_start(pooled, folder):
    """The pooler would refuse settings; an error at the start is better than later failures."""
    with capture_logs() as logs, pytest.raises(StoreUnavailable):
        await open_store(pooled.store_url(folder))
    assert "unsupported startup parameter" in logs[0]["error"]


async def test_migration_runs_through_a_pooler(pooled, folder):
    """A transaction keeps its connection, and so its settings."""
    url = pooled.store_url(folder, "transaction_pooler=on")
    results = await asyncio.gather(*(migrate_store(url) for _ in range(4)))
    assert {migrated.after for migrated in results} == {results[0].after}
    store = await open_store(url)
    await store.append(append())
    await store.close()
