"""The figures of routing as tables and bars.

Its rule: an empty table is left out; a share is shown with its total.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC
from typing import Final

from google.protobuf.duration_pb2 import Duration
from rich.table import Table
from rich.text import Text

from agent_routing.v1.admin_service_pb2 import (
    AgentStats,
    GetRoutingStatsResponse,
    HandoffCount,
    StatsPeriod,
    SuggestionCount,
)
from agent_routing.v1.handoff_pb2 import HandoffMode, Initiator
from agent_routing.v1.turn_pb2 import TurnOutcome
from routing_service.cli.answers import reason_words
from routing_service.cli.screen import console, grid, time_text, word

BAR_CHARACTERS: Final = 24
PERIODS_SHOWN: Final = 24
"""The latest hours or days; --json has all."""

_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"
_DAY_S: Final = 86_400


def print_stats(stats: GetRoutingStatsResponse) -> None:
    """Print all figures."""
    out = console()
    out.print(_summary(stats))
    tables = (
        (
            "dispatches",
            _counts("reason", [(reason_words(r.reason), r.count) for r in stats.reasons]),
        ),
        ("handoffs", _handoffs(stats.handoffs)),
        ("suggestions", _suggestions(stats.suggestions)),
        ("refusals by rule", _counts("rule", _by_size(stats.refusals_by_rule.items()))),
        ("agents", _agents(stats.agents)),
        ("commands", _counts("command", _by_size(stats.commands.items()))),
        ("channels", _counts("channel", _by_size(stats.messages_by_channel.items()))),
        ("messages by time", _periods(stats.periods)),
    )
    for title, table in tables:
        if table.row_count:
            out.print()
            out.print(Text(title, style="bold"))
            out.print(table)


def _summary(stats: GetRoutingStatsResponse) -> Table:
    table = grid()
    span = f"until {time_text(stats.end_time)}"
    if stats.HasField("start_time"):
        span = f"{time_text(stats.start_time)} {span}"
    table.add_row("span", span)
    table.add_row("as of", time_text(stats.as_of_time))
    table.add_row("messages", f"{stats.user_messages} in {_many(stats.sessions, 'session')}")
    table.add_row(
        "calls saved",
        _share(stats.supervisor_calls_saved, stats.user_messages, "messages"),
    )
    handoffs = f"{stats.handoffs_total} carried out, {stats.refusals_total} refused"
    if stats.ping_pongs:
        handoffs += f", {stats.ping_pongs} back and forth"
    table.add_row("handoffs", handoffs)
    offered = sum(row.offered for row in stats.suggestions)
    if offered:
        accepted = sum(row.accepted for row in stats.suggestions)
        table.add_row("suggestions", _share(accepted, offered, "offers accepted"))
    activations = sum(agent.activations for agent in stats.agents)
    table.add_row("stuck users", _share(stats.stuck, activations, "times an agent became active"))
    table.add_row("stickiness", "on" if stats.stickiness_enabled else Text("off", style="yellow"))
    return table


def _counts(name: str, rows: Sequence[tuple[str, int]]) -> Table:
    table = _table((name, ""), ("count", "right"), ("", ""))
    most = max((count for _, count in rows), default=0)
    for label, count in rows:
        table.add_row(Text(label), str(count), bar(count, most))
    return table


def _handoffs(rows: Iterable[HandoffCount]) -> Table:
    table = _table(
        ("from", ""),
        ("to", ""),
        ("by", ""),
        ("mode", ""),
        ("count", "right"),
        ("", ""),
        ("returned", "right"),
        ("back", "right"),
        ("refused", "right"),
    )
    ordered = sorted(rows, key=lambda row: (-row.count, -row.refused))
    most = max((row.count for row in ordered), default=0)
    for row in ordered:
        mode = word(HandoffMode.DESCRIPTOR, row.mode, "HANDOFF_MODE_") if row.mode else ""
        table.add_row(
            Text(row.from_agent_id),
            Text(row.to_agent_id),
            word(Initiator.DESCRIPTOR, row.initiator, "INITIATOR_"),
            mode,
            _number(row.count),
            bar(row.count, most, BAR_CHARACTERS // 3),
            _number(row.returned),
            _number(row.ping_pongs),
            Text(_number(row.refused), style="red"),
        )
    return table


def _suggestions(rows: Iterable[SuggestionCount]) -> Table:
    table = _table(
        ("from", ""),
        ("to", ""),
        ("offered", "right"),
        ("", ""),
        ("accepted", "right"),
        ("declined", "right"),
        ("ignored", "right"),
    )
    ordered = sorted(rows, key=lambda row: -row.offered)
    most = max((row.offered for row in ordered), default=0)
    for row in ordered:
        table.add_row(
            Text(row.from_agent_id),
            Text(row.to_agent_id),
            str(row.offered),
            bar(row.offered, most, BAR_CHARACTERS // 3),
            _number(row.accepted),
            _number(row.declined),
            _number(row.ignored),
        )
    return table


def _agents(rows: Iterable[AgentStats]) -> Table:
    table = _table(
        ("agent", ""),
        ("turns", "right"),
        ("outcomes", ""),
        ("active", "right"),
        ("stuck", "right"),
        ("stay", "right"),
        ("p50", "right"),
        ("p95", "right"),
    )
    for row in sorted(rows, key=lambda row: (-row.turns, row.agent_id)):
        outcomes = [
            f"{word(TurnOutcome.DESCRIPTOR, each.outcome, 'TURN_OUTCOME_')} {each.count}"
            for each in row.outcomes
        ]
        for name, count in (
            ("degraded", row.degraded),
            ("stored only", row.stored_only),
            ("abandoned", row.abandoned),
        ):
            if count:
                outcomes.append(f"{name} {count}")
        stay = f"{row.stay_turns / row.stays:.1f}" if row.stays else ""
        table.add_row(
            Text(row.agent_id),
            str(row.turns),
            ", ".join(outcomes),
            _number(row.activations),
            Text(_number(row.stuck), style="yellow"),
            stay,
            _duration(row.response_duration_p50, is_there=row.HasField("response_duration_p50")),
            _duration(row.response_duration_p95, is_there=row.HasField("response_duration_p95")),
        )
    return table


def _periods(rows: Sequence[StatsPeriod]) -> Table:
    table = _table(("began", ""), ("messages", "right"), ("", ""), ("saved", "right"))
    shown = rows[-PERIODS_SHOWN:]
    most = max((row.user_messages for row in shown), default=0)
    for row in shown:
        form = "%Y-%m-%d" if row.length.seconds >= _DAY_S else "%Y-%m-%d %H:%M"
        began = row.start_time.ToDatetime(UTC).strftime(form)
        saved = ""
        if row.user_messages:
            saved = f"{row.supervisor_calls_saved / row.user_messages:.0%}"
        table.add_row(began, str(row.user_messages), bar(row.user_messages, most), saved)
    return table


def bar(count: int, most: int, width: int = BAR_CHARACTERS) -> Text:
    """Return a bar in eighths of a character; a count above 0 is always visible."""
    eighths = max(round(count / most * width * 8), 1) if count and most else 0
    text = "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
    return Text(text, style="cyan")


def _table(*columns: tuple[str, str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name, justify in columns:
        table.add_column(
            name, justify="right" if justify else "left", overflow="fold", no_wrap=bool(justify)
        )
    return table


def _by_size(rows: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    return sorted(rows, key=lambda row: (-row[1], row[0]))


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _share(part: int, whole: int, what: str) -> str:
    return f"{part} of {whole} {what}, {part / whole:.1%}" if whole else f"{part}"


def _number(count: int) -> str:
    return str(count) if count else ""


def _duration(duration: Duration, *, is_there: bool) -> str:
    if not is_there:
        return ""
    seconds = duration.ToTimedelta().total_seconds()
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
