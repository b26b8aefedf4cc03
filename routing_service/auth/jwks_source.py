"""How an identity provider's keys are fetched: by discovery, from a URL, or from a file.

Rule: the whole fetch has one deadline, and the answer a size limit. Only https is used, or http on
this machine. Redirects are not followed; the only address taken from an answer is the jwks_uri of
discovery.
"""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from routing_service.auth.cut_off_call import CutOffCalls, DeadlinePassed, Sockets
from routing_service.auth.key_set import JwksUnavailable
from routing_service.settings.provider_url import is_fetchable

TIMEOUT_S: Final = 5.0
"""For each step of a fetch: a connection, a read."""

FETCH_S_MAX: Final = 10.0
"""For a whole fetch, discovery and name lookups included."""

ANSWER_BYTES_MAX: Final = 512 * 1024

DISCOVERY_PATH: Final = "/.well-known/openid-configuration"

_CHUNK_BYTES: Final = 16 * 1024


class JwksSource:
    """Fetches one provider's keys."""

    def __init__(self, issuer: str, jwks: str = "", *, fetch_s_max: float = FETCH_S_MAX) -> None:
        """Fetch nothing yet. jwks: a URL or a file's path; "" = as the issuer's document says."""
        self._issuer = issuer
        self._jwks = jwks
        self._fetch_s_max = fetch_s_max
        self._calls = CutOffCalls()

    async def fetch(self) -> bytes:
        """Return the key set as JSON. Raises JwksUnavailable, after FETCH_S_MAX at the latest."""
        try:
            return await self._calls.call(self._fetch, self._fetch_s_max)
        except DeadlinePassed as error:
            raise JwksUnavailable(f"{self._jwks or self._issuer}: {error}") from error

    def _fetch(self, sockets: Sockets) -> bytes:
        if not self._jwks:
            # Discovered at each fetch: providers move their keys.
            return _get(self._discover(sockets), sockets)
        if is_fetchable(self._jwks):
            return _get(self._jwks, sockets)
        try:
            with Path(self._jwks).open("rb") as file:
                return file.read(ANSWER_BYTES_MAX)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise JwksUnavailable(f'"{self._jwks}": {reason}') from error

    def _discover(self, sockets: Sockets) -> str:
        url = self._issuer.rstrip("/") + DISCOVERY_PATH
        try:
            document = msgspec.json.decode(_get(url, sockets), type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError) as error:
            raise JwksUnavailable(f"{url} is not a JSON object") from error
        if document.get("issuer") != self._issuer:
            raise JwksUnavailable(f'{url} is of another issuer than "{self._issuer}"')
        jwks = document.get("jwks_uri")
        if not isinstance(jwks, str) or not is_fetchable(jwks):
            raise JwksUnavailable(f"{url} names no jwks_uri with https")
        return jwks


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(  # noqa: PLR0917 - as the base class has it
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> None:
        """Follow none: a redirect is an error with its status."""


def _connection(
    kind: type[http.client.HTTPConnection], sockets: Sockets
) -> Callable[..., http.client.HTTPConnection]:
    """Return what makes connections whose sockets the deadline can close."""

    def make(*given: Any, **named: Any) -> http.client.HTTPConnection:
        made = kind(*given, **named)
        # http.client has no public way to be given a socket. A test with a server that drips its
        # header fails if this attribute ever goes.
        made._create_connection = sockets.connect  # type: ignore[attr-defined] # noqa: SLF001
        return made

    return make


class _Http(urllib.request.HTTPHandler):
    def __init__(self, sockets: Sockets) -> None:
        super().__init__()
        self._make = _connection(http.client.HTTPConnection, sockets)

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """Open by a connection of ours."""
        return self.do_open(self._make, req)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, sockets: Sockets) -> None:
        super().__init__()
        self._make = _connection(http.client.HTTPSConnection, sockets)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """Open by a connection of ours."""
        return self.do_open(self._make, req)


def _get(url: str, sockets: Sockets) -> bytes:
    """Return the content of a URL. Raises JwksUnavailable."""
    opener = urllib.request.build_opener(_NoRedirects, _Http(sockets), _Https(sockets))
    request = urllib.request.Request(url, headers={"Accept": "application/json"})  # noqa: S310 - is_fetchable
    try:
        with opener.open(request, timeout=TIMEOUT_S) as answer:
            parts: list[bytes] = []
            size_bytes = 0
            # read1 returns what has arrived rather than all that was asked for.
            while part := answer.read1(_CHUNK_BYTES):
                parts.append(part)
                size_bytes += len(part)
                if size_bytes > ANSWER_BYTES_MAX:
                    raise JwksUnavailable(f"{url} has more than {ANSWER_BYTES_MAX} bytes")
            return b"".join(parts)
    except urllib.error.HTTPError as error:
        with error:
            raise JwksUnavailable(f"{url} answered {error.code}") from error
    except (OSError, HTTPException, ValueError) as error:
        raise JwksUnavailable(f"{url}: {error}") from error
