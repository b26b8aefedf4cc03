"""gRPC method handlers: what surrounds each RPC.

That is sign-in, limits, the deadline, errors in the contract's form, and the record of the call.
Internal errors are not sent to callers, and a cancelled call is not answered.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, aclosing, suppress
from functools import partial
from typing import Any, Final, NoReturn

import grpc
from google.protobuf.descriptor import ServiceDescriptor

from agent_routing.v1 import admin_service_pb2, routing_service_pb2
from routing_service import __version__
from routing_service.auth.bearer import check_expiry, expired
from routing_service.auth.caller import ACT_AS, Caller, Metadata, SignIn, SignInRefused
from routing_service.auth.rights import check_entry
from routing_service.core.errors import Reason, RoutingError
from routing_service.core.refusals import HandoffRefused
from routing_service.rpc.call_outcome import describe_refusal
from routing_service.rpc.caller_limits import CallerLimits
from routing_service.rpc.open_streams import OpenStreams, rights_changed
from routing_service.rpc.ordered_stream import OrderedStream
from routing_service.rpc.routing.route import stream_error
from routing_service.rpc.rpc_method import (
    MessageMethod,
    Methods,
    RpcAnswer,
    StreamMessage,
    StreamMethod,
    UnaryMethod,
)
from routing_service.rpc.status_errors import (
    DETAILS_KEY,
    code_of,
    routing_error_of,
    status_of,
)
from routing_service.rpc.stream_writes import ReaderRefused, ReaderTooSlow, write_in_time
from routing_service.rpc.time_limit import TimeLimit
from routing_service.storage.store import StoreError, StoreUnavailable
from routing_service.telemetry.call_record import CallObserver, CallRecord, CallTracer
from routing_service.telemetry.trace_context import TRACEPARENT, trace_id_of

ROUTING_SERVICE: Final = routing_service_pb2.DESCRIPTOR.services_by_name["RoutingService"]
ADMIN_SERVICE: Final = admin_service_pb2.DESCRIPTOR.services_by_name["AdminService"]

REPLAYED_KEY: Final = "agent-routing-replayed"
RELEASE_KEY: Final = "agent-routing-release"
"""The server's version. Only operators get it: it would help attackers."""

WRITE_S_MAX: Final = 30.0
"""How long a stream's reader may leave gRPC's buffers full before it is disconnected."""

TYPICAL_SHARE: Final = 0.05
"""The weight of one call in a method's typical time: about the last twenty calls count. A refusal
reduces the typical time by the same share, so refusing ends once calls are fast again."""

STREAM_S_MAX: Final = 10 * 24 * 3600.0
"""Longer than any stream lasts: connections are renewed after at most a day (connection_age_max_s).
It stands for "never", which a timer cannot be set to, for callers without a credential."""

_REFUSED_AT_ENTRY: Final = frozenset(
    {Reason.UNAUTHENTICATED, Reason.OWNER_MISMATCH, Reason.SCOPE_MISSING, Reason.OVERLOADED}
)
"""Refusals whose log line has the peer's address."""

Context = grpc.aio.ServicerContext[bytes, bytes]


def _unnoted(_peer: str) -> None:
    """Do nothing with a peer."""


def service_handlers(
    routing: Methods,
    admin: Methods,
    *,
    observer: CallObserver,
    sign_in: SignIn,
    deadline_default_s: float,
    deadline_max_s: float,
    limits: CallerLimits,
    draining: asyncio.Event,
    streams: OpenStreams,
    tracer: CallTracer | None = None,
    write_s_max: float = WRITE_S_MAX,
    let_in: Callable[[str], None] = _unnoted,
) -> Sequence[grpc.GenericRpcHandler]:
    """Return the handlers of every RPC in the contract, by the methods of its two services.

    sign_in: identifies the caller before anything else of a call is read. deadline_default_s: the
    time of a call without a deadline. deadline_max_s: the longest time of a unary call. limits: per
    caller. draining: is set when the server stops, and ends streams of messages. streams: has the
    open streams, whose callers are checked again. tracer: gives calls their place in a trace; None
    = no traces. write_s_max: how long a stream's reader may read nothing. let_in:
    is given the peer of each call that sign-in let in.
    """
    calls = _CallWrapper(
        observer,
        sign_in,
        deadline_default_s=min(deadline_default_s, deadline_max_s),
        deadline_max_s=deadline_max_s,
        limits=limits,
        draining=draining,
        streams=streams,
        tracer=tracer,
        write_s_max=write_s_max,
        let_in=let_in,
    )
    return (
        _service_handler(ROUTING_SERVICE, routing, calls),
        _service_handler(ADMIN_SERVICE, admin, calls, ((RELEASE_KEY, __version__),)),
    )


