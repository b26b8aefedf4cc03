"""``agent-routing inbox``: what waits for workers, who has it, and helping by hand."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Annotated, Final

import typer
from google.protobuf.timestamp_pb2 import Timestamp
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from agent_routing import Admin
from agent_routing.v1 import routing_service_pb2 as pb
from agent_routing.v1.admin_service_pb2 import InboxEntry, ListInboxResponse
from routing_service.cli.answers import print_completed
from routing_service.cli.complete import OUTCOMES, read_outcome
from routing_service.cli.failure import EXIT_INTERRUPTED, CommandFailed
from routing_service.cli.options import (
    ReasonOption,
    json_option,
)
from routing_service.cli.screen import (
    agent_text,
    console,
    count_of,
    json_line,
    print_json,
    span_text,
)
from routing_service.cli.server_call import CallOptions, calling, server_command
from routing_service.telemetry.terminal_text import seen

MAX_DEFAULT: Final = 100

PAGE_MAX: Final = 1_000
"""The service's largest page."""

EVERY_S_DEFAULT: Final = 2.0

HOUR_S: Final = 3600.0
"""The longest extension of a turn."""

EPILOG: Final = """\b
Examples:
  agent-routing inbox list
  agent-routing inbox watch vat
  agent-routing inbox release chat-1      a worker hangs: another one gets the turn
  agent-routing inbox keep chat-1         the turn must not be given up yet
  agent-routing inbox complete chat-1 --text "We call you back."

\b
The lists need the scope admin; what changes something also needs agent, for that agent.
"""

