"""``agent-routing route``: send a user's message."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from routing_service.cli.answers import print_routed
from routing_service.cli.options import (
    ChannelOption,
    EntitlementOption,
    ExpectedRevisionOption,
    LocaleOption,
    RequestIdOption,
    UserOption,
)
from routing_service.cli.screen import print_json
from routing_service.cli.server_call import CallOptions, calling, server_command

NEW_SESSION = "-"

EPILOG: Final = """\b
Examples:
  agent-routing route chat-1 "where is my invoice?" --user ana
  agent-routing route chat-1 /status --user ana --locale es
  agent-routing route - "hello" --user ana --json | jq -r .session_id
"""


@server_command()
def route(
    session: Annotated[
        str, typer.Argument(metavar="SESSION", help="The session's id; - starts a new session.")
    ],
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The user's message.")],
    *,
    user: UserOption = "",
    locale: LocaleOption = "",
    channel: ChannelOption = "",
    entitlement: EntitlementOption = None,
    literal_text: Annotated[
        bool, typer.Option("--literal-text", help="Treat a command in the text as plain text.")
    ] = False,
    validate_only: Annotated[
        bool, typer.Option("--validate-only", help="Only print where the message would go.")
    ] = False,
    quick_reply: Annotated[
        str,
        typer.Option(
            "--quick-reply",
            metavar="ID",
            show_default=False,
            help="The option of a suggestion that the user picked.",
        ),
    ] = "",
    expected_revision: ExpectedRevisionOption = None,
    request_id: RequestIdOption = "",
    call: CallOptions,
) -> None:
    """Send a user's message; see which agent gets it and why."""
    with calling(call) as client:
        result = client.route(
            text,
            session_id="" if session == NEW_SESSION else session,
            user_id=user,
            request_id=request_id,
            locale=locale,
            channel=channel,
            entitlements=entitlement or (),
            literal_text=literal_text,
            validate_only=validate_only,
            quick_reply_id=quick_reply,
            expected_revision=expected_revision,
        )
    if call.as_json:
        print_json(result.response)
    else:
        print_routed(result.response)
