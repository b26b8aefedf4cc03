"""Development tokens, signed with a local key: for first steps and tests.

Rule: one header, compared as text, and one algorithm: nothing in a token chooses how it is checked.
Everyone who can read the key file can act as any user.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import secrets
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import msgspec

from routing_service.auth import claims
from routing_service.auth.bearer import expired
from routing_service.auth.caller import DEFAULT_TENANT, Caller, SignInRefused, is_tenant

KEY_BYTES: Final = 32
KEY_FILE_BYTES_MAX: Final = 1024

ISSUER: Final = "agent-routing-development"


class KeyUnusable(Exception):
    """The key file cannot be read or created; the message says why and what to do."""


class _Claims(msgspec.Struct, forbid_unknown_fields=True):
    iss: str
    sub: str
    exp: float
    iat: float
    tenant: str = DEFAULT_TENANT
    user: str = ""
    scope: str = ""
    agents: list[str] = []
    entitlements: list[str] | None = None


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


_HEADER: Final = _encoded(b'{"alg":"HS256","typ":"JWT"}')
_decode_claims: Final = msgspec.json.Decoder(_Claims).decode


def read_or_make_key(path: Path) -> bytes:
    """Return the key in a file, which is created if missing. Raises KeyUnusable."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return _read_key(path)
        with os.fdopen(opened, "w", encoding="ascii") as file:
            file.write(_encoded(secrets.token_bytes(KEY_BYTES)) + "\n")
        return _read_key(path)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise KeyUnusable(
            f'the development key "{path}": {reason}; name a file that can be read, or made'
        ) from error


def _read_key(path: Path) -> bytes:
    with path.open("rb") as file:
        text = file.read(KEY_FILE_BYTES_MAX).strip()
    try:
        key = base64.b64decode(text + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error:
        key = b""
    if len(key) < KEY_BYTES:
        raise KeyUnusable(
            f'the development key "{path}" is not {KEY_BYTES} bytes in base64; remove the file, '
            "and another one is made"
        )
    return key


def make_token(
    key: bytes,
    *,
    subject: str,
    user: str = "",
    tenant: str = DEFAULT_TENANT,
    scopes: Iterable[str] = (),
    agents: Iterable[str] = (),
    entitlements: Iterable[str] | None = None,
    lasts_s: float,
    now_s: float | None = None,
) -> str:
    """Return a signed token. lasts_s: seconds until it expires. now_s: None = the clock."""
    now = time.time() if now_s is None else now_s
    body = msgspec.json.encode(
        _Claims(
            iss=ISSUER,
            sub=subject,
            exp=now + lasts_s,
            iat=now,
            tenant=tenant,
            user=user,
            scope=" ".join(sorted(set(scopes))),
            agents=sorted(set(agents)),
            entitlements=None if entitlements is None else sorted(set(entitlements)),
        )
    )
    signed = f"{_HEADER}.{_encoded(body)}"
    return f"{signed}.{_encoded(_signature(key, signed))}"


class DevelopmentTokens:
    """Checks development tokens: a TokenVerifier."""

    def __init__(self, key: bytes, now_s: Callable[[], float] = time.time) -> None:
        """Check with one key."""
        self._key = key
        self._now_s = now_s

    async def verify(self, token: str) -> Caller:
        """See TokenVerifier.verify."""
        signed, _, signature = token.rpartition(".")
        header, _, body = signed.partition(".")
        if header != _HEADER:
            raise SignInRefused("bad_header")
        # As text: base64 has several spellings of the same bytes, and only one is accepted.
        if not hmac.compare_digest(_encoded(_signature(self._key, signed)), signature):
            raise SignInRefused("bad_signature")
        try:
            read = _decode_claims(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        except (binascii.Error, msgspec.DecodeError) as error:
            raise SignInRefused("bad_claims") from error
        if read.iss != ISSUER:
            raise SignInRefused("wrong_issuer")
        if read.exp <= self._now_s():
            raise expired(read.exp)
        if not is_tenant(read.tenant):
            raise SignInRefused("bad_tenant")
        given = read.entitlements
        granted = claims.words(read.scope, "scope")
        user = claims.subject(read.user, "user") if read.user else ""
        return Caller(
            tenant=read.tenant,
            subject=claims.subject(read.sub, "sub"),
            user=user,
            person=user,
            scopes=claims.scopes(granted),
            roles=claims.roles(granted),
            agents=claims.agents(read.agents),
            entitlements=None if given is None else claims.entitlements(given, "entitlements"),
            expires_s=read.exp,
        )


def _signature(key: bytes, signed: str) -> bytes:
    return hmac.digest(key, signed.encode("ascii"), hashlib.sha256)
