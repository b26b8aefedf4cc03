"""The token of a client's calls, and TLS from files.

The token function is called for each attempt, so it decides how long a token is reused. A refused
token is sent again only if the function may return another one.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import grpc

from agent_routing.proxies import is_local

if TYPE_CHECKING:
    from pathlib import Path

_log: Final = logging.getLogger("agent_routing")

CREDENTIAL_KEY: Final = "authorization"

Token = str | Callable[[], str]
"""A token, or a function that returns the token to send now."""

AsyncToken = str | Callable[[], str | Awaitable[str]]
"""As Token; it may also be a coroutine function."""

Pairs = tuple[tuple[str, str | bytes], ...]


class TokenSource:
    """Gives each call its token."""

    def __init__(self, token: AsyncToken) -> None:
        """Take a token, or a function that returns one. Raises ValueError for an empty token."""
        if not token:
            raise ValueError('token is ""; give a token, a function that returns one, or None')
        self._token = token

    @property
    def is_renewable(self) -> bool:
        """Whether another call of the function may return another token."""
        return callable(self._token)

    def now(self) -> Pairs:
        """Return the metadata of a call. Raises the function's errors, and TypeError."""
        found = self._token if isinstance(self._token, str) else self._token()
        if not isinstance(found, str):
            if inspect.iscoroutine(found):
                found.close()
            raise TypeError("the token function did not return text; AsyncClient takes coroutines")
        return _pair(found)

    async def soon(self) -> Pairs:
        """As now(); awaits a function that is a coroutine function."""
        found = self._token if isinstance(self._token, str) else self._token()
        return _pair(found if isinstance(found, str) else await found)


def _pair(token: str) -> Pairs:
    return ((CREDENTIAL_KEY, f"Bearer {token.strip()}"),)


def token_source(
    token: AsyncToken | None, target: str, *, is_encrypted: bool
) -> TokenSource | None:
    """Return the source of a client's tokens. Logs a warning if others can read them on the way."""
    if token is None:
        return None
    if not is_encrypted and not is_local(target):
        _log.warning("token_in_the_clear target=%s remedy=give credentials", target)
    return TokenSource(token)


def tls_credentials(
    *,
    authority_file: str | Path | None = None,
    certificate_file: str | Path | None = None,
    key_file: str | Path | None = None,
) -> grpc.ChannelCredentials:
    """Return TLS credentials for a client from PEM files.

    authority_file: the authority that signed the server's certificate; None: gRPC's defaults.
    certificate_file, key_file: the client's certificate with its chain, if the server asks for one;
    both or neither. Raises OSError for a file that cannot be read, ValueError for one of two.
    """
    if (certificate_file is None) != (key_file is None):
        raise ValueError("certificate_file and key_file go together; give both or neither")
    authority, certificate, key = map(_content, (authority_file, certificate_file, key_file))
    return grpc.ssl_channel_credentials(authority, key, certificate)


def _content(name: str | Path | None) -> bytes | None:
    if name is None:
        return None
    # Without pathlib: importing it takes a third as long as importing this client.
    with open(name, "rb") as file:  # noqa: PTH123
        return file.read()
