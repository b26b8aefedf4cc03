"""``agent-routing approve``, ``reject`` and ``resume``: decide what a paused task waits for."""

from __future__ import annotations

import enum
from typing import Annotated, Final

import typer

from routing_service.cli.admin_answers import print_resumed
from routing_service.cli.answers import pending_approvals
from routing_service.cli.failure import CommandFailed
from routing_service.cli.options import (
    SessionArgument,
    UserOption,
)
from routing_service.cli.screen import print_json
from routing_service.cli.server_call import CallOptions, calling, server_command


class ApprovalDecision(enum.StrEnum):
    """A person's decision."""

    APPROVE = "approve"
    REJECT = "reject"


RESUME_EPILOG: Final = """\b
Examples:
  agent-routing resume chat-1 --decision approve
  agent-routing resume chat-1 --decision reject --request UUID --comment "too expensive"
"""
APPROVE_EPILOG: Final = """\b
Examples:
  agent-routing approve chat-1
  agent-routing approve chat-1 --comment "up to 500" --user ana
"""
REJECT_EPILOG: Final = """\b
Examples:
  agent-routing reject chat-1 --comment "ask again next month"
"""

_RequestOption = Annotated[
    str,
    typer.Option(
        "--request",
        metavar="UUID",
        show_default=False,
        help="The waiting request. Default: the one of the session's paused task.",
    ),
]
_TaskOption = Annotated[
    str,
    typer.Option(
        "--task", metavar="UUID", show_default=False, help="The task. Default: the session's own."
    ),
]
_CommentOption = Annotated[
    str,
    typer.Option("--comment", metavar="TEXT", show_default=False, help="A comment for the agent."),
]


@server_command()
def resume(
    session: SessionArgument,
    *,
    decision: Annotated[
        ApprovalDecision, typer.Option("--decision", show_default=False, help="The decision.")
    ],
    request: _RequestOption = "",
    task: _TaskOption = "",
    comment: _CommentOption = "",
    user: UserOption = "",
    call: CallOptions,
) -> None:
    """Decide what a paused task waits for.

    Its agent continues in either case, and learns the decision.
    """
    _decide(call, session, decision, request=request, task=task, comment=comment, user=user)


@server_command()
def approve(
    session: SessionArgument,
    *,
    request: _RequestOption = "",
    task: _TaskOption = "",
    comment: _CommentOption = "",
    user: UserOption = "",
    call: CallOptions,
) -> None:
    """Approve what a paused task waits for."""
    chosen = ApprovalDecision.APPROVE
    _decide(call, session, chosen, request=request, task=task, comment=comment, user=user)


@server_command()
def reject(
    session: SessionArgument,
    *,
    request: _RequestOption = "",
    task: _TaskOption = "",
    comment: _CommentOption = "",
    user: UserOption = "",
    call: CallOptions,
) -> None:
    """Reject what a paused task waits for."""
    chosen = ApprovalDecision.REJECT
    _decide(call, session, chosen, request=request, task=task, comment=comment, user=user)


def _decide(
    options: CallOptions,
    session: str,
    decision: ApprovalDecision,
    *,
    request: str,
    task: str,
    comment: str,
    user: str,
) -> None:
    """Decide the request and task that are named, or the one that waits in the session."""
    with calling(options) as client:
        if not (request and task):
            standing = client.status(session, user_id=user)
            waiting = [
                each
                for each in pending_approvals(standing)
                if (each.task_id == task or not task)
                and (each.request_id == request or not request)
            ]
            if len(waiting) > 1:
                listed = ", ".join(each.task_id for each in waiting)
                raise CommandFailed(
                    f'{len(waiting)} tasks wait for an approval in session "{session}"; name one '
                    f"by --task: {listed}"
                )
            task = task or (waiting[0].task_id if waiting else standing.task.task_id)
            request = request or (waiting[0].request_id if waiting else "")
        if not (request and task):
            raise CommandFailed(
                f'no task waits for an approval in session "{session}"; to repeat a decision that '
                "was made, name its --request and --task"
            )
        answer = client.resume_task(
            task,
            request,
            "APPROVE" if decision is ApprovalDecision.APPROVE else "REJECT",
            session_id=session,
            user_id=user,
            comment=comment,
        )
    if options.as_json:
        print_json(answer)
    else:
        print_resumed(answer, decision.value)
