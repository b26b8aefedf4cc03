"""``agent-routing migrate``: bring a store's schema up to date without serving."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Final

import typer

from routing_service.cli.failure import EXIT_USAGE, CommandFailed
from routing_service.cli.options import PlainJsonOption
from routing_service.storage.migrate_store import migrate_store
from routing_service.storage.open_store import StoreUrlInvalid
from routing_service.storage.store import StoreError
from routing_service.telemetry.call_log import configure_logging

EPILOG: Final = """\b
A server migrates its store when it starts, if its database user may. If not, run
this first, as a user who owns the tables:
  agent-routing migrate --store postgres://owner@db/chat --grant-to router
  agent-routing serve --store postgres://router@db/chat --agents agents.yaml

\b
Exit codes: 0 the schema is up to date; 1 it is not; 2 the URL is wrong.
"""


def migrate(
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
    grant_to: Annotated[
        str,
        typer.Option(
            "--grant-to",
            metavar="USER",
            show_default=False,
            help="Then grant this user what serving needs, without the right to change tables.",
        ),
    ] = "",
    as_json: PlainJsonOption = False,
) -> None:
    """Bring a store's schema up to date. Safe to repeat, and while servers run."""
    # Log the driver's errors; success is printed below.
    configure_logging("error", "auto")
    try:
        migrated = asyncio.run(migrate_store(store, grant_to=grant_to))
    except StoreUrlInvalid as error:
        raise CommandFailed(str(error), exit_code=EXIT_USAGE) from None
    except StoreError as error:
        raise CommandFailed(str(error)) from None
    if as_json:
        answer = {"store": migrated.store, "before": migrated.before, "after": migrated.after}
        typer.echo(json.dumps(answer, ensure_ascii=False))
    elif migrated.before == migrated.after:
        version = "" if migrated.after is None else f", schema version {migrated.after}"
        typer.echo(f"{migrated.store}: up to date{version}")
    else:
        typer.echo(
            f"{migrated.store}: migrated from schema version {migrated.before} to {migrated.after}"
        )
