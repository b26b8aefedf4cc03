"""``agent-routing erase-user``: erase the content of all of a user's sessions."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from agent_routing.v1 import admin_service_pb2 as pb
from routing_service.cli.operator_call import confirm, operating
from routing_service.cli.options import (
    ReasonOption,
)
from routing_service.cli.screen import print_json
from routing_service.cli.server_call import CallOptions, server_command

LONG_TIMEOUT_S: Final = 60.0
"""The longest time that a server gives a call by default: many sessions take long."""

DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Only say how much would be removed.")
]
YesOption = Annotated[
    bool, typer.Option("--yes", help="Do not ask for confirmation. It cannot be undone.")
]
LongTimeoutOption = Annotated[
    float,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        min=0.1,
        help="How long to wait for an answer. Repeat the command for what is left by then.",
    ),
]

EPILOG: Final = """\b
Examples:
  agent-routing erase-user ana --dry-run
  agent-routing erase-user ana --yes --reason "request 17"

\b
After an error, repeat it: it continues with what is left. docs/retention.md says
what the store's files and backups keep, and for how long.
"""


@server_command(timeout=LongTimeoutOption, timeout_s=LONG_TIMEOUT_S)
def erase_user(
    user: Annotated[str, typer.Argument(metavar="USER", help="The user.", show_default=False)],
    *,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    reason: ReasonOption = "",
    call: CallOptions,
) -> None:
    """Erase the content of all of a user's sessions."""
    with operating(call) as client:
        answer = None
        if dry_run or not yes:
            answer = client.erase_user(pb.EraseUserRequest(user_id=user, validate_only=True))
        if not dry_run:
            if answer is not None:
                confirm(f"Erase {_told(answer)} of user {user}, for good?", said_yes=yes)
            answer = client.erase_user(pb.EraseUserRequest(user_id=user, reason=reason))
    assert answer is not None
    if call.as_json:
        print_json(answer)
    else:
        typer.echo(f"{'would erase' if dry_run else 'erased'} {_told(answer)}")


def _told(answer: object) -> str:
    """Return the amounts as text."""
    assert isinstance(answer, pb.EraseUserResponse)
    return (
        f"sessions: {answer.sessions_erased}, turns: {answer.turns_erased}, "
        f"audit records: {answer.records_stripped}"
    )
