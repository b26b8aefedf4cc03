"""The report of a replay: its figures, or two registries side by side.

Its rule: people get what they need to decide, programs (--json) get everything.
"""

from __future__ import annotations

import json
from typing import Final

import typer
from rich.table import Table
from rich.text import Text

from routing_service.cli.screen import console, grid
from routing_service.replay.comparison import EFFECTS, ChangedTurn, Comparison
from routing_service.replay.figures import ReplayFigures

CHANGES_SHOWN_MAX: Final = 20
"""Changed turns in the table; --json lists all."""

_SHARES: Final = {
    "supervisor_calls_saved",
    "first_dispatch_right",
    "misrouted",
    "unsupervised_turns",
    "switch_precision",
    "switch_recall",
    "switch_f1",
    "stuck_turns_share",
}

_MORE_IS_BETTER: Final = {
    "supervisor_calls_saved": True,
    "first_dispatch_right": True,
    "switch_precision": True,
    "switch_recall": True,
}
"""Figures of which more is better; of the others less is better, except handoffs."""

TOPIC_FIGURES: Final = {
    "judged_turns",
    "switches",
    "due_switches",
    "switch_precision",
    "switch_recall",
    "switch_f1",
    "false_switches_per_1000",
    "suggestions",
    "suggestions_accepted",
    "suggestions_declined",
    "calibration_error",
}
"""Figures that mean nothing without topic detection."""

_NEUTRAL: Final = {"handoffs"}

_EFFECT_STYLES: Final = {EFFECTS["right"]: "green", EFFECTS["misrouted"]: "red"}


def print_figures(figures: ReplayFigures, *, as_json: bool) -> None:
    """Print the figures of one replay."""
    if as_json:
        typer.echo(json.dumps(figures.as_dict(), indent=2))
        return
    table = grid()
    told = figures.as_dict()
    has_topics = figures.tally.judged_turns or figures.tally.switches
    for name, value in told.items():
        if name in TOPIC_FIGURES and not has_topics:
            continue
        shown = _shown(name, value) if isinstance(value, int | float) else str(value)
        table.add_row(name.replace("_", " "), shown)
    console().print(table)


def print_comparison(comparison: Comparison, *, as_json: bool) -> None:
    """Print two replays of the same dialogues, and the turns that changed."""
    if as_json:
        typer.echo(json.dumps(comparison.as_dict(), indent=2))
        return
    out = console()
    old, new = comparison.old, comparison.new
    tally = new.figures.tally
    out.print(f"old  {old.name}, version {old.version}")
    out.print(f"new  {new.name}, version {new.version}")
    out.print(f"{tally.dialogues:,} dialogues, {tally.user_turns:,} user turns")
    out.print()
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("")
    for name in ("old", "new", "difference"):
        table.add_column(name, justify="right")
    for name, was, is_now, difference in comparison.rows():
        table.add_row(
            name.replace("_", " "),
            _shown(name, was),
            _shown(name, is_now),
            Text(_signed(name, difference), style=_style(name, difference)),
        )
    out.print(table)
    out.print()
    _print_changes(comparison)


def _print_changes(comparison: Comparison) -> None:
    out = console()
    changed = comparison.changed
    if not changed.count:
        out.print("no message went to another agent or for another reason")
        return
    effects = ", ".join(f"{count:,} {effect}" for effect, count in sorted(changed.effects.items()))
    out.print(f"{changed.count:,} messages went to another agent or for another reason: {effects}")
    shown = changed.in_order()
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("dialogue", "turn", "owner", "old", "new", ""):
        table.add_column(name, overflow="fold", no_wrap=name in ("turn", "owner"))
    for turn in shown:
        table.add_row(*_row(turn))
    out.print(table)
    if changed.count > len(shown):
        out.print(f"{changed.count - len(shown):,} more; --json lists all", style="dim")


def _row(turn: ChangedTurn) -> tuple[str | Text, ...]:
    return (
        turn.dialogue_id,
        str(turn.turn),
        turn.owner or "?",
        _where(turn.old_agent, turn.old_reason),
        _where(turn.new_agent, turn.new_reason),
        Text(turn.effect, style=_EFFECT_STYLES.get(turn.effect, "dim")),
    )


def _where(agent_id: str, reason: str) -> Text:
    words = reason.lower().replace("_", " ")
    return Text(agent_id).append(f"\n{words}", style="dim")


def _shown(name: str, value: float) -> str:
    if name in _SHARES:
        return f"{value:.2%}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _signed(name: str, difference: float) -> str:
    if not difference:
        return "="
    shown = _shown(name, abs(difference))
    if name in _SHARES:
        shown = f"{abs(difference) * 100:.2f} points"
    return f"{'+' if difference > 0 else '-'}{shown}"


def _style(name: str, difference: float) -> str:
    if not difference or name in _NEUTRAL:
        return "dim"
    is_better = (difference > 0) == _MORE_IS_BETTER.get(name, False)
    return "green" if is_better else "red"
