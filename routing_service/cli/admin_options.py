"""The options that the operators' commands share, and the forms of time that they accept."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

import typer

_AGO: Final = re.compile(r"(\d{1,9})([smhdw])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}

TIME_FORMS: Final = "2026-03-01, 2026-03-01T08:00, or an age: 30m, 12h, 7d"

SinceOption = Annotated[
    str,
    typer.Option(
        "--since",
        metavar="TIME",
        show_default=False,
        help=f"From this time on (UTC): {TIME_FORMS}.",
    ),
]
UntilOption = Annotated[
    str,
    typer.Option(
        "--until", metavar="TIME", show_default=False, help="Before this time, in the same forms."
    ),
]
OwnerOption = Annotated[
    str,
    typer.Option("--owner", metavar="USER", show_default=False, help="Only sessions of this user."),
]
AgentOption = Annotated[
    str,
    typer.Option(
        "--agent",
        metavar="ID",
        show_default=False,
        help="Only events or sessions that involve this agent.",
    ),
]
KindOption = Annotated[
    list[str] | None,
    typer.Option(
        "--kind",
        metavar="WORD",
        show_default=False,
        help="Only events of this kind, such as agent_handoff. May be repeated.",
    ),
]
OnlyChannelOption = Annotated[
    str,
    typer.Option("--channel", metavar="WORD", show_default=False, help="Only this channel."),
]
MaxOption = Annotated[
    int,
    typer.Option(
        "--max", metavar="N", min=1, help="Show at most N; a note says if there are more."
    ),
]


def read_time(option: str, text: str) -> datetime | None:
    """Return the time in an option's value, None for "". Raises typer.BadParameter."""
    if not text:
        return None
    try:
        ago = _AGO.fullmatch(text)
        if ago:
            return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        found = datetime.fromisoformat(text)
    except (ValueError, OverflowError) as error:
        raise typer.BadParameter(f'{option} "{text}" is not a time; write {TIME_FORMS}') from error
    return found if found.tzinfo else found.replace(tzinfo=UTC)
