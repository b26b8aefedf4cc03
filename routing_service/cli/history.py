"""``agent-routing history``: the turns of a session."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Final

import typer

from agent_routing.v1.routing_service_pb2 import ListTurnsResponse
from routing_service.cli.answers import print_turns
from routing_service.cli.options import (
    OptionalSessionArgument,
    UserOption,
)
from routing_service.cli.screen import print_json
from routing_service.cli.server_call import CallOptions, calling, server_command

EPILOG: Final = """\b
Examples:
  agent-routing history chat-1
  agent-routing history chat-1 --agent billing --newest 20
  agent-routing history chat-1 --json | jq -r .turns[].agent_text
"""


@server_command()
def history(
    session: OptionalSessionArgument = "",
    *,
    agent: Annotated[
        str,
        typer.Option(
            "--agent", metavar="ID", show_default=False, help="Only turns that this agent may see."
        ),
    ] = "",
    task: Annotated[
        str,
        typer.Option(
            "--task",
            metavar="UUID",
            show_default=False,
            help="Only turns of this task; it finds the session.",
        ),
    ] = "",
    newest: Annotated[
        int | None,
        typer.Option(
            "--newest", metavar="N", min=1, show_default=False, help="Only the newest N turns."
        ),
    ] = None,
    user: UserOption = "",
    call: CallOptions,
) -> None:
    """Show a session's turns: who said what, and why."""
    with calling(call) as client:
        turns = client.list_turns(
            session,
            user_id=user,
            agent_id=agent,
            task_id=task,
            order="NEWEST_FIRST" if newest else None,
        )
        if newest:
            turns = reversed(list(islice(turns, newest)))
        if call.as_json:
            print_json(ListTurnsResponse(turns=turns))
        else:
            print_turns(turns)
