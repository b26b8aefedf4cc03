"""Calls that are repeated until the server is back, with the same ids."""

import grpc
import grpc.aio
import pytest

from agent_routing.errors import HandoffRefused, InvalidField, Unavailable
from agent_routing.v1 import routing_service_pb2 as pb
from agent_routing.v1.routing_service_pb2_grpc import (
    RoutingServiceServicer,
    add_RoutingServiceServicer_to_server,
)
from routing_service.replay.server_calls import CHANNEL_OPTIONS, PatientServer


class FailingServicer(RoutingServiceServicer):
    """Answers with the codes that it is given, then properly."""

    def __init__(self):
        self.codes = []
        self.requests = []
        self.metadata = []

    async def _take(self, request, context):
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        if self.codes:
            await context.abort(self.codes.pop(0), "as told")

    async def Route(self, request, context):  # noqa: N802 - gRPC's name
        await self._take(request, context)
        return pb.RouteResponse(request_id=request.request_id)

    async def ListAgents(self, request, context):  # noqa: N802 - gRPC's name
        await self._take(request, context)
        return pb.ListAgentsResponse(home_agent_id="supervisor")


@pytest.fixture
async def servicer():
    """Return what the server answers with."""
    return FailingServicer()


@pytest.fixture
async def target(servicer):
    """Serve it on a free port."""
    server = grpc.aio.server()
    add_RoutingServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


@pytest.fixture
async def channel(target):
    """Connect as a replay does."""
    async with grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS) as channel:
        yield channel


@pytest.mark.parametrize(
    "code",
    [
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    ],
)
async def test_call_that_nobody_decided_is_repeated_as_it_was(servicer, target, channel, code):
    """The same bytes again, so an applied call returns its first answer."""
    servicer.codes = [code] * 3
    server = PatientServer(channel, target, tenant="acme", patience_s=20)
    request = pb.RouteRequest(request_id="r1", text="hello")
    assert (await server.route(request)).request_id == "r1"
    assert servicer.requests == [request] * 4
    assert {each["agent-routing-tenant"] for each in servicer.metadata} == {"acme"}


async def test_refusal_is_not_repeated(servicer, target, channel):
    """A decision does not change by repeating the call."""
    servicer.codes = [grpc.StatusCode.INVALID_ARGUMENT] * 2
    server = PatientServer(channel, target)
    with pytest.raises(Exception, match="as told") as raised:
        await server.route(pb.RouteRequest())
    assert raised.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert not isinstance(raised.value, HandoffRefused | InvalidField)  # It gave no details.
    assert len(servicer.requests) == 1


async def test_patience_ends(servicer, target, channel):
    """The raised error is the last failure."""
    servicer.codes = [grpc.StatusCode.UNAVAILABLE] * 1000
    server = PatientServer(channel, target, patience_s=0.3)
    with pytest.raises(Unavailable, match="cannot be reached") as raised:
        await server.route(pb.RouteRequest())
    assert raised.value.attempts == len(servicer.requests) > 2


async def test_first_contact_is_not_repeated(servicer, target, channel):
    """A server that never answered is probably a mistyped address."""
    servicer.codes = [grpc.StatusCode.UNAVAILABLE] * 2
    with pytest.raises(Unavailable):
        await PatientServer(channel, target).list_agents()
    assert len(servicer.requests) == 1
