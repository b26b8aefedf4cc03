"""``agent-routing purge``: remove sessions that have not been used for long."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

import typer

from agent_routing.v1 import admin_service_pb2 as pb
from routing_service.cli.erase_user import (
    LONG_TIMEOUT_S,
    DryRunOption,
    LongTimeoutOption,
    YesOption,
)
from routing_service.cli.operator_call import confirm, operating
from routing_service.cli.options import (
    ReasonOption,
)
from routing_service.cli.screen import print_json
from routing_service.cli.server_call import CallOptions, server_command

_AGE: Final = re.compile(r"(?P<count>\d{1,6})(?P<unit>[hdw])\Z")
_UNITS: Final = {"h": "hours", "d": "days", "w": "weeks"}

EPILOG: Final = """\b
Examples:
  agent-routing purge --older-than 400d --dry-run
  agent-routing purge --older-than 400d --yes
  agent-routing purge --before 2025-01-01 --max 500

\b
Sessions with a turn that can still be answered stay. It works in steps; after an
error, repeat it to continue with what is left: docs/retention.md.
"""


@server_command(timeout=LongTimeoutOption, timeout_s=LONG_TIMEOUT_S)
def purge(
    *,
    older_than: Annotated[
        str,
        typer.Option(
            "--older-than",
            metavar="AGE",
            show_default=False,
            help="Sessions that have not changed for this long: 36h, 400d or 52w.",
        ),
    ] = "",
    before: Annotated[
        str,
        typer.Option(
            "--before",
            metavar="TIME",
            show_default=False,
            help="Or sessions that last changed before 2025-01-01 or 2025-01-01T08:00 (UTC).",
        ),
    ] = "",
    sessions_max: Annotated[
        int | None,
        typer.Option(
            "--max",
            metavar="N",
            min=1,
            show_default=False,
            help="At most N, the oldest first. Default: all.",
        ),
    ] = None,
    all_tenants: Annotated[
        bool, typer.Option("--all-tenants", help="Sessions of all tenants.")
    ] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    reason: ReasonOption = "",
    call: CallOptions,
) -> None:
    """Remove sessions that have not been used for long."""
    until = _time(older_than, before)
    if call.tenant and all_tenants:
        raise typer.BadParameter("--tenant and --all-tenants exclude each other; use one")

    def request(count: int, *, validate_only: bool) -> pb.PurgeSessionsRequest:
        made = pb.PurgeSessionsRequest(
            tenant="*" if all_tenants else "",
            sessions_max=min(count, SESSIONS_PER_CALL),
            validate_only=validate_only,
            reason=reason,
        )
        made.update_time_before.FromDatetime(until)
        return made

    left = SESSIONS_PER_CALL if sessions_max is None else sessions_max
    total = pb.PurgeSessionsResponse(more=True)
    with operating(call) as client:
        if dry_run or not yes:
            total = client.purge_sessions(request(left, validate_only=True))
        if not dry_run:
            question = f"Remove {_told(total)} last changed before {until:%Y-%m-%d %H:%M} UTC?"
            confirm(question, said_yes=yes)
            total = pb.PurgeSessionsResponse(more=True)
            while total.more and left:
                step = client.purge_sessions(request(left, validate_only=False))
                total.sessions_purged += step.sessions_purged
                # All sessions that this step had chosen may have been used since.
                total.more = step.more
                left = left - step.sessions_purged if sessions_max else SESSIONS_PER_CALL
    if call.as_json:
        print_json(total)
    else:
        typer.echo(f"{'would remove' if dry_run else 'removed'} {_told(total)}")


SESSIONS_PER_CALL: Final = 1_000
"""Sessions per step, so that a step stays well within a call's time: one write a session."""


def _told(answer: object) -> str:
    """Return the amounts as text."""
    assert isinstance(answer, pb.PurgeSessionsResponse)
    return f"sessions: {answer.sessions_purged}{', and there are more' if answer.more else ''}"


def _time(older_than: str, before: str) -> datetime:
    """Return the time that the options name, in UTC. Raises typer.BadParameter."""
    if bool(older_than) == bool(before):
        raise typer.BadParameter("say which sessions: --older-than AGE or --before TIME")
    if before:
        try:
            found = datetime.fromisoformat(before)
        except ValueError as error:
            message = f'--before "{before}" is not a time; write 2025-01-01 or 2025-01-01T08:00'
            raise typer.BadParameter(message) from error
        return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    age = _AGE.match(older_than)
    if age is None:
        raise typer.BadParameter(
            f'--older-than "{older_than}" is not an age; write 36h, 400d or 52w'
        )
    try:
        return datetime.now(UTC) - timedelta(**{_UNITS[age["unit"]]: int(age["count"])})
    except OverflowError as error:
        raise typer.BadParameter(f'--older-than "{older_than}" is too long ago') from error
