"""``agent-routing log-id``: what a session or user is called in a log whose ids are hashed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

EPILOG: Final = """\b
Examples:
  agent-routing log-id chat-42 --key-file log-ids.key
  grep "$(agent-routing log-id chat-42 --key-file log-ids.key)" routing.log

\b
Prints a line for each id, in their order. The key file is the one that the
servers were started with (--log-ids-key-file): without it nobody can tell.
Exit codes: 0 done; 2 the key file is not taken.
"""


def log_id(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Session or user ids.")],
    *,
    key_file: Annotated[Path, typer.Option("--key-file", help="The servers' key file.")],
) -> None:
    """Tell what ids are called in a log whose ids are hashed."""
    from routing_service.cli.failure import EXIT_USAGE, CommandFailed  # noqa: PLC0415 - when it runs
    from routing_service.telemetry.log_privacy import (  # noqa: PLC0415 - as above
        IdHashes,
        LogKeyInvalid,
        read_key,
    )

    try:
        hashes = IdHashes(read_key(str(key_file)))
    except LogKeyInvalid as error:
        raise CommandFailed(str(error), exit_code=EXIT_USAGE) from None
    for given in ids:
        typer.echo(hashes.hide(given))