def _service_handler(
    service: ServiceDescriptor,
    methods: Methods,
    calls: _CallWrapper,
    trailing: tuple[tuple[str, str], ...] = (),
) -> grpc.GenericRpcHandler:
    """Return the handler of a service's RPCs. The contract says which of them stream."""
    assert set(methods) == set(service.methods_by_name), service.full_name
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
    for described in service.methods:
        name, method = described.name, methods[described.name]
        if described.client_streaming:
            handlers[name] = grpc.stream_stream_rpc_method_handler(calls.route_stream(name, method))
        elif described.server_streaming:
            handlers[name] = grpc.unary_stream_rpc_method_handler(calls.server_stream(name, method))
        else:
            unary = calls.unary(name, method, trailing=trailing)
            handlers[name] = grpc.unary_unary_rpc_method_handler(unary)
    return grpc.method_handlers_generic_handler(service.full_name, handlers)


class _CallWrapper:
    """Makes gRPC handlers from RPCs."""

    def __init__(
        self,
        observer: CallObserver,
        sign_in: SignIn,
        *,
        deadline_default_s: float,
        deadline_max_s: float,
        limits: CallerLimits,
        draining: asyncio.Event,
        streams: OpenStreams,
        tracer: CallTracer | None,
        write_s_max: float,
        let_in: Callable[[str], None],
    ) -> None:
        self._tracer = tracer
        self._write_s_max = write_s_max
        self._let_in = let_in
        self._observer = observer
        self._sign_in = sign_in
        # A caller with a long deadline, or none, must not hold a session for ever.
        self._default_limit = TimeLimit(deadline_default_s)
        self._longest = TimeLimit(deadline_max_s)
        self._limits = limits
        self._draining = draining
        self._streams = streams
        self._typical_s: dict[str, float] = {}

    def unary(
        self, name: str, method: UnaryMethod, *, trailing: tuple[tuple[str, str], ...] = ()
    ) -> Callable[[bytes, Context], Awaitable[bytes]]:
        """Return the handler of a unary RPC. trailing: metadata after each of its answers."""

        async def handle(data: bytes, context: Context) -> bytes:
            record = CallRecord(name)
            start = time.perf_counter()
            try:
                caller = await self._caller(name, context, record)
                # The type stubs leave out None, which a call without a deadline returns.
                remaining_s: float | None = context.time_remaining()
                self._admit(caller, context)
                if remaining_s is None or remaining_s > self._longest.seconds:
                    limit = self._longest if remaining_s else self._default_limit
                    answered = await _within(limit, name, method(caller, data, record))
                elif remaining_s <= self._typical_s.get(name, 0.0):
                    self._refuse_late(name, remaining_s)
                else:
                    answered = await method(caller, data, record)
            except BaseException as error:
                refusal = self._refusal(error, record, context)
                if refusal is None:
                    record.code = "CANCELLED"
                    self._finish(record, start)
                    raise
                self._finish(record, start)
                await _abort(context, refusal)
            self._finish(record, start)
            seconds = record.duration_ms / 1e3
            typical_s = self._typical_s.get(name, seconds)
            self._typical_s[name] = typical_s + TYPICAL_SHARE * (seconds - typical_s)
            if answered.replayed:
                context.set_trailing_metadata((*trailing, (REPLAYED_KEY, "true")))
            elif trailing:
                context.set_trailing_metadata(trailing)
            return answered.body

        return handle

    def server_stream(
        self, name: str, method: StreamMethod
    ) -> Callable[[bytes, Context], Awaitable[None]]:
        """Return the handler of an RPC that answers with a stream."""

        async def handle(data: bytes, context: Context) -> None:
            record = CallRecord(name)
            start = time.perf_counter()
            try:
                caller = await self._caller(name, context, record)
                self._admit(caller, context)
                again = self._checking(
                    name, context, caller, lambda now: _begin(method(now, data, CallRecord(name)))
                )
                with self._counted(name, caller, context):
                    bodies = method(caller, data, record)
                    opened = partial(self._streams.opened, again)
                    await _write_while_signed_in(context, caller, bodies, opened, self._write_s_max)
            except BaseException as error:
                refusal = self._refusal(error, record, context)
                if refusal is None:
                    record.code = "CANCELLED"
                    self._finish(record, start)
                    raise
                self._finish(record, start)
                await _abort(context, refusal)
            self._finish(record, start)

        return handle

    def route_stream(
        self, name: str, method: MessageMethod
    ) -> Callable[[AsyncIterator[bytes], Context], Awaitable[None]]:
        """Return the handler of RouteStream: many messages, each with its own answer."""
        limit = self._default_limit

        async def answer(caller: Caller, message: StreamMessage, context: Context) -> bytes:
            """Answer one message. An error is sent as its answer."""
            record = CallRecord(name)
            start = time.perf_counter()
            self._trace(record, context.invocation_metadata() or ())
            try:
                self._admit(caller, context)
                body = (await limit.run(method(caller, message, record))).body
            except BaseException as error:
                timed_out = isinstance(error, TimeoutError)
                cause = _too_late(name, limit.seconds) if timed_out else error
                refusal = self._refusal(cause, record, context)
                if refusal is None:
                    record.code = "CANCELLED"
                    self._finish(record, start)
                    raise
                self._finish(record, start)
                return stream_error(record.request_id, record.session_id, status_of(refusal))
            self._finish(record, start)
            return body

        async def handle(requests: AsyncIterator[bytes], context: Context) -> None:
            record = CallRecord(name)
            start = time.perf_counter()
            try:
                caller = await self._caller(name, context, record)
                stream = OrderedStream(
                    lambda message: answer(caller, message, context),
                    context.write,
                    write_s_max=self._write_s_max,
                )
                await self._run_stream(name, stream, requests, caller, context)
            except BaseException as error:
                refusal = self._refusal(error, record, context)
                if refusal is None:
                    record.code = "CANCELLED"
                    self._finish(record, start)
                    raise
                self._finish(record, start)
                await _abort(context, refusal)
            if self._draining.is_set():
                # The caller may have had more messages.
                await _abort(context, _shutting_down())

        return handle

    async def _run_stream(
        self,
        name: str,
        stream: OrderedStream,
        requests: AsyncIterator[bytes],
        caller: Caller,
        context: Context,
    ) -> None:
        """Run a stream of messages to its end, or until its caller loses the right to it.

        Messages read before that are answered. Raises RoutingError.
        """
        stopping = asyncio.ensure_future(self._draining.wait())
        stopping.add_done_callback(lambda _: stream.stop_reading())
        until_s = _loop_time_of(caller.expires_s)
        expiring = asyncio.get_running_loop().call_at(until_s, stream.stop_reading)
        ended: list[RoutingError] = []

        def end(refusal: RoutingError) -> None:
            ended.append(refusal)
            stream.stop_reading()

        try:
            with (
                self._counted(name, caller, context),
                self._streams.opened(self._checking(name, context, caller), end),
            ):
                await stream.run(requests)
        finally:
            expiring.cancel()
            stopping.cancel()
        if ended:
            raise ended[0]
        check_expiry(caller)

    def _checking(
        self,
        name: str,
        context: Context,
        caller: Caller,
        begin: Callable[[Caller], Awaitable[None]] | None = None,
    ) -> Callable[[], Awaitable[None]]:
        """Return a function that checks the caller of an open stream again. It raises RoutingError.

        begin: starts the same stream for a caller whose rights have changed.
        """

        async def check() -> None:
            metadata: Metadata = context.invocation_metadata() or ()
            now = await self._sign_in.caller(metadata, context.auth_context)
            check_entry(now, name)
            if now != caller:
                if begin is not None:
                    await begin(now)
                raise rights_changed()

        return check

    def _refuse_late(self, name: str, remaining_s: float) -> NoReturn:
        """Refuse a call that would not finish in time. Always raises DEADLINE.

        Its caller would be gone before the answer, and other calls would wait for it.
        """
        typical_s = self._typical_s.get(name, 0.0)
        self._typical_s[name] = typical_s * (1 - TYPICAL_SHARE)
        raise _too_soon(name, remaining_s, typical_s)

    def _trace(self, record: CallRecord, metadata: Metadata) -> None:
        """Note the trace of a call; the audit names it even if no traces are sent."""
        if self._tracer is not None:
            self._tracer.begin(record, metadata)
        elif given := dict(metadata).get(TRACEPARENT):
            record.trace_id = trace_id_of(given)

    async def _caller(self, name: str, context: Context, record: CallRecord) -> Caller:
        """Return the caller, if it may call this RPC. Raises SignInRefused, SCOPE_MISSING."""
        metadata: Metadata = context.invocation_metadata() or ()
        if self._tracer is not None:
            self._tracer.begin(record, metadata)
        elif given := dict(metadata).get(TRACEPARENT):
            record.trace_id = trace_id_of(given)
        caller = await self._sign_in.caller(metadata, context.auth_context)
        record.tenant, record.actor = caller.tenant, caller.subject
        if caller.signed_in:
            check_entry(caller, name)
        self._let_in(context.peer())
        return caller

    def _admit(self, caller: Caller, context: Context) -> None:
        """Count the call. Raises OVERLOADED for a caller that calls too often."""
        if self._limits.limits_calls:
            self._limits.admit(_limited_as(caller, context))

    def _counted(self, name: str, caller: Caller, context: Context) -> AbstractContextManager[None]:
        """Count a stream while it is open. Entering raises OVERLOADED if there are too many."""
        # Without sign-in all callers of a host are one; a frontend stands for its users.
        has_share = caller.signed_in and ACT_AS not in caller.scopes
        who = _limited_as(caller, context)
        return self._limits.stream(name, caller.tenant, who, has_share=has_share)

    def _refusal(
        self, error: BaseException, record: CallRecord, context: Context
    ) -> RoutingError | None:
        """Return the error to send; None if the call was cancelled and cannot be answered."""
        match error:
            case RoutingError():
                refusal = error
            case StoreError():
                error_id = self._observer.failed(record, error)
                refusal = routing_error_of(error, record.session_id)
                if not isinstance(error, StoreUnavailable):
                    refusal.metadata["error_id"] = error_id
            case asyncio.CancelledError():
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    return None
                # Something inside was cancelled, not the call, which would hang without a status.
                refusal = _shutting_down()
            case Exception():
                error_id = self._observer.failed(record, error)
                refusal = RoutingError(
                    Reason.INTERNAL,
                    f"internal error {error_id}; the server's log has the cause under this id",
                    metadata={"error_id": error_id},
                )
            case _:
                return None
        record.code = code_of(refusal).name
        record.error_reason = refusal.reason.value
        if isinstance(refusal, SignInRefused):
            record.credential_problem = refusal.problem
        if refusal.reason in _REFUSED_AT_ENTRY:
            record.peer = context.peer()
        if isinstance(refusal, HandoffRefused):
            describe_refusal(record, refusal)
        return refusal

    def _finish(self, record: CallRecord, start: float) -> None:
        record.duration_ms = (time.perf_counter() - start) * 1e3
        self._observer.finished(record)