inbox: Final = typer.Typer(
    name="inbox",
    help="List and watch what waits for workers, and help by hand.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

AgentArgument = Annotated[
    str,
    typer.Argument(metavar="[AGENT]", show_default=False, help="Only this agent's. Default: all."),
]
MaxOption = Annotated[int, typer.Option("--max", metavar="N", min=1, help="Stop after N turns.")]
WhichArgument = Annotated[
    str,
    typer.Argument(metavar="SESSION", show_default=False, help="The session, or the request's id."),
]


@inbox.command("list")
@server_command()
def list_(
    agent: AgentArgument = "",
    *,
    most: MaxOption = MAX_DEFAULT,
    call: CallOptions,
) -> None:
    """List the turns in inboxes, and who has each."""
    with calling(call) as client:
        answer = _read(client, agent, most)
    if call.as_json:
        print_json(answer)
    else:
        console().print(_screen(answer))


@inbox.command("watch")
@server_command(json=json_option("Print JSON, one list a line."))
def watch(
    agent: AgentArgument = "",
    *,
    every: Annotated[
        float,
        typer.Option("--every", metavar="SECONDS", min=0.2, max=60, help="Between two looks."),
    ] = EVERY_S_DEFAULT,
    most: MaxOption = MAX_DEFAULT,
    call: CallOptions,
) -> None:
    """Show the turns in inboxes, again and again, until Ctrl-C."""
    out = console()
    with calling(call) as client:
        try:
            if call.as_json or not out.is_terminal:
                while True:
                    answer = _read(client, agent, most)
                    if call.as_json:
                        # A program reading the pipe needs each line at once.
                        print(json_line(answer), flush=True)  # noqa: T201 - the result
                    else:
                        out.print(_screen(answer))
                    time.sleep(every)
            with Live(_screen(_read(client, agent, most)), console=out, auto_refresh=False) as live:
                while True:
                    time.sleep(every)
                    live.update(_screen(_read(client, agent, most)), refresh=True)
        except KeyboardInterrupt:
            # The usual way to end it, not a failure.
            raise typer.Exit(EXIT_INTERRUPTED) from None


@inbox.command("release")
@server_command()
def release(
    which: WhichArgument,
    *,
    call: CallOptions,
) -> None:
    """Take a turn from its worker, for another one.

    Another worker gets it at once, as the same attempt. The answer of the first one is refused.
    """
    with calling(call) as client:
        entry = _find(client, which)
        _kept(_keep(client, entry, release=True), entry)
    if call.as_json:
        print_json(entry)
        return
    taken = f"taken from {seen(entry.worker_id)}" if entry.worker_id else "no worker had it"
    console().print(Text(f"{seen(entry.session_id)}: {taken}; it waits for a worker"))


@inbox.command("keep")
@server_command()
def keep(
    which: WhichArgument,
    *,
    call: CallOptions,
) -> None:
    """Keep a turn from being given up.

    As a worker does when it extends its lease: if less than half of the agent's turn_timeout is
    left, the deadline moves to a whole one from now, at most to 24 hours after the dispatch.
    """
    with calling(call) as client:
        entry = _find(client, which)
        answer = _kept(_keep(client, entry, extend=HOUR_S), entry)
    if call.as_json:
        print_json(answer)
        return
    left = span_text((answer.deadline.ToDatetime(UTC) - datetime.now(UTC)).total_seconds())
    console().print(Text(f"{seen(entry.session_id)}: given up in {left} unless it is answered"))


@inbox.command("complete")
@server_command()
def complete(
    which: WhichArgument,
    *,
    text: Annotated[
        str,
        typer.Option(
            "--text", metavar="TEXT", show_default=False, help="The answer, for the user."
        ),
    ] = "",
    outcome: Annotated[
        str,
        typer.Option(
            "--outcome",
            metavar="|".join(OUTCOMES),
            help="How the turn ended, as in agent-routing complete.",
        ),
    ] = "proceed",
    reason: ReasonOption = "",
    call: CallOptions,
) -> None:
    """Answer a turn in place of its worker.

    The worker's own answer then comes too late.
    """
    chosen = read_outcome(outcome, reason=reason, message="", wait_s=None)
    with calling(call) as client:
        entry = _find(client, which)
        answer = client.complete_turn(
            entry.session_id, entry.request_id, entry.agent.agent_id, chosen, text=text
        )
    if call.as_json:
        print_json(answer)
    else:
        print_completed(answer)


def _read(client: Admin, agent: str, most: int) -> ListInboxResponse:
    """Return up to so many turns, of as many pages as that takes."""
    answer = ListInboxResponse()
    while True:
        page = client.list_inbox_page(
            agent,
            page_size=min(most - len(answer.entries), PAGE_MAX),
            page_token=answer.next_page_token,
        )
        answer.entries.extend(page.entries)
        answer.next_page_token = page.next_page_token
        if not page.next_page_token or len(answer.entries) >= most:
            return answer


def _find(client: Admin, which: str) -> InboxEntry:
    """Return the turn of a session or request. Raises CommandFailed unless there is one."""
    found: list[InboxEntry] = []
    token = ""
    while True:
        page = client.list_inbox_page(page_size=PAGE_MAX, page_token=token)
        found += [entry for entry in page.entries if which in (entry.session_id, entry.request_id)]
        token = page.next_page_token
        if not token:
            break
    if not found:
        raise CommandFailed(
            f'no turn of "{which}" is in an inbox; it may have been answered, given up or '
            "overtaken: agent-routing inbox list shows what is there"
        )
    if len(found) > 1:
        # Of several tasks that are open at once.
        known = ", ".join(f"{entry.request_id} ({entry.agent.agent_id})" for entry in found)
        raise CommandFailed(f'"{which}" has {len(found)} turns in inboxes; name one: {known}')
    return found[0]


def _keep(
    client: Admin, entry: InboxEntry, *, extend: float | None = None, release: bool = False
) -> pb.KeepTurnResponse:
    return client.keep_turn(
        entry.session_id, entry.request_id, entry.agent.agent_id, extend=extend, release=release
    )


def _kept(answer: pb.KeepTurnResponse, entry: InboxEntry) -> pb.KeepTurnResponse:
    """Raise CommandFailed for a turn that is gone."""
    if answer.status != pb.KEEP_TURN_STATUS_KEPT:
        raise CommandFailed(
            f'the turn of "{entry.session_id}" has just ended or moved: '
            "agent-routing inbox list shows what is there"
        )
    return answer


def _screen(answer: ListInboxResponse) -> RenderableType:
    """Return the turns as a table, with their number."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("session", "user", "agent", "waits", "tries", "worker", "lease", "gives up"):
        table.add_column(name, overflow="fold", no_wrap=name not in {"session", "user", "worker"})
    for entry in answer.entries:
        lease = entry.lease.ToTimedelta().total_seconds()
        table.add_row(
            Text(seen(entry.session_id)),
            Text(seen(entry.user_id)),
            agent_text(entry.agent),
            _since(entry.dispatch_time),
            str(entry.attempt),
            Text(seen(entry.worker_id) or "none", "" if entry.worker_id else "yellow"),
            span_text(lease) if entry.worker_id else "",
            _until(entry.deadline),
        )
    more = ", and more" if answer.next_page_token else ""
    count = Text(f"{count_of(len(answer.entries), 'turn')}{more}", style="dim")
    return Group(table, count) if answer.entries else count


def _since(moment: Timestamp) -> str:
    return span_text((datetime.now(UTC) - moment.ToDatetime(UTC)).total_seconds())


def _until(moment: Timestamp) -> Text:
    left_s = (moment.ToDatetime(UTC) - datetime.now(UTC)).total_seconds()
    return Text(f"in {span_text(left_s)}") if left_s > 0 else Text("now", "red")
