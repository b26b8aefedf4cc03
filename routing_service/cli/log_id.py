"""``agent-routing log-id``: the hash of a session or user id in a log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from routing_service.cli.failure import EXIT_USAGE, CommandFailed
from routing_service.telemetry.log_privacy import IdHashes, LogKeyInvalid, read_key

EPILOG: Final = """\b
Examples:
  agent-routing log-id chat-42 --key-file log-ids.key
  grep "$(agent-routing log-id chat-42 --key-file log-ids.key)" routing.log

\b
For logs whose ids are hashed. Prints a line for each id, in order. The key file
is the servers' --log-ids-key-file; the hashes cannot be computed without it.
Exit codes: 0 done; 2 the key file is invalid.
"""


def log_id(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Session or user ids.")],
    *,
    key_file: Annotated[Path, typer.Option("--key-file", help="The servers' key file.")],
) -> None:
    """Print the hash that stands for an id in a log."""
    try:
        hashes = IdHashes(read_key(str(key_file)))
    except LogKeyInvalid as error:
        raise CommandFailed(str(error), exit_code=EXIT_USAGE) from None
    for given in ids:
        typer.echo(hashes.hide(given))
