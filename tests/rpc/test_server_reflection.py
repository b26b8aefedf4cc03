import base64
import json
import time

import grpc
import pytest
from google.protobuf import descriptor_database, descriptor_pb2, descriptor_pool
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from agent_routing.v1 import admin_service_pb2, error_reason_pb2, routing_service_pb2

VERSIONS = ("v1", "v1alpha")

SERVICES = [
    "agent_routing.v1.AdminService",
    "agent_routing.v1.RoutingService",
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
]


@pytest.fixture(params=VERSIONS)
def ask(server, request):
    """Query a server with one version of the protocol; v1 differs in its name only."""
    method = f"/grpc.reflection.{request.param}.ServerReflection/ServerReflectionInfo"
    stream = server.channel.stream_stream(
        method,
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )

    async def ask(**asked):
        call = stream(iter([reflection_pb2.ServerReflectionRequest(**asked)]), timeout=10)
        answers = [answer async for answer in call]
        assert len(answers) == 1
        assert answers[0].original_request == reflection_pb2.ServerReflectionRequest(**asked)
        return answers[0]

    return ask


def pool_of(answer):
    """Build a client's descriptor pool from an answer; fails if a file is missing in it."""
    database = descriptor_database.DescriptorDatabase()
    for data in answer.file_descriptor_response.file_descriptor_proto:
        database.Add(descriptor_pb2.FileDescriptorProto.FromString(data))
    return descriptor_pool.DescriptorPool(database)


def symbols_of(file):
    """Return all symbols that a file of the contract declares."""
    for message in file.message_types_by_name.values():
        yield message.full_name
        yield from (field.full_name for field in message.fields)
        yield from (nested.full_name for nested in message.nested_types)
    for enum in file.enum_types_by_name.values():
        yield enum.full_name
        yield from (f"agent_routing.v1.{value.name}" for value in enum.values)
    for service in file.services_by_name.values():
        yield service.full_name
        yield from (method.full_name for method in service.methods)


async def test_all_services_are_listed(ask):
    """This is the first call of a client without proto files."""
    answer = await ask(list_services="", host="somewhere")
    assert [service.name for service in answer.list_services_response.service] == SERVICES
    assert answer.valid_host == "somewhere"


@pytest.mark.parametrize(
    "file", [routing_service_pb2, admin_service_pb2, error_reason_pb2], ids=lambda f: f.__name__
)
async def test_every_symbol_of_the_contract_is_found_in_its_file(ask, file):
    """Including methods, fields and enum values: tools query what their user typed."""
    symbols = list(symbols_of(file.DESCRIPTOR))
    assert len(symbols) > 20
    for symbol in symbols:
        answer = await ask(file_containing_symbol=symbol)
        found = answer.file_descriptor_response.file_descriptor_proto
        assert found[0] == file.DESCRIPTOR.serialized_pb, symbol


async def test_an_answer_has_all_that_its_file_needs(ask):
    """A client can build all types from one answer."""
    pool = pool_of(await ask(file_containing_symbol="agent_routing.v1.RoutingService"))
    found = pool.FindServiceByName("agent_routing.v1.RoutingService")
    known = routing_service_pb2.DESCRIPTOR.services_by_name["RoutingService"]
    assert [method.name for method in found.methods] == [method.name for method in known.methods]
    assert pool.FindMessageTypeByName("agent_routing.v1.Dispatch").fields_by_name["handoff"]


async def test_types_of_error_details_are_found(ask):
    """No method mentions these types; without them tools show error details as bytes."""
    for message in ("ErrorInfo", "BadRequest.FieldViolation", "PreconditionFailure", "RetryInfo"):
        answer = await ask(file_containing_symbol=f"google.rpc.{message}")
        found = answer.file_descriptor_response.file_descriptor_proto
        assert found[0] == error_details_pb2.DESCRIPTOR.serialized_pb


async def test_both_versions_describe_themselves(ask):
    """The library's descriptors lack the name v1; the server adds it."""
    for version in VERSIONS:
        name = f"grpc.reflection.{version}.ServerReflection"
        pool = pool_of(await ask(file_containing_symbol=name))
        method = pool.FindServiceByName(name).methods_by_name["ServerReflectionInfo"]
        assert method.client_streaming
        assert method.server_streaming
        assert method.input_type.full_name == f"grpc.reflection.{version}.ServerReflectionRequest"
        fields = method.input_type.fields_by_name
        extension = fields["file_containing_extension"].message_type
        assert extension.full_name == f"grpc.reflection.{version}.ExtensionRequest"


async def test_a_file_is_found_by_its_name_and_a_symbol_with_a_leading_dot(ask):
    """Descriptors have names with a leading dot, which callers copy."""
    by_name = await ask(file_by_filename=health_pb2.DESCRIPTOR.name)
    by_symbol = await ask(file_containing_symbol=".grpc.health.v1.Health.Check")
    assert by_name.file_descriptor_response == by_symbol.file_descriptor_response
    assert by_name.file_descriptor_response.file_descriptor_proto


