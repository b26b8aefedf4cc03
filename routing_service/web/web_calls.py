"""Calls over HTTP, passed to the handlers that gRPC uses.

WebContext stands in for gRPC's context. A request reaches its handler as unparsed bytes, JSON too:
nothing is parsed before the caller is signed in.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any, Final, NoReturn, cast

import grpc
import msgspec
from connectrpc.code import Code
from connectrpc.codec import Codec
from connectrpc.compression.gzip import GzipCompression
from connectrpc.errors import ConnectError, ErrorDetail
from connectrpc.interceptor import MetadataInterceptor
from connectrpc.method import IdempotencyLevel, MethodInfo, StreamType
from connectrpc.request import RequestContext
from connectrpc.server import ConnectASGIApplication, Endpoint
from google.protobuf import any_pb2, json_format
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2, status_pb2
from protobuf import message_from_json_value
from protobuf.wkt import Any as PackedDetail
from protobuf.wkt import Struct

from routing_service.core.errors import Reason, RoutingError
from routing_service.rpc.request_checks import JsonRequest
from routing_service.rpc.status_errors import DETAILS_KEY, code_of, status_of
from routing_service.web import refused_call_log
from routing_service.web.peer_certificate import auth_context

OVERLOADED_RETRY_S: Final = 1.0

UnaryHandler = Callable[[bytes, Any], Awaitable[bytes]]
StreamHandler = Callable[[bytes, Any], Awaitable[None]]

AnyEndpoint = Any
"""One of the four kinds of Endpoint, which the library does not name."""


class SerialisedAnswer(msgspec.Struct, frozen=True):
    """An answer as bytes, and its message class."""

    body: bytes
    message_class: type[Message]


class RawBinary(Codec[SerialisedAnswer, bytes]):
    """Protobuf: bytes are passed on unchanged."""

    def name(self) -> str:
        """See Codec.name."""
        return "proto"

    def encode(self, message: SerialisedAnswer) -> bytes:
        """See Codec.encode."""
        return message.body

    def decode(self, data: bytes | bytearray, message_class: type[bytes]) -> bytes:  # noqa: ARG002
        """See Codec.decode."""
        return bytes(data)


class RawJson(Codec[SerialisedAnswer, bytes]):
    """Proto3 JSON. A request is parsed by its handler, after sign-in."""

    def name(self) -> str:
        """See Codec.name."""
        return "json"

    def encode(self, message: SerialisedAnswer) -> bytes:
        """See Codec.encode."""
        answer = message.message_class.FromString(message.body)
        return json_format.MessageToJson(answer, indent=None, ensure_ascii=False).encode()

    def decode(self, data: bytes | bytearray, message_class: type[bytes]) -> bytes:  # noqa: ARG002
        """See Codec.decode."""
        return JsonRequest(data)


class AnswersGzip(GzipCompression):
    """gzip for answers only: 300 compressed bytes of a request could expand to 256 KiB."""

    def decompress(
        self,
        data: bytes | bytearray | memoryview,  # noqa: ARG002
        read_max_bytes: int | None = None,  # noqa: ARG002
    ) -> bytes:
        """See Compression.decompress. Always raises."""
        raise ConnectError(
            Code.UNIMPLEMENTED,
            "compressed requests are not accepted; send the request without compression",
        )


class WebContext:
    """The part of grpc.aio.ServicerContext that handlers use."""

    def __init__(self, request: RequestContext[Any, Any]) -> None:
        self._request = request
        self._room = asyncio.Semaphore(1)
        self.messages: asyncio.Queue[bytes | None] = asyncio.Queue()
        """The written messages; None marks the end."""

    def invocation_metadata(self) -> Sequence[tuple[str, str]]:
        """Return the request's headers, names in lower case."""
        return [(key.lower(), value) for key, value in self._request.request_headers.allitems()]

    def auth_context(self) -> Mapping[str, Sequence[bytes]]:
        """Return the client certificate, where the server asks for one."""
        return auth_context()

    def peer(self) -> str:
        """Return the client's address in gRPC's form."""
        address = self._request.client_address or "unknown:0"
        host, _, port = address.rpartition(":")
        return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{address}"

    def time_remaining(self) -> float | None:
        """Return seconds until the caller's deadline; None without one."""
        remaining_ms = self._request.timeout_ms
        return None if remaining_ms is None else remaining_ms / 1e3

    def set_trailing_metadata(self, metadata: Sequence[tuple[str, str]]) -> None:
        """Send metadata after the answer."""
        for key, value in metadata:
            self._request.response_trailers[key] = value

    async def write(self, body: bytes) -> None:
        """Send one message of a stream once the one before it was taken."""
        await self._room.acquire()
        self.messages.put_nowait(body)

    def taken(self) -> None:
        """Make room for the next message."""
        self._room.release()

    async def abort(
        self,
        code: grpc.StatusCode,
        message: str,
        trailing_metadata: Sequence[tuple[str, str | bytes]] = (),
    ) -> NoReturn:
        """End the call with an error. Always raises."""
        details = dict(trailing_metadata).get(DETAILS_KEY)
        status = status_pb2.Status()
        if isinstance(details, bytes):
            status.ParseFromString(details)
        raise _connect_error(code, message, status)


