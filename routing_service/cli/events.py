"""``agent-routing events``: list events and refused handoffs."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from agent_routing.v1.admin_service_pb2 import ListEventsResponse
from routing_service.cli.admin_answers import print_records
from routing_service.cli.admin_options import (
    AgentOption,
    KindOption,
    MaxOption,
    OwnerOption,
    SinceOption,
    UntilOption,
    read_time,
)
from routing_service.cli.screen import print_json
from routing_service.cli.server_call import CallOptions, calling, server_command

EVENTS_MAX_DEFAULT: Final = 200

PAGE_MAX: Final = 1_000
"""The service's largest page."""

EPILOG: Final = """\b
Examples:
  agent-routing events chat-1
  agent-routing events --kind handoff_refused --since 1d
  agent-routing events --owner ana --agent billing --json
"""


@server_command()
def events(
    session: Annotated[
        str,
        typer.Argument(
            metavar="[SESSION]", show_default=False, help="The session's id. Default: all sessions."
        ),
    ] = "",
    *,
    owner: OwnerOption = "",
    actor: Annotated[
        str,
        typer.Option(
            "--actor", metavar="USER", show_default=False, help="Only events caused by this caller."
        ),
    ] = "",
    agent: AgentOption = "",
    kind: KindOption = None,
    request: Annotated[
        str,
        typer.Option(
            "--request", metavar="UUID", show_default=False, help="Only events of this request."
        ),
    ] = "",
    since: SinceOption = "",
    until: UntilOption = "",
    newest_first: Annotated[
        bool,
        typer.Option("--newest-first", help="The newest first; for one session only."),
    ] = False,
    most: MaxOption = EVENTS_MAX_DEFAULT,
    call: CallOptions,
) -> None:
    """List events and refused handoffs.

    The oldest come first. Refused handoffs are those that a rule refused.
    """
    if newest_first and not session:
        raise typer.BadParameter("--newest-first needs a session; name one")
    happened_from, happened_before = read_time("--since", since), read_time("--until", until)
    answer = ListEventsResponse()
    with calling(call) as client:
        while True:
            page = client.list_events_page(
                session_id=session,
                owner=owner,
                actor=actor,
                request_id=request,
                agent_id=agent,
                kinds=kind or (),
                event_time_from=happened_from,
                event_time_before=happened_before,
                oldest_first=not newest_first,
                page_size=min(most - len(answer.records), PAGE_MAX),
                page_token=answer.next_page_token,
            )
            answer.records.extend(page.records)
            answer.next_page_token = page.next_page_token
            if not page.next_page_token or len(answer.records) >= most:
                break
    if call.as_json:
        print_json(answer)
    else:
        print_records(answer, of_session=session)
