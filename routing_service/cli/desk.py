"""``agent-routing desk``: what a person does for an agent of kind human, one call at a time."""

from __future__ import annotations

from typing import Annotated, Final

import typer
from rich.table import Table
from rich.text import Text

from agent_routing import outcomes
from agent_routing.outcomes import Outcome
from agent_routing.v1.routing_service_pb2 import (
    KEEP_TURN_STATUS_KEPT,
    ListNotesResponse,
    ListTurnsResponse,
    ListWaitingResponse,
)
from routing_service.cli.answers import print_completed
from routing_service.cli.desk_open import READ_TURNS, open_request, run_desk, speaker_of
from routing_service.cli.failure import CommandFailed
from routing_service.cli.options import (
    SessionArgument,
)
from routing_service.cli.screen import console, count_of, json_line, print_json, time_text
from routing_service.cli.server_call import CallOptions, calling, server_command
from routing_service.telemetry.terminal_text import seen

EPILOG: Final = """\b
Examples:
  agent-routing desk open helpdesk --as bea
  agent-routing desk list helpdesk
  agent-routing desk claim helpdesk chat-1 --as bea
  agent-routing desk read helpdesk chat-1
  agent-routing desk answer helpdesk chat-1 "It is on its way."

\b
It needs a credential with the scope agent, for that agent. --as is for servers without sign-in.
"""

desk: Final = typer.Typer(
    name="desk",
    help="Claim, read and answer what waits for the people of an agent.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

AgentArgument = Annotated[
    str, typer.Argument(metavar="AGENT", show_default=False, help="The agent of kind human.")
]
TextArgument = Annotated[
    str, typer.Argument(metavar="TEXT", show_default=False, help="The text, in quotes.")
]
AsOption = Annotated[
    str,
    typer.Option(
        "--as",
        metavar="NAME",
        show_default=False,
        help="Who you are, for a server without sign-in. With sign-in the credential says it.",
    ),
]


@desk.command("open")
@server_command(json=None)
def open_(
    agent: AgentArgument,
    *,
    who: AsOption = "",
    call: CallOptions,
) -> None:
    """Work at the desk: what waits, what users write, and your answers, in one terminal."""
    with calling(call) as client:
        run_desk(client, agent, who)


@desk.command("list")
@server_command()
def list_(
    agent: AgentArgument,
    *,
    call: CallOptions,
) -> None:
    """List what waits, the longest waiting first."""
    with calling(call) as client:
        answer = ListWaitingResponse(entries=client.list_waiting(agent))
    if call.as_json:
        print_json(answer)
        return
    out = console()
    if not answer.entries:
        out.print("Nothing waits.")
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("since", "session", "user", "claimed by", "the user says"):
        table.add_column(title, overflow="fold")
    for entry in answer.entries:
        text = entry.open_requests[-1].text if entry.open_requests else ""
        cells = (entry.session_id, entry.user_id, entry.claim.claimant or "-", text)
        table.add_row(time_text(entry.dispatch_time), *(Text(seen(cell)) for cell in cells))
    out.print(table)


@desk.command("claim")
@server_command()
def claim(
    agent: AgentArgument,
    session: SessionArgument,
    *,
    who: AsOption = "",
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Also if another person has claimed it.")
    ] = False,
    reason: Annotated[str, typer.Option(help="Why, for the audit.")] = "",
    call: CallOptions,
) -> None:
    """Claim a conversation, so that nobody else answers it."""
    with calling(call) as client:
        answer = client.claim_turn(session, agent, claimant=who, take_over=take_over, reason=reason)
    if call.as_json:
        print_json(answer)
        return
    taken = f", taken over from {seen(answer.taken_from)}" if answer.taken_from else ""
    until = time_text(answer.claim.expire_time)
    _say_done(f"claimed by {seen(answer.claim.claimant)}{taken}, until {until}")


@desk.command("release")
@server_command()
def release(
    agent: AgentArgument,
    session: SessionArgument,
    *,
    who: AsOption = "",
    call: CallOptions,
) -> None:
    """Give a claim up; the conversation waits again."""
    with calling(call) as client:
        answer = client.release_turn(session, agent, claimant=who)
    if call.as_json:
        print_json(answer)
    else:
        _say_done("released" if answer.released_from else "was not claimed")


