"""The tables of a PostgreSQL store: created once, migrated, shared with other releases."""

import asyncio
import json
import re
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from structlog.testing import capture_logs

from routing_service.storage.migrate_store import Migrated, migrate_store
from routing_service.storage.open_store import StoreUrlInvalid, open_store
from routing_service.storage.postgres import schema as postgres_schema
from routing_service.storage.postgres.schema import Migration, migrations
from routing_service.storage.store import (
    CURSOR_START,
    RequestSeen,
    RevisionConflict,
    SchemaTooNew,
    StoreCorrupt,
    StoreUnavailable,
)
from routing_service.storage.store_format import NEWEST_FORMAT, OLDEST_FORMAT
from tests.engines.appends import append, audit, key, outcomes, task


@pytest.fixture
def url(postgres_database, tmp_path):
    """A store without tables; they are dropped afterwards."""
    postgres_database.new_schema(tmp_path)
    yield postgres_database.store_url(tmp_path, "hints=off")
    postgres_database.drop(tmp_path)


@pytest.fixture
def schema(postgres_database, tmp_path, url):
    """The schema of its tables."""
    return postgres_database.schema(tmp_path)


@pytest.fixture
def role(postgres_database):
    """A user who may only sign in."""
    name, password = "agent_routing_test_role", "r0le"
    postgres_database.execute(
        f"DROP ROLE IF EXISTS {name}", f"CREATE ROLE {name} LOGIN PASSWORD '{password}'"
    )
    yield f"{name}:{password}"
    postgres_database.execute(f"DROP OWNED BY {name}", f"DROP ROLE {name}")


def as_role(url, role):
    """Write a URL for another user."""
    return re.sub(r"//.*@", f"//{role}@", url)


async def use(store):
    """Use each operation of serving once."""
    revision = await store.head_revision(key())
    await store.append(append(0, revision, tasks=(task(0),)))
    await store.append_audit(audit())
    await store.put_setting("acme", "stickiness", b"off")
    await store.probe_write()
    assert (await store.load(key())).revision == revision + 1
    assert await store.find_task("acme", "task-1")
    assert await store.count_audit(key(), "handoff_refused", "request-1") == revision + 1
    page, _ = await store.read_log(CURSOR_START, 100)
    assert len(page) == revision + 1
    await store.log_end()


async def test_opening_makes_the_tables_and_says_so(url, postgres_database, schema):
    """The first start of a new installation."""
    with capture_logs() as logs:
        store = await open_store(url)
    await use(store)
    await store.close()
    assert [entry["event"] for entry in logs] == ["store_migrated"] * len(migrations())
    rows = postgres_database.execute(f"SELECT version, release FROM {schema}.schema_versions")
    assert [version for version, _ in rows] == list(range(1, len(migrations()) + 1))


async def test_replicas_that_start_together_migrate_once(url, postgres_database, schema):
    """One of several new replicas creates the tables, the others wait."""
    with capture_logs() as logs:
        stores = await asyncio.gather(*(open_store(url) for _ in range(6)))
    assert [entry["event"] for entry in logs] == ["store_migrated"] * len(migrations())
    for store in stores:
        await use(store)
        await store.close()
    ((count,),) = postgres_database.execute(f"SELECT count(*) FROM {schema}.schema_versions")
    assert count == len(migrations())


@pytest.fixture
def next_release(monkeypatch):
    """Return a function that simulates the next release, with one more migration."""
    today = migrations()

    def make(script, compatible_from):
        number = len(today) + 1
        newer = (*today, Migration(number, compatible_from, script))
        monkeypatch.setattr(postgres_schema, "migrations", lambda: newer)
        return number

    yield make
    monkeypatch.undo()


async def test_data_of_the_last_release_is_migrated_and_kept(url, next_release):
    """The earlier data is still there."""
    store = await open_store(url)
    await use(store)
    await store.close()
    number = next_release("ALTER TABLE sessions ADD COLUMN colour text", 1)
    assert await migrate_store(url) == Migrated(
        store=url.replace("&hints=off", "").replace(url[11 : url.index("@") + 1], ""),
        before=number - 1,
        after=number,
        format_before=OLDEST_FORMAT,
        format_after=OLDEST_FORMAT,
    )
    store = await open_store(url)
    await use(store)
    assert await store.head_revision(key()) == 2
    await store.close()


