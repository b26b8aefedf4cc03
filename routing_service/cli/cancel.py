"""``agent-routing cancel``: cancel an open task."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from routing_service.cli.answers import print_cleared
from routing_service.cli.options import (
    ExpectedRevisionOption,
    ReasonOption,
    RequestIdOption,
    UserOption,
)
from routing_service.cli.screen import print_json
from routing_service.cli.server_call import CallOptions, calling, server_command

EPILOG: Final = """\b
Examples:
  agent-routing cancel 0198a6c0-5f3e-7a51-9c1d-2f6f0a4b7e11
  agent-routing cancel TASK --reason "ordered twice"
"""


@server_command()
def cancel(
    task: Annotated[str, typer.Argument(metavar="TASK", help="The task's id.", show_default=False)],
    *,
    reason: ReasonOption = "",
    expected_revision: ExpectedRevisionOption = None,
    request_id: RequestIdOption = "",
    user: UserOption = "",
    call: CallOptions,
) -> None:
    """Cancel an open task."""
    with calling(call) as client:
        answer = client.cancel_task(
            task,
            user_id=user,
            request_id=request_id,
            reason=reason,
            expected_revision=expected_revision,
        )
    if call.as_json:
        print_json(answer)
    else:
        print_cleared(answer)
