"""Server reflection: describes the served API to tools without proto files (grpcurl, buf curl).

grpc.reflection v1 and v1alpha are one protocol under two names and share one implementation. Every
symbol that a served file names is found, methods, fields and enum values included. So are the types
of error details, which no method mentions.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, cast

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import (
    Descriptor,
    EnumDescriptor,
    FieldDescriptor,
    FileDescriptor,
    ServiceDescriptor,
)
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from grpc_reflection.v1alpha import reflection_pb2

from routing_service.auth.caller import Metadata, SignIn
from routing_service.core.errors import RoutingError
from routing_service.rpc.status_errors import DETAILS_KEY, code_of, status_of

_ALPHA: Final = reflection_pb2.DESCRIPTOR

_Context = grpc.aio.ServicerContext[bytes, bytes]
_Named = Descriptor | EnumDescriptor | FieldDescriptor | ServiceDescriptor


class ReflectionService:
    """Describes the given services, and itself."""

    def __init__(
        self,
        services: Iterable[ServiceDescriptor],
        files: Iterable[FileDescriptor] = (),
        *,
        sign_in: SignIn,
    ) -> None:
        """Describe the services. files: further files to describe. sign_in: as for every call."""
        self._sign_in = sign_in
        reflected = [file.services_by_name["ServerReflection"] for file in (_ALPHA, _stable())]
        self._reflection_names = [service.full_name for service in reflected]
        listed = [*services, *reflected]
        self._names = sorted(service.full_name for service in listed)
        self._files = _Files(
            [
                *(service.file for service in listed),
                error_details_pb2.DESCRIPTOR,
                status_pb2.DESCRIPTOR,
                *files,
            ]
        )
        self._draining = asyncio.Event()

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """Return the handlers of both versions."""
        return [
            grpc.method_handlers_generic_handler(
                name,
                {"ServerReflectionInfo": grpc.stream_stream_rpc_method_handler(self._serve)},
            )
            for name in self._reflection_names
        ]

    def drain(self) -> None:
        """End the open streams: tools keep theirs open while they run."""
        self._draining.set()

    async def _serve(self, _requests: object, context: _Context) -> None:
        try:
            metadata = cast("Metadata", context.invocation_metadata() or ())
            await self._sign_in.caller(metadata, context.auth_context)
        except RoutingError as error:
            status = status_of(error)
            details = ((DETAILS_KEY, status.SerializeToString()),)
            await context.abort(code_of(error), status.message, details)
        draining = asyncio.ensure_future(self._draining.wait())
        try:
            while True:
                reading = asyncio.ensure_future(context.read())
                await asyncio.wait({reading, draining}, return_when=asyncio.FIRST_COMPLETED)
                if not reading.done():
                    reading.cancel()
                    await context.abort(
                        grpc.StatusCode.UNAVAILABLE, "the server is stopping; ask another server"
                    )
                data: object = reading.result()
                if not isinstance(data, bytes):  # grpc.aio.EOF
                    return
                await context.write(await self._answer(data, context))
        finally:
            draining.cancel()

    async def _answer(self, data: bytes, context: _Context) -> bytes:
        request = reflection_pb2.ServerReflectionRequest()
        try:
            request.ParseFromString(data)
        except DecodeError:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"the request is not a {request.DESCRIPTOR.full_name}",
            )
        response = reflection_pb2.ServerReflectionResponse(
            valid_host=request.host, original_request=request
        )
        self._fill(request, response)
        return response.SerializeToString()

    def _fill(
        self,
        request: reflection_pb2.ServerReflectionRequest,
        response: reflection_pb2.ServerReflectionResponse,
    ) -> None:
        match request.WhichOneof("message_request"):
            case "list_services":
                for name in self._names:
                    response.list_services_response.service.add(name=name)
            case "file_by_filename":
                name = request.file_by_filename
                _give(response, self._files.named(name), f'file "{name}"')
            case "file_containing_symbol":
                # Some callers write a leading dot, as descriptors do.
                name = request.file_containing_symbol.removeprefix(".")
                _give(response, self._files.with_symbol(name), f'symbol "{name}"')
            case "file_containing_extension":
                asked = request.file_containing_extension
                found = self._files.with_extension(asked.containing_type, asked.extension_number)
                what = f'extension {asked.extension_number} of "{asked.containing_type}"'
                _give(response, found, what)
            case "all_extension_numbers_of_type":
                name = request.all_extension_numbers_of_type
                numbers = self._files.extension_numbers(name)
                if numbers is None:
                    _refuse(response, grpc.StatusCode.NOT_FOUND, f'message "{name}" is not known')
                else:
                    response.all_extension_numbers_response.base_type_name = name
                    response.all_extension_numbers_response.extension_number.extend(numbers)
            case _:
                _refuse(
                    response,
                    grpc.StatusCode.INVALID_ARGUMENT,
                    "the request asks for nothing; set one of its fields",
                )


class _Files:
    """Files with all their imports, and the file of each symbol."""

    def __init__(self, roots: Iterable[FileDescriptor]) -> None:
        self._by_name: dict[str, FileDescriptor] = {}
        for root in roots:
            for file in _with_imports(root):
                self._by_name.setdefault(file.name, file)
        self._symbols: dict[str, str] = {}
        self._messages: set[str] = set()
        self._extensions: defaultdict[str, dict[int, str]] = defaultdict(dict)
        for file in self._by_name.values():
            self._symbols.update(dict.fromkeys(_symbols(file), file.name))
            self._messages.update(message.full_name for message in _messages(file))
            for extension in _extensions(file):
                assert extension.containing_type is not None, extension.full_name
                self._extensions[extension.containing_type.full_name][extension.number] = file.name

    def named(self, file_name: str) -> FileDescriptor | None:
        return self._by_name.get(file_name)

    def with_symbol(self, name: str) -> FileDescriptor | None:
        return self._by_name.get(self._symbols.get(name, ""))

    def with_extension(self, message_name: str, number: int) -> FileDescriptor | None:
        return self._by_name.get(self._extensions.get(message_name, {}).get(number, ""))

    def extension_numbers(self, message_name: str) -> Sequence[int] | None:
        """Return the numbers in order; None if the message is not known."""
        if message_name not in self._messages:
            return None
        return sorted(self._extensions.get(message_name, ()))


def _stable() -> FileDescriptor:
    """Return v1 of the protocol: v1alpha under its other name.

    The library ships only v1alpha. Files that differ only in their package are equal on the wire.
    """
    proto = descriptor_pb2.FileDescriptorProto.FromString(_ALPHA.serialized_pb)
    old, new = f".{_ALPHA.package}.", ".grpc.reflection.v1."
    proto.name = "grpc/reflection/v1/reflection.proto"
    proto.package = new.strip(".")
    for message in proto.message_type:
        for part in message.field:
            if part.type_name:
                part.type_name = part.type_name.replace(old, new)
    for service in proto.service:
        for method in service.method:
            method.input_type = method.input_type.replace(old, new)
            method.output_type = method.output_type.replace(old, new)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(proto.SerializeToString())
    return pool.FindFileByName(proto.name)


def _with_imports(file: FileDescriptor) -> list[FileDescriptor]:
    """Return a file and all its imports, each once, the file itself first."""
    found = {file.name: file}
    pending = [file]
    while pending:
        for imported in pending.pop().dependencies:
            if imported.name not in found:
                found[imported.name] = imported
                pending.append(imported)
    return list(found.values())


def _messages(file: FileDescriptor) -> Iterator[Descriptor]:
    pending = list(file.message_types_by_name.values())
    while pending:
        message = pending.pop()
        yield message
        pending.extend(message.nested_types)


def _extensions(file: FileDescriptor) -> Iterator[FieldDescriptor]:
    yield from file.extensions_by_name.values()
    for message in _messages(file):
        yield from message.extensions


def _symbols(file: FileDescriptor) -> Iterator[str]:
    """Yield the full name of each symbol that a file declares."""
    enums = list(file.enum_types_by_name.values())
    for message in _messages(file):
        yield message.full_name
        yield from (part.full_name for part in message.fields)
        yield from (part.full_name for part in message.oneofs)
        enums += message.enum_types
    for enum in enums:
        yield enum.full_name
        # A value is a sibling of its enum, not its child.
        scope = enum.full_name.rpartition(".")[0]
        yield from (f"{scope}.{value.name}" for value in enum.values)
        yield from (f"{enum.full_name}.{value.name}" for value in enum.values)
    yield from (extension.full_name for extension in _extensions(file))
    for service in file.services_by_name.values():
        yield service.full_name
        yield from (method.full_name for method in service.methods)


def _give(
    response: reflection_pb2.ServerReflectionResponse, file: FileDescriptor | None, what: str
) -> None:
    """Answer with a file and all its imports, or that it is not known."""
    if file is None:
        _refuse(response, grpc.StatusCode.NOT_FOUND, f"{what} is not known")
    else:
        response.file_descriptor_response.file_descriptor_proto.extend(
            needed.serialized_pb for needed in _with_imports(file)
        )


def _refuse(
    response: reflection_pb2.ServerReflectionResponse, code: grpc.StatusCode, message: str
) -> None:
    response.error_response.error_code = code.value[0]
    response.error_response.error_message = message
