"""A stream of messages for threads.

Owns the connection, the thread that reads from it, and how a caller waits. streaming.py decides
what happens to messages when a connection breaks.
"""

from __future__ import annotations

import concurrent.futures
import queue
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

import grpc

from agent_routing.calls import Call, CallInfo, CallSettings, closed_error
from agent_routing.errors import RoutingError
from agent_routing.messages import stub_class
from agent_routing.plain_values import Seconds
from agent_routing.route_result import RouteResult
from agent_routing.routing_calls import RouteCall
from agent_routing.streaming import (
    CLOSE_S_MAX,
    IN_FLIGHT_MAX,
    StreamedMessages,
    Waiting,
    refused_message,
)
from agent_routing.v1.routing_service_pb2 import (
    RouteRequest,
    RouteResponse,
    RouteStreamRequest,
    RouteStreamResponse,
)

if TYPE_CHECKING:
    from agent_routing.v1.routing_service_pb2_grpc import RoutingServiceStub

Outbox = queue.SimpleQueue[RouteStreamRequest | None]
"""The messages to send on a connection; None ends it."""


class Cancellable(Protocol):
    """The part of a connection that closing needs."""

    def cancel(self) -> bool:
        """End the connection at once."""


class RouteStream(RouteCall):
    """Messages of many sessions over one stream. Made by Client.stream().

    Any number of threads may call route() at the same time; up to 128 of their messages are on the
    way at once, the others wait. Answers arrive when they are ready; those of one session arrive in
    the order of its messages.

    timeout of route(): over all connections and attempts, including the wait for one of the 128
    places. A second message with a request_id that is on its way waits for the answer to the first.
    A stream does not show repeats: replayed is always False.
    """

    def __init__(
        self,
        settings: CallSettings,
        open_stub: Callable[[], RoutingServiceStub],
        open_stream: Callable[..., AbstractContextManager[Any]],
    ) -> None:
        self._settings = settings
        self._open_stub = open_stub
        self._open_stream = open_stream
        self._places = threading.Semaphore(IN_FLIGHT_MAX)
        self._changed = threading.Condition()
        # All of these under _changed.
        self._messages = StreamedMessages(settings)
        self._outbox: Outbox | None = None
        self._stream: Cancellable | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the stream; messages on their way in other threads raise RuntimeError. Idempotent."""
        with self._changed:
            thread, self._thread = self._thread, None
            self._end()
        if thread is None:
            return
        thread.join(CLOSE_S_MAX)
        with self._changed:
            if self._stream is not None:
                self._stream.cancel()
        thread.join()

    def _route(
        self, request: RouteRequest, timeout: Seconds | None, info: CallInfo | None
    ) -> RouteResult:
        self._open_stub()  # Raises if the client is closed, or was forked.
        call = self._settings.begin(request, timeout, info)
        try:
            answer = self._answer(call)
        except RoutingError as error:
            degraded = self._settings.degraded(request, error)
            if degraded is None:
                raise
            return degraded
        return RouteResult(answer)

    def _answer(self, call: Call) -> RouteResponse:
        """Send a message until it is answered, refused, or out of time or attempts."""
        if not self._places.acquire(blocking=False):
            call.enter_queue()
            if not self._places.acquire(timeout=_remaining_s(call)):
                raise self._messages.too_late(call)
        try:
            while True:
                response = self._exchange(call)
                if response.HasField("route"):
                    call.succeeded(response.route, None)
                    return response.route
                time.sleep(call.wait_after(refused_message(response)))
        except concurrent.futures.TimeoutError as late:
            raise self._messages.too_late(call) from late
        finally:
            self._places.release()

    def _exchange(self, call: Call) -> RouteStreamResponse:
        future: concurrent.futures.Future[RouteStreamResponse] = concurrent.futures.Future()
        waiting = Waiting(call, future)
        with self._changed:
            while self._messages.find(call.request_id) is not None and not self._closed:
                if not self._changed.wait(_remaining_s(call)):
                    raise concurrent.futures.TimeoutError
            if self._closed:
                raise closed_error(self._settings.target)
            self._messages.add(waiting)
            if self._outbox is not None:
                self._outbox.put(waiting.message)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._connect, name="agent_routing stream", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()
        try:
            return future.result(_remaining_s(call))
        finally:
            with self._changed:
                self._messages.drop(waiting)
                self._changed.notify_all()

    def _connect(self) -> None:
        """Keep a connection while messages wait, until the stream is closed."""
        try:
            while True:
                failure = self._one_connection()
                with self._changed:
                    if self._closed:
                        return
                    wait_s = self._messages.broken(failure)
                    self._changed.wait_for(lambda: self._closed, wait_s)
                    # No message waits: the next one opens the next connection.
                    self._changed.wait_for(lambda: self._closed or len(self._messages))
        except (RuntimeError, ValueError):
            # The client was closed meanwhile; waiting callers get the error below.
            return
        finally:
            with self._changed:
                self._end()

    def _one_connection(self) -> grpc.RpcError | None:
        """Transfer messages and answers until the connection ends; return its error or None."""
        outbox: Outbox = queue.SimpleQueue()
        try:
            metadata = self._settings.metadata_now()
        except Exception as error:  # noqa: BLE001 - any error of the token function
            with self._changed:
                self._messages.give_up(error)
            return None
        messages = iter(outbox.get, None)
        with self._open_stream(stub_class(), "RouteStream", messages, metadata=metadata) as stream:
            with self._changed:
                for waiting in map(self._messages.find, self._messages.in_order()):
                    assert waiting is not None
                    outbox.put(waiting.message)
                if self._closed:
                    outbox.put(None)
                self._outbox, self._stream = outbox, stream
            try:
                for response in stream:
                    with self._changed:
                        self._messages.received(response)
            except grpc.RpcError as ended:
                return ended
            finally:
                with self._changed:
                    self._outbox = self._stream = None
                outbox.put(None)
        return None

    def _end(self) -> None:
        """Take no more messages; waiting ones get an error. The caller holds the lock."""
        self._closed = True
        self._messages.give_up(closed_error(self._settings.target))
        if self._outbox is not None:
            self._outbox.put(None)
        self._changed.notify_all()


def _remaining_s(call: Call) -> float:
    """Return the seconds until a message's deadline."""
    return max(0.0, call.deadline_s - time.monotonic())