async def _within(limit: TimeLimit, name: str, answering: Awaitable[RpcAnswer]) -> RpcAnswer:
    """Answer within the server's own limit. Raises DEADLINE."""
    try:
        return await limit.run(answering)
    except TimeoutError:
        raise _too_late(name, limit.seconds) from None


def _limited_as(caller: Caller, context: Context) -> str:
    """Return whom the limits count: the signed-in caller, or the host if nobody signs in.

    The port is left out: each connection has another one.
    """
    if caller.signed_in:
        return f"{caller.tenant}/{caller.subject}"
    return context.peer().rpartition(":")[0]


def _shutting_down() -> RoutingError:
    return RoutingError(
        Reason.SHUTTING_DOWN,
        "the server is shutting down; repeat with the same request_id",
        retry_after_s=1.0,
    )


def _too_late(name: str, seconds: float) -> RoutingError:
    return RoutingError(
        Reason.DEADLINE,
        f"{name} did not finish within {seconds:g} s; repeat with the same request_id: the answer "
        "says whether it was carried out",
        metadata={"method": name},
    )


def _too_soon(name: str, remaining_s: float, typical_s: float) -> RoutingError:
    return RoutingError(
        Reason.DEADLINE,
        f"{name} was not started: {max(0.0, remaining_s):.3f} s are left, and it takes about "
        f"{typical_s:.3f} s now; set a longer deadline, or repeat later with the same request_id",
        metadata={"method": name},
    )