async def test_old_replicas_serve_beside_new_ones_where_the_migration_allows(
    url, next_release, monkeypatch
):
    """A roll-out: the new release migrates while the old one runs, and may restart."""
    old = await open_store(url)
    await use(old)
    next_release("ALTER TABLE sessions ADD COLUMN colour text DEFAULT 'red'", 1)
    new = await open_store(url)
    await use(new)
    await use(old)
    monkeypatch.undo()
    old_again = await open_store(url)
    await use(old_again)
    await use(new)
    for store in (old, new, old_again):
        await store.close()


async def test_schema_that_is_too_new_is_refused_with_the_remedy(url, next_release, monkeypatch):
    """An old release would write data that the new one cannot read."""
    number = next_release("ALTER TABLE sessions ADD COLUMN colour text", len(migrations()) + 1)
    await migrate_store(url)
    monkeypatch.undo()
    with pytest.raises(SchemaTooNew, match="this release reads up to") as raised:
        await open_store(url)
    assert (raised.value.found, raised.value.supported) == (number, number - 1)
    with pytest.raises(SchemaTooNew):
        await migrate_store(url)


async def test_migration_that_fails_leaves_what_was_before(url, next_release):
    """A migration and its record are one transaction."""
    await (await open_store(url)).close()
    next_release("ALTER TABLE sessions ADD COLUMN colour text; SELECT 1 / 0", 1)
    with capture_logs() as logs, pytest.raises(StoreUnavailable, match="was not migrated"):
        await open_store(url)
    assert "division by zero" in logs[-1]["error"]
    number = next_release("ALTER TABLE sessions ADD COLUMN colour text", 1)
    assert (await migrate_store(url)).after == number


async def test_schema_of_something_else_is_left_alone(url, schema, postgres_database):
    """Another application already uses that name."""
    postgres_database.execute(f"CREATE SCHEMA {schema}", f"CREATE TABLE {schema}.theirs (id int)")
    with pytest.raises(StoreCorrupt, match=f'schema "{schema}" .* belongs to something else'):
        await open_store(url)
    tables = postgres_database.execute(
        f"SELECT tablename FROM pg_tables WHERE schemaname = '{schema}'"
    )
    assert tables == [("theirs",)]


async def test_one_of_several_clusters_is_refused(url, schema, postgres_database):
    """It would serve its own tenants, and begin the others again with nothing."""
    await (await open_store(url)).close()
    postgres_database.execute(f"UPDATE {schema}.store SET clusters_home = store_id")
    with pytest.raises(StoreUnavailable, match=r"one of several clusters.*docs/scaling\.md"):
        await open_store(url)


async def test_two_stores_share_a_database(url, postgres_database, tmp_path):
    """Each has its own schema and its own sessions."""
    first = await open_store(url)
    await use(first)
    folder = tmp_path / "other"
    second = await open_store(postgres_database.store_url(folder))
    assert await second.load(key()) is None
    await use(second)
    for store in (first, second):
        await store.close()
    postgres_database.drop(folder)


async def test_user_without_rights_is_told_what_to_run(url, role):
    """The tables are missing and the user may not create them."""
    with capture_logs() as logs, pytest.raises(StoreUnavailable) as raised:
        await open_store(as_role(url, role))
    assert "run agent-routing migrate --store URL once with a user that may" in str(raised.value)
    assert "permission denied for database" in logs[-1]["error"]


async def test_user_whom_nothing_was_granted_is_told_what_to_run(url, role):
    """The tables exist and the user may not read them."""
    await migrate_store(url)
    with capture_logs(), pytest.raises(StoreUnavailable, match="migrate --grant-to USER"):
        await open_store(as_role(url, role))


async def test_user_without_the_right_to_change_tables_can_serve(
    url, role, schema, postgres_database
):
    """The serving user does not need the right to drop tables."""
    await migrate_store(url, grant_to=role.partition(":")[0])
    store = await open_store(as_role(url, role))
    await use(store)
    await store.close()
    with psycopg.connect(as_role(postgres_database.url, role)) as connection:
        for statement in ("DROP TABLE {}.changes", "ALTER TABLE {}.sessions ADD x int"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement.format(schema))
            connection.rollback()


def test_command_migrates_and_says_from_where_to_where(run, url, schema):
    """The first run creates the tables, the second has nothing to do."""
    code, out, _ = run("migrate", "--store", url)
    assert (code, out.rpartition(": ")[2]) == (
        0,
        f"migrated from schema version 0 to {len(migrations())}, format {NEWEST_FORMAT}\n",
    )
    code, out, _ = run("migrate", "--store", url)
    assert code == 0
    present = f"schema version {len(migrations())}, format {NEWEST_FORMAT}"
    assert out.endswith(f"{schema}: up to date, {present}\n")
    assert "@" not in out
    code, out, _ = run("migrate", "--store", url, "--json")
    assert (code, json.loads(out)["before"]) == (0, len(migrations()))