async def test_what_is_not_there_is_not_found_and_ends_no_stream(ask):
    """In this protocol an error is an answer on the stream."""
    for asked in (
        {"file_containing_symbol": "agent_routing.v1.Nonsense"},
        {"file_containing_symbol": ""},
        {"file_by_filename": "nonsense.proto"},
        {"file_containing_extension": {"containing_type": "x", "extension_number": 1}},
        {"all_extension_numbers_of_type": "x"},
    ):
        answer = await ask(**asked)
        assert answer.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0], asked
        assert "is not known" in answer.error_response.error_message
    nothing = await ask(host="x")
    assert nothing.error_response.error_code == grpc.StatusCode.INVALID_ARGUMENT.value[0]


async def test_a_message_without_extensions_has_none(ask):
    """proto3 has no extensions; the answer is an empty list, not an error."""
    answer = await ask(all_extension_numbers_of_type="agent_routing.v1.Agent")
    assert answer.all_extension_numbers_response.base_type_name == "agent_routing.v1.Agent"
    assert list(answer.all_extension_numbers_response.extension_number) == []


async def test_bytes_that_are_no_request_are_the_callers_mistake(server):
    """The error is INVALID_ARGUMENT, without the server's internal message."""
    method = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await server.channel.stream_stream(method)(iter([b"\xff\xff"]), timeout=5).read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_stopping_server_does_not_wait_for_tools(server):
    """Tools keep their stream open while they run."""
    method = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
    call = server.channel.stream_stream(method)(timeout=20)
    asked = reflection_pb2.ServerReflectionRequest(list_services="")
    await call.write(asked.SerializeToString())
    assert await call.read()
    started_s = time.monotonic()
    await server.server.stop(10)
    assert time.monotonic() - started_s < 2
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_grpcurl_lists_describes_and_calls(server, run_tool):
    """The README's first conversation, with the tool that it recommends."""

    async def grpcurl(*arguments):
        ran = await run_tool("grpcurl", "-plaintext", *arguments)
        assert ran.exit_code == 0, ran
        return ran.out

    address = server.server.address
    assert (await grpcurl(address, "list")).split() == SERVICES
    methods = (await grpcurl(address, "list", "agent_routing.v1.RoutingService")).split()
    assert "agent_routing.v1.RoutingService.CompleteTurn" in methods
    assert (
        "rpc Route ( .agent_routing.v1.RouteRequest ) returns ( .agent_routing.v1.RouteResponse );"
        in await grpcurl(address, "describe", "agent_routing.v1.RoutingService.Route")
    )
    described = await grpcurl(address, "describe", "agent_routing.v1.RouteReason")
    assert "ROUTE_REASON_STICKY" in described
    assert "agent_id" in await grpcurl(address, "describe", "agent_routing.v1.Agent")

    request = {"session_id": "chat-42", "user_id": "ana", "text": "hola"}
    method = "agent_routing.v1.RoutingService/Route"
    routed = json.loads(await grpcurl("-d", json.dumps(request), address, method))
    assert routed["dispatch"]["agent"]["agent_id"] == "coordinator"
    health = await grpcurl(address, "grpc.health.v1.Health/Check")
    assert json.loads(health) == {"status": "SERVING"}


async def test_grpcurl_shows_each_rule_of_a_refused_handoff(server, run_tool):
    """Reflection decodes the details, so grpcurl shows the rules and not their bytes."""
    chat = server.chat()
    await chat.say("hola")
    request = {
        "session_id": chat.session_id,
        "user_id": "ana",
        "agent_id": "audit_log",
        "initiator": "INITIATOR_USER",
    }
    method = "agent_routing.v1.RoutingService/SetActiveAgent"
    ran = await run_tool(
        "grpcurl", "-plaintext", "-d", json.dumps(request), server.server.address, method
    )
    assert ran.exit_code != 0
    assert "Code: FailedPrecondition" in ran.err
    assert '"reason":"HANDOFF_REFUSED"' in ran.err
    assert '"@type":"type.googleapis.com/google.rpc.PreconditionFailure"' in ran.err
    assert '"type":"not_system"' in ran.err
    assert '"type":"user_selectable"' in ran.err


async def test_buf_curl_calls_by_reflection(server, run_tool):
    """With buf curl, another common tool."""

    async def curl(method, request):
        return await run_tool(
            "buf",
            "curl",
            "--protocol=grpc",
            "--http2-prior-knowledge",
            f"--data={json.dumps(request)}",
            f"http://{server.server.address}/agent_routing.v1.RoutingService/{method}",
        )

    said = {"session_id": "chat-42", "user_id": "ana", "text": "hola"}
    routed = await curl("Route", said)
    assert routed.exit_code == 0, routed
    assert json.loads(routed.out)["dispatch"]["agent"]["agentId"] == "coordinator"
    refused = await curl(
        "SetActiveAgent", {"session_id": "chat-42", "user_id": "ana", "agent_id": "nobody"}
    )
    error = json.loads(refused.err)
    assert error["code"] == "not_found"
    (detail,) = error["details"]
    assert detail["type"] == "google.rpc.ErrorInfo"
    value = base64.b64decode(detail["value"] + "==")
    assert error_details_pb2.ErrorInfo.FromString(value).reason == "UNKNOWN_AGENT"
