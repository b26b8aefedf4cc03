"""The keys by which an identity provider signs: when they are fetched, and which are known.

Rule: a provider that is away changes nothing. Known keys stay, and an error is logged while they
are older than they should be. Only a set that was fetched whole and has keys replaces the one
before, and a key that it lacks is then refused at once. Unknown keys cost the provider at most one
fetch in FETCH_EVERY_S, however many callers ask.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
import structlog

from routing_service.core.errors import Reason, RoutingError

_log = structlog.get_logger(__name__)

FETCH_EVERY_S: Final = 30.0
"""Least time between two fetches once keys are known. It bounds what made-up key ids cost the
provider, and how long a brand-new key may wait."""

REFRESH_S: Final = 300.0
"""Interval of fetches without a need: how long a withdrawn key stays good. Providers publish a new
key hours before they use it."""

OLD_S: Final = 2 * REFRESH_S + FETCH_EVERY_S
"""Age from which keys are reported as old at each failed fetch: two refreshes have failed."""

FIRST_RETRY_S: Final = 1.0
"""First wait after a failure while no key is known, so that no caller can sign in."""

WAIT_S_MAX: Final = 3.0
"""How long a call with an unknown key waits, counted from the start of the fetch."""

JITTER: Final = 0.1
"""Spreads the fetches of replicas that were started together."""

KEYS_MAX: Final = 64
KEY_ID_CHARS_MAX: Final = 256

MODULUS_BITS_MIN: Final = 2048
"""Minimum for RS256. Source: RFC 7518."""

_RSA: Final = "RS256"
_EC: Final = "ES256"


class JwksUnavailable(Exception):
    """A key set could not be fetched, or is not valid; the message says why, for the log."""


class Key(msgspec.Struct, frozen=True):
    """One key. algorithm: the only one it is used with. issuer: "" = the set's."""

    key_id: str
    algorithm: str
    key: Any
    issuer: str = ""


class _Jwk(msgspec.Struct):
    kty: str
    kid: str = ""
    use: str = ""
    key_ops: list[str] | None = None
    alg: str = ""
    crv: str = ""
    n: str = ""
    e: str = ""
    x: str = ""
    y: str = ""
    issuer: str = ""


class _Jwks(msgspec.Struct):
    keys: list[msgspec.Raw]


