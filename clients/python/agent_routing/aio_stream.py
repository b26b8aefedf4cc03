"""A stream of messages for asyncio.

Owns the connection, its reading and its writing task, and how a caller waits. streaming.py decides
what happens to messages when a connection breaks.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

import grpc
import grpc.aio

from agent_routing.calls import Call, CallInfo, CallSettings, closed_error
from agent_routing.errors import RoutingError
from agent_routing.messages import stub_class
from agent_routing.plain_values import Seconds
from agent_routing.route_result import RouteResult
from agent_routing.routing_calls_aio import AsyncRouteCall
from agent_routing.streaming import (
    CLOSE_S_MAX,
    IN_FLIGHT_MAX,
    StreamedMessages,
    Waiting,
    refused_message,
)
from agent_routing.v1.routing_service_pb2 import RouteRequest, RouteResponse, RouteStreamResponse

if TYPE_CHECKING:
    from agent_routing.v1.routing_service_pb2_grpc import RoutingServiceAsyncStub


class AsyncRouteStream(AsyncRouteCall):
    """Messages of many sessions over one stream. Made by AsyncClient.stream().

    Any number of tasks may call route() at the same time; up to 128 of their messages are on the
    way at once, the others wait. Answers arrive when they are ready; those of one session arrive in
    the order of its messages.

    timeout of route(): over all connections and attempts, including the wait for one of the 128
    places. A second message with a request_id that is on its way waits for the answer to the first.
    A stream does not show repeats: replayed is always False.
    """

    def __init__(
        self,
        settings: CallSettings,
        open_stub: Callable[[], RoutingServiceAsyncStub],
        open_stream: Callable[..., AbstractContextManager[Any]],
    ) -> None:
        self._settings = settings
        self._open_stub = open_stub
        self._open_stream = open_stream
        self._messages = StreamedMessages(settings)
        self._places = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._unsent: deque[str] = deque()
        self._news = asyncio.Event()
        self._connecting: asyncio.Task[None] | None = None
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

    async def close(self) -> None:
        """End the stream; messages on their way in other tasks raise RuntimeError. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._messages.give_up(closed_error(self._settings.target))
        self._news.set()
        if self._connecting is not None:
            await asyncio.wait((self._connecting,), timeout=CLOSE_S_MAX)
            self._connecting.cancel()
            with suppress(asyncio.CancelledError):
                await self._connecting

    async def _route(
        self, request: RouteRequest, timeout: Seconds | None, info: CallInfo | None
    ) -> RouteResult:
        self._open_stub()  # Raises if the client is closed, or belongs to another loop.
        call = self._settings.begin(request, timeout, info)
        try:
            answer = await self._answer(call)
        except RoutingError as error:
            degraded = self._settings.degraded(request, error)
            if degraded is None:
                raise
            return degraded
        return RouteResult(answer)

    async def _answer(self, call: Call) -> RouteResponse:
        """Send a message until it is answered, refused, or out of time or attempts."""
        if self._places.locked():
            call.enter_queue()
        try:
            async with asyncio.timeout(call.timeout_s), self._places:
                while True:
                    response = await self._exchange(call)
                    if response.HasField("route"):
                        call.succeeded(response.route, None)
                        return response.route
                    await asyncio.sleep(call.wait_after(refused_message(response)))
        except TimeoutError as late:
            raise self._messages.too_late(call) from late

    async def _exchange(self, call: Call) -> RouteStreamResponse:
        while (before := self._messages.find(call.request_id)) is not None:
            await asyncio.wait((cast("asyncio.Future[RouteStreamResponse]", before.future),))
        if self._closed:
            raise closed_error(self._settings.target)
        future: asyncio.Future[RouteStreamResponse] = asyncio.get_running_loop().create_future()
        waiting = Waiting(call, future)
        self._messages.add(waiting)
        self._unsent.append(call.request_id)
        self._news.set()
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect(), name="agent_routing stream")
        try:
            return await future
        finally:
            self._messages.drop(waiting)

    async def _connect(self) -> None:
        """Keep a connection while messages wait, until the stream is closed."""
        try:
            while not self._closed:
                failure = await self._one_connection()
                if not self._closed:
                    await asyncio.sleep(self._messages.broken(failure))
                while not (self._messages or self._closed):
                    # No message waits: the next one opens the next connection.
                    self._news.clear()
                    await self._news.wait()
        finally:
            # On every way out, waiting callers get an error.
            self._closed = True
            self._messages.give_up(closed_error(self._settings.target))

    async def _one_connection(self) -> grpc.RpcError | None:
        """Transfer messages and answers until the connection ends; return its error or None."""
        try:
            metadata = await self._settings.metadata_soon()
        except Exception as error:  # noqa: BLE001 - any error of the token function
            self._messages.give_up(error)
            return None
        with self._open_stream(stub_class(), "RouteStream", metadata=metadata) as stream:
            self._unsent = deque(self._messages.in_order())
            writing = asyncio.create_task(self._write(stream), name="agent_routing stream writer")
            try:
                async for response in stream:
                    self._messages.received(response)
            except grpc.RpcError as ended:
                return ended
            finally:
                writing.cancel()
                stream.cancel()
                await asyncio.wait((writing,))
        return None

    async def _write(self, stream: grpc.aio.StreamStreamCall) -> None:  # type: ignore[type-arg]
        """Send messages as they arrive. The reading task reports failures."""
        with suppress(grpc.RpcError, grpc.aio.UsageError, asyncio.InvalidStateError):
            while not self._closed:
                while self._unsent:
                    waiting = self._messages.find(self._unsent.popleft())
                    if waiting is not None:
                        await stream.write(waiting.message)
                self._news.clear()
                if not self._unsent:
                    await self._news.wait()
            await stream.done_writing()
