"""``agent-routing clear``: give a session back to the home agent."""

from __future__ import annotations

import enum
from functools import partial
from typing import Annotated, Final

import typer

from routing_service.cli.answers import print_cleared
from routing_service.cli.open_turn import OpenTurnOption, print_moved, tried_first
from routing_service.cli.options import (
    ExpectedRevisionOption,
    ReasonOption,
    RequestIdOption,
    SessionArgument,
    UserOption,
)
from routing_service.cli.screen import print_json
from routing_service.cli.server_call import CallOptions, calling, server_command


class ClearScope(enum.StrEnum):
    """How much is cleared."""

    AGENT = "agent"
    SESSION = "session"


EPILOG: Final = """\b
Examples:
  agent-routing clear chat-1
  agent-routing clear chat-1 --scope session --reason "the user started over"
"""


@server_command()
def clear(
    session: SessionArgument,
    *,
    scope: Annotated[
        ClearScope,
        typer.Option(
            "--scope",
            help="agent: clear the active agent, lock and interrupted agents. session: "
            "also cancel the task and abandon open turns.",
        ),
    ] = ClearScope.AGENT,
    reason: ReasonOption = "",
    open_turn: OpenTurnOption = None,
    expected_revision: ExpectedRevisionOption = None,
    request_id: RequestIdOption = "",
    user: UserOption = "",
    call: CallOptions,
) -> None:
    """Give a session back to the supervisor or default agent."""
    with calling(call) as client:
        act = partial(
            client.clear_active_agent,
            session,
            user_id=user,
            request_id=request_id,
            scope="SESSION" if scope is ClearScope.SESSION else "ACTIVE_AGENT",
            reason=reason,
            open_turn=open_turn.value_name if open_turn else None,  # type: ignore[arg-type]
        )
        if user:
            answer = act(expected_revision=expected_revision)
        else:
            answer = tried_first(act, expected_revision, as_json=call.as_json)
    if call.as_json:
        print_json(answer)
    else:
        print_cleared(answer)
        if user:
            print_moved(answer)
