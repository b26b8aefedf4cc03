"""The asyncio client: the channel, and how a call waits, bound to one event loop.

Its calls are those of AsyncAskCalls (ask_calls_aio.py) and AsyncRoutingCalls.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import grpc
import grpc.aio

from agent_routing.approval_calls_aio import AnswerT, RequestT
from agent_routing.approval_watch import ApprovalWatch
from agent_routing.ask_calls_aio import AsyncAskCalls
from agent_routing.calls import (
    DEADLINE_S_DEFAULT,
    Call,
    CallInfo,
    GivenMetadata,
    Metadata,
    call_settings,
    closed_error,
    forked_error,
)
from agent_routing.channel import PLACES_MAX, StreamChannels, channel_options
from agent_routing.fallback import FALLBACK_DEFAULT, Fallback
from agent_routing.messages import routing_service_pb2 as pb
from agent_routing.messages import stub_class
from agent_routing.plain_values import Seconds, seconds
from agent_routing.retry import RETRY_DEFAULT, RetryPolicy
from agent_routing.tokens import AsyncToken
from agent_routing.watching import Reconnecting, Watch, Watched

if TYPE_CHECKING:
    from agent_routing.aio_stream import AsyncRouteStream
    from agent_routing.rpc_types import AsyncRpc

    # For type checkers only: at run time both stubs are one class.
    from agent_routing.v1.routing_service_pb2_grpc import RoutingServiceAsyncStub


class AsyncClient(AsyncAskCalls):
    """Calls the agent routing service from asyncio.

    async with agent_routing.AsyncClient("127.0.0.1:50051") as client:
        turn = await client.route("hello", session_id="chat-42", user_id="ana")

    Arguments, answers and rules are those of Client; calls are awaited, and list_turns(),
    list_tasks() and watch_session() are iterated over with async for.

    A client belongs to the event loop of its first call; any number of tasks of that loop may call
    at the same time. A cancelled call may still have been executed; a repeat with its request_id
    shows whether it was. The first call opens the channel, so a client may be created before the
    loop.
    """

    def __init__(
        self,
        target: str,
        *,
        credentials: grpc.ChannelCredentials | None = None,
        token: AsyncToken | None = None,
        tenant: str = "",
        metadata: GivenMetadata = (),
        timeout: Seconds = DEADLINE_S_DEFAULT,
        retry: RetryPolicy = RETRY_DEFAULT,
        fallback: Fallback | None = FALLBACK_DEFAULT,
        options: Iterable[tuple[str, Any]] = (),
        channel: grpc.aio.Channel | None = None,
    ) -> None:
        self._settings = call_settings(
            target,
            token=token,
            is_encrypted=bool(credentials or channel),
            tenant=tenant,
            metadata=metadata,
            timeout=timeout,
            retry=retry,
            fallback=fallback,
        )
        self._credentials = credentials
        self._options = channel_options(target, options)
        self._given_channel = channel
        self._places = asyncio.Semaphore(PLACES_MAX)
        self._streams = StreamChannels(self._new_stream_channel)
        self._new_stub = stub_class()
        self._channel: grpc.aio.Channel | None = None
        self._stub: RoutingServiceAsyncStub | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self, *, grace: Seconds | None = None) -> None:
        """Close the channel; calls on their way in other tasks raise RuntimeError. Idempotent.

        grace: how long they may take to end by themselves; None: not at all.
        """
        self._closed = True
        channel, self._channel, self._stub = self._channel, None, None
        if channel is not None and self._pid == os.getpid():
            grace_s = None if grace is None else seconds(grace)
            channels = (channel, *self._streams.all())
            await asyncio.gather(*(each.close(grace_s) for each in channels))

    def stream(self) -> AsyncRouteStream:
        """Return a stream for many messages, to be used in an async with block.

        async with client.stream() as stream:
            turn = await stream.route("hello", session_id="chat-42", user_id="ana")

        For gateways that route hundreds of messages a second from many tasks. route() has the same
        arguments and answers, and its messages share one HTTP/2 stream. After a lost connection the
        stream connects again, and sends what was not answered again, under the same request ids and
        in the same order.
        """
        from agent_routing.aio_stream import (  # noqa: PLC0415 - few clients have one
            AsyncRouteStream,
        )

        return AsyncRouteStream(self._settings, self._open, self._stream)

    def _open(self) -> RoutingServiceAsyncStub:
        loop = asyncio.get_running_loop()
        if self._stub is None:
            if self._closed:
                raise closed_error(self._settings.target)
            self._pid = os.getpid()
            self._loop = loop
            channel = self._given_channel
            if channel is None:
                channel = self._channel = self._new_channel()
            self._stub = self._new_stub(channel)
        if self._pid != os.getpid():
            raise forked_error(self._settings.target)
        if self._loop is not loop:
            raise RuntimeError(
                f'the client of "{self._settings.target}" belongs to another event loop; make one'
                " client for each"
            )
        return self._stub

    def _new_channel(self, *more: tuple[str, Any]) -> grpc.aio.Channel:
        target, options = self._settings.target, [*self._options, *more]
        if self._credentials is None:
            return grpc.aio.insecure_channel(target, options=options)
        return grpc.aio.secure_channel(target, self._credentials, options=options)

    def _new_stream_channel(self) -> grpc.aio.Channel:
        if self._closed:
            raise closed_error(self._settings.target)
        return self._given_channel or self._new_channel(*StreamChannels.OPTIONS)

    @contextmanager
    def _stream(
        self,
        new_stub: Callable[[grpc.aio.Channel], Any],
        method: str,
        *given: object,
        metadata: Metadata,
        timeout: float | None = None,
    ) -> Iterator[Any]:
        """Open a stream that stays open, where no call waits behind it; end it with the block."""
        self._open()
        with self._streams.place() as channel:
            stream = getattr(new_stub(channel), method)(*given, timeout=timeout, metadata=metadata)
            try:
                yield stream
            finally:
                # Also if the caller leaves a loop: the service must stop sending.
                stream.cancel()

    async def _call(
        self,
        rpc: AsyncRpc[RequestT, AnswerT],
        request: RequestT,
        timeout: Seconds | None,
        info: CallInfo | None,
    ) -> AnswerT:
        call = self._settings.begin(request, timeout, info)
        if not self._places.locked():
            await self._places.acquire()
        else:
            call.enter_queue()
            try:
                async with asyncio.timeout(call.timeout_s):
                    await self._places.acquire()
            except TimeoutError as late:
                raise call.too_late() from late
        try:
            if call.is_queued:
                call.leave_queue()
            return await self._attempts(rpc, request, call)
        finally:
            self._places.release()

    async def _attempts(
        self, rpc: AsyncRpc[RequestT, AnswerT], request: RequestT, call: Call
    ) -> AnswerT:
        while True:
            metadata = await self._settings.metadata_soon()
            try:
                sent = rpc(request, timeout=call.next_timeout_s(), metadata=metadata)
                answer = await sent
                trailing_metadata = await sent.trailing_metadata()
            except asyncio.CancelledError as failure:
                self._raise_if_closed(failure)
                raise
            except (grpc.RpcError, grpc.aio.UsageError) as failure:
                if self._closed:
                    raise closed_error(self._settings.target) from failure
                if not isinstance(failure, grpc.RpcError):
                    raise
                wait_s = call.wait_after(failure)
            else:
                call.succeeded(answer, trailing_metadata)
                return answer
            await asyncio.sleep(wait_s)

    async def _live(
        self, request: pb.WatchSessionRequest, timeout_s: float
    ) -> AsyncGenerator[pb.WatchSessionResponse]:
        metadata = await self._settings.metadata_soon()
        try:
            with self._stream(
                self._new_stub, "WatchSession", request, metadata=metadata, timeout=timeout_s
            ) as stream:
                async for response in stream:
                    yield response
        except grpc.RpcError:
            # Also at the end of its time. The caller's next call shows what is wrong.
            if self._closed:
                raise

    async def _watch_inbox(
        self, request: pb.WatchInboxRequest
    ) -> AsyncIterator[pb.WatchInboxResponse]:
        """Read a worker's inbox over one connection, for agent_routing.worker."""
        metadata = await self._settings.metadata_soon()
        with self._stream(self._new_stub, "WatchInbox", request, metadata=metadata) as stream:
            async for message in stream:
                yield message

    async def _watch(self, watch: Watch) -> AsyncIterator[Watched]:
        while True:
            metadata = await self._settings.metadata_soon()
            failure: grpc.RpcError | None = None
            try:
                with self._stream(
                    self._new_stub, "WatchSession", watch.connect(), metadata=metadata
                ) as stream:
                    async for response in stream:
                        change = watch.received(response)
                        if change is not None:
                            yield change
            except grpc.RpcError as ended:
                failure = ended
            except asyncio.CancelledError as ended:
                self._raise_if_closed(ended)
                raise
            await self._wait_to_reconnect(watch, failure)

    async def _watch_approvals(
        self, watch: ApprovalWatch
    ) -> AsyncIterator[pb.WatchApprovalsResponse]:
        while True:
            metadata = await self._settings.metadata_soon()
            failure: grpc.RpcError | None = None
            try:
                with self._stream(
                    self._new_stub, "WatchApprovals", watch.connect(), metadata=metadata
                ) as stream:
                    async for response in stream:
                        for message in watch.received(response):
                            yield message
            except grpc.RpcError as ended:
                failure = ended
            except asyncio.CancelledError as ended:
                self._raise_if_closed(ended)
                raise
            await self._wait_to_reconnect(watch, failure)

    async def _wait_to_reconnect(self, watch: Reconnecting, failure: grpc.RpcError | None) -> None:
        if self._closed:
            raise closed_error(self._settings.target) from failure
        await asyncio.sleep(watch.wait_after(failure))

    def _raise_if_closed(self, failure: asyncio.CancelledError) -> None:
        """Raise RuntimeError if closing the client cancelled the call, and not the waiting task."""
        task = asyncio.current_task()
        if self._closed and task is not None and not task.cancelling():
            raise closed_error(self._settings.target) from failure
