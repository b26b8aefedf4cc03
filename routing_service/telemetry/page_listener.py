"""Where Prometheus fetches the figures: GET /metrics over HTTP.

Owns the listener. It must not know what the page says. Its rule: nothing but that page is served,
to anybody who asks; a reader that is slow or wrong costs one short connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import structlog

from routing_service.settings.listen_address import ListenAddress, ListenFailed, check_is_free

REQUEST_BYTES_MAX: Final = 8 * 1024
"""Of a request's line and headers; scrapers send a few hundred."""

REQUEST_S_MAX: Final = 5.0
"""From connection to answer. A scrape interval is seldom shorter."""

CONNECTIONS_MAX: Final = 16
"""At a time: a few scrapers, and a person with a browser. One more is closed unread."""

_log = structlog.get_logger(__name__)


class MetricsListener:
    """Serves one page."""

    def __init__(self, address: ListenAddress, server: asyncio.Server) -> None:
        """Take over what listens."""
        self.address = address
        self._server = server

    @classmethod
    async def start(
        cls, address: ListenAddress, page: Callable[[], str], content_type: str
    ) -> MetricsListener:
        """Listen. page: made anew for each request. Raises ListenFailed."""
        check_is_free(address)
        answer = _Answerer(page, content_type).answer
        try:
            if address.unix_path:
                server = await asyncio.start_unix_server(
                    answer, address.unix_path, limit=REQUEST_BYTES_MAX
                )
                return cls(address, server)
            server = await asyncio.start_server(
                answer, address.host, address.port, limit=REQUEST_BYTES_MAX
            )
        except OSError as error:
            raise ListenFailed(
                f"cannot serve metrics on {address}: {error.strerror}; choose another address"
            ) from error
        port = server.sockets[0].getsockname()[1]
        return cls(address.with_port(port), server)

    async def close(self) -> None:
        """Stop listening; an answer on its way is cut off."""
        self._server.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                await self._server.wait_closed()


class _Answerer:
    """Answers connections."""

    def __init__(self, page: Callable[[], str], content_type: str) -> None:
        self._page = page
        self._content_type = content_type
        self._open = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request, and close the connection."""
        self._open += 1
        try:
            if self._open <= CONNECTIONS_MAX:
                async with asyncio.timeout(REQUEST_S_MAX):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(self._response(head.split(b"\r\n", 1)[0]))
                    await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # Whoever it is reads no further; there is nobody to tell.
        finally:
            self._open -= 1
            writer.close()

    def _response(self, request_line: bytes) -> bytes:
        method, _, rest = request_line.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method not in (b"GET", b"HEAD"):
            return _whole(
                "405 Method Not Allowed", "use GET\n", "text/plain", more="Allow: GET\r\n"
            )
        if path != b"/metrics":
            return _whole("404 Not Found", "the figures are at /metrics\n", "text/plain")
        try:
            page = self._page()
        except Exception:  # noqa: BLE001 - a bug here must not end the listener
            _log.exception("metrics_page_failed")
            return _whole("500 Internal Server Error", "see the log\n", "text/plain")
        whole = _whole("200 OK", page, self._content_type)
        return whole if method == b"GET" else whole.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"


def _whole(status: str, body: str, content_type: str, *, more: str = "") -> bytes:
    data = body.encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(data)}\r\n{more}Connection: close\r\n\r\n"
    )
    return head.encode() + data
