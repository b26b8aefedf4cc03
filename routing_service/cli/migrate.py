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
from routing_service.storage.store_format import NEWEST_FORMAT
from routing_service.stored_data.queue_check import rebuild_queues
from routing_service.telemetry.call_log import configure_logging

EPILOG: Final = """\b
A server migrates its store when it starts, if its database user may. If not, run
this first, as a user who owns the tables:
  agent-routing migrate --store postgres://owner@db/chat --grant-to router
  agent-routing serve --store postgres://router@db/chat --agents agents.yaml

\b
A release goes on writing what the last one can read until the store's format is
raised. Do that once no replica of the last release is left; it cannot be undone:
  agent-routing migrate --store postgres://owner@db/chat --format 2

\b
With --format it also reads every session and puts the index of approvals right;
repeat it with the store's own format for that alone.

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
    raise_to: Annotated[
        int | None,
        typer.Option(
            "--format",
            metavar="N",
            show_default=False,
            help="Then raise the store's format to N, once no older replica is left.",
        ),
    ] = None,
    as_json: PlainJsonOption = False,
) -> None:
    """Bring a store's schema up to date. Safe to repeat, and while servers run."""
    # Log the driver's errors; success is printed below.
    configure_logging("error", "auto")
    try:
        migrated = asyncio.run(
            migrate_store(store, grant_to=grant_to, raise_to=raise_to, mend=rebuild_queues)
        )
    except StoreUrlInvalid as error:
        raise CommandFailed(str(error), exit_code=EXIT_USAGE) from None
    except StoreError as error:
        raise CommandFailed(str(error)) from None
    if as_json:
        answer = {
            "store": migrated.store,
            "before": migrated.before,
            "after": migrated.after,
            "format_before": migrated.format_before,
            "format": migrated.format_after,
            "entries_mended": migrated.entries_mended,
        }
        typer.echo(json.dumps(answer, ensure_ascii=False))
        return
    if migrated.before == migrated.after:
        version = "" if migrated.after is None else f", schema version {migrated.after}"
        done = f"up to date{version}"
    else:
        done = f"migrated from schema version {migrated.before} to {migrated.after}"
    if migrated.format_before == migrated.format_after:
        typer.echo(f"{migrated.store}: {done}, format {migrated.format_after}")
    else:
        typer.echo(
            f"{migrated.store}: {done}, format raised from {migrated.format_before} "
            f"to {migrated.format_after}"
        )
    if migrated.entries_mended:
        typer.echo(f"{migrated.entries_mended} entries of queues put right.")
    if migrated.format_after < NEWEST_FORMAT:
        typer.echo(
            f"This release can write format {NEWEST_FORMAT}: run migrate --format {NEWEST_FORMAT} "
            "once no replica of an older release is left."
        )