async def _begin(bodies: AsyncGenerator[tuple[bytes, dict[str, str]]]) -> None:
    """Run a stream to its first message, which follows the checks of its caller."""
    async with aclosing(bodies):
        await anext(bodies)


async def _write_while_signed_in(
    context: Context,
    caller: Caller,
    bodies: AsyncGenerator[tuple[bytes, dict[str, str]]],
    opened: Callable[[Callable[[RoutingError], None]], AbstractContextManager[None]],
    write_s_max: float,
) -> None:
    """Send the messages of a stream until they end, or its caller loses the right to them.

    opened: keeps the stream among those that are checked again, given the function that ends it.
    Raises RoutingError with the position at which to resume with another credential.
    """
    position: dict[str, str] = {}
    timeout = asyncio.timeout_at(_loop_time_of(caller.expires_s))
    refusal: RoutingError | None = None

    def end(error: RoutingError) -> None:
        nonlocal refusal
        refusal = refusal or error
        # The timeout may just have ended.
        with suppress(RuntimeError):
            timeout.reschedule(asyncio.get_running_loop().time())

    try:
        async with timeout, aclosing(bodies):
            with opened(end):
                async for body, body_position in bodies:
                    await _write_in_time(context, body, body_position, write_s_max)
                    position = body_position
    except TimeoutError:
        if not timeout.expired():
            raise
        refusal = refusal or expired(caller.expires_s)
        refusal.metadata.update(position)
        raise refusal from None


def _loop_time_of(time_s: float) -> float:
    """Return a time in seconds since 1970 in terms of the event loop's clock."""
    now_s = asyncio.get_running_loop().time()
    return now_s + min(time_s - time.time(), STREAM_S_MAX)


async def _write_in_time(
    context: Context, body: bytes, position: dict[str, str], write_s_max: float
) -> None:
    """Send one message of a stream. Raises WATCH_TOO_SLOW if the reader does not read."""
    try:
        await write_in_time(context.write(body), write_s_max)
    except ReaderTooSlow as slow:
        refusal = RoutingError(
            Reason.WATCH_TOO_SLOW,
            f"the watcher has read nothing for {write_s_max:g} s; watch again from its position",
            metadata=position,
            retry_after_s=1.0,
        )
        raise ReaderRefused(refusal, slow) from None


async def _abort(context: Context, refusal: RoutingError) -> NoReturn:
    """End a call with the contract's details. Always raises."""
    if isinstance(refusal, ReaderRefused):
        await refusal.wait_for_write()
    status = status_of(refusal)
    await context.abort(
        code_of(refusal), status.message, ((DETAILS_KEY, status.SerializeToString()),)
    )