class KeySet:
    """The keys of one provider."""

    def __init__(
        self,
        fetch: Callable[[], Awaitable[bytes]],
        *,
        changed: Callable[[], None] = lambda: None,
        refresh_s: float = REFRESH_S,
        fetch_every_s: float = FETCH_EVERY_S,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Know no key yet.

        fetch: returns the set as JSON, off the event loop; raises JwksUnavailable. changed: called
        when a key is gone or replaced. fetch_every_s: least time between two fetches once keys are
        known. clock_s: monotonic seconds.
        """
        self._fetch = fetch
        self._changed = changed
        self._refresh_s = refresh_s
        self._fetch_every_s = fetch_every_s
        self._clock_s = clock_s
        self._keys: Mapping[str, Sequence[Key]] = {}
        self._fetching: asyncio.Task[None] | None = None
        self._fetched_s = -math.inf
        self._fresh_s: float | None = None
        self._failures = 0

    def tell_changes_to(self, changed: Callable[[], None]) -> None:
        """Call changed() when a key is gone or replaced."""
        self._changed = changed

    def find(self, key_id: str, algorithm: str) -> Sequence[Key]:
        """Return the keys of an id. Some providers use one id for keys of two kinds."""
        return [key for key in self._keys.get(key_id, ()) if key.algorithm == algorithm]

    async def look_again(self) -> None:
        """Fetch because a key is not known, unless a fetch was made just now.

        Raises SIGN_IN_UNAVAILABLE if no key was ever fetched.
        """
        if self._fetching is None and self._since_s() >= self._pause_s():
            self._begin()
        if self._fetching is not None:
            # The fetch goes on for others when this call's time is over. A caller that comes late
            # in a slow fetch does not wait the whole time again.
            left_s = max(0.0, WAIT_S_MAX - self._since_s())
            await asyncio.wait((self._fetching,), timeout=left_s)
        if not self._keys:
            raise RoutingError(
                Reason.SIGN_IN_UNAVAILABLE,
                "the identity provider's keys could not be fetched yet, so no credential can be "
                "checked; repeat with the same request_id",
                retry_after_s=1.0,
            )

    async def run(self) -> None:
        """Fetch now and then every refresh_s, until cancelled."""
        while True:
            if self._fetching is None and self._since_s() >= self._pause_s():
                self._begin()
            if self._fetching is not None:
                await asyncio.wait((self._fetching,))
            pause_s = self._refresh_s if self._keys and not self._failures else self._pause_s()
            await asyncio.sleep(pause_s * random.uniform(1, 1 + JITTER))  # noqa: S311 - no secret

    async def close(self) -> None:
        """Cancel a fetch that is under way."""
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait((self._fetching,))

    @property
    def age_s(self) -> float | None:
        """Seconds since the last successful fetch; None before the first."""
        return None if self._fresh_s is None else self._clock_s() - self._fresh_s

    def _since_s(self) -> float:
        return self._clock_s() - self._fetched_s

    def _pause_s(self) -> float:
        """Return the least time between two fetches."""
        if self._keys:
            return self._fetch_every_s
        return min(FIRST_RETRY_S * 2.0 ** min(self._failures, 10), self._fetch_every_s)

    def _begin(self) -> None:
        self._fetched_s = self._clock_s()
        self._fetching = asyncio.create_task(self._refresh(), name="fetch of sign-in keys")

    async def _refresh(self) -> None:
        try:
            keys = read_key_set(await self._fetch())
        except JwksUnavailable as error:
            self._note_failure(str(error))
        except Exception:  # noqa: BLE001 - logged
            # A bug, which must not end the fetches.
            self._failures += 1
            _log.exception("sign_in_keys_not_fetched", keys_known=len(self._keys))
        else:
            self._put(keys)
        finally:
            self._fetching = None

    def _note_failure(self, error: str) -> None:
        self._failures += 1
        _log.warning(
            "sign_in_keys_not_fetched",
            error=error,
            keys_known=len(self._keys),
            failures=self._failures,
        )
        age_s = self.age_s
        if age_s is not None and age_s > OLD_S:
            _log.error(
                "sign_in_keys_old",
                age_s=round(age_s),
                meaning="a key that the provider has withdrawn since then is still accepted",
                remedy="make the provider's keys reachable from this server",
            )

    def _put(self, keys: Mapping[str, Sequence[Key]]) -> None:
        before, self._keys = self._keys, keys
        if self._failures or keys.keys() != before.keys():
            _log.info("sign_in_keys_fetched", key_ids=sorted(keys))
        self._failures = 0
        self._fresh_s = self._clock_s()
        same = {
            key_id
            for key_id, found in before.items()
            if _numbers(keys.get(key_id)) == _numbers(found)
        }
        if same != before.keys():
            # Tokens that it signed are no longer good.
            self._changed()


def read_key_set(data: bytes) -> Mapping[str, Sequence[Key]]:
    """Return the keys of a set that are for RS256 or ES256, by id. Raises JwksUnavailable.

    A key of another kind, or with a mistake, is skipped (RFC 7517). A set without any key left is
    refused.
    """
    try:
        listed = msgspec.json.decode(data, type=_Jwks).keys
    except (msgspec.DecodeError, RecursionError) as error:
        raise JwksUnavailable("the answer is not a JSON Web Key Set") from error
    if len(listed) > KEYS_MAX:
        raise JwksUnavailable(f"the set has {len(listed)} keys, at most {KEYS_MAX} are taken")
    found: dict[str, list[Key]] = {}
    for raw in listed:
        key = _read_key(bytes(raw))
        if key is not None:
            found.setdefault(key.key_id, []).append(key)
    if not found:
        raise JwksUnavailable("the set has no key for RS256 or ES256 with an id")
    return found


def _read_key(data: bytes) -> Key | None:
    from jwt import PyJWK  # noqa: PLC0415 - of the extra oidc

    try:
        jwk = msgspec.json.decode(data, type=_Jwk)
    except msgspec.DecodeError:
        return None
    algorithm = {("RSA", ""): _RSA, ("EC", "P-256"): _EC}.get((jwk.kty, jwk.crv))
    is_for_signing = jwk.use in ("", "sig") and (jwk.key_ops is None or "verify" in jwk.key_ops)
    if algorithm is None or jwk.alg not in ("", algorithm) or not is_for_signing:
        return None
    if not 0 < len(jwk.kid) <= KEY_ID_CHARS_MAX:
        return None
    public = {"kty": jwk.kty, "n": jwk.n, "e": jwk.e}
    if algorithm == _EC:
        public = {"kty": jwk.kty, "crv": jwk.crv, "x": jwk.x, "y": jwk.y}
    try:
        key = PyJWK(public, algorithm).key
    except Exception as error:  # noqa: BLE001 - two libraries' own; one bad key must not cost the others
        _log.warning("sign_in_key_unreadable", key_id=jwk.kid, error=type(error).__name__)
        return None
    if algorithm == _RSA and key.key_size < MODULUS_BITS_MIN:
        _log.warning("sign_in_key_too_short", key_id=jwk.kid, bits=key.key_size)
        return None
    return Key(jwk.kid, algorithm, key, jwk.issuer)


def _numbers(keys: Sequence[Key] | None) -> list[object]:
    """Return the values that identify keys."""
    return [(key.algorithm, key.key.public_numbers(), key.issuer) for key in keys or ()]
