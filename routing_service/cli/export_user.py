"""``agent-routing export-user``: all data stored about a user, as JSON lines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from routing_service.cli.export_file import write_export
from routing_service.cli.options import (
    TARGET_DEFAULT,
    ReasonOption,
    TargetOption,
    TenantOption,
)
from routing_service.cli.server_call import CallOptions, calling

EXPORT_S_DEFAULT: Final = 600.0

EPILOG: Final = """\b
Examples:
  agent-routing export-user ana --output ana.jsonl
  agent-routing export-user ana | jq -c .turn.user_text
"""


def export_user(
    user: Annotated[str, typer.Argument(metavar="USER", help="The user.", show_default=False)],
    *,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            show_default=False,
            help="Write to this new file. Default: to stdout.",
        ),
    ] = None,
    reason: ReasonOption = "",
    tenant: TenantOption = "",
    target: TargetOption = TARGET_DEFAULT,
    timeout: Annotated[
        float,
        typer.Option("--timeout", metavar="SECONDS", min=1, help="The time for the whole export."),
    ] = EXPORT_S_DEFAULT,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print errors as JSON too; the lines always are JSON.")
    ] = False,
) -> None:
    """Export all data stored about a user.

    One line of JSON for each session, task, turn, profile, command and audit record. The audit
    records the export.
    """
    place = CallOptions(target=target, tenant=tenant, timeout_s=timeout, as_json=as_json)
    with calling(place) as client:
        write_export(client.export_user(user, reason=reason, timeout=timeout), output)
