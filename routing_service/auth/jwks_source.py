"""Where an identity provider's keys are, and how they are fetched.

Owns: discovery and the fetch. Must not know: what a key set holds.
Rule: off the event loop, bounded in time and size, by https alone (or from this machine), and from
nowhere that the answer to a fetch points to, but for the one address that discovery is there for.
"""

from __future__ import annotations

import asyncio
import time
import urllib.error
import urllib.request
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from routing_service.auth.key_set import JwksUnavailable
from routing_service.settings.provider_url import is_fetchable

TIMEOUT_S: Final = 5.0
"""For each step of a fetch: a connection, a read."""

FETCH_S_MAX: Final = 10.0
"""For a whole answer: a provider that sends a byte a second is as good as away."""

ANSWER_BYTES_MAX: Final = 512 * 1024

DISCOVERY_PATH: Final = "/.well-known/openid-configuration"

_CHUNK_BYTES: Final = 16 * 1024


class JwksSource:
    """Fetches one provider's keys."""

    def __init__(self, issuer: str, jwks: str = "") -> None:
        """Take where to look. jwks: a URL, a file's path; "" = as the issuer's document says."""
        self._issuer = issuer
        self._jwks = jwks

    async def fetch(self) -> bytes:
        """Return the key set as JSON. Raises JwksUnavailable."""
        return await asyncio.to_thread(self._fetch)

    def _fetch(self) -> bytes:
        if not self._jwks:
            # Found anew each time: providers move their keys.
            return _get(self._discover())
        if is_fetchable(self._jwks):
            return _get(self._jwks)
        try:
            with Path(self._jwks).open("rb") as file:
                return file.read(ANSWER_BYTES_MAX)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise JwksUnavailable(f'"{self._jwks}": {reason}') from error

    def _discover(self) -> str:
        url = self._issuer.rstrip("/") + DISCOVERY_PATH
        try:
            document = msgspec.json.decode(_get(url), type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError) as error:
            raise JwksUnavailable(f"{url} is no JSON object") from error
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
        """Follow none: the answer is then an error, with its status."""


_opener: Final = urllib.request.build_opener(_NoRedirects)


def _get(url: str) -> bytes:
    """Return what a URL has. Raises JwksUnavailable."""
    until_s = time.monotonic() + FETCH_S_MAX
    request = urllib.request.Request(url, headers={"Accept": "application/json"})  # noqa: S310 - is_fetchable
    try:
        with _opener.open(request, timeout=TIMEOUT_S) as answer:
            parts: list[bytes] = []
            size_bytes = 0
            # read1: what has come, rather than all that was asked for.
            while part := answer.read1(_CHUNK_BYTES):
                parts.append(part)
                size_bytes += len(part)
                if size_bytes > ANSWER_BYTES_MAX:
                    raise JwksUnavailable(f"{url} has more than {ANSWER_BYTES_MAX} bytes")
                if time.monotonic() > until_s:
                    raise JwksUnavailable(f"{url} took more than {FETCH_S_MAX:g} s")
            return b"".join(parts)
    except urllib.error.HTTPError as error:
        with error:
            raise JwksUnavailable(f"{url} answered {error.code}") from error
    except (OSError, HTTPException, ValueError) as error:
        raise JwksUnavailable(f"{url}: {error}") from error
