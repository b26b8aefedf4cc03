"""``agent-routing stickiness``: show the switch, turn stickiness off for a tenant, and on again."""

from __future__ import annotations

import enum
from typing import Annotated, Final

import typer

from routing_service.cli.admin_answers import print_stickiness, print_switched
from routing_service.cli.options import (
    ReasonOption,
)
from routing_service.cli.screen import print_json
from routing_service.cli.server_call import CallOptions, calling, server_command


class OnOff(enum.StrEnum):
    """The new state, in the forms that settings and registries have for it too."""

    ON = "on"
    OFF = "off"
    ENABLED = "enabled"
    DISABLED = "disabled"
    TRUE = "true"
    FALSE = "false"

    @property
    def is_on(self) -> bool:
        """Whether it means on."""
        return self in (OnOff.ON, OnOff.ENABLED, OnOff.TRUE)


EPILOG: Final = """\b
Examples:
  agent-routing stickiness
  agent-routing stickiness off --reason "the billing agent answers nonsense"
  agent-routing stickiness off --agent billing
  agent-routing stickiness off --users-percent 10
  agent-routing stickiness on --all-tenants
  agent-routing stickiness on --fresh
"""


@server_command()
def stickiness(
    switch: Annotated[
        OnOff | None,
        typer.Argument(
            help="off: every message goes to the home agent. Without it: show the state.",
            show_default=False,
            case_sensitive=False,
        ),
    ] = None,
    *,
    reason: ReasonOption = "",
    all_tenants: Annotated[
        bool, typer.Option("--all-tenants", help="For all tenants, including future ones.")
    ] = False,
    agent: Annotated[
        list[str] | None,
        typer.Option(
            "--agent",
            metavar="ID",
            show_default=False,
            help="Off for this agent alone. May be repeated.",
        ),
    ] = None,
    users_percent: Annotated[
        int,
        typer.Option(
            "--users-percent",
            metavar="N",
            min=0,
            max=99,
            show_default=False,
            help="Off for this share of the users alone.",
        ),
    ] = 0,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh",
            help="With on: sessions that had messages while it was off begin with the home agent.",
        ),
    ] = False,
    call: CallOptions,
) -> None:
    """Show or switch stickiness.

    Without an argument: whether it is on, since when, by whom and why.

    It takes effect on all replicas within a second; sessions keep their state.
    """
    if all_tenants and call.tenant:
        raise typer.BadParameter("--tenant and --all-tenants exclude each other; use one")
    if (agent or users_percent) and (switch is None or switch.is_on):
        raise typer.BadParameter("--agent and --users-percent are for off alone")
    if fresh and not (switch and switch.is_on):
        raise typer.BadParameter("--fresh is for on alone")
    named = "*" if all_tenants else ""
    with calling(call) as client:
        if switch is None:
            state = client.get_stickiness(tenant=named)
            if call.as_json:
                print_json(state)
            else:
                print_stickiness(state)
            return
        answer = client.set_stickiness(
            switch.is_on,
            tenant=named,
            reason=reason,
            agent_ids=agent or (),
            users_percent=users_percent,
            fresh=fresh,
        )
    if call.as_json:
        print_json(answer)
    else:
        print_switched(answer)
