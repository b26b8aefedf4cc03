"""What a remote agent may do to its worker: where requests go, and how much comes back.

Rule: all of it holds below the protocol's SDK, for the card, for answers and for streams.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Final

import httpx

CARD_BYTES_MAX: Final = 256 * 1024
"""Of a card: those of services with dozens of skills have a tenth of it."""

ANSWER_BYTES_MAX: Final = 8 * 1024 * 1024
"""Of one response, streams included: a task has its history, and files as base64. The service takes
96 KiB of an answer."""

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


class OriginNotAllowed(Exception):
    """A request of another origin than the remote agent's. Nothing was sent."""

    def __init__(self, origin: str, url: str) -> None:
        super().__init__(
            f"the card of {url} sends requests to {origin}; nothing was sent there. If that is"
            f' right, allow it: allow_origins=("{origin}",), or --allow-origin {origin}'
        )


class AnswerTooLong(Exception):
    """The remote agent sent more than is taken; the message says what and how much."""


def origin_of(url: str | httpx.URL) -> str:
    """Return a URL's origin, such as https://example.org:8443. Raises ValueError for no web URL."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ValueError(f'"{url}" is not a URL: {error}') from None
    if parsed.scheme not in _DEFAULT_PORTS or not parsed.host:
        raise ValueError(f'"{url}" must begin with http:// or https:// and name a host')
    port = parsed.port
    has_port = port is not None and port != _DEFAULT_PORTS[parsed.scheme]
    host = f"[{parsed.host}]" if ":" in parsed.host else parsed.host
    return f"{parsed.scheme}://{host}:{port}" if has_port else f"{parsed.scheme}://{host}"


class Bounds(httpx.AsyncBaseTransport):  # type: ignore[misc] # httpx is an extra
    """Sends requests by a client, to the given origins alone, and bounds their responses."""

    def __init__(self, inner: httpx.AsyncClient, url: str, allow_origins: Iterable[str]) -> None:
        """Send by a client, which stays its owner's. url: of the remote agent."""
        self._inner = inner
        self._url = url
        self._origins = {origin_of(each) for each in (url, *allow_origins)}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request; the response's bytes come as they are read.

        Raises OriginNotAllowed, and AnswerTooLong also while the response is read.
        """
        origin = origin_of(request.url)
        if origin not in self._origins:
            raise OriginNotAllowed(origin, self._url)
        # What is packed could be a thousand times as long when it is unpacked.
        request.headers["Accept-Encoding"] = "identity"
        bytes_max = request.extensions.get("bytes_max", ANSWER_BYTES_MAX)
        answer = await self._inner.send(request, stream=True, follow_redirects=False)
        if answer.headers.get("Content-Encoding", "identity") != "identity":
            await answer.aclose()
            raise AnswerTooLong(f"{origin} sent a packed answer, which was not asked for")
        return httpx.Response(
            answer.status_code,
            headers=answer.headers,
            stream=_Counted(answer, origin, bytes_max),
            extensions=answer.extensions,
        )


class _Counted(httpx.AsyncByteStream):  # type: ignore[misc] # as above
    """The bytes of a response, as many as are taken."""

    def __init__(self, answer: httpx.Response, origin: str, bytes_max: int) -> None:
        self._answer = answer
        self._origin = origin
        self._bytes_max = bytes_max

    async def __aiter__(self) -> AsyncIterator[bytes]:
        count = 0
        async for part in self._answer.aiter_raw():
            count += len(part)
            if count > self._bytes_max:
                raise AnswerTooLong(
                    f"{self._origin} sent more than {self._bytes_max} bytes in one answer"
                )
            yield part

    async def aclose(self) -> None:
        await self._answer.aclose()


def bounded(inner: httpx.AsyncClient, url: str, allow_origins: Iterable[str]) -> httpx.AsyncClient:
    """Return a client that sends by another one, with its headers and time-outs, within Bounds.

    Closing it leaves the other one open. Raises ValueError for a URL or an origin that is none.
    """
    return httpx.AsyncClient(
        transport=Bounds(inner, url, allow_origins),
        headers=inner.headers,
        cookies=inner.cookies,
        timeout=inner.timeout,
    )
