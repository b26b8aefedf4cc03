"""``agent-routing approvals``: what waits for a decision across sessions, and deciding it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Final

import typer
from google.protobuf.json_format import MessageToDict
from google.protobuf.timestamp_pb2 import Timestamp
from rich.table import Table
from rich.text import Text

from agent_routing import Admin
from agent_routing.v1.routing_service_pb2 import ListApprovalsResponse, WaitingApproval
from routing_service.cli.admin_answers import print_resumed
from routing_service.cli.failure import EXIT_INTERRUPTED, CommandFailed
from routing_service.cli.options import (
    json_option,
)
from routing_service.cli.screen import (
    agent_text,
    console,
    count_of,
    json_line,
    print_json,
    span_text,
    time_text,
)
from routing_service.cli.server_call import CallOptions, calling, server_command
from routing_service.telemetry.terminal_text import seen

MAX_DEFAULT: Final = 100

PAGE_MAX: Final = 1_000
"""The service's largest page."""

EPILOG: Final = """\b
Examples:
  agent-routing approvals list
  agent-routing approvals watch --mine
  agent-routing approvals approve chat-1 --comment "this once"

\b
It needs a credential with the scope approve or admin, and no other right.
"""

approvals: Final = typer.Typer(
    name="approvals",
    help="List, watch and decide approvals of all sessions.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

AgentOption = Annotated[
    str,
    typer.Option(
        "--agent", metavar="AGENT", show_default=False, help="Only what this agent asked for."
    ),
]
RoleOption = Annotated[
    str,
    typer.Option(
        "--role",
        metavar="NAME",
        show_default=False,
        help='Only what the rule "role:NAME" lets people decide.',
    ),
]
MineOption = Annotated[
    bool,
    typer.Option("--mine", help="Only what you may decide and have not approved yet."),
]
WhichArgument = Annotated[
    str,
    typer.Argument(metavar="SESSION", show_default=False, help="The session, or the request's id."),
]
CommentOption = Annotated[
    str,
    typer.Option("--comment", metavar="TEXT", show_default=False, help="A comment for the agent."),
]


@approvals.command("list")
@server_command()
def list_(
    *,
    agent: AgentOption = "",
    role: RoleOption = "",
    mine: MineOption = False,
    most: Annotated[
        int, typer.Option("--max", metavar="N", min=1, help="Stop after N approvals.")
    ] = MAX_DEFAULT,
    call: CallOptions,
) -> None:
    """List what waits for an approval, the oldest first."""
    answer = ListApprovalsResponse()
    with calling(call) as client:
        while True:
            page = client.list_approvals_page(
                agent_id=agent,
                role=role,
                mine=mine,
                page_size=min(most - len(answer.approvals), PAGE_MAX),
                page_token=answer.next_page_token,
            )
            answer.approvals.extend(page.approvals)
            answer.next_page_token = page.next_page_token
            if not page.next_page_token or len(answer.approvals) >= most:
                break
    if call.as_json:
        print_json(answer)
    else:
        _print_list(answer)


@approvals.command("watch")
@server_command(json=json_option("Print JSON, one message a line."))
def watch(
    *,
    agent: AgentOption = "",
    role: RoleOption = "",
    mine: MineOption = False,
    call: CallOptions,
) -> None:
    """Print what waits, then what begins, changes and ends, until Ctrl-C.

    --timeout is how long the server may be unreachable before the command gives up.
    """
    out = console()
    with calling(call) as client:
        try:
            for message in client.watch_approvals(
                agent_id=agent, role=role, mine=mine, away_timeout=call.timeout_s
            ):
                if call.as_json:
                    # A program reading the pipe needs each line at once.
                    print(json_line(message), flush=True)  # noqa: T201 - the result
                elif message.HasField("waiting"):
                    out.print(_line(message.waiting), soft_wrap=True)
                else:
                    ended = Text(f"{seen(message.ended.session_id)}  ", "bold")
                    out.print(ended.append("no longer waits", "dim"), soft_wrap=True)
        except KeyboardInterrupt:
            # The usual way to end it, not a failure.
            raise typer.Exit(EXIT_INTERRUPTED) from None


@approvals.command("approve")
@server_command()
def approve(
    which: WhichArgument,
    *,
    comment: CommentOption = "",
    call: CallOptions,
) -> None:
    """Approve what waits in a session."""
    _decide(call, which, "approve", comment)


@approvals.command("reject")
@server_command()
def reject(
    which: WhichArgument,
    *,
    comment: CommentOption = "",
    call: CallOptions,
) -> None:
    """Reject what waits in a session. One rejection is enough."""
    _decide(call, which, "reject", comment)


def _decide(options: CallOptions, which: str, decision: str, comment: str) -> None:
    with calling(options) as client:
        waiting = _find(client, which)
        answer = client.resume_task(
            waiting.approval.task_id,
            waiting.approval.request_id,
            "APPROVE" if decision == "approve" else "REJECT",
            session_id=waiting.session_id,
            comment=comment,
        )
    if options.as_json:
        print_json(answer)
    else:
        print_resumed(answer, decision)


def _find(client: Admin, which: str) -> WaitingApproval:
    """Return the approval of a session or request. Raises CommandFailed but for exactly one."""
    found = [
        waiting
        for waiting in client.list_approvals(page_size=PAGE_MAX)
        if which in (waiting.session_id, waiting.approval.request_id)
    ]
    if len(found) == 1:
        return found[0]
    if found:
        listed = ", ".join(waiting.approval.request_id for waiting in found)
        raise CommandFailed(
            f'{len(found)} tasks wait for an approval in session "{which}"; name one by its '
            f"request: {listed}"
        )
    raise CommandFailed(
        f'nothing waits for an approval under "{which}"; it may have been decided, withdrawn or '
        "expired: agent-routing approvals list shows what waits"
    )


def _print_list(answer: ListApprovalsResponse) -> None:
    out = console()
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("session", "user", "agent", "waits", "expires", "votes", "what"):
        table.add_column(name, overflow="fold", no_wrap=name in {"waits", "votes"})
    for waiting in answer.approvals:
        approval = waiting.approval
        table.add_row(
            Text(seen(waiting.session_id)),
            Text(seen(waiting.user_id)),
            agent_text(approval.agent),
            _since(approval.pause_time),
            _until(approval.expire_time),
            _votes(waiting),
            _what(waiting),
        )
    if answer.approvals:
        out.print(table)
    more = ", and more" if answer.next_page_token else ""
    out.print(Text(f"{count_of(len(answer.approvals), 'approval')}{more}", style="dim"))


def _line(waiting: WaitingApproval) -> Text:
    """Return an approval as one line of a watch."""
    line = Text(f"{seen(waiting.session_id)}  ", "bold").append_text(
        agent_text(waiting.approval.agent)
    )
    line.append("  ").append_text(_votes(waiting)).append("  ").append_text(_what(waiting))
    expires = time_text(waiting.approval.expire_time)
    return line.append(f"  until {expires}" if expires else "", style="dim")


def _votes(waiting: WaitingApproval) -> Text:
    """Return how many have approved, and whether the caller may."""
    approval = waiting.approval
    votes = Text(f"{approval.decisions}/{approval.decisions_needed}")
    if waiting.has_approved:
        votes.append(" yours", style="green")
    elif not waiting.may_decide:
        votes.append(f" not yours: {seen(approval.by)}", style="yellow")
    return votes


def _what(waiting: WaitingApproval) -> Text:
    """Return the agent's text, and its fields for programs."""
    text = Text(seen(waiting.approval.prompt))
    for name, value in sorted(MessageToDict(waiting.approval.fields).items()):
        # MessageToDict has every number as a float.
        shown = f"{value:g}" if isinstance(value, float) else value
        text.append(f"  {seen(name)}={seen(str(shown))}", style="dim")
    return text


def _since(time: Timestamp) -> str:
    return span_text((datetime.now(UTC) - time.ToDatetime(UTC)).total_seconds())


def _until(time: Timestamp) -> str:
    if not time.ByteSize():
        return "never"
    return f"in {span_text((time.ToDatetime(UTC) - datetime.now(UTC)).total_seconds())}"