class WebService(ConnectASGIApplication[None]):
    """One service of the contract, as an ASGI application for its path."""

    def __init__(
        self,
        described: ServiceDescriptor,
        handlers: Sequence[grpc.GenericRpcHandler],
        *,
        calls_max: int,
        receive_bytes_max: int,
        only: frozenset[str] | None = None,
    ) -> None:
        """Serve a service's RPCs by the handlers.

        calls_max: unary calls at a time; others are refused unread. receive_bytes_max: per
        request. only: the names of the RPCs that are served; None = all.
        """
        self._described = described
        self._admission = _Admission(calls_max)
        endpoints = {
            f"/{described.full_name}/{method.name}": self._endpoint(method, handlers)
            for method in described.methods
            if only is None or method.name in only
        }
        super().__init__(
            service=None,
            endpoints=lambda _: endpoints,
            read_max_bytes=receive_bytes_max,
            codecs=[RawBinary(), RawJson()],
            compressions=[AnswersGzip()],
            interceptors=[self._admission],
        )

    @property
    def path(self) -> str:
        """The path prefix of the service's calls."""
        return f"/{self._described.full_name}"

    def _endpoint(
        self, method: MethodDescriptor, handlers: Sequence[grpc.GenericRpcHandler]
    ) -> AnyEndpoint:
        path = f"/{self._described.full_name}/{method.name}"
        asked = SimpleNamespace(method=path, invocation_metadata=())
        found = [handler.service(cast("Any", asked)) for handler in handlers]
        handler = cast("Any", next(each for each in found if each is not None))
        answer_class = GetMessageClass(method.output_type)
        if handler.request_streaming:
            info = _info(method, StreamType.BIDI_STREAM)
            return Endpoint.bidi_stream(method=info, function=_needs_grpc(method.name))
        if handler.response_streaming:
            info = _info(method, StreamType.SERVER_STREAM)
            streamed = _streamed(handler.unary_stream, answer_class)
            return Endpoint.server_stream(method=info, function=streamed)
        info = _info(method, StreamType.UNARY)
        unary = _answered(method.name, handler.unary_unary, answer_class, self._admission)
        return Endpoint.unary(method=info, function=unary)


class _Admission(MetadataInterceptor[None]):
    """Bounds unary calls. At the limit it refuses a call before its body is read.

    A call counts once its body has arrived. Otherwise a few clients that each send half a body
    could use up the limit.
    """

    def __init__(self, calls_max: int) -> None:
        self._calls = 0
        self._calls_max = calls_max

    async def on_start(self, ctx: RequestContext[Any, Any]) -> None:
        """See MetadataInterceptor. Raises OVERLOADED."""
        if ctx.method.stream_type is StreamType.UNARY:
            self._check(ctx.method.name)

    @contextmanager
    def place(self, name: str) -> Iterator[None]:
        """Count a call while it is answered. Raises OVERLOADED."""
        self._check(name)
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1

    def _check(self, name: str) -> None:
        if self._calls >= self._calls_max:
            raise _refusal(_overloaded(name))


