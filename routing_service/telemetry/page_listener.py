"""A listener for a few pages over plain HTTP: the Prometheus endpoint, the probes.

Rule: only the given pages are served, to anyone who asks. A slow or malformed reader costs one
short connection, and never keeps the next one out.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import structlog

from routing_service.settings.listen_address import ListenAddress, ListenFailed, check_is_free

REQUEST_BYTES_MAX: Final = 8 * 1024
"""Of a request's line and headers; scrapers send a few hundred."""

REQUEST_S_MAX: Final = 5.0
"""From connection to answer. A scrape interval is seldom shorter."""

CONNECTIONS_MAX: Final = 16
"""At a time: a few scrapers or probes, and a person with a browser. One more closes the oldest, so
that idle connections do not block new ones."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Page:
    """One page. status: such as "200 OK"."""

    body: str
    content_type: str = "text/plain"
    status: str = "200 OK"


MakePage = Callable[[str], Page | Awaitable[Page]]
"""Makes a page. Its argument is the request's Accept header, "" without one."""


class PageListener:
    """Serves pages."""

    def __init__(self, address: ListenAddress, server: asyncio.Server) -> None:
        """Take over the open listener."""
        self.address = address
        self._server = server

    @classmethod
    async def start(
        cls, address: ListenAddress, pages: Mapping[str, MakePage], *, name: str
    ) -> PageListener:
        """Listen. pages: by path, made for each request. name: of the listener, for errors.

        Raises ListenFailed.
        """
        check_is_free(address)
        answer = _Answerer(pages).answer
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
                f"cannot serve {name} on {address}: {error.strerror}; choose another address"
            ) from error
        port = server.sockets[0].getsockname()[1]
        return cls(address.with_port(port), server)

    async def close(self) -> None:
        """Stop listening; unfinished answers are cut off."""
        self._server.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                await self._server.wait_closed()


class _Answerer:
    """Answers connections."""

    def __init__(self, pages: Mapping[str, MakePage]) -> None:
        self._pages = pages
        self._open: list[asyncio.StreamWriter] = []
        """Open connections, the oldest first."""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request, and close the connection."""
        if len(self._open) >= CONNECTIONS_MAX:
            self._open.pop(0).transport.abort()
        self._open.append(writer)
        try:
            async with asyncio.timeout(REQUEST_S_MAX):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self._response(*head.split(b"\r\n")))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # The peer does not read, or is gone.
        finally:
            if writer in self._open:
                self._open.remove(writer)
            writer.close()

    async def _response(self, request_line: bytes, *headers: bytes) -> bytes:
        method, _, rest = request_line.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0].decode("latin-1")
        if method not in (b"GET", b"HEAD"):
            page = Page("use GET\n", status="405 Method Not Allowed")
            return _whole(page, more="Allow: GET\r\n")
        make = self._pages.get(path)
        if make is None:
            there = ", ".join(self._pages)
            return _whole(Page(f"this listener has {there}\n", status="404 Not Found"))
        try:
            made = make(_accepted(headers))
            page = await made if inspect.isawaitable(made) else made
        except Exception:  # noqa: BLE001 - a bug here must not end the listener
            _log.exception("page_failed", path=path)
            return _whole(Page("see the log\n", status="500 Internal Server Error"))
        whole = _whole(page)
        return whole if method == b"GET" else whole.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"


def _accepted(headers: Iterable[bytes]) -> str:
    """Return the value of Accept, of several the first one."""
    for header in headers:
        name, _, value = header.partition(b":")
        if name.strip().lower() == b"accept":
            return value.decode("latin-1").strip()
    return ""


def _whole(page: Page, *, more: str = "") -> bytes:
    data = page.body.encode()
    head = (
        f"HTTP/1.1 {page.status}\r\nContent-Type: {page.content_type}\r\n"
        f"Content-Length: {len(data)}\r\n{more}Connection: close\r\n\r\n"
    )
    return head.encode() + data
