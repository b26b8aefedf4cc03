"""The web listener: an HTTP server in the event loop of the gRPC server.

It stops as the gRPC server does: accepted calls finish within the grace time.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, cast

import grpc
import h11
import structlog
import uvicorn
from google.protobuf.descriptor import ServiceDescriptor
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from routing_service.settings.listen_address import ListenAddress, ListenFailed, check_is_free
from routing_service.web.origin_check import OriginCheck
from routing_service.web.peer_certificate import presenting
from routing_service.web.refused_call_log import log_bad_head, note_handled
from routing_service.web.strict_heads import BadHead, StrictHeads
from routing_service.web.wait_limits import DEFAULT_WAITS, WaitLimits
from routing_service.web.web_calls import WebService

BACKLOG: Final = 512
"""Connections that wait to be accepted: the same number as for the gRPC server."""

HEADER_BYTES_MAX: Final = 16 * 1024
"""For all headers of a request: the same as on the gRPC listener."""

IDLE_S_MAX: Final = 75
"""How long an idle connection is kept: longer than the minute for which proxies keep theirs."""

_FORCED_S: Final = 2.0
"""How long uvicorn may take to end after it was asked to end at once."""

_START_POLL_S: Final = 0.005

_log = structlog.get_logger(__name__)


class WebListener:
    """The running listener. Made by ``start``, ended by ``stop``."""

    def __init__(
        self, address: ListenAddress, server: _Server, sock: socket.socket, *, scheme: str
    ) -> None:
        """Run the server on the socket."""
        self._scheme = scheme
        self.address = address
        self._server = server
        self._socket = sock
        self._running = asyncio.create_task(server.serve([sock]), name="web listener")

    @classmethod
    async def start(
        cls,
        address: ListenAddress,
        app: ASGIApp,
        *,
        tls: ssl.SSLContext | None,
        connections_max: int,
        waits: WaitLimits = DEFAULT_WAITS,
        is_shared: bool = False,
    ) -> WebListener:
        """Serve an application, which checks the origin of its calls itself.

        tls: None = plain HTTP. connections_max: more are answered 503. waits: for clients.
        is_shared: the port, with other processes. Raises ListenFailed.
        """
        sock = _bind(address, is_shared=is_shared)
        config = _Config(
            app,
            http=_Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=connections_max,
            timeout_keep_alive=IDLE_S_MAX,
            h11_max_incomplete_event_size=HEADER_BYTES_MAX,
        )
        config.waits = waits
        config.load()
        config.ssl = tls
        if not address.unix_path:
            address = address.with_port(sock.getsockname()[1])
        listener = cls(address, _Server(config), sock, scheme="http" if tls is None else "https")
        while not listener._server.started and not listener._running.done():  # noqa: ASYNC110 - uvicorn sets a field
            await asyncio.sleep(_START_POLL_S)
        if listener._running.done():
            await listener._running
        return listener

    @property
    def url(self) -> str:
        """The address as a browser writes it; unix:PATH for a socket."""
        return str(self.address) if self.address.unix_path else f"{self._scheme}://{self.address}"

    async def stop(self, grace_s: float) -> None:
        """Accept no more calls and let the others finish; after grace_s they are cancelled."""
        self._server.config.timeout_graceful_shutdown = max(1, round(grace_s))
        self._server.should_exit = True
        try:
            # The 5 s are for cancelled calls to end.
            async with asyncio.timeout(grace_s + 5):
                await asyncio.shield(self._running)
        except TimeoutError:
            self._server.force_exit = True
            await asyncio.wait([self._running], timeout=_FORCED_S)
            self._running.cancel()
            with suppress(asyncio.CancelledError):
                await self._running
        self._socket.close()
        if self.address.unix_path:
            _unlink(self.address.unix_path)


def calls_app(
    service: ServiceDescriptor,
    handlers: Sequence[grpc.GenericRpcHandler],
    *,
    origins: frozenset[str],
    is_ready: Callable[[], bool],
    calls_max: int,
    receive_bytes_max: int,
    waits: WaitLimits = DEFAULT_WAITS,
) -> ASGIApp:
    """Return the application that serves a service's handlers to pages of other origins.

    origins: of pages that may call. is_ready: for GET /readyz. calls_max: unary calls at a time.
    receive_bytes_max: of one request. waits: for clients.
    """
    calls = WebService(service, handlers, calls_max=calls_max, receive_bytes_max=receive_bytes_max)

    async def readyz(_request: Request) -> Response:
        note_handled()  # Not a call: orchestrators ask every second until it is ready.
        return _READY if is_ready() else _NOT_READY

    app = Starlette(
        routes=[
            Route("/livez", lambda _request: _READY, methods=["GET"]),
            Route("/readyz", readyz, methods=["GET"]),
            Mount("/", app=calls),
        ],
    )
    return OriginCheck(app, origins, body_s_max=waits.body_s_max)


class _Config(uvicorn.Config):
    """uvicorn's settings, with the waits of a connection."""

    waits: WaitLimits = DEFAULT_WAITS


