"""``agent-routing stats``: routing figures as tables and bars, or as a drawing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from routing_service.cli.admin_options import (
    OnlyChannelOption,
    SinceOption,
    UntilOption,
    read_time,
)
from routing_service.cli.failure import CommandFailed
from routing_service.cli.handoff_drawing import draw_handoffs
from routing_service.cli.options import (
    TARGET_DEFAULT,
    JsonOption,
    TargetOption,
    TenantOption,
    TimeoutOption,
)
from routing_service.cli.screen import print_json
from routing_service.cli.server_call import CallOptions, calling
from routing_service.cli.stats_report import print_stats

STATS_S_DEFAULT: Final = 30.0
"""Longer than for other calls: a year is read day by day, and new events are counted first."""

EPILOG: Final = """\b
Examples:
  agent-routing stats --since 7d
  agent-routing stats --channel web --json | jq .supervisor_calls_saved_share
  agent-routing stats --svg handoffs.svg
"""


def stats(
    *,
    since: SinceOption = "",
    until: UntilOption = "",
    channel: OnlyChannelOption = "",
    svg: Annotated[
        Path | None,
        typer.Option(
            "--svg",
            metavar="FILE",
            show_default=False,
            help="Draw the handoffs between agents as an SVG file instead.",
        ),
    ] = None,
    tenant: TenantOption = "",
    all_tenants: Annotated[
        bool, typer.Option("--all-tenants", help="All tenants together.")
    ] = False,
    target: TargetOption = TARGET_DEFAULT,
    timeout: TimeoutOption = STATS_S_DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """Show routing figures: handoffs, refusals, stuck users.

    Also the supervisor calls saved and each agent's figures. Times are rounded to whole
    hours. docs/analytics.md says what each figure counts.
    """
    if all_tenants and tenant:
        raise typer.BadParameter("--tenant and --all-tenants exclude each other; use one")
    if svg is not None and as_json:
        raise typer.BadParameter("--svg and --json exclude each other; use one")
    start, end = read_time("--since", since), read_time("--until", until)
    with calling(
        CallOptions(target=target, tenant=tenant, timeout_s=timeout, as_json=as_json)
    ) as client:
        answer = client.routing_stats(
            tenant="*" if all_tenants else "", start_time=start, end_time=end, channel=channel
        )
        names = (
            {} if svg is None else {agent.agent_id: agent for agent in client.list_agents().agents}
        )
    if svg is not None:
        try:
            svg.write_text(draw_handoffs(answer, names), encoding="utf-8")
        except OSError as error:
            raise CommandFailed(f'cannot write "{svg}": {error.strerror or error}') from error
        typer.echo(f"drawn into {svg}")
    elif as_json:
        print_json(answer)
    else:
        print_stats(answer)
