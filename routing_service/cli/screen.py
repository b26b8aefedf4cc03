"""How commands print: tables and lines for people, JSON for programs.

Its rule: a terminal gets colours and fitting widths, a pipe the same text plain. Text of users and
agents never controls the terminal: control characters are shown as signs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import UTC
from typing import Final

import typer
from google.protobuf import json_format
from google.protobuf.descriptor import EnumDescriptor
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from agent_routing.v1.agent_pb2 import Agent
from routing_service.telemetry.terminal_text import seen, seen_json

PIPE_COLUMNS: Final = 100
"""The width of tables without a terminal."""


class SafeConsole(Console):
    """A console that shows every text as ``seen`` does, as the last line of defence.

    Pass texts in tables through ``seen`` before, because their width is measured as given.
    """

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """See Console."""
        for segment in super().render(renderable, options):
            # A control segment is Rich's own, such as a cursor movement.
            yield segment if segment.control else Segment(seen(segment.text), segment.style)


_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))


def console() -> Console:
    """Return the console for answers: stdout, in colour on a terminal."""
    width = None if sys.stdout.isatty() else PIPE_COLUMNS
    return SafeConsole(highlight=False, width=width)


def print_json(message: Message) -> None:
    """Print an answer as JSON with all fields, under the contract's names."""
    text = json_format.MessageToJson(
        message,
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
        ensure_ascii=False,
    )
    typer.echo(seen_json(text))


def json_line(message: Message) -> str:
    """Return a message as one line of JSON with the fields that are set, under their names."""
    return seen_json(
        json_format.MessageToJson(
            message, preserving_proto_field_name=True, indent=None, ensure_ascii=False
        )
    )


def word(enum: EnumDescriptor, value: int, prefix: str) -> str:
    """Return an enum's value as text: ROUTE_REASON_FOLLOW_UP_LOCK as "follow up lock"."""
    found = enum.values_by_number.get(value)
    if found is None:
        return str(value)
    return str(found.name).removeprefix(prefix).lower().replace("_", " ")


def count_of(count: int, what: str) -> str:
    """Return a count with its noun: "1 session", "2 sessions"."""
    return f"{count} {what}{'s' * (count != 1)}"


def span_text(seconds: float) -> str:
    """Return a time as a person says it: the two largest units."""
    left = max(0, int(seconds))
    parts: list[str] = []
    for size, unit in _UNITS:
        count, left = divmod(left, size)
        if count or parts:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2]) or "0s"


def agent_text(agent: Agent) -> Text:
    """Return an agent's name in its colour, with its id if that differs."""
    name = agent.display_name or agent.agent_id
    text = Text(seen(name), style=agent_style(agent))
    if name != agent.agent_id:
        text.append(f" ({seen(agent.agent_id)})", style="dim")
    return text


def agent_style(agent: Agent) -> str:
    """Return an agent's colour as a style; bold alone without a colour."""
    return f"bold {agent.color}" if agent.color else "bold"


def time_text(timestamp: Timestamp) -> str:
    """Return a point in time, UTC, to the second; "" if it is unset."""
    if not timestamp.ByteSize():
        return ""
    return timestamp.ToDatetime(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def grid() -> Table:
    """Return a table of names and values."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    return table
