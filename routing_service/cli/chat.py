"""``agent-routing chat``: talk to agents in the terminal."""

from __future__ import annotations

import os
from typing import Annotated, Final

import typer

from routing_service.cli.example_files import EXAMPLES
from routing_service.cli.options import (
    TARGET_VARIABLE,
    EntitlementOption,
    PlainJsonOption,
    TenantOption,
)

COLUMNS_MIN: Final = 30
COLUMNS_MAX: Final = 80

EPILOG: Final = """\b
While you chat:
  /help lists the commands, such as /agents, /status, /supervisor and /reset
  Ctrl-D or Ctrl-C leaves

\b
An agent without a script is a stand-in; the start of your message steers it:
  !ask it asks you something    !done it completes    !fail it fails
  !to AGENT it hands over       !pause it needs an approval
  anything else: it answers

\b
If an agent needs an approval, you give it:
  !approve COMMENT              !reject COMMENT

\b
Examples:
  agent-routing chat
  agent-routing chat --example budget --locale es
  agent-routing chat --story tutor --width 40
  agent-routing chat --agents agents.yaml
  printf 'hello\\n/status\\n' | agent-routing chat --json
"""


def chat(
    *,
    example: Annotated[
        str,
        typer.Option(
            "--example",
            metavar="|".join(EXAMPLES),
            autocompletion=lambda: list(EXAMPLES),
            show_default=False,
            help="The example whose agents answer. Default: tax, or the server's own.",
        ),
    ] = "",
    agents: Annotated[
        str,
        typer.Option(
            "--agents", metavar="FILE", show_default=False, help="A registry file of your own."
        ),
    ] = "",
    story: Annotated[
        str,
        typer.Option(
            "--story",
            metavar="NAME",
            show_default=False,
            help="Play a story of the examples; exit 1 if anything differs from it.",
        ),
    ] = "",
    target: Annotated[
        str,
        typer.Option(
            "--target",
            metavar="HOST:PORT",
            envvar=TARGET_VARIABLE,
            show_default=False,
            help="A running server. Default: one is started for this chat.",
        ),
    ] = "",
    store: Annotated[
        str,
        typer.Option(
            "--store",
            metavar="URL",
            show_default=False,
            help="The store of that server. Default: a temporary one.",
        ),
    ] = "",
    session: Annotated[
        str,
        typer.Option(
            "--session",
            metavar="ID",
            show_default=False,
            help="Continue this session, or give a new one this id.",
        ),
    ] = "",
    user: Annotated[str, typer.Option("--user", metavar="ID", help="Who you are.")] = "you",
    locale: Annotated[
        str,
        typer.Option(
            "--locale",
            metavar="TAG",
            show_default=False,
            help="Your language, such as es. Default: the terminal's.",
        ),
    ] = "",
    channel: Annotated[
        str, typer.Option("--channel", metavar="WORD", help="Your channel, such as web.")
    ] = "",
    entitlement: EntitlementOption = None,
    tenant: TenantOption = "",
    width: Annotated[
        int | None,
        typer.Option(
            "--width",
            metavar="COLUMNS",
            min=COLUMNS_MIN,
            max=COLUMNS_MAX,
            show_default=False,
            help="Columns of the screen. Default: the terminal's, at most 80.",
        ),
    ] = None,
    as_json: PlainJsonOption = False,
) -> None:
    """Talk to agents in the terminal, and see who answers and why.

    The examples' agents follow scripts: no model, no network. In a pipe, each line is a message.
    """
    # gRPC reads it when it is imported: the chat reports connection errors itself.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from routing_service.cli.chat_program import ChatOptions, run_chat  # noqa: PLC0415 - after the line above

    run_chat(
        ChatOptions(
            example=example,
            agents=agents,
            story=story,
            target=target,
            store=store,
            session=session,
            user=user,
            locale=locale,
            channel=channel,
            entitlements=tuple(entitlement or ()),
            tenant=tenant,
            width=width or 0,
            as_json=as_json,
        )
    )
