"""``agent-routing reload``: make a server read its registry file again."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from routing_service.cli.admin_answers import print_reloaded
from routing_service.cli.options import (
    TARGET_DEFAULT,
    TIMEOUT_DEFAULT_S,
    JsonOption,
    ReasonOption,
    TargetOption,
    TimeoutOption,
)
from routing_service.cli.screen import print_json
from routing_service.cli.server_call import CallOptions, calling

EPILOG: Final = """\b
Examples:
  agent-routing reload --validate-only
  agent-routing reload
"""


def reload(
    *,
    validate_only: Annotated[
        bool,
        typer.Option("--validate-only", help="Only check the file and print what would change."),
    ] = False,
    reason: ReasonOption = "",
    target: TargetOption = TARGET_DEFAULT,
    timeout: TimeoutOption = TIMEOUT_DEFAULT_S,
    as_json: JsonOption = False,
) -> None:
    """Make a server read its registry file again."""
    with calling(
        CallOptions(target=target, tenant="", timeout_s=timeout, as_json=as_json)
    ) as client:
        answer = client.reload_agents(validate_only=validate_only, reason=reason)
    if as_json:
        print_json(answer)
    else:
        print_reloaded(answer, is_trial=validate_only)
