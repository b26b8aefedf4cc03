"""``agent-routing health``: whether a server lives, and whether it can serve."""

from __future__ import annotations

from typing import Annotated, Final

import grpc
import typer
from grpc_health.v1 import health_pb2, health_pb2_grpc

from routing_service.cli.credentials import given
from routing_service.cli.failure import CommandFailed
from routing_service.cli.options import TARGET_DEFAULT, TargetOption, TimeoutOption

EPILOG: Final = """\b
Examples:
  agent-routing health --target 127.0.0.1:50051
  agent-routing health --live

\b
Without --live it asks whether calls can be served: not while the store cannot be
written, and not while the server drains. With --live only whether the process
answers, as a liveness probe must: a store that is away is no reason to restart.

\b
Examples:
  agent-routing health --target 127.0.0.1:50051
  agent-routing health --live

\b
Exit codes: 0 yes; 1 no, or nobody answers; 2 the target is wrong.
"""

HEALTH_TIMEOUT_S: Final = 3.0
"""As probes have it; a server that takes longer is of no use either."""


def health(
    *,
    live: Annotated[
        bool, typer.Option("--live", help="Ask only whether the process answers.")
    ] = False,
    target: TargetOption = TARGET_DEFAULT,
    timeout_s: TimeoutOption = HEALTH_TIMEOUT_S,
) -> None:
    """Ask a server whether it is ready, as probes do."""
    service = "" if live else "agent_routing.v1.RoutingService"
    with given().channel(target) as channel:
        try:
            stub = health_pb2_grpc.HealthStub(channel)  # type: ignore[no-untyped-call]
            answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=timeout_s)
        except grpc.RpcError as error:
            code = error.code().name
            raise CommandFailed(f"no server answers at {target} [{code}]") from None
    status = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        raise CommandFailed(f"the server at {target} says {status}; its log has the reason")
    typer.echo(status)
