"""``agent-routing stats``: routing figures as tables, bars or a drawing, and their recount."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Final

import typer

from routing_service.analytics.keeper import StatsKeeper
from routing_service.analytics.recount import StoredStats, stored_stats
from routing_service.cli.admin_options import (
    OnlyChannelOption,
    SinceOption,
    UntilOption,
    read_time,
)
from routing_service.cli.failure import CommandFailed
from routing_service.cli.handoff_drawing import draw_handoffs
from routing_service.cli.handoff_graph import HandoffGraph, dot_text, handoff_graph, mermaid_text
from routing_service.cli.screen import print_json
from routing_service.cli.server_call import CallOptions, calling, server_command
from routing_service.cli.stats_report import print_stats
from routing_service.cli.store_call import run_on_store
from routing_service.storage.open_store import open_store, open_store_to_read

STATS_S_DEFAULT: Final = 30.0
"""Longer than for other calls: a year is read day by day, and new events are counted first."""

EPILOG: Final = """\b
Examples:
  agent-routing stats --since 7d
  agent-routing stats --channel web --json | jq .supervisor_calls_saved_share
  agent-routing stats --svg handoffs.svg
  agent-routing stats --mermaid - >> report.md
  agent-routing stats --dot - | dot -Tpdf -o handoffs.pdf

\b
If the stored statistics are damaged (STATE_CORRUPT, stats_damaged in the log),
count them again from the stored changes. The first run only reports:
  agent-routing stats --recount --store sqlite:///var/routing.db
  agent-routing stats --recount --store sqlite:///var/routing.db --yes
"""


_SvgOption = Annotated[
    Path | None,
    typer.Option(
        "--svg",
        metavar="FILE",
        show_default=False,
        help="Draw the handoffs between agents as an SVG file instead.",
    ),
]
_MermaidOption = Annotated[
    Path | None,
    typer.Option(
        "--mermaid",
        metavar="FILE",
        show_default=False,
        help="Write them as a Mermaid flowchart instead; - prints it.",
    ),
]
_DotOption = Annotated[
    Path | None,
    typer.Option(
        "--dot",
        metavar="FILE",
        show_default=False,
        help="Write them in Graphviz's DOT language instead; - prints it.",
    ),
]
_RecountOption = Annotated[
    bool,
    typer.Option(
        "--recount",
        help="Report damaged statistics of --store; with --yes count all of them again.",
    ),
]
_StoreOption = Annotated[
    str,
    typer.Option(
        "--store",
        metavar="URL",
        envvar="AGENT_ROUTING_STORE",
        show_default=False,
        help="For --recount: the store's URL, as for agent-routing serve.",
    ),
]
_AllTenantsOption = Annotated[bool, typer.Option("--all-tenants", help="All tenants together.")]


@server_command(timeout_s=STATS_S_DEFAULT)
def stats(
    *,
    since: SinceOption = "",
    until: UntilOption = "",
    channel: OnlyChannelOption = "",
    svg: _SvgOption = None,
    mermaid: _MermaidOption = None,
    dot: _DotOption = None,
    recount: _RecountOption = False,
    store: _StoreOption = "",
    yes: Annotated[bool, typer.Option("--yes", help="Carry the recount out.")] = False,
    all_tenants: _AllTenantsOption = False,
    call: CallOptions,
) -> None:
    """Show routing figures: handoffs, refusals, stuck users.

    Also the supervisor calls saved and each agent's figures. Times are rounded to whole
    hours. docs/analytics.md says what each figure counts.
    """
    if recount:
        if not store:
            raise typer.BadParameter("--recount needs --store URL: the statistics are in the store")
        _recount(store, carried_out=yes, as_json=call.as_json)
        return
    if yes:
        raise typer.BadParameter("--yes is only for --recount")
    if all_tenants and call.tenant:
        raise typer.BadParameter("--tenant and --all-tenants exclude each other; use one")
    drawings = _chosen({"--svg": svg, "--mermaid": mermaid, "--dot": dot}, as_json=call.as_json)
    start, end = read_time("--since", since), read_time("--until", until)
    with calling(call) as client:
        answer = client.routing_stats(
            tenant="*" if all_tenants else "", start_time=start, end_time=end, channel=channel
        )
        listed = client.list_agents().agents if drawings else ()
    for option, file in drawings.items():
        names = {agent.agent_id: agent for agent in listed}
        _write(file, _DRAWINGS[option](handoff_graph(answer, names)))
    if drawings:
        return
    if call.as_json:
        print_json(answer)
    else:
        print_stats(answer)


_DRAWINGS: Final[Mapping[str, Callable[[HandoffGraph], str]]] = {
    "--svg": draw_handoffs,
    "--mermaid": mermaid_text,
    "--dot": dot_text,
}
"""What each option writes."""


def _chosen(files: Mapping[str, Path | None], *, as_json: bool) -> dict[str, Path]:
    """Return the drawings that are asked for. Raises typer.BadParameter."""
    chosen = {option: file for option, file in files.items() if file is not None}
    if chosen and as_json:
        raise typer.BadParameter(f"{next(iter(chosen))} and --json exclude each other; use one")
    if sum(file == Path("-") for file in chosen.values()) > 1:
        raise typer.BadParameter("only one drawing can be printed; give the others a file")
    return chosen


def _write(file: Path, drawing: str) -> None:
    """Write a drawing, or print it if the file is "-". Raises CommandFailed."""
    if file == Path("-"):
        typer.echo(drawing, nl=False)
        return
    try:
        file.write_text(drawing, encoding="utf-8")
    except OSError as error:
        raise CommandFailed(f'cannot write "{file}": {error.strerror or error}') from error
    typer.echo(f"drawn into {file}")


def _recount(store: str, *, carried_out: bool, as_json: bool) -> None:
    """Report what statistics are stored and which are damaged; make the servers count again."""
    found = run_on_store(_begin_recount(store) if carried_out else _stored(store))
    damaged = [{"tenant": tenant, "setting": name} for tenant, name in found.damaged]
    if as_json:
        answer = {"settings": found.settings, "damaged": damaged, "recount": carried_out}
        typer.echo(json.dumps(answer, ensure_ascii=False))
        return
    for row in damaged:
        typer.echo(f'damaged: tenant {row["tenant"]}, setting "{row["setting"]}"')
    typer.echo(f"{found.settings} settings of statistics, {len(damaged)} damaged")
    if carried_out:
        typer.echo(
            "the recount has begun: servers clear these settings and count all stored changes, "
            "now or when they start; as_of_time says how far they are"
        )
    else:
        typer.echo(
            "nothing was changed; --yes counts all again, without what was erased or purged "
            "(stop the server of a SQLite store first)"
        )


async def _stored(url: str) -> StoredStats:
    opened = await open_store_to_read(url)
    try:
        return await stored_stats(opened)
    finally:
        await opened.close()


async def _begin_recount(url: str) -> StoredStats:
    # Reading first: a store that is missing is not created.
    await (await open_store_to_read(url)).close()
    opened = await open_store(url)
    try:
        # The servers count: they know the registry's home agent.
        keeper = StatsKeeper(opened, lambda: "", lambda: time.time_ns() // 1_000, holder="recount")
        return await keeper.begin_recount()
    finally:
        await opened.close()
