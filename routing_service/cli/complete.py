"""``agent-routing complete``: report what an agent answered."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from agent_routing import outcomes
from agent_routing.outcomes import Outcome
from routing_service.cli.answers import print_completed
from routing_service.cli.options import (
    ReasonOption,
    SessionArgument,
    UserOption,
)
from routing_service.cli.screen import print_json
from routing_service.cli.server_call import CallOptions, calling, server_command

OUTCOMES: Final = (
    "proceed",
    "follow-up",
    "complete",
    "handoff:AGENT",
    "approval-needed",
    "failure",
)


def _complete_outcome(incomplete: str) -> list[str]:
    return [name.removesuffix("AGENT") for name in OUTCOMES if name.startswith(incomplete)]


EPILOG: Final = """\b
Examples:
  agent-routing complete chat-1 REQUEST billing --outcome follow-up --text "Which invoice?"
  agent-routing complete chat-1 REQUEST coordinator --outcome handoff:billing
  agent-routing complete chat-1 REQUEST billing --outcome approval-needed --reason "refund 80?"
"""


@server_command()
def complete(
    session: SessionArgument,
    request: Annotated[
        str,
        typer.Argument(metavar="REQUEST", help="The open request's id, from route or status."),
    ],
    agent: Annotated[
        str, typer.Argument(metavar="AGENT", help="The id of the agent that answers.")
    ],
    *,
    outcome: Annotated[
        str,
        typer.Option(
            "--outcome",
            metavar="|".join(OUTCOMES),
            autocompletion=_complete_outcome,
            show_default=False,
            help="How the turn ended. follow-up: the agent asked something. complete: the task is "
            "done. handoff: AGENT gets the message next. approval-needed: the task pauses until "
            "a person approves or rejects what --reason says.",
        ),
    ],
    text: Annotated[
        str,
        typer.Option(
            "--text", metavar="TEXT", show_default=False, help="The answer, for the user."
        ),
    ] = "",
    reason: ReasonOption = "",
    message: Annotated[
        str,
        typer.Option(
            "--message",
            metavar="TEXT",
            show_default=False,
            help="Text for the user on the way to the next agent.",
        ),
    ] = "",
    wait: Annotated[
        float | None,
        typer.Option(
            "--wait",
            metavar="SECONDS",
            min=0.001,
            show_default=False,
            help="With follow-up: how long the agent waits for the user. Default: no limit.",
        ),
    ] = None,
    parse_markers: Annotated[
        bool,
        typer.Option(
            help="Follow a marker such as [HANDOFF_TO:billing] in the text, from agents that may "
            "use them."
        ),
    ] = True,
    user: UserOption = "",
    call: CallOptions,
) -> None:
    """Report what an agent answered, and see what comes next."""
    chosen = read_outcome(outcome, reason=reason, message=message, wait_s=wait)
    with calling(call) as client:
        answer = client.complete_turn(
            session, request, agent, chosen, text=text, user_id=user, parse_markers=parse_markers
        )
    if call.as_json:
        print_json(answer)
    else:
        print_completed(answer)


def read_outcome(name: str, *, reason: str, message: str, wait_s: float | None) -> Outcome:
    """Return the outcome that --outcome names. Refuses options that do not go with it."""
    kind, _, agent_id = name.partition(":")
    if bool(agent_id) is not (kind == "handoff"):
        kind = ""  # handoff without an agent, or an agent without handoff.
    for option, value, kinds in (
        ("--wait", wait_s, ("follow-up",)),
        ("--reason", reason, ("complete", "handoff", "approval-needed", "failure")),
        ("--message", message, ("complete", "handoff")),
    ):
        if value and kind and kind not in kinds:
            raise typer.BadParameter(f"{option} goes with {' or '.join(kinds)}, not with {kind}")
    match kind:
        case "proceed":
            return outcomes.proceed()
        case "follow-up":
            return outcomes.follow_up(timeout=wait_s)
        case "complete":
            return outcomes.complete(summary=reason, message=message)
        case "handoff":
            return outcomes.handoff(agent_id, reason=reason, message=message)
        case "approval-needed":
            if not reason:
                raise typer.BadParameter(
                    "approval-needed goes with --reason: what is to be approved"
                )
            return outcomes.approval_needed(reason)
        case "failure":
            return outcomes.failure(reason)
        case _:
            raise typer.BadParameter(
                f'--outcome "{name}" is unknown; use {", ".join(OUTCOMES)}, such as handoff:billing'
            )
