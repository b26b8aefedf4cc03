"""The tables of the SQLite store: from any older release's form to this one's.

The file has two marks: application_id says which application's it is, user_version how many
migrations it has had. A migration and its mark are one transaction, so a crash never leaves half of
one.
"""

from __future__ import annotations

import re
import sqlite3
from functools import cache
from importlib import resources
from typing import Final

from routing_service.storage.store import SchemaTooNew, StoreCorrupt

APPLICATION_ID: Final = int.from_bytes(b"ARou", "big")
"""SQLite's mark in the file's header, shown by file(1); 0001 sets it."""

QUEUE_ENTRIES: Final = (
    "CREATE TABLE IF NOT EXISTS queue_entries (tenant TEXT NOT NULL, queue TEXT NOT NULL, "
    "place_us INTEGER NOT NULL, session_id TEXT NOT NULL, request_id TEXT NOT NULL, "
    "token TEXT NOT NULL DEFAULT '', worker TEXT NOT NULL DEFAULT '', "
    "until_us INTEGER NOT NULL DEFAULT 0, attempt INTEGER NOT NULL DEFAULT 0, "
    "PRIMARY KEY (tenant, queue, place_us, session_id, request_id)) WITHOUT ROWID"
)
"""A table that older releases need not know, so the file's version stays: its entries are hints,
and what an older release writes without them is put back from the sessions' states."""

_FILE_NAME: Final = re.compile(r"(?P<number>\d{4})_[a-z0-9_]+\.sql")


@cache
def migrations() -> tuple[str, ...]:
    """Read the migrations in order; the first takes an empty file to version 1."""
    folder = resources.files(__package__) / "migrations"
    scripts: dict[int, str] = {}
    for entry in folder.iterdir():
        found = _FILE_NAME.fullmatch(entry.name)
        if found is not None:
            number = int(found["number"])
            assert number not in scripts, f"two migrations have the number {number}"
            scripts[number] = entry.read_text(encoding="utf-8")
    numbers = sorted(scripts)
    assert numbers == list(range(1, len(numbers) + 1)), f"migrations have gaps: {numbers}"
    assert numbers, "the package was built without its migrations"
    return tuple(scripts[number] for number in numbers)


def check_owner(connection: sqlite3.Connection, path: str) -> None:
    """Refuse a file that is not ours or too new, before anything in it is touched.

    Raises StoreCorrupt, SchemaTooNew.
    """
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if application_id != APPLICATION_ID and (application_id or version or tables):
        raise StoreCorrupt(
            f'file "{path}" is an SQLite database of another application '
            f"(application id {application_id}); give the store a file of its own"
        )
    supported = len(migrations())
    if version > supported:
        raise SchemaTooNew(f'file "{path}"', version, supported)


def version_of(connection: sqlite3.Connection) -> int:
    """Return how many migrations the file has had."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the tables to this release's version; usually they are."""
    version = version_of(connection)
    for number, script in enumerate(migrations()[version:], start=version + 1):
        try:
            connection.executescript(
                f"BEGIN IMMEDIATE;\n{script}\nPRAGMA user_version = {number};\nCOMMIT;"
            )
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
    connection.execute(QUEUE_ENTRIES)