@desk.command("read")
@server_command()
def read(
    agent: AgentArgument,
    session: SessionArgument,
    *,
    call: CallOptions,
) -> None:
    """Show the latest turns of a conversation that the agent had, and the notes about it."""
    with calling(call) as client:
        turns = ListTurnsResponse(
            turns=reversed(
                client.list_turns_page(
                    session, agent_id=agent, order="NEWEST_FIRST", page_size=READ_TURNS
                ).turns
            )
        )
        notes = client.list_notes(session, agent_id=agent)
    if call.as_json:
        for answer in (turns, notes):
            print(json_line(answer))  # noqa: T201 - the result, one message a line
        return
    _print_conversation(turns, notes)


@desk.command("say")
@server_command()
def say(
    agent: AgentArgument,
    session: SessionArgument,
    text: TextArgument,
    *,
    call: CallOptions,
) -> None:
    """Say something to the user without ending the turn."""
    with calling(call) as client:
        status = client.status(session)
        request_id = open_request(status, agent)
        answer = client.say(
            text,
            session_id=session,
            agent_id=agent,
            request_id=request_id,
            task_id="" if request_id else status.task.task_id,
        )
    if answer.status != KEEP_TURN_STATUS_KEPT:
        raise CommandFailed(_not_here(session, agent))
    if call.as_json:
        print_json(answer)
    else:
        _say_done("said; the turn goes on" if request_id else "said")


@desk.command("answer")
@server_command()
def answer_(
    agent: AgentArgument,
    session: SessionArgument,
    text: TextArgument,
    *,
    ask: Annotated[
        bool, typer.Option("--ask", help="It is a question: the user's answer comes back.")
    ] = False,
    call: CallOptions,
) -> None:
    """Answer what waits in a conversation, and keep the conversation."""
    _complete(call, agent, session, outcomes.follow_up() if ask else outcomes.proceed(), text)


@desk.command("hand-back")
@server_command()
def hand_back(
    agent: AgentArgument,
    session: SessionArgument,
    text: Annotated[
        str,
        typer.Argument(metavar="[TEXT]", show_default=False, help="The last answer, in quotes."),
    ] = "",
    *,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="AGENT",
            show_default=False,
            help="The agent that goes on with the message. Default: the person is done.",
        ),
    ] = "",
    call: CallOptions,
) -> None:
    """End the person's part: complete it, or hand the message to another agent."""
    _complete(call, agent, session, outcomes.handoff(to) if to else outcomes.complete(), text)


@desk.command("note")
@server_command()
def note(
    agent: AgentArgument,
    session: SessionArgument,
    text: TextArgument,
    *,
    who: AsOption = "",
    call: CallOptions,
) -> None:
    """Note something for colleagues. The user never sees it."""
    with calling(call) as client:
        answer = client.add_note(session, text, agent_id=agent, author=who)
    if call.as_json:
        print_json(answer)
    else:
        _say_done("noted")


def _complete(options: CallOptions, agent: str, session: str, outcome: Outcome, text: str) -> None:
    """Answer the newest request that waits for the agent's people. Raises CommandFailed."""
    with calling(options) as client:
        request_id = open_request(client.status(session), agent)
        if not request_id:
            raise CommandFailed(_not_here(session, agent))
        answer = client.complete_turn(session, request_id, agent, outcome, text=text)
    if options.as_json:
        print_json(answer)
    else:
        print_completed(answer)


def _not_here(session: str, agent: str) -> str:
    return (
        f'nothing waits for "{seen(agent)}" in session "{seen(session)}"; '
        "agent-routing desk list shows what waits"
    )


def _print_conversation(turns: ListTurnsResponse, notes: ListNotesResponse) -> None:
    out = console()
    for turn in turns.turns:
        if turn.user_text:
            out.print(_line("user", turn.user_text, "bold"), soft_wrap=True)
        if turn.agent_text:
            out.print(_line(speaker_of(turn), turn.agent_text, "cyan"), soft_wrap=True)
    out.print(Text(count_of(len(notes.notes), "note"), "dim"))
    for each in notes.notes:
        out.print(_line(each.author, each.text, "yellow"), soft_wrap=True)


def _line(who: str, text: str, style: str) -> Text:
    return Text(f"{seen(who)}: ", style).append(seen(text), "default")


def _say_done(text: str) -> None:
    console().print(Text(text), soft_wrap=True)