def _answered(
    name: str, handler: UnaryHandler, answer_class: type[Message], admission: _Admission
) -> Callable[[bytes, RequestContext[Any, Any]], Awaitable[SerialisedAnswer]]:
    """Return a function that returns a handler's answer."""

    async def answer(request: bytes, context: RequestContext[Any, Any]) -> SerialisedAnswer:
        with admission.place(name):
            refused_call_log.note_handled()
            return SerialisedAnswer(await handler(request, WebContext(context)), answer_class)

    return answer


def _streamed(
    handler: StreamHandler, answer_class: type[Message]
) -> Callable[[bytes, RequestContext[Any, Any]], AsyncGenerator[SerialisedAnswer]]:
    """Return a function that yields what a handler writes, as it writes it."""

    async def answers(
        request: bytes, request_context: RequestContext[Any, Any]
    ) -> AsyncGenerator[SerialisedAnswer]:
        refused_call_log.note_handled()
        context = WebContext(request_context)
        running = asyncio.ensure_future(handler(request, context))
        running.add_done_callback(lambda _: context.messages.put_nowait(None))
        try:
            while (body := await context.messages.get()) is not None:
                yield SerialisedAnswer(body, answer_class)
                context.taken()
            await running
        finally:
            # The caller has disconnected, or the handler has ended: there is no more reader.
            if not running.done():
                running.cancel()
                with suppress(asyncio.CancelledError, ConnectError):
                    await running

    return answers


def _needs_grpc(
    name: str,
) -> Callable[[AsyncIterator[Any], RequestContext[Any, Any]], AsyncIterator[Any]]:
    """Return a function that refuses a call that streams both ways."""

    def refuse(
        _requests: AsyncIterator[Any], _context: RequestContext[Any, Any]
    ) -> AsyncIterator[Any]:
        raise _refusal(
            RoutingError(
                Reason.NOT_IMPLEMENTED,
                f"{name} needs gRPC, as HTTP/1.1 cannot stream both ways; call the gRPC "
                "listener, or send each message with Route",
                metadata={"method": name},
            )
        )

    return refuse


def _info(method: MethodDescriptor, stream_type: StreamType) -> MethodInfo[Any, Any]:
    return MethodInfo(
        name=method.name,
        service_name=method.containing_service.full_name,
        input=GetMessageClass(method.input_type),
        output=GetMessageClass(method.output_type),
        # GET is not offered even for reads: its URL would carry user text into access logs.
        idempotency_level=IdempotencyLevel.UNKNOWN,
        stream_type=stream_type,
    )


def _overloaded(name: str) -> RoutingError:
    return RoutingError(
        Reason.OVERLOADED,
        "the server has more calls than it can answer; repeat with the same request_id",
        metadata={"limit": "pending_requests_max", "method": name},
        retry_after_s=OVERLOADED_RETRY_S,
    )


def _refusal(error: RoutingError) -> ConnectError:
    refused_call_log.note_reason(error.reason.value)
    return _connect_error(code_of(error), status_of(error).message, status_of(error))


def _connect_error(code: grpc.StatusCode, message: str, status: status_pb2.Status) -> ConnectError:
    name = "CANCELED" if code is grpc.StatusCode.CANCELLED else code.name
    return ConnectError(Code[name], message, [_ReadableDetail(each) for each in status.details])


class _ReadableDetail(ErrorDetail):
    """A detail of an error that Connect's JSON also shows in the field debug."""

    def __init__(self, detail: any_pb2.Any) -> None:
        super().__init__(PackedDetail(type_url=detail.type_url, value=detail.value))
        self._detail = detail

    def value(self, *_: object) -> Struct | None:  # type: ignore[override]
        """Return the detail's JSON, which the library writes as debug; None for an unknown type."""
        message_class = _DETAIL_CLASSES.get(self.type_name)
        if message_class is None:
            return None
        shown = json_format.MessageToDict(message_class.FromString(self.message_bytes))
        return message_from_json_value(Struct, shown)


_DETAIL_CLASSES: Final[Mapping[str, type[Message]]] = {
    each.DESCRIPTOR.full_name: each
    for each in (
        error_details_pb2.BadRequest,
        error_details_pb2.ErrorInfo,
        error_details_pb2.PreconditionFailure,
        error_details_pb2.RetryInfo,
    )
}
"""The details that the contract's errors have."""
