"""The sign-in that the settings name, made at start and kept up to date.

Rule: a sign-in that cannot work is refused at start, with the remedy. Keys and callers that change
later are read again without a restart; a bad change is logged and ignored.
"""

from __future__ import annotations

import asyncio
import importlib.util
import math
import os
import stat
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog

from routing_service.auth.bearer import BearerSignIn
from routing_service.auth.caller import SignIn
from routing_service.auth.callers_file import CallersFileInvalid, read_callers
from routing_service.auth.certificates import CertificateSignIn
from routing_service.auth.development import DevelopmentTokens, KeyUnusable, read_or_make_key
from routing_service.auth.jwks_source import JwksSource
from routing_service.auth.key_set import FETCH_EVERY_S, KeySet
from routing_service.auth.no_sign_in import OpenDoor
from routing_service.auth.oidc import OidcRules, OidcTokens
from routing_service.settings.provider_url import with_tenant_mark
from routing_service.settings.rules import SettingProblem, SettingsInvalid
from routing_service.settings.setting_forms import separated
from routing_service.settings.settings import Settings

_log = structlog.get_logger(__name__)

LOOK_EVERY_S: Final = 2.0
"""Interval of checks for a changed callers file."""


async def _nothing() -> None:
    """Do nothing."""


@dataclass(slots=True)
class MadeSignIn:
    """A sign-in and its background work.

    running: background tasks by name. reload: reads files again at once. close: ends work under
    way. keys_age_s: seconds since the provider's keys were fetched, inf before; None without one.
    """

    sign_in: SignIn
    running: dict[str, Callable[[], Coroutine[None, None, None]]] = field(default_factory=dict)
    reload: Callable[[], Coroutine[None, None, None]] = field(default=_nothing)
    close: Callable[[], Coroutine[None, None, None]] = field(default=_nothing)
    keys_age_s: Callable[[], float] | None = None
    _told: list[Callable[[], None]] = field(default_factory=list)

    def tell_changes_to(self, changed: Callable[[], None]) -> None:
        """Call changed() when credentials may have lost rights: a key is gone, callers changed."""
        self._told.append(changed)

    def tell(self) -> None:
        """Call everything that wants to know of changes."""
        for changed in self._told:
            changed()


def make_sign_in(settings: Settings, *, keys_fetch_every_s: float = FETCH_EVERY_S) -> MadeSignIn:
    """Make the sign-in that the settings name. Raises SettingsInvalid for unreadable files.

    keys_fetch_every_s: least time between two fetches of the provider's keys.
    """
    kinds = settings.sign_in.split("+")
    if "none" in kinds:
        return MadeSignIn(OpenDoor())
    made = MadeSignIn(OpenDoor())
    certificates = None
    if "mtls" in kinds:
        if importlib.util.find_spec("cryptography") is None:
            raise SettingsInvalid((SettingProblem("sign_in", _NO_CRYPTOGRAPHY),))
        watched = _CallersFile(Path(settings.callers_file), made.tell)
        certificates = watched.sign_in
        made.sign_in = certificates
        made.running["callers file"] = watched.run
        made.reload = watched.reload
    if "development" in kinds:
        try:
            key = read_or_make_key(Path(settings.development_key_file))
        except KeyUnusable as error:
            raise SettingsInvalid((SettingProblem("development_key_file", str(error)),)) from error
        _warn_if_readable(Path(settings.development_key_file))
        made.sign_in = BearerSignIn(DevelopmentTokens(key), certificates=certificates)
    if "oidc" in kinds:
        if importlib.util.find_spec("jwt") is None:
            raise SettingsInvalid((SettingProblem("sign_in", _NO_JWT),))
        fetch = JwksSource(settings.oidc_issuer, settings.oidc_jwks).fetch
        keys = KeySet(fetch, fetch_every_s=keys_fetch_every_s)
        bearer = BearerSignIn(OidcTokens(_rules(settings), keys), certificates=certificates)

        def forget() -> None:
            bearer.forget_all()
            made.tell()

        keys.tell_changes_to(forget)
        made.sign_in = bearer
        made.running["sign-in keys"] = keys.run
        made.close = keys.close
        made.keys_age_s = lambda: math.inf if keys.age_s is None else keys.age_s
    return made


