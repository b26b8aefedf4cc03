"""The client's package: cheap to import, and with the version bounds of its generated code."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import grpc
import pytest
from packaging.requirements import Requirement

import agent_routing
from agent_routing.v1 import routing_service_pb2, routing_service_pb2_grpc

CLIENT = Path(agent_routing.__file__).parents[1]
PROJECT = tomllib.loads((CLIENT / "pyproject.toml").read_text("utf-8"))["project"]
REQUIREMENTS = {
    requirement.name: requirement for requirement in map(Requirement, PROJECT["dependencies"])
}


def test_importing_the_package_loads_no_grpc_and_no_protobuf():
    """They cost a tenth of a second, which a command that only prints its help must not pay."""
    program = "import sys, agent_routing; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "agent_routing" in loaded
    assert [name for name in loaded if name == "grpc" or name.startswith("google.protobuf")] == []


def test_clients_load_no_streams_and_no_errors_of_the_service_before_they_need_them():
    """They take a third of the clients' own import time."""
    program = "import sys; from agent_routing import AsyncClient, Client; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert {"agent_routing.client", "agent_routing.aio"} <= set(loaded)
    later = {
        "agent_routing.client_stream",
        "agent_routing.aio_stream",
        "agent_routing.status_details",
    }
    assert later & set(loaded) == set()


def test_the_client_depends_on_three_packages_alone():
    """Every application that uses the client needs these packages too."""
    assert REQUIREMENTS.keys() == {"grpcio", "protobuf", "googleapis-common-protos"}


def test_lower_bounds_are_those_that_the_generated_code_checks():
    """A lower bound would allow versions on which the code does not run."""
    messages = Path(routing_service_pb2.__file__).read_text("utf-8")
    protobuf = re.search(r"^# Protobuf Python Version: (\d+\.\d+)\.", messages, re.MULTILINE)
    assert protobuf
    assert str(REQUIREMENTS["protobuf"].specifier) == f"<8,>={protobuf[1]}"
    stubs = Path(routing_service_pb2_grpc.__file__).read_text("utf-8")
    grpcio = re.search(r"^GRPC_GENERATED_VERSION = '(.+)'$", stubs, re.MULTILINE)
    assert grpcio
    assert str(REQUIREMENTS["grpcio"].specifier) == f"<2,>={grpcio[1]}"


@pytest.mark.parametrize("folder", ["agent_routing", "agent_routing/v1"])
def test_the_package_says_that_it_is_typed(folder):
    """Without the marker, type checkers skip it silently."""
    assert (CLIENT / folder / "py.typed").is_file()


def test_every_generated_module_has_its_types():
    """Without them a module would be Any for its users."""
    modules = {path.stem for path in (CLIENT / "agent_routing/v1").glob("*_pb2*.py")}
    assert modules
    assert modules == {path.stem for path in (CLIENT / "agent_routing/v1").glob("*_pb2*.pyi")}


class EchoRouting(routing_service_pb2_grpc.RoutingServiceServicer):
    """Answers with the request's values, and streams the requested number."""

    async def Route(self, request, _context):  # noqa: N802 - the contract's name
        """Send the text back as a dispatch."""
        answer = routing_service_pb2.RouteResponse(
            session_id=request.session_id, revision=request.expected_revision + 1
        )
        answer.dispatch.text = request.text
        getattr(answer.dispatch.handoff, "from").agent_id = "coordinator"
        answer.dispatch.handoff.context.update({"pages": [1, "two", None]})
        return answer

    async def RouteStream(self, requests, _context):  # noqa: N802 - the contract's name
        """Refuse a message without text, without ending the stream."""
        async for request in requests:
            answer = routing_service_pb2.RouteStreamResponse(request_id=request.route.request_id)
            if request.route.text:
                answer.route.dispatch.text = request.route.text
            else:
                answer.error.code = grpc.StatusCode.INVALID_ARGUMENT.value[0]
            yield answer


async def test_generated_stubs_speak_to_a_server_both_ways():
    """Presence, Struct, a keyword as a field name, and errors in a stream cross the wire."""
    server = grpc.aio.server()
    routing_service_pb2_grpc.add_RoutingServiceServicer_to_server(EchoRouting(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = routing_service_pb2_grpc.RoutingServiceStub(channel)
            route = routing_service_pb2.RouteRequest(
                session_id="chat-42", text="¿y los impuestos?", expected_revision=2**40
            )
            answer = await stub.Route(route, timeout=5)
            assert (answer.session_id, answer.revision) == ("chat-42", 2**40 + 1)
            assert answer.dispatch.text == "¿y los impuestos?"
            assert getattr(answer.dispatch.handoff, "from").agent_id == "coordinator"
            assert list(answer.dispatch.handoff.context["pages"]) == [1, "two", None]

            def messages():
                for number, text in enumerate(["one", "", "three"]):
                    route = routing_service_pb2.RouteRequest(request_id=str(number), text=text)
                    yield routing_service_pb2.RouteStreamRequest(route=route)

            answers = [
                (answer.request_id, answer.WhichOneof("result"))
                async for answer in stub.RouteStream(messages(), timeout=5)
            ]
            assert answers == [("0", "route"), ("1", "error"), ("2", "route")]

            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.ListAgents(routing_service_pb2.ListAgentsRequest(), timeout=5)
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    finally:
        await server.stop(None)
