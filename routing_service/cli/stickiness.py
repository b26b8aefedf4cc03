"""``agent-routing stickiness``: switch stickiness off for a tenant, and on again."""

from __future__ import annotations

import enum
from typing import Annotated, Final

import typer

from routing_service.cli.admin_answers import print_switched
from routing_service.cli.options import (
    TARGET_DEFAULT,
    TIMEOUT_DEFAULT_S,
    JsonOption,
    ReasonOption,
    TargetOption,
    TenantOption,
    TimeoutOption,
)
from routing_service.cli.screen import print_json
from routing_service.cli.server_call import CallOptions, calling


class OnOff(enum.StrEnum):
    """The new state."""

    ON = "on"
    OFF = "off"


EPILOG: Final = """\b
Examples:
  agent-routing stickiness off --reason "the billing agent answers nonsense"
  agent-routing stickiness on --all-tenants
"""


def stickiness(
    switch: Annotated[
        OnOff, typer.Argument(help="off: every message goes to the home agent.", show_default=False)
    ],
    *,
    reason: ReasonOption = "",
    all_tenants: Annotated[
        bool, typer.Option("--all-tenants", help="For all tenants, including future ones.")
    ] = False,
    tenant: TenantOption = "",
    target: TargetOption = TARGET_DEFAULT,
    timeout: TimeoutOption = TIMEOUT_DEFAULT_S,
    as_json: JsonOption = False,
) -> None:
    """Switch stickiness on or off.

    It takes effect on all replicas within a second; sessions keep their state.
    """
    if all_tenants and tenant:
        raise typer.BadParameter("--tenant and --all-tenants exclude each other; use one")
    with calling(
        CallOptions(target=target, tenant=tenant, timeout_s=timeout, as_json=as_json)
    ) as client:
        answer = client.set_stickiness(
            switch is OnOff.ON, tenant="*" if all_tenants else "", reason=reason
        )
    if as_json:
        print_json(answer)
    else:
        print_switched(answer)
