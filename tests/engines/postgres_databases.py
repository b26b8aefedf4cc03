"""A database for each test process, on one server for the whole run.

Owns the server's start (by the first process that needs it) and stop (by the last), and leaves no
test data on it.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

from tests.engines.postgres_server import URL_VARIABLE, PostgresServer, start_server

UNSYNCED = {"fsync": "off", "full_page_writes": "off"}
"""For a server whose data nobody needs after a crash of the machine: a schema for each test makes
some thirty files, and waiting for the disk at each took nine tenths of the suite's time. Tests of
what a commit promises start a server of their own, which syncs."""


@dataclass
class TestDatabase:
    """An empty database, in which each test has its own schema."""

    __test__ = False

    url: str
    _schemas: dict[Path, str] = field(default_factory=dict)
    """Of the tests that run, by their folders."""
    _empty: list[str] = field(default_factory=list)
    """Schemas that have tables and nothing in them: making tables is most of a short test."""

    def schema(self, folder: Path) -> str:
        """Return the schema of a test, identified by its folder."""
        if folder not in self._schemas:
            if not self._empty:
                return self.new_schema(folder)
            self._schemas[folder] = self._empty.pop()
        return self._schemas[folder]

    def new_schema(self, folder: Path) -> str:
        """Return a schema name for a test that needs a missing one."""
        self._schemas[folder] = f"test_{secrets.token_hex(8)}"
        return self._schemas[folder]

    def store_url(self, folder: Path, query: str = "") -> str:
        """Return the URL of a test's store."""
        parts = [f"schema={self.schema(folder)}", query]
        return f"{self.url}?{'&'.join(part for part in parts if part)}"

    def clear(self, folder: Path) -> None:
        """Remove the data of a test's store, and keep its tables for the next test."""
        schema = self._schemas.pop(folder, None)
        if schema is None:
            return
        try:
            self.execute(_EMPTY.replace("@", f"{schema}."))
        except psycopg.errors.UndefinedTable:
            self._drop(schema)
        else:
            self._empty.append(schema)

    def drop(self, folder: Path) -> None:
        """Remove a test's store with its tables, which the test has changed."""
        schema = self._schemas.pop(folder, None)
        if schema is not None:
            self._drop(schema)

    def _drop(self, schema: str) -> None:
        self.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")

    def execute(self, *statements: str | sql.Composed) -> list[tuple]:
        """Run statements as the database's owner, and return the last one's rows.

        Several in one text are one transaction.
        """
        with psycopg.connect(self.url, autocommit=True) as connection:
            # Dropping reports the dependent objects.
            connection.execute("SET client_min_messages = warning")
            for statement in statements:
                cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []


_EMPTY = """
DELETE FROM @changes;
DELETE FROM @sessions;
DELETE FROM @tasks;
DELETE FROM @audit;
DELETE FROM @settings;
DELETE FROM @leases;
DELETE FROM @queue_entries;
UPDATE @store SET store_id = substring(uuid_send(gen_random_uuid()) FROM 9), log_offset = 0;
"""
"""What makes a store anew, its identity included."""


@contextmanager
def test_database(shared_folder: Path) -> Iterator[TestDatabase]:
    """Make a database, on the server given by its URL or on the run's own.

    shared_folder: the same for all processes of the run. Raises CannotStart.
    """
    given = os.environ.get(URL_VARIABLE)
    if given:
        with database_on(given) as database:
            yield database
        return
    with _shared_server(shared_folder) as server, database_on(server.url()) as database:
        yield database


@contextmanager
def database_on(url: str) -> Iterator[TestDatabase]:
    """Make an empty database on a server, and drop it at the end."""
    name = f"agent_routing_test_{secrets.token_hex(6)}"
    server = TestDatabase(url)
    quoted = sql.Identifier(name)
    # template0 is the only one whose encoding may be chosen, and is always empty.
    server.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0 ENCODING 'UTF8'").format(quoted))
    try:
        yield TestDatabase(urlunsplit(urlsplit(url)._replace(path=f"/{name}")))
    finally:
        with suppress(psycopg.OperationalError):  # A test may have stopped the server.
            server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(quoted))


@contextmanager
def _shared_server(folder: Path) -> Iterator[PostgresServer]:
    state = folder / "postgres.json"
    with _locked(folder):
        found = _read(state)
        if found is None:
            server = start_server(UNSYNCED)
            users = []
        else:
            server, users = found
        _write(state, server, [*users, os.getpid()])
    try:
        yield server
    finally:
        with _locked(folder):
            _, users = _read(state) or (server, [])
            # A killed process does not count.
            left = [pid for pid in users if pid != os.getpid() and Path(f"/proc/{pid}").exists()]
            if left:
                _write(state, server, left)
            else:
                state.unlink(missing_ok=True)
                server.remove()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / "postgres.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _read(state: Path) -> tuple[PostgresServer, list[int]] | None:
    if not state.exists():
        return None
    fields = json.loads(state.read_text())
    users = fields.pop("users")
    run_as = fields.pop("run_as")
    server = PostgresServer(
        folder=Path(fields.pop("folder")),
        programs=Path(fields.pop("programs")),
        run_as=tuple(run_as) if run_as else None,
        **fields,
    )
    return server, users


def _write(state: Path, server: PostgresServer, users: list[int]) -> None:
    state.write_text(json.dumps({**asdict(server), "users": users}, default=str))
