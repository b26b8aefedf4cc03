"""The web listener: an HTTP server in the event loop of the gRPC one.

Owns: its socket, its start and its end. Must not know: what is served, where settings come from.
Rule: it ends as the gRPC server does: what was accepted is finished, as long as there is time.
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
import structlog
import uvicorn
from google.protobuf.descriptor import ServiceDescriptor
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from routing_service.settings.listen_address import ListenAddress, ListenFailed, check_is_free
from routing_service.web.origin_check import Doorman
from routing_service.web.refused_call_log import was_heard
from routing_service.web.web_calls import WebService

BACKLOG: Final = 512
"""Connections that wait to be accepted, as gRPC's server has."""

HEADER_BYTES_MAX: Final = 16 * 1024
"""All headers of a request, as on the gRPC listener."""

HEADERS_S_MAX: Final = 10.0
"""How long a request's headers may take to come whole: from the connection, or from the first byte
behind the request before it. Whoever says nothing would hold one of connections_max for ever."""

UNREAD_S_MAX: Final = 30.0
"""How long an answer may lie without its reader taking a byte of it, as on the gRPC listener.
Whoever asks and never reads would hold one of connections_max for ever."""

IDLE_S_MAX: Final = 75
"""How long a connection without a call is kept: longer than the minute that proxies keep theirs."""

_START_POLL_S: Final = 0.005

_log = structlog.get_logger(__name__)


class WebListener:
    """The running listener. Made by ``start``, ended by ``stop``."""

    def __init__(
        self, address: ListenAddress, server: _Server, sock: socket.socket, *, scheme: str
    ) -> None:
        """Take over what is running."""
        self._scheme = scheme
        self._address = address
        self._server = server
        self._socket = sock
        self._running = asyncio.create_task(server.serve([sock]), name="web listener")

    @classmethod
    async def start(
        cls,
        address: ListenAddress,
        service: ServiceDescriptor,
        handlers: Sequence[grpc.GenericRpcHandler],
        *,
        tls: ssl.SSLContext | None,
        origins: frozenset[str],
        is_ready: Callable[[], bool],
        calls_max: int,
        connections_max: int,
        receive_bytes_max: int,
    ) -> WebListener:
        """Serve a service's handlers over HTTP.

        tls: None = in the clear. origins: of pages that may call. is_ready: for GET /readyz.
        calls_max: unary calls at a time. connections_max: more are answered 503.
        receive_bytes_max: of one request.
        Raises ListenFailed.
        """
        calls = WebService(
            service, handlers, calls_max=calls_max, receive_bytes_max=receive_bytes_max
        )

        async def readyz(_request: Request) -> Response:
            was_heard()  # No call: what waits to be ready asks every second.
            return _READY if is_ready() else _NOT_READY

        app = Starlette(
            routes=[
                Route("/livez", lambda _request: _READY, methods=["GET"]),
                Route("/readyz", readyz, methods=["GET"]),
                Mount("/", app=calls),
            ],
        )
        sock = _bind(address)
        config = uvicorn.Config(
            Doorman(app, origins),
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
        config.load()
        config.ssl = tls
        if not address.unix_path:
            address = address.with_port(sock.getsockname()[1])
        listener = cls(address, _Server(config), sock, scheme="http" if tls is None else "https")
        while not listener._server.started and not listener._running.done():  # noqa: ASYNC110 - it tells by a field
            await asyncio.sleep(_START_POLL_S)
        if listener._running.done():
            await listener._running
        return listener

    @property
    def url(self) -> str:
        """Where it listens, as a browser has it; unix:PATH for a socket."""
        return (
            str(self._address) if self._address.unix_path else f"{self._scheme}://{self._address}"
        )

    async def stop(self, grace_s: float) -> None:
        """Accept no more, and let calls finish; what takes longer than grace_s is cancelled."""
        self._server.config.timeout_graceful_shutdown = max(1, round(grace_s))
        self._server.should_exit = True
        try:
            # Beyond the grace there is only the time that cancelled calls need.
            async with asyncio.timeout(grace_s + 5):
                await asyncio.shield(self._running)
        except TimeoutError:
            self._server.force_exit = True
            await self._running
        self._socket.close()
        if self._address.unix_path:
            _unlink(self._address.unix_path)


class _Server(uvicorn.Server):
    """uvicorn's server without its signal handlers: the process has its own."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Connection(H11Protocol):
    """A connection on which a request has to come in time, and an answer be read.

    uvicorn's own waits for both for ever.
    """

    _overdue: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Told of the first bytes that the kernel does not take, also of those that are left when
        # the connection is to be closed: that waits for its reader as well. (Not 0: over TLS
        # asyncio takes an empty buffer for a full one then.)
        transport.set_write_buffer_limits(high=1, low=0)
        self._wait_for_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_more()
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
        # This has ended uvicorn's wait for the next request, whether or not one has come.
        if not self._is_answering:
            self._wait_for_headers()

    def handle_events(self) -> None:
        super().handle_events()
        if self._is_answering:
            self._wait_no_more()

    @property
    def _is_answering(self) -> bool:
        cycle = cast("RequestResponseCycle | None", self.cycle)  # uvicorn types it without None.
        return cycle is not None and not cycle.response_complete

    def _wait_for_headers(self) -> None:
        if self._overdue is None:
            # Aborted, as whoever is silent may not read either, and closing waits for that.
            self._overdue = self.loop.call_later(HEADERS_S_MAX, self.transport.abort)

    def _wait_for_reader(self, unread_bytes: int) -> None:
        self._unread = self.loop.call_later(UNREAD_S_MAX, self._look_at_reader, unread_bytes)

    def _look_at_reader(self, unread_bytes: int) -> None:
        rest_bytes = self.transport.get_write_buffer_size()
        if rest_bytes < unread_bytes:
            self._wait_for_reader(rest_bytes)  # Slow, and reading.
            return
        host, port = self.client or ("", 0)
        _log.warning("web_reader_too_slow", unread_bytes=rest_bytes, peer=f"{host}:{port}")
        self.transport.abort()

    def _was_read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _wait_no_more(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None


_READY: Final = PlainTextResponse("ok\n")
_NOT_READY: Final = PlainTextResponse("not ready\n", status_code=503)


def _bind(address: ListenAddress) -> socket.socket:
    """Return a socket that listens. Raises ListenFailed."""
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
                (address.host, address.port), family=family, backlog=BACKLOG
            )
    except OSError as error:
        raise ListenFailed(
            f"cannot listen on {address}: {error.strerror or error}; choose another address"
        ) from error
    sock.setblocking(False)  # noqa: FBT003 - the socket module's own form
    return sock


def _unlink(path: str) -> None:
    with suppress(OSError):
        Path(path).unlink()
