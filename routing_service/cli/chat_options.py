"""The options of ``agent-routing chat``."""

from __future__ import annotations

from dataclasses import dataclass
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


def _example_names() -> list[str]:
    return list(EXAMPLES)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """The options of the command, as given."""

    example: Annotated[
        str,
        typer.Option(
            "--example",
            metavar="|".join(EXAMPLES),
            autocompletion=_example_names,
            show_default=False,
            help="The example whose agents answer. Default: tax, or the server's own.",
        ),
    ] = ""
    agents: Annotated[
        str,
        typer.Option(
            "--agents", metavar="FILE", show_default=False, help="A registry file of your own."
        ),
    ] = ""
    story: Annotated[
        str,
        typer.Option(
            "--story",
            metavar="NAME",
            show_default=False,
            help="Play a story of the examples; exit 1 if anything differs from it.",
        ),
    ] = ""
    target: Annotated[
        str,
        typer.Option(
            "--target",
            metavar="HOST:PORT",
            envvar=TARGET_VARIABLE,
            show_default=False,
            help="A running server. Default: one is started for this chat.",
        ),
    ] = ""
    store: Annotated[
        str,
        typer.Option(
            "--store",
            metavar="URL",
            show_default=False,
            help="The store of that server. Default: a temporary one.",
        ),
    ] = ""
    session: Annotated[
        str,
        typer.Option(
            "--session",
            metavar="ID",
            show_default=False,
            help="Continue this session, or give a new one this id.",
        ),
    ] = ""
    user: Annotated[str, typer.Option("--user", metavar="ID", help="Who you are.")] = "you"
    locale: Annotated[
        str,
        typer.Option(
            "--locale",
            metavar="TAG",
            show_default=False,
            help="Your language, such as es. Default: the terminal's.",
        ),
    ] = ""
    channel: Annotated[
        str, typer.Option("--channel", metavar="WORD", help="Your channel, such as web.")
    ] = ""
    entitlements: EntitlementOption = None
    tenant: TenantOption = ""
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
    ] = None
    as_json: PlainJsonOption = False
