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


IMPORTED = {
    "agent_routing",
    "agent_routing._version",
    "agent_routing.aio",
    "agent_routing.approval_calls",
    "agent_routing.approval_calls_aio",
    "agent_routing.approval_watch",
    "agent_routing.ask_calls",
    "agent_routing.ask_calls_aio",
    "agent_routing.asking",
    "agent_routing.away_commands",
    "agent_routing.calls",
    "agent_routing.channel",
    "agent_routing.circuit",
    "agent_routing.client",
    "agent_routing.errors",
    "agent_routing.fallback",
    "agent_routing.ids",
    "agent_routing.messages",
    "agent_routing.people_calls",
    "agent_routing.people_calls_aio",
    "agent_routing.plain_values",
    "agent_routing.proxies",
    "agent_routing.retry",
    "agent_routing.route_result",
    "agent_routing.routing_calls",
    "agent_routing.routing_calls_aio",
    "agent_routing.routing_error",
    "agent_routing.tokens",
    "agent_routing.watching",
}
"""Of our own. Streams, workers, outcomes and the errors of the service come when they are used."""


def _added_by(program, given="import grpc, grpc.aio"):
    """The modules that a program imports beyond another."""
    loaded = [
        subprocess.run(
            [sys.executable, "-c", f"import sys; {text}; print(*sys.modules)"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for text in (given, f"{given}; {program}")
    ]
    return set(loaded[1]) - set(loaded[0])


def test_clients_import_their_own_modules_and_nearly_nothing_else():
    """Protobuf and the messages take longer than all of these, and half of gRPC's own import."""
    added = _added_by("from agent_routing import AsyncClient, Client")
    ours = {name for name in added if name.startswith("agent_routing")}
    assert ours == IMPORTED
    others = {name.partition(".")[0] for name in added - ours if not name.startswith("_")}
    assert others <= {"copy", "dataclasses", "datetime", "org", "unicodedata"}


def test_a_client_that_is_made_has_everything_that_its_first_call_needs():
    """The first call of a process must not wait for an import, nor hold up an event loop."""
    made = "import agent_routing; client = agent_routing.Client('127.0.0.1:1', fallback=None)"
    call = """
try:
    client.status('s', timeout=0.2)
except agent_routing.RoutingError:
    pass
"""
    added = _added_by(f"exec({call!r})", given=made)
    assert {name for name in added if name.endswith(("_pb2", "_pb2_grpc"))} <= {
        "google.rpc.error_details_pb2"
    }


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
