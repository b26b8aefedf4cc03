"""What a Route and a CompleteTurn cost, in steps of the interpreter rather than in seconds.

Seconds depend on what else a machine does; the number of bytecode instructions and of calls into C
does not. From gRPC's bytes to gRPC's bytes, with sign-in, limits, checks, decision, log line and
counts, over the store in memory. It was counted to find what to make smaller (docs/performance.md);
a change that makes it larger should know.
"""

import os
import sys
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from agent_routing.v1 import routing_service_pb2 as pb
from benchmarks.service import REGISTRY
from benchmarks.story import SPECIALIST, SUPERVISOR, USER_TEXT
from routing_service.ids import new_uuid7
from routing_service.server import server as server_module
from routing_service.settings.settings import Settings
from routing_service.telemetry.call_log import CallLog, configure_logging
from routing_service.telemetry.metrics import Metrics

COUNTED_FOR = (3, 11)
"""Each version of Python has its own instructions."""

ROUTE_MOST = 4_548
COMPLETE_MOST = 3_899
"""Instructions and calls into C: a fiftieth more than when the path was last timed, and 70 for the
audit's chain of hashes and 20 for its trace ids. The checksums of what is stored are 145 of a
Route's and 162 of a CompleteTurn's; the question whether any agent has an inbox is 14 and 21; the
questions whether a turn has a deadline, a delivery or steps of its own are 34 and 19."""

RUNS = 20
"""The least of them counts: now and then another task of the server has its turn in between."""


@dataclass
class Context:
    """As much of gRPC's context as a unary call uses."""

    def invocation_metadata(self):
        """Return what every client of gRPC sends."""
        return (("user-agent", "grpc-python-asyncio/1.85.1 grpc-c/54.0.0"),)

    def time_remaining(self):
        """Return a caller's deadline."""
        return 5.0

    def auth_context(self):
        """Return what is known of a connection without TLS."""
        return {}

    def peer(self):
        """Return where the call comes from."""
        return "ipv4:127.0.0.1:50000"

    def set_trailing_metadata(self, _metadata):
        """Take what is sent after the answer."""


class Steps:
    """Counts the interpreter's steps while an awaitable runs."""

    def __init__(self):
        self.count = 0

    async def of(self, awaitable):
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

    def _trace(self, frame, _event, _argument):
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._count

    def _count(self, _frame, event, _argument):
        self.count += event == "opcode"
        return self._count

    def _profile(self, _frame, event, _argument):
        self.count += event == "c_call"


@pytest.fixture
async def handlers(tmp_path, monkeypatch):
    """The handlers that a server gives to gRPC, by method, and the log that it writes."""
    made = []
    make = server_module.service_handlers
    monkeypatch.setattr(
        server_module, "service_handlers", lambda *a, **k: made.append(make(*a, **k)) or made[-1]
    )
    agents = tmp_path / "agents.yaml"
    agents.write_text(REGISTRY)
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123, ASYNC230 - the null device blocks nobody
        log = configure_logging("info", "json", nowhere)
        server = await server_module.RoutingServer.start(
            Settings(listen="127.0.0.1:0", agents=str(agents), store="memory://"),
            observer=CallLog(log, Metrics()),
        )
        (routing, *_) = made[0]

        def handler(method):
            path = f"/agent_routing.v1.RoutingService/{method}"
            return routing.service(SimpleNamespace(method=path, invocation_metadata=())).unary_unary

        yield handler, log.writer
        await server.stop(0)


@pytest.mark.skipif(sys.version_info[:2] != COUNTED_FOR, reason="counted for another Python")
async def test_a_turn_takes_no_more_steps_than_it_did(handlers):
    """Of a session in its eleventh turn and later: its agent sticks, its history is ten turns."""
    handler, writer = handlers
    route, complete = handler("Route"), handler("CompleteTurn")
    steps, context = Steps(), Context()

    async def call(method, message):
        answer = await method(message.SerializeToString(), context)
        writer.flush()
        return answer

    def said():
        return pb.RouteRequest(
            session_id="chat", user_id="ana", text=USER_TEXT, request_id=new_uuid7()
        )

    def answered(dispatch):
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

    async def turn():
        data, routing = await steps.of(call(route, said()))
        dispatch = pb.RouteResponse.FromString(data).dispatch
        while dispatch.request_id:
            data, completing = await steps.of(call(complete, answered(dispatch)))
            dispatch = pb.CompleteTurnResponse.FromString(data).next
        return routing, completing

    for _ in range(30):  # More turns than a history has, so that each one after costs the same.
        await turn()
    counted = [await turn() for _ in range(RUNS)]
    routing, completing = min(r for r, _ in counted), min(c for _, c in counted)
    told = f"a Route takes {routing} steps, a CompleteTurn {completing}"
    assert routing <= ROUTE_MOST, told
    assert completing <= COMPLETE_MOST, told
    # Where it became much less, the bound is to follow.
    assert routing >= ROUTE_MOST * 0.8, told
    assert completing >= COMPLETE_MOST * 0.8, told