_NO_CRYPTOGRAPHY: Final = (
    "client certificates are read by cryptography, which is not installed; install it with: "
    "pip install 'agent-routing-service[mtls]'"
)

_NO_JWT: Final = (
    "tokens of OpenID Connect need PyJWT, which is not installed; install it with: "
    "pip install 'agent-routing-service[oidc]'"
)


def _rules(settings: Settings) -> OidcRules:
    is_entra = settings.oidc_profile == "entra"
    return OidcRules(
        issuer=with_tenant_mark(settings.oidc_issuer) if is_entra else settings.oidc_issuer,
        audiences=separated(settings.oidc_audience),
        is_entra=is_entra,
        tenants=frozenset(separated(settings.oidc_tenants)),
        tenant_claim=settings.oidc_tenant_claim,
        user_claim=settings.oidc_user_claim,
        agents_claim=settings.oidc_agents_claim,
        entitlements_claim=settings.oidc_entitlements_claim,
        scope_prefix=settings.oidc_scope_prefix,
        leeway_s=settings.oidc_leeway_s,
    )


def log_sign_in(settings: Settings) -> None:
    """Log the sign-in mode; warn if callers are not authenticated."""
    if settings.sign_in == "none":
        _log.warning(
            "nobody_signs_in",
            listen=settings.listen,
            meaning="anyone who reaches this address may do everything, as any user",
            remedy="fine on a machine of your own; otherwise set sign_in",
        )
    elif "development" in settings.sign_in:
        _log.warning(
            "development_sign_in",
            key_file=settings.development_key_file,
            meaning="anyone who can read that file can act as any user",
            remedy="for first steps and tests; otherwise set sign_in to oidc or mtls",
        )
    else:
        _log.info("sign_in", kind=settings.sign_in)


def _warn_if_readable(key_file: Path) -> None:
    """Warn if other users of the machine can read the development key."""
    mode = stat.S_IMODE(key_file.stat().st_mode)
    if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
        _log.warning(
            "development_key_readable",
            key_file=str(key_file),
            mode=f"{mode:04o}",
            meaning="other users of this machine can read the key, and act as any user with it",
            remedy=f"chmod 600 {key_file}; if others had access, remove the file for a new key",
        )


class _CallersFile:
    """The callers of client certificates, read again when their file changes."""

    def __init__(self, path: Path, changed: Callable[[], None]) -> None:
        self._path = path
        self._changed = changed
        self._seen = _stamp(path)
        try:
            self.sign_in = CertificateSignIn(read_callers(path))
        except CallersFileInvalid as error:
            problem = SettingProblem("callers_file", str(error))
            raise SettingsInvalid((problem,)) from error

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            if await asyncio.to_thread(_stamp, self._path) != self._seen:
                await self.reload()

    async def reload(self) -> None:
        # Taken before reading: a change made meanwhile is seen at the next check.
        self._seen = await asyncio.to_thread(_stamp, self._path)
        try:
            callers = await asyncio.to_thread(read_callers, self._path)
        except CallersFileInvalid as error:
            _log.error("callers_file_refused", error=str(error))
            return
        self.sign_in.put(callers)
        self._changed()
        _log.info("callers_file_read", file=str(self._path), callers=len(callers))


def _stamp(path: Path) -> tuple[int, int, int]:
    """Return values that change when the file does; zeros if it is missing."""
    try:
        found = path.stat()
    except OSError:
        return (0, 0, 0)
    return (found.st_mtime_ns, found.st_size, found.st_ino)
