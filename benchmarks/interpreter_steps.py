"""The interpreter's steps for a Route and a CompleteTurn, which other load does not change.

Counted are bytecode instructions and calls into C, from gRPC's bytes to gRPC's bytes: with sign-in,
limits, checks, decision, log line and counts, over the store in memory.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, Final, cast
from unittest import mock

from agent_routing.v1 import routing_service_pb2 as pb
from benchmarks.figure import Figure, Scale
from benchmarks.service import REGISTRY
from benchmarks.story import SPECIALIST, SUPERVISOR, USER_TEXT
from routing_service.ids import new_uuid7
from routing_service.server import server as server_module
from routing_service.server.bounds import DEFAULT_BOUNDS, Bounds
from routing_service.settings.settings import Settings
from routing_service.telemetry.call_log import CallLog, configure_logging
from routing_service.telemetry.metrics import Metrics

RUNS: Final = 20
"""The least of them counts: now and then another task of the server has its turn in between."""

WARM_TURNS: Final = 30
"""More turns than a history has, so that each one after costs the same."""

Handler = Callable[[bytes, Any], Awaitable[bytes]]


@dataclass
class Context:
    """As much of gRPC's context as a unary call uses."""

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        """Return what every client of gRPC sends."""
        return (("user-agent", "grpc-python-asyncio/1.85.1 grpc-c/54.0.0"),)

    def time_remaining(self) -> float:
        """Return a caller's deadline."""
        return 5.0

    def auth_context(self) -> dict[str, Any]:
        """Return what is known of a connection without TLS."""
        return {}

    def peer(self) -> str:
        """Return where the call comes from."""
        return "ipv4:127.0.0.1:50000"

    def set_trailing_metadata(self, _metadata: object) -> None:
        """Take what is sent after the answer."""


class Steps:
    """Counts the interpreter's steps while an awaitable runs."""

    def __init__(self) -> None:
        """Begin at zero."""
        self.count = 0

    async def of(self, awaitable: Awaitable[bytes]) -> tuple[bytes, int]:
        """Return the awaitable's result and its steps."""
        self.count = 0
        sys.setprofile(self._profile)
        sys.settrace(self._trace)
        try:
            result = await awaitable
        finally:
            sys.settrace(None)
            sys.setprofile(None)
        return result, self.count

    def _trace(self, frame: FrameType, _event: str, _argument: object) -> Any:
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._count

    def _count(self, _frame: FrameType, event: str, _argument: object) -> Any:
        self.count += event == "opcode"
        return self._count

    def _profile(self, _frame: FrameType, event: str, _argument: object) -> None:
        self.count += event == "c_call"


def measure(_scale: Scale) -> list[Figure]:
    """Return the steps of a Route and of a CompleteTurn."""
    routing, completing = asyncio.run(count())
    return [
        Figure("route_steps", routing, "steps"),
        Figure("complete_turn_steps", completing, "steps"),
    ]


async def count() -> tuple[int, int]:
    """Return the steps of a Route and of a CompleteTurn, with a history of twenty turns."""
    async with handlers() as (handler, flush):
        steps, context = Steps(), Context()
        route, complete = handler("Route"), handler("CompleteTurn")

        async def call(method: Handler, message: pb.RouteRequest | pb.CompleteTurnRequest) -> bytes:
            answer = await method(message.SerializeToString(), context)
            flush()
            return answer

        async def turn() -> tuple[int, int]:
            said = pb.RouteRequest(
                session_id="chat", user_id="ana", text=USER_TEXT, request_id=new_uuid7()
            )
            data, routing = await steps.of(call(route, said))
            completing = 0
            dispatch = pb.RouteResponse.FromString(data).dispatch
            while dispatch.request_id:
                data, completing = await steps.of(call(complete, answer_to(dispatch)))
                dispatch = pb.CompleteTurnResponse.FromString(data).next
            return routing, completing

        for _ in range(WARM_TURNS):
            await turn()
        counted = [await turn() for _ in range(RUNS)]
    return min(routing for routing, _ in counted), min(completing for _, completing in counted)


def answer_to(dispatch: Any) -> pb.CompleteTurnRequest:
    """Return how the agent of a dispatch answers: the supervisor hands over, others proceed."""
    message = pb.CompleteTurnRequest(
        session_id="chat",
        user_id="ana",
        request_id=dispatch.request_id,
        agent_id=dispatch.agent.agent_id,
        text="It is so.",
    )
    if dispatch.agent.agent_id == SUPERVISOR:
        message.handoff.agent_id = SPECIALIST
    else:
        message.proceed.SetInParent()
    return message


@asynccontextmanager
async def handlers(
    registry: str = REGISTRY,
    clock_us: Callable[[], int] = server_module.system_clock_us,
    bounds: Bounds = DEFAULT_BOUNDS,
) -> AsyncIterator[tuple[Callable[..., Handler], Callable[[], object]]]:
    """Start a server; yield its handlers by method, and a function that writes its log.

    registry: the text of its file. clock_us, bounds: as for RoutingServer.start.
    """
    made: list[Any] = []
    make = server_module.service_handlers

    def kept(*args: Any, **options: Any) -> Any:
        made.append(make(*args, **options))
        return made[-1]

    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(server_module, "service_handlers", kept),
        open(os.devnull, "w") as nowhere,  # noqa: PTH123, ASYNC230 - the null device blocks nobody
    ):
        agents = Path(folder) / "agents.yaml"
        agents.write_text(registry)
        log = configure_logging("info", "json", nowhere)
        server = await server_module.RoutingServer.start(
            Settings(listen="127.0.0.1:0", agents=str(agents), store="memory://"),
            observer=CallLog(log, Metrics()),
            clock_us=clock_us,
            bounds=bounds,
        )
        by_service = dict(zip(("RoutingService", "AdminService"), made[0], strict=False))

        def handler(method: str, service: str = "RoutingService") -> Handler:
            path = f"/agent_routing.v1.{service}/{method}"
            details = SimpleNamespace(method=path, invocation_metadata=())
            found = by_service[service].service(details)
            return cast("Handler", found.unary_unary or found.unary_stream)

        yield handler, log.writer.flush
        await server.stop(0)
