"""``agent-routing handoff``: hand a session to an agent."""

from __future__ import annotations

import enum
from functools import partial
from typing import Annotated, Final

import typer

from routing_service.cli.answers import print_handoff, refused_rules
from routing_service.cli.failure import EXIT_FAILED
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


class HandoffMode(enum.StrEnum):
    """What happens to the previous agent."""

    TRANSFER = "transfer"
    INTERLUDE = "interlude"


class Initiator(enum.StrEnum):
    """Who requests a handoff."""

    SUPERVISOR = "supervisor"
    AGENT = "agent"
    USER = "user"
    OPERATOR = "operator"


ModeOption = Annotated[
    HandoffMode | None,
    typer.Option(
        "--mode",
        show_default=False,
        help="interlude: the previous agent gets it back. Default: as in the registry.",
    ),
]
TurnOption = Annotated[
    str,
    typer.Option(
        "--turn",
        metavar="UUID",
        show_default=False,
        help="The open request in which it happens. Default: none; see --open-turn.",
    ),
]

EPILOG: Final = """\b
Examples:
  agent-routing handoff chat-1 billing --reason "asked for an invoice"
  agent-routing handoff chat-1 billing --initiator operator
  agent-routing handoff chat-1 billing --validate-only
"""


@server_command()
def handoff(
    session: SessionArgument,
    agent: Annotated[
        str, typer.Argument(metavar="AGENT", help="The id of the agent that gets the session.")
    ],
    *,
    from_agent: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="ID",
            show_default=False,
            help="The agent that hands over. Refused if it no longer has the session.",
        ),
    ] = "",
    initiator: Annotated[
        Initiator | None,
        typer.Option(
            "--initiator",
            show_default=False,
            help="Who requests it. Default: the supervisor or the agent that has the session.",
        ),
    ] = None,
    mode: ModeOption = None,
    turn: TurnOption = "",
    reason: ReasonOption = "",
    message: Annotated[
        str,
        typer.Option("--message", metavar="TEXT", show_default=False, help="Text for the user."),
    ] = "",
    open_turn: OpenTurnOption = None,
    expected_revision: ExpectedRevisionOption = None,
    validate_only: Annotated[
        bool,
        typer.Option(
            "--validate-only", help="Only print the verdict of each rule; exit 1 if one refuses."
        ),
    ] = False,
    request_id: RequestIdOption = "",
    user: UserOption = "",
    call: CallOptions,
) -> None:
    """Hand a session to an agent, if the rules allow it."""
    is_tried = initiator is Initiator.OPERATOR and not (turn or validate_only)
    with calling(call) as client:
        act = partial(
            client.set_active_agent,
            session,
            agent,
            user_id=user,
            request_id=request_id,
            turn_request_id=turn,
            initiator=initiator.upper() if initiator else None,  # type: ignore[arg-type]
            from_agent_id=from_agent,
            reason=reason,
            message=message,
            mode=mode.upper() if mode else None,  # type: ignore[arg-type]
            open_turn=open_turn.value_name if open_turn else None,  # type: ignore[arg-type]
        )
        if is_tried:
            answer = tried_first(act, expected_revision, as_json=call.as_json)
        else:
            answer = act(expected_revision=expected_revision, validate_only=validate_only)
    if call.as_json:
        print_json(answer)
    else:
        print_handoff(answer, is_trial=validate_only)
        if not is_tried:
            print_moved(answer)
    if refused_rules(answer.verdicts):
        raise typer.Exit(EXIT_FAILED)
