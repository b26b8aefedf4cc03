"""The blocking client: the channel, and how a call waits, safe in threads.

Its calls are those of AskCalls and RoutingCalls (ask_calls.py, routing_calls.py, generated).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import grpc

from agent_routing.approval_calls import AnswerT, RequestT
from agent_routing.approval_watch import ApprovalWatch
from agent_routing.ask_calls import AskCalls
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
from agent_routing.plain_values import Seconds
from agent_routing.retry import RETRY_DEFAULT, RetryPolicy
from agent_routing.tokens import Token
from agent_routing.watching import Reconnecting, Watch, Watched

if TYPE_CHECKING:
    from agent_routing.client_stream import RouteStream
    from agent_routing.rpc_types import Rpc
    from agent_routing.v1.routing_service_pb2_grpc import RoutingServiceStub

    # Generic for type checkers only.
    Stub = RoutingServiceStub


class Client(AskCalls):
    """Calls the agent routing service, blocking.

    with agent_routing.Client("127.0.0.1:50051") as client:
        turn = client.route("hello", session_id="chat-42", user_id="ana")

    target: "HOST:PORT", or several replicas as "dns:///HOST:PORT" or "ipv4:10.0.0.1:50051,10.0.0.2:
    50051". Calls are spread over the replicas, except those that report themselves not ready.
    credentials: for TLS, agent_routing.tls_credentials() from files, or any of gRPC's; None: plain
    text, for loopback and meshes. token: the caller's access token, or a function that returns it;
    the function is called for each attempt, and once more if its token is refused. AsyncClient also
    takes a coroutine function. tenant: for a service without sign-in; empty: "default". metadata:
    sent with every call; a function is called for each attempt, for example to give the trace
    context. timeout: of a call with all its attempts, in seconds or as a timedelta; each call may
    give its own. retry: how often and when an unanswered call is repeated. fallback: what route()
    may decide while the service cannot be reached; None: nothing, it raises. options: gRPC channel
    options, which override the client's own. channel: a channel to use, also for watches; the
    client does not close it.

    These rules hold for all methods:

    Ids. A missing request_id is generated (UUIDv7), so that a repeat is the same request, which the
    service handles once. A session_id never is: the service makes it, from the request_id, and the
    result has it.
    Times. A timeout is in seconds or a timedelta; a point in time is a datetime with a time zone.
    Enums. By name without the prefix ("INTERLUDE"), or as a value of the generated enum.
    Answers. The generated messages of agent_routing.v1; route() wraps its answer in a RouteResult.
    info. A CallInfo that the call fills: attempts, and whether the answer is a stored one.
    Errors. A RoutingError of the reason's class (agent_routing.errors). ValueError or TypeError for
    a value that no request can carry, RuntimeError for a client that is closed or was forked.
    Retries. UNAVAILABLE: 4 attempts with exponential backoff and full jitter, after the delay that
    the service asks for, within timeout. Calls that an overloaded server refused unread: as long.
    Load. At most 100 calls are on their way at a time; more wait, within their timeout. Watches,
    inboxes and message streams have connections of their own, one for every hundred.
    Proxies. Loopback and unix sockets are called directly, whatever the environment names.

    Safe in threads. The first call opens the channel, so a client may be created before a fork and
    used after it. A client that was used before a fork cannot be used in the child.
    """

    def __init__(
        self,
        target: str,
        *,
        credentials: grpc.ChannelCredentials | None = None,
        token: Token | None = None,
        tenant: str = "",
        metadata: GivenMetadata = (),
        timeout: Seconds = DEADLINE_S_DEFAULT,
        retry: RetryPolicy = RETRY_DEFAULT,
        fallback: Fallback | None = FALLBACK_DEFAULT,
        options: Iterable[tuple[str, Any]] = (),
        channel: grpc.Channel | None = None,
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
        self._places = threading.Semaphore(PLACES_MAX)
        self._streams = StreamChannels(self._new_stream_channel)
        self._new_stub = stub_class()
        self._channel: grpc.Channel | None = None
        self._stub: Stub | None = None
        self._pid = 0
        self._closed = False
        self._lock = threading.Lock()

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
        """Close the channel; calls on their way in other threads raise RuntimeError. Idempotent."""
        with self._lock:
            self._closed = True
            channel, self._channel, self._stub = self._channel, None, None
        if channel is not None and self._pid == os.getpid():
            for each in (channel, *self._streams.all()):
                each.close()

    def stream(self) -> RouteStream:
        """Return a stream for many messages, to be used in a with block.

        with client.stream() as stream:
            turn = stream.route("hello", session_id="chat-42", user_id="ana")

        For gateways that route hundreds of messages a second from many threads. route() has the
        same arguments and answers, and its messages share one HTTP/2 stream. After a lost
        connection the stream connects again, and sends what was not answered again, under the same
        request ids and in the same order.
        """
        from agent_routing.client_stream import (  # noqa: PLC0415 - few clients have one
            RouteStream,
        )

        return RouteStream(self._settings, self._open, self._stream)

    def _open(self) -> Stub:
        stub = self._stub
        if stub is None:
            with self._lock:
                if self._closed:
                    raise closed_error(self._settings.target)
                if self._stub is None:
                    self._pid = os.getpid()
                    channel = self._given_channel
                    if channel is None:
                        channel = self._channel = self._new_channel()
                    self._stub = self._new_stub(channel)
                stub = self._stub
        if self._pid != os.getpid():
            raise forked_error(self._settings.target)
        return stub

    def _new_channel(self, *more: tuple[str, Any]) -> grpc.Channel:
        target, options = self._settings.target, [*self._options, *more]
        if self._credentials is None:
            return grpc.insecure_channel(target, options=options)
        return grpc.secure_channel(target, self._credentials, options=options)

    def _new_stream_channel(self) -> grpc.Channel:
        if self._closed:
            raise closed_error(self._settings.target)
        return self._given_channel or self._new_channel(*StreamChannels.OPTIONS)

    @contextmanager
    def _stream(
        self,
        new_stub: Callable[[grpc.Channel], Any],
        method: str,
        given: object,
        *,
        metadata: Metadata,
        timeout: float | None = None,
    ) -> Iterator[Any]:
        """Open a stream that stays open, where no call waits behind it; end it with the block."""
        self._open()
        with self._streams.place() as channel:
            stream = getattr(new_stub(channel), method)(given, timeout=timeout, metadata=metadata)
            try:
                yield stream
            finally:
                # Also if the caller leaves a loop: the service must stop sending.
                stream.cancel()

    def _call(
        self,
        rpc: Rpc[RequestT, AnswerT],
        request: RequestT,
        timeout: Seconds | None,
        info: CallInfo | None,
    ) -> AnswerT:
        call = self._settings.begin(request, timeout, info)
        if not self._places.acquire(blocking=False):
            call.enter_queue()
            if not self._places.acquire(timeout=call.timeout_s):
                raise call.too_late()
        try:
            if call.is_queued:
                call.leave_queue()
            return self._attempts(rpc, request, call)
        finally:
            self._places.release()

    def _attempts(self, rpc: Rpc[RequestT, AnswerT], request: RequestT, call: Call) -> AnswerT:
        while True:
            metadata = self._settings.metadata_now()
            try:
                answer, sent = rpc.with_call(
                    request, timeout=call.next_timeout_s(), metadata=metadata
                )
            except (grpc.RpcError, ValueError) as failure:
                # A closed channel: ValueError for a new call, CANCELLED for one on its way.
                if self._closed:
                    raise closed_error(self._settings.target) from failure
                if isinstance(failure, ValueError):
                    raise
                wait_s = call.wait_after(failure)
            else:
                call.succeeded(answer, sent.trailing_metadata())
                return answer
            time.sleep(wait_s)

    def _live(
        self, request: pb.WatchSessionRequest, timeout_s: float
    ) -> Generator[pb.WatchSessionResponse]:
        metadata = self._settings.metadata_now()
        try:
            with self._stream(
                self._new_stub, "WatchSession", request, metadata=metadata, timeout=timeout_s
            ) as stream:
                yield from stream
        except grpc.RpcError:
            # Also at the end of its time. The caller's next call shows what is wrong.
            if self._closed:
                raise

    def _watch(self, watch: Watch) -> Iterator[Watched]:
        while True:
            metadata = self._settings.metadata_now()
            failure: grpc.RpcError | None = None
            try:
                with self._stream(
                    self._new_stub, "WatchSession", watch.connect(), metadata=metadata
                ) as stream:
                    for response in stream:
                        change = watch.received(response)
                        if change is not None:
                            yield change
            except grpc.RpcError as ended:
                failure = ended
            self._wait_to_reconnect(watch, failure)

    def _watch_approvals(self, watch: ApprovalWatch) -> Iterator[pb.WatchApprovalsResponse]:
        while True:
            metadata = self._settings.metadata_now()
            failure: grpc.RpcError | None = None
            try:
                with self._stream(
                    self._new_stub, "WatchApprovals", watch.connect(), metadata=metadata
                ) as stream:
                    for response in stream:
                        yield from watch.received(response)
            except grpc.RpcError as ended:
                failure = ended
            self._wait_to_reconnect(watch, failure)

    def _wait_to_reconnect(self, watch: Reconnecting, failure: grpc.RpcError | None) -> None:
        if self._closed:
            raise closed_error(self._settings.target) from failure
        time.sleep(watch.wait_after(failure))