class _Server(uvicorn.Server):
    """uvicorn's server without its signal handlers: the process has its own."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Connection(H11Protocol):
    """A connection on which a request must arrive in time, and its answer be read in time.

    uvicorn itself waits without a limit for both.
    """

    _overdue: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app = presenting(self.app, transport)
        self._heads = StrictHeads(HEADER_BYTES_MAX)
        # h11 has no public way to be given a buffer. A test with a bare LF fails if this goes.
        self.conn._receive_buffer = self._heads  # noqa: SLF001
        # pause_writing is called as soon as the kernel refuses a byte, also while the connection is
        # closing, which waits for its reader too. Not 0: over TLS asyncio would then take an empty
        # buffer for a full one.
        transport.set_write_buffer_limits(high=1, low=0)
        self._wait_for_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._was_read()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._wait_for_reader(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._was_read()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # uvicorn has stopped its own wait for the next request, even if none is complete.
        if not self._is_answering:
            self._wait_for_headers()

    def handle_events(self) -> None:
        super().handle_events()
        if self._is_answering:
            self._stop_waiting()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP, or a head that is refused; log it, and close the connection."""
        problem = self._heads.problem or BadHead(400, msg)
        host, port = self.client or ("", 0)
        log_bad_head(problem.message, problem.status, f"{host}:{port}")
        if self.conn.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
            # A head behind a request that is being answered: the connection ends with it.
            self.transport.close()
            return
        body = f"{problem.message}\n".encode()
        for event in (
            h11.Response(
                status_code=problem.status,
                headers=[
                    (b"content-type", b"text/plain; charset=utf-8"),
                    (b"content-length", str(len(body)).encode()),
                    (b"connection", b"close"),
                ],
            ),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    @property
    def _is_answering(self) -> bool:
        cycle = cast("RequestResponseCycle | None", self.cycle)  # uvicorn types it without None.
        return cycle is not None and not cycle.response_complete

    def _wait_for_headers(self) -> None:
        if self._overdue is None:
            # abort, not close: close waits until the client has read everything.
            seconds = cast("_Config", self.config).waits.headers_s_max
            self._overdue = self.loop.call_later(seconds, self.transport.abort)

    def _wait_for_reader(self, unread_bytes: int) -> None:
        seconds = cast("_Config", self.config).waits.unread_s_max
        self._unread = self.loop.call_later(seconds, self._check_reader, unread_bytes)

    def _check_reader(self, unread_bytes: int) -> None:
        rest_bytes = self.transport.get_write_buffer_size()
        if rest_bytes < unread_bytes:
            self._wait_for_reader(rest_bytes)  # Slow, but reading.
            return
        host, port = self.client or ("", 0)
        _log.warning("web_reader_too_slow", unread_bytes=rest_bytes, peer=f"{host}:{port}")
        self.transport.abort()

    def _was_read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _stop_waiting(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None


_READY: Final = PlainTextResponse("ok\n")
_NOT_READY: Final = PlainTextResponse("not ready\n", status_code=503)


def _bind(address: ListenAddress, *, is_shared: bool) -> socket.socket:
    """Return a listening socket. Raises ListenFailed."""
    if not is_shared:
        check_is_free(address)
    try:
        if address.unix_path:
            _unlink(address.unix_path)
            sock = socket.socket(socket.AF_UNIX)
            sock.bind(address.unix_path)
            sock.listen(BACKLOG)
        else:
            family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
            sock = socket.create_server(
                (address.host, address.port),
                family=family,
                backlog=BACKLOG,
                reuse_port=is_shared,
            )
    except OSError as error:
        raise ListenFailed(
            f"cannot listen on {address}: {error.strerror or error}; choose another address"
        ) from error
    sock.setblocking(False)  # noqa: FBT003 - the socket module's signature
    return sock


def _unlink(path: str) -> None:
    with suppress(OSError):
        Path(path).unlink()
