"""The tables of the PostgreSQL store: from any older release's form to this one's.

A migration and its record are one transaction. Replicas that start together migrate one after the
other, by an advisory lock. A schema of a newer release is served if that release says that this one
still can.

A migration names in its first line the oldest schema version whose release can work with the
result: "-- compatible-from: N". During a roll-out old and new replicas then serve side by side.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Final

import psycopg
import structlog

from routing_service import __version__
from routing_service.storage.postgres.connection import Connection
from routing_service.storage.store import SchemaTooNew, StoreCorrupt, StoreUnavailable

MIGRATE_TIMEOUT_S: Final = 3600.0
"""How long migrations may take: an index over a large table takes its time."""

LOCK_TIMEOUT_S: Final = 10.0
"""How long a migration waits for a table that is in use. While it waits for one, all other
users of that table wait behind it."""

_FILE_NAME: Final = re.compile(r"(?P<number>\d{4})_[a-z0-9_]+\.sql")
_COMPATIBLE_FROM: Final = re.compile(r"-- compatible-from: (?P<version>\d+)\n")

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Migration:
    """One step from a schema version to the next."""

    number: int
    compatible_from: int
    """The oldest release, by the schema version that it was made for, that can work with it."""
    script: str


@cache
def migrations() -> tuple[Migration, ...]:
    """Read the migrations in order; the first takes an empty database to version 1."""
    folder = resources.files(__package__) / "migrations"
    found: dict[int, Migration] = {}
    for entry in folder.iterdir():
        name = _FILE_NAME.fullmatch(entry.name)
        if name is not None:
            number = int(name["number"])
            assert number not in found, f"two migrations have the number {number}"
            script = entry.read_text(encoding="utf-8")
            first_line = _COMPATIBLE_FROM.match(script)
            assert first_line is not None, f"{entry.name} does not say what it is compatible with"
            found[number] = Migration(number, int(first_line["version"]), script)
    numbers = sorted(found)
    assert numbers == list(range(1, len(numbers) + 1)), f"migrations have gaps: {numbers}"
    assert numbers, "the package was built without its migrations"
    return tuple(found[number] for number in numbers)


def supported_version() -> int:
    """Return the schema version that this release is made for."""
    return migrations()[-1].number


async def schema_version(connection: Connection, schema: str, where: str) -> int:
    """Read the version of the tables; 0 = there are none.

    where: the store, for messages. Raises SchemaTooNew, StoreCorrupt, StoreUnavailable.
    """
    try:
        cursor = await connection.execute(
            "SELECT to_regnamespace($1::text) IS NOT NULL, "
            "to_regclass($1::text || '.schema_versions') IS NOT NULL, "
            "EXISTS (SELECT FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace "
            "WHERE n.nspname = $1::text)",
            (schema,),
            binary=True,
        )
        exists, recorded, used = await _row(cursor)
        if not recorded:
            if exists and used:
                raise StoreCorrupt(
                    f'the schema "{schema}" of {where} belongs to something else; give the store '
                    "one of its own by ?schema=name"
                )
            return 0
        cursor = await connection.execute(
            f"SELECT version, compatible_from FROM {schema}.schema_versions "  # noqa: S608
            "ORDER BY version DESC LIMIT 1".encode(),
            binary=True,
        )
        row = await cursor.fetchone()
    except psycopg.errors.InsufficientPrivilege as error:
        raise StoreUnavailable(
            f'this user may not use the schema "{schema}" of {where}; grant it what it needs: '
            "agent-routing migrate --grant-to USER"
        ) from error
    if row is None:
        return 0
    version, compatible_from = row
    supported = supported_version()
    if version > supported and compatible_from > supported:
        raise SchemaTooNew(where, version, supported)
    return int(version)


async def migrate(connection: Connection, schema: str, where: str) -> tuple[int, int]:
    """Bring the tables to this release's version, and return the versions before and after.

    The connection is this call's alone. Raises StoreError, and psycopg.Error with nothing done
    but the migrations that were finished before.
    """
    before = version = await schema_version(connection, schema, where)
    while version < supported_version():
        version = await _migrate_once(connection, schema, where)
    return before, version


async def _migrate_once(connection: Connection, schema: str, where: str) -> int:
    """Run the next migration, unless another process has just done it."""
    async with connection.transaction():
        for name, value in (
            ("statement_timeout", MIGRATE_TIMEOUT_S),
            # Waiting for the advisory lock may take as long as another process's migration.
            ("lock_timeout", MIGRATE_TIMEOUT_S),
        ):
            await _set(connection, name, f"{value * 1000:.0f}")
        await connection.execute(
            "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", (f"agent routing {schema}",)
        )
        await _set(connection, "lock_timeout", f"{LOCK_TIMEOUT_S * 1000:.0f}")
        # Overrides the role's setting: a migration that was reported done must be durable.
        await _set(connection, "synchronous_commit", "on")
        version = await schema_version(connection, schema, where)
        if version >= supported_version():
            return version
        if version == 0:
            await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}".encode())
            await connection.execute(_VERSIONS.replace("@", f"{schema}.").encode())
        migration = migrations()[version]
        # PostgreSQL itself puts pg_catalog first.
        await _set(connection, "search_path", schema)
        # Sent without values, so that it may be many statements.
        await connection.execute(migration.script.encode())
        await connection.execute(
            f"INSERT INTO {schema}.schema_versions (version, compatible_from, release) "  # noqa: S608
            "VALUES ($1, $2, $3)".encode(),
            (migration.number, migration.compatible_from, __version__),
        )
    _log.info("store_migrated", store=where, version=migration.number)
    return migration.number


async def grant(connection: Connection, schema: str, role: str) -> None:
    """Grant a role the rights that serving needs, without changing tables."""
    quoted = psycopg.sql.Identifier(role).as_bytes(connection)
    async with connection.transaction():
        for statement in _GRANTS:
            text = statement.replace("@", schema).encode()
            await connection.execute(text.replace(b"<role>", quoted))


_VERSIONS: Final = """
CREATE TABLE @schema_versions (
    version integer PRIMARY KEY,
    compatible_from integer NOT NULL,
    release text NOT NULL,
    migrate_time timestamptz NOT NULL DEFAULT now()
)
"""

_GRANTS: Final = (
    "GRANT USAGE ON SCHEMA @ TO <role>",
    "GRANT SELECT ON ALL TABLES IN SCHEMA @ TO <role>",
    "GRANT INSERT, UPDATE, DELETE ON @.sessions, @.changes, @.tasks, @.audit, @.settings TO <role>",
    "GRANT INSERT, UPDATE, DELETE ON @.queue_entries TO <role>",
    "GRANT INSERT, UPDATE ON @.leases TO <role>",
    "GRANT UPDATE ON @.store, @.probes TO <role>",
    "GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA @ TO <role>",
    "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA @ TO <role>",
)


async def _set(connection: Connection, name: str, value: str) -> None:
    await connection.execute("SELECT set_config($1, $2, true)", (name, value))


async def _row(cursor: psycopg.AsyncCursor[tuple[Any, ...]]) -> tuple[Any, ...]:
    row = await cursor.fetchone()
    assert row is not None, "a SELECT without FROM has one row"
    return row
