"""``agent-routing watch``: print changes as they happen."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Final

import typer

from agent_routing.v1.admin_service_pb2 import WatchEventsResponse
from agent_routing.v1.session_event_pb2 import Change
from routing_service.cli.admin_answers import known_kinds, print_change
from routing_service.cli.admin_options import KindOption
from routing_service.cli.failure import EXIT_INTERRUPTED
from routing_service.cli.options import (
    UserOption,
    json_option,
)
from routing_service.cli.screen import json_line
from routing_service.cli.server_call import CallOptions, calling, server_command

EPILOG: Final = """\b
Examples:
  agent-routing watch chat-1
  agent-routing watch --kind agent_handoff --kind handoff_refused
  agent-routing watch --from-beginning --json | jq -c .events[]
"""

_JSON_HELP: Final = "Print JSON, one change a line, with the contract's field names."


@server_command(json=json_option(_JSON_HELP))
def watch(
    session: Annotated[
        str,
        typer.Argument(
            metavar="[SESSION]", show_default=False, help="The session's id. Default: all sessions."
        ),
    ] = "",
    *,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Start with the oldest change.")
    ] = False,
    after: Annotated[
        int | None,
        typer.Option(
            "--after",
            metavar="REVISION",
            min=0,
            show_default=False,
            help="Continue after this revision; for one session only.",
        ),
    ] = None,
    kind: KindOption = None,
    most: Annotated[
        int | None,
        typer.Option("--max", metavar="N", min=1, show_default=False, help="Exit after N changes."),
    ] = None,
    user: UserOption = "",
    call: CallOptions,
) -> None:
    """Print changes as they happen, until Ctrl-C.

    --timeout is how long the server may be unreachable before the command gives up.
    """
    if not session and (after is not None or user):
        raise typer.BadParameter("--after and --user need a session; name one")
    if session and from_beginning and after is not None:
        raise typer.BadParameter("--after and --from-beginning exclude each other; use one")
    kinds = frozenset(kind or ())
    unknown = sorted(kinds.difference(known_kinds()))
    if unknown:
        raise typer.BadParameter(
            f'--kind "{unknown[0]}" is not a kind of event; use {", ".join(known_kinds())}'
        )
    with calling(call) as client:
        if session:
            changes = client.watch_session(
                session,
                user_id=user,
                after_revision=0 if from_beginning else after,
                away_timeout=call.timeout_s,
            )
            wanted = (
                (call.tenant, change)
                for change in changes
                if not kinds or any(event.WhichOneof("kind") in kinds for event in change.events)
            )
        else:
            messages = client.watch_events(
                from_beginning=from_beginning, kinds=kinds, away_timeout=call.timeout_s
            )
            wanted = ((message.tenant, _change_of(message)) for message in messages)
        try:
            for whose, change in islice(wanted, most):
                if call.as_json:
                    # A program reading the pipe needs each line at once.
                    print(json_line(change), flush=True)  # noqa: T201 - the result
                else:
                    print_change(change, whose, with_session=not session)
        except KeyboardInterrupt:
            # The usual way to end it, not a failure.
            raise typer.Exit(EXIT_INTERRUPTED) from None


def _change_of(message: WatchEventsResponse) -> Change:
    """Return a message's change; of one that the server cannot read, its place and a warning."""
    if not message.HasField("unreadable"):
        return message.change
    entry = message.unreadable
    typer.echo(
        f'session "{entry.session_id}" revision {entry.revision} is unreadable: {entry.reason}',
        err=True,
    )
    return Change(session_id=entry.session_id, revision=entry.revision)