def test_command_grants(run, url, role):
    """It grants to the user of the example in its help."""
    code, _, _ = run("migrate", "--store", url, "--grant-to", role.partition(":")[0])
    assert code == 0

    async def serve():
        store = await open_store(as_role(url, role))
        await use(store)
        await store.close()

    asyncio.run(serve())


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (["--store", "postgres://ana:s3cret@127.0.0.1:1/x"], 1, "cannot be reached; try again"),
        (["--store", "postgres://ana:s3cret@127.0.0.1"], 2, "names no database"),
        (["--store", "mysql://ana:s3cret@db/x"], 2, "unknown engine"),
        (["--store", "memory:", "--grant-to", "ana"], 2, "has no users to grant anything to"),
        ([], 2, "--store"),
    ],
)
def test_command_that_fails_says_what_to_do(run, argv, code, words):
    """One line without a password, and an exit code for the kind of mistake."""
    found, out, err = run("migrate", *argv)
    assert (found, out) == (code, "")
    assert words in err
    assert "s3cret" not in err


def test_command_serves_the_other_engines_too(run, tmp_path):
    """One command for any store in a roll-out's script."""
    file = tmp_path / "store.db"
    assert run("migrate", "--store", f"sqlite:///{file}")[0] == 0
    assert file.is_file()
    assert run("migrate", "--store", "memory:")[0] == 0


async def test_grant_for_an_engine_without_users_is_refused(tmp_path):
    """A partial grant would be worse."""
    with pytest.raises(StoreUrlInvalid):
        await migrate_store(f"sqlite:///{tmp_path}/store.db", grant_to="ana")
    assert not list(tmp_path.iterdir())


def test_every_migration_says_what_it_is_compatible_with():
    """The oldest compatible release cannot be newer than the migration."""
    for number, migration in enumerate(migrations(), start=1):
        assert migration.number == number
        assert 1 <= migration.compatible_from <= number
    assert migrations()[0] == replace(migrations()[0], compatible_from=1)


PARTITIONED = re.compile(r"```sql\n(?P<script>-- Partitioned tables.*?)```", re.DOTALL)


async def test_partitioned_tables_serve_as_the_others(url, schema, postgres_database, tmp_path):
    """By the documented steps, with existing sessions: our statements stay the same."""
    document = Path(__file__).parents[4] / "docs" / "postgresql.md"
    script = PARTITIONED.search(document.read_text("utf-8"))["script"]
    store = await open_store(url)
    await asyncio.gather(*(store.append(append(n, tasks=(task(n, f"t{n}"),))) for n in range(40)))
    await store.append_audit(audit())
    _, cursor = await store.read_log(CURSOR_START, 10)
    await store.close()
    postgres_database.execute(script.replace("agent_routing", schema))
    partitions = postgres_database.execute(
        f"SELECT tableoid::regclass::text, count(*) FROM {schema}.changes GROUP BY 1"
    )
    assert len(partitions) > 1
    store = await open_store(url)
    assert await outcomes(*(store.append(append(n, 1)) for n in range(40))) == [None] * 40
    seen = await outcomes(*(store.append(append(n, n % 2)) for n in range(40)))
    assert {type(result) for result in seen} == {RequestSeen}
    late = await outcomes(*(store.append(append(n, 1, request_id="late")) for n in range(40)))
    assert {type(result) for result in late} == {RevisionConflict}
    found = []
    while True:
        page, cursor = await store.read_log(cursor, 20)
        if not page:
            break
        found += page
    assert len(found) == 30 + 40
    assert [await store.head_revision(key(n)) for n in range(40)] == [2] * 40
    assert len((await store.list_sessions("acme", CURSOR_START, 100))[0]) == 40
    assert (await store.find_task("acme", "t7")).session_id == key(7).session_id
    assert len(await store.list_tasks(key(7), limit=5)) == 1
    await store.close()
    plan = postgres_database.execute(
        f"EXPLAIN SELECT * FROM {schema}.changes WHERE tenant = 'acme' AND session_id = 'chat-0001'"
    )
    assert sum("changes_" in line and "Scan" in line for (line,) in plan) == 1
