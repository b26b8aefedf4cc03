"""``agent-routing compact``: rewrite the file of a SQLite store."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Final

import typer

from routing_service.cli.failure import EXIT_USAGE, CommandFailed
from routing_service.cli.options import PlainJsonOption
from routing_service.storage.open_store import StoreUrlInvalid
from routing_service.storage.sqlite.compact import compact_store
from routing_service.storage.store import StoreError
from routing_service.telemetry.call_log import configure_logging

EPILOG: Final = """\b
After erasing users, with the server stopped:
  agent-routing compact --store sqlite:////var/lib/agent-routing/routing.db

\b
Needs as much free disk space as the file has bytes. For SQLite only; for
PostgreSQL see VACUUM FULL.

\b
Exit codes: 0 the file is rewritten; 1 it is unchanged, for instance because a
server uses it; 2 the URL is wrong.
"""


def compact(
    *,
    store: Annotated[
        str,
        typer.Option(
            "--store",
            metavar="URL",
            envvar="AGENT_ROUTING_STORE",
            show_default=False,
            help="The store's URL, as for agent-routing serve.",
        ),
    ],
    as_json: PlainJsonOption = False,
) -> None:
    """Rewrite a SQLite store's file without erased data."""
    configure_logging("error", "auto")
    try:
        compacted = asyncio.run(compact_store(store))
    except StoreUrlInvalid as error:
        raise CommandFailed(str(error), exit_code=EXIT_USAGE) from None
    except StoreError as error:
        raise CommandFailed(str(error)) from None
    if as_json:
        answer = {
            "store": compacted.store,
            "before_bytes": compacted.before_bytes,
            "after_bytes": compacted.after_bytes,
        }
        typer.echo(json.dumps(answer, ensure_ascii=False))
    else:
        typer.echo(
            f"{compacted.store}: {compacted.before_bytes:,} bytes before, "
            f"{compacted.after_bytes:,} after"
        )
