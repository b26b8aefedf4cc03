"""``agent-routing reload``: make a server read its registry file again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer

from routing_service.cli.admin_answers import print_reloaded
from routing_service.cli.failure import EXIT_USAGE, CommandFailed
from routing_service.cli.options import (
    ReasonOption,
)
from routing_service.cli.screen import print_json
from routing_service.cli.server_call import CallOptions, calling, server_command

EPILOG: Final = """\b
Examples:
  agent-routing reload --validate-only
  agent-routing reload --validate-only --agents next.yaml
  agent-routing reload

\b
Exit codes: 0 in force, or usable; 1 the registry has mistakes, or the call failed;
2 the command line is wrong.
"""


@server_command()
def reload(
    *,
    validate_only: Annotated[
        bool,
        typer.Option(
            "--validate-only",
            help="Only check the file and print what would change, with the live sessions that "
            "have to do with changed or removed agents.",
        ),
    ] = False,
    agents: Annotated[
        str,
        typer.Option(
            "--agents",
            metavar="FILE",
            show_default=False,
            help="Check this file of yours instead of the server's; only with --validate-only.",
        ),
    ] = "",
    reason: ReasonOption = "",
    call: CallOptions,
) -> None:
    """Take up the registry file, or show what changes.

    The server reads its file again. With --reload manual it does so only when asked. --tenant:
    whose sessions are counted; "*" counts all.
    """
    if agents and not validate_only:
        message = "--agents is only for --validate-only; the server reads its own file"
        raise CommandFailed(message, exit_code=EXIT_USAGE)
    text = _text_of(agents) if agents else ""
    with calling(replace(call, tenant="")) as client:
        answer = client.reload_agents(
            validate_only=validate_only,
            reason=reason,
            registry=text,
            with_sessions=validate_only,
            tenant=call.tenant if validate_only else "",
        )
    if call.as_json:
        print_json(answer)
    else:
        print_reloaded(answer, is_trial=validate_only)


def _text_of(path: str) -> str:
    """Return the text of a registry file. Raises CommandFailed."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        message = f'registry file "{path}": {reason}; check path and content'
        raise CommandFailed(message, exit_code=EXIT_USAGE) from error
    if not text:
        message = f'registry file "{path}" is empty; write a registry into it'
        raise CommandFailed(message, exit_code=EXIT_USAGE)
    return text
