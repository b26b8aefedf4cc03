"""``agent-routing backup`` and ``restore``: save a SQLite store to one file, and put it back."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Final

import typer

from routing_service.cli.options import PlainJsonOption, StoreOption
from routing_service.cli.store_call import call_store
from routing_service.storage.open_store import StoreUrlInvalid, sqlite_path, without_secrets
from routing_service.storage.sqlite.backup import BackedUp, backup_sqlite, restore_sqlite

BACKUP_EPILOG: Final = """\b
The server may keep running: the backup is one moment of the store, with all that
was acknowledged before it began. FILE appears only once it is complete, checked
and on disk. In a crontab:
  agent-routing backup --store sqlite:////var/lib/agent-routing/routing.db \\
    --to /backup/routing-$(date +%F).db && \\
  agent-routing verify --quiet --store sqlite:////backup/routing-$(date +%F).db

\b
For SQLite only. PostgreSQL has pg_dump; agent-routing copy writes any engine's
data to a SQLite file.

\b
Exit codes: 0 the backup is good; 1 no backup was made; 2 the URL is wrong.
"""

RESTORE_EPILOG: Final = """\b
Stop the server first. With --overwrite, the existing file is kept as
NAME.before-restore. Clients that watch continue where they were.
  agent-routing restore --from /backup/routing-2026-11-21.db \\
    --store sqlite:////var/lib/agent-routing/routing.db --overwrite

\b
Exit codes: 0 restored; 1 not restored, and nothing was changed; 2 the URL
is wrong.
"""

OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")]


def backup(
    *,
    store: StoreOption,
    to: Annotated[
        str, typer.Option("--to", metavar="FILE", show_default=False, help="Where to write it.")
    ],
    overwrite: OverwriteOption = False,
    as_json: PlainJsonOption = False,
) -> None:
    """Back up a SQLite store to one file while its server runs."""
    made = call_store(lambda: backup_sqlite(_file_of(store), Path(to), overwrite=overwrite))
    _tell(made, as_json=as_json)


def restore(
    *,
    from_file: Annotated[
        str, typer.Option("--from", metavar="FILE", show_default=False, help="The backup.")
    ],
    store: StoreOption,
    overwrite: OverwriteOption = False,
    as_json: PlainJsonOption = False,
) -> None:
    """Replace a SQLite store that is not in use with a backup."""
    made = call_store(lambda: restore_sqlite(Path(from_file), _file_of(store), overwrite=overwrite))
    _tell(made, as_json=as_json)


def _file_of(url: str) -> Path:
    """Return a SQLite store's file. Raises StoreUrlInvalid."""
    engine, _, rest = url.partition(":")
    if engine.lower() != "sqlite":
        raise StoreUrlInvalid(
            f'store URL "{without_secrets(url)}" is not a SQLite file, the only kind that can be '
            "backed up; PostgreSQL has pg_dump, and agent-routing copy --to sqlite:///FILE writes "
            "any engine's data to a file"
        )
    return Path(sqlite_path(url, rest))


def _tell(made: BackedUp, *, as_json: bool) -> None:

    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(made), ensure_ascii=False))
        return
    typer.echo(
        f"{made.path}: {made.sessions} sessions, {made.changes} changes, {made.size_bytes} bytes, "
        f"schema version {made.schema_version}"
    )
