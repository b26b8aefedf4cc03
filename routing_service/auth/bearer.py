"""Tokens in a call's metadata: each is checked once, and remembered until it expires.

Rule: only accepted tokens are remembered, by their whole text, so that no forged token takes the
place of a good one. A remembered token costs one dictionary lookup.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, Protocol

from msgspec.structs import replace

from routing_service.auth.caller import (
    PLATFORM,
    TENANT_KEY,
    Caller,
    Metadata,
    Peer,
    SignIn,
    SignInRefused,
    named_tenant,
)
from routing_service.auth.rights import check_tenant

CREDENTIAL_KEY: Final = "authorization"

TOKEN_CHARS_MAX: Final = 8 * 1024
"""The longest accepted token. Entra ID's reach 4 KiB for a user with many groups."""

KNOWN_MAX: Final = 10_000
KNOWN_CHARS_MAX: Final = 16 * 1024 * 1024
"""Remembered tokens, and their total size: a busy replica's users of ten minutes."""

# Three parts and nothing else: base64 decoders skip other characters, so that one good token would
# have endless other spellings.
_BEARER: Final = re.compile(
    r"[Bb][Ee][Aa][Rr][Ee][Rr] ([A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+)"
)


class TokenVerifier(Protocol):
    """Checks tokens."""

    async def verify(self, token: str) -> Caller:
        """Return the caller of a token. Raises SignInRefused, SIGN_IN_UNAVAILABLE."""
        ...


class BearerSignIn:
    """Signs in by a token; without one by a certificate, if certificates are accepted too."""

    def __init__(
        self,
        verifier: TokenVerifier,
        *,
        certificates: SignIn | None = None,
        now_s: Callable[[], float] = time.time,
        known_max: int = KNOWN_MAX,
        known_chars_max: int = KNOWN_CHARS_MAX,
    ) -> None:
        """Ask the verifier once for each token.

        certificates: for calls without a token. known_max, known_chars_max: remembered tokens, and
        their total size.
        """
        self._verifier = verifier
        self._certificates = certificates
        self._now_s = now_s
        self._known_max = known_max
        self._known_chars_max = known_chars_max
        self._known: dict[str, Caller] = {}
        self._known_chars = 0

    async def caller(self, metadata: Metadata, peer: Peer) -> Caller:
        """See SignIn.caller."""
        given: str | bytes | None = None
        has_tenant = False
        for key, value in metadata:
            if key == CREDENTIAL_KEY:
                if given is not None:
                    # A proxy in front may have checked another one of them.
                    raise SignInRefused("several_tokens")
                given = value
            elif key == TENANT_KEY:
                has_tenant = True
        if given is None:
            if self._certificates is None:
                raise SignInRefused("no_token")
            return await self._certificates.caller(metadata, peer)
        if not isinstance(given, str):
            raise SignInRefused("no_bearer_token")
        found = self._known.get(given)
        if found is None:
            found = await self._verifier.verify(read_bearer(given))
            self._remember(given, found)
        elif found.expires_s <= self._now_s():
            del self._known[given]
            self._known_chars -= len(given)
            raise expired(found.expires_s)
        return in_tenant(found, named_tenant(metadata)) if has_tenant else found

    def forget_all(self) -> None:
        """Check every token again: a key that signed some of them may be withdrawn."""
        self._known.clear()
        self._known_chars = 0

    def _remember(self, given: str, caller: Caller) -> None:
        # Another call may have remembered the same token while this one waited for a key.
        if given not in self._known:
            self._known_chars += len(given)
        self._known[given] = caller
        while len(self._known) > self._known_max or self._known_chars > self._known_chars_max:
            oldest = next(iter(self._known))
            del self._known[oldest]
            self._known_chars -= len(oldest)


def read_bearer(value: str) -> str:
    """Return the token of an authorization header. Raises SignInRefused."""
    if len(value) > TOKEN_CHARS_MAX:
        raise SignInRefused("too_long")
    found = _BEARER.fullmatch(value)
    if found is None:
        raise SignInRefused("no_bearer_token")
    return found[1]


def in_tenant(caller: Caller, tenant: str) -> Caller:
    """Return the caller in a tenant; "" = its own. Raises SCOPE_MISSING."""
    if tenant in ("", caller.tenant):
        return caller
    check_tenant(caller, tenant)
    assert PLATFORM in caller.scopes
    # The same user name may be another person's there.
    return replace(caller, tenant=tenant, user="", entitlements=None)


def check_expiry(caller: Caller) -> None:
    """Raise SignInRefused if the caller's credential has expired since it was accepted."""
    if caller.expires_s <= time.time():
        raise expired(caller.expires_s)


def expired(expires_s: float) -> SignInRefused:
    """Return a refusal that says when a credential expired, which its bearer knows anyway."""
    when = datetime.fromtimestamp(max(expires_s, 0), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return SignInRefused("expired", f"the credential expired at {when}; sign in again")
