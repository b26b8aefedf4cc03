"""``agent-routing health``: ask a server whether it is alive or ready."""

from __future__ import annotations

import http.client
import socket
from typing import Annotated, Final

import grpc
import typer
from grpc_health.v1 import health_pb2, health_pb2_grpc

from agent_routing.proxies import proxy_hint
from routing_service.cli.credentials import given
from routing_service.cli.failure import EXIT_USAGE, CommandFailed
from routing_service.cli.options import TARGET_DEFAULT, TargetOption, TimeoutOption
from routing_service.settings.listen_address import parse_listen_address

EPILOG: Final = """\b
Examples:
  agent-routing health --target 127.0.0.1:50051
  agent-routing health --live

\b
Without --live it asks for readiness: a server is not ready while its store
cannot be written or while it is stopping. --live only asks whether the process
answers, for liveness probes: an unreachable store is no reason to restart.

\b
Examples:
  agent-routing health --target 127.0.0.1:50051
  agent-routing health --live

\b
Exit codes: 0 yes; 1 no, or no answer; 2 the target is wrong.
"""

HEALTH_TIMEOUT_S: Final = 3.0
"""As usual for probes; a server that takes longer is not useful either."""


def health(
    *,
    live: Annotated[
        bool, typer.Option("--live", help="Only ask whether the process answers.")
    ] = False,
    target: TargetOption = TARGET_DEFAULT,
    probe: Annotated[
        str,
        typer.Option(
            "--probe",
            metavar="HOST:PORT",
            envvar="AGENT_ROUTING_PROBE",
            show_default=False,
            help="Ask the listener of the probes instead of --target.",
        ),
    ] = "",
    timeout_s: TimeoutOption = HEALTH_TIMEOUT_S,
) -> None:
    """Ask a server whether it is ready, as probes do."""
    if probe:
        typer.echo(_probed(probe, "/livez" if live else "/readyz", timeout_s))
        return
    service = "" if live else "agent_routing.v1.RoutingService"
    with given().channel(target) as channel:
        try:
            stub = health_pb2_grpc.HealthStub(channel)  # type: ignore[no-untyped-call]
            answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=timeout_s)
        except grpc.RpcError as error:
            code = error.code().name
            hint = proxy_hint(target)
            raise CommandFailed(f"no server answers at {target}{hint} [{code}]") from None
    status = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        raise CommandFailed(f"the server at {target} says {status}; its log has the reason")
    typer.echo(status)


def _probed(address: str, path: str, timeout_s: float) -> str:
    """Ask the listener of the probes. Raises CommandFailed for a no, or for no answer."""
    try:
        place = parse_listen_address(address)
    except ValueError as error:
        raise CommandFailed(f'"{address}": {error}', exit_code=EXIT_USAGE) from None
    connection = http.client.HTTPConnection(place.host, place.port, timeout=timeout_s)
    if place.unix_path:
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(timeout_s)
    try:
        if place.unix_path:
            connection.sock.connect(place.unix_path)
        connection.request("GET", path)
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        raise CommandFailed(f"no probes at {address}: {error}") from None
    finally:
        connection.close()
    if status == http.HTTPStatus.OK:
        return "SERVING"
    if status == http.HTTPStatus.SERVICE_UNAVAILABLE:
        raise CommandFailed(f"the server at {address} says NOT_SERVING; its log has the reason")
    raise CommandFailed(f"{address} answers {status} for {path}; are the probes there?")
