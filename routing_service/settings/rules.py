"""What a set of values must fulfil to become Settings: each value's form, and rules between them.

Every problem is reported, not only the first. The table of settings is passed in.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from routing_service.settings.listen_address import (
    ADMIN_PLACES,
    parse_listen_address,
)
from routing_service.settings.provider_url import TENANT_MARK, is_fetchable, shared_endpoint
from routing_service.settings.setting_forms import Setting

_ENTRA_HOST: Final = "//login.microsoftonline."
_SHOWN_CHARACTERS_MAX: Final = 200
_USER_INFO: Final = re.compile(r"//.*@", re.DOTALL)
_QUERY_SECRET: Final = re.compile(r"((?:password|secret|_key)=)[^&#]*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SettingProblem:
    """One problem with the settings."""

    name: str
    """The setting; or the unknown key or variable; "" for an unreadable file."""
    message: str
    """What is wrong, with which value, where it comes from, and what to do."""

    def __str__(self) -> str:
        return self.message


class SettingsInvalid(Exception):
    """Settings were refused. ``problems`` lists every reason."""

    def __init__(self, problems: tuple[SettingProblem, ...]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


def read_values(
    table: Mapping[str, Setting],
    values: Mapping[str, object],
    sources: Mapping[str, str],
    problems: list[SettingProblem],
) -> dict[str, Any]:
    """Return the values in their types; add each problem, of one value or of several together.

    The types are those of the fields of Settings, because each form reads into its field's type.
    """
    read: dict[str, Any] = {}
    for name, setting in table.items():
        value = values[name]
        if type(value) is type(setting.default) and value == setting.default:
            read[name] = value  # Also a default that no text can express, such as no file.
            continue
        try:
            read[name] = setting.form.read(value)
        except ValueError as error:
            problems.append(SettingProblem(name, f"{_named(name, values, sources)}; {error}"))
    problems += _conflicts(table, read, values, sources)
    return read


_ONE_PROCESS: Final = frozenset({"memory", "sqlite"})
"""Engines whose store belongs to one process."""

_EXPOSING: Final = frozenset(
    {
        "listen",
        "web_listen",
        "console_listen",
        "admin_listen",
        "insecure",
        "sign_in",
        "tls_certificate_file",
    }
)
"""The settings that together decide whether strangers get in."""


def _conflicts(
    table: Mapping[str, Setting],
    read: Mapping[str, Any],
    values: Mapping[str, object],
    sources: Mapping[str, str],
) -> Iterable[SettingProblem]:
    """Check the values against each other, as far as each of them could be read."""
    found: list[tuple[str, str]] = []
    if read.keys() >= _EXPOSING:
        found += _exposed(table, read)
    if read.keys() == table.keys():
        found += _missing(table, read)
    for name, why_not in found:
        yield SettingProblem(name, f"{_named(name, values, sources)}{why_not}")


def _exposed(table: Mapping[str, Setting], read: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Return the addresses that would let strangers in."""
    if read["insecure"]:
        return
    flag = table["insecure"].flag
    addresses = {"listen": read["listen"]}
    for name in ("web_listen", "console_listen"):
        if read[name]:
            addresses[name] = read[name]
    if read["admin_listen"] not in ADMIN_PLACES:
        addresses["admin_listen"] = read["admin_listen"]
    if read["sign_in"] == "none":
        why_not = (
            f"and callers do not sign in; listen on 127.0.0.1, set {table['sign_in'].flag}, or add "
            f"{flag} if a proxy or the network keeps strangers out"
        )
    elif "development" in read["sign_in"]:
        why_not = (
            "and anyone with the development key can be anyone; listen on 127.0.0.1, sign in by "
            f"oidc or mtls, or add {flag}"
        )
    elif not read["tls_certificate_file"]:
        why_not = (
            "and tokens would come in the clear; give "
            f"{table['tls_certificate_file'].flag} and {table['tls_key_file'].flag}, or add "
            f"{flag} if a proxy in front ends TLS"
        )
    else:
        return
    for name, text in addresses.items():
        if not parse_listen_address(text).is_loopback:
            yield name, f", which others can reach, {why_not}"


def _missing(table: Mapping[str, Setting], read: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Return the values that need another setting which is missing."""
    kinds = read["sign_in"].split("+")
    needed: list[tuple[str, str]] = []
    if "oidc" in kinds:
        needed += [("sign_in", "oidc_issuer"), ("sign_in", "oidc_audience")]
        yield from _issuer_problems(table, read)
    if "mtls" in kinds:
        needed += [
            ("sign_in", "callers_file"),
            ("sign_in", "tls_certificate_file"),
            ("sign_in", "tls_client_authority_file"),
        ]
    needed += [
        ("tls_certificate_file", "tls_key_file"),
        ("tls_key_file", "tls_certificate_file"),
        ("tls_client_authority_file", "tls_certificate_file"),
    ]
    for name, other in needed:
        if read[name] and not read[other]:
            yield name, f", and {other} is missing; give {table[other].flag}"
    if read["admin_listen"] == read["listen"] and not read["listen"].endswith(":0"):
        yield "admin_listen", ", which is also listen; write main to share one address"
    if read["processes"] > 1:
        yield from _unshared(read)
    if read["console_oidc_client_id"] and TENANT_MARK in read["oidc_issuer"]:
        yield (
            "console_oidc_client_id",
            (
                f", and oidc_issuer has {TENANT_MARK}: the page would not know where to sign in; "
                "leave it out and paste tokens, or give the issuer of one tenant"
            ),
        )


def _unshared(read: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Return what several processes cannot share."""
    engine = read["store"].partition(":")[0]
    if engine in _ONE_PROCESS:
        yield (
            "processes",
            (
                f", and only one process can have a {engine} store; use PostgreSQL, Redis or "
                "DynamoDB, or set 1"
            ),
        )
    for name in ("listen", "admin_listen", "web_listen", "console_listen"):
        if read[name].startswith("unix:"):
            yield name, ", and processes cannot share a unix socket; give HOST:PORT"


def _issuer_problems(
    table: Mapping[str, Setting], read: Mapping[str, Any]
) -> Iterable[tuple[str, str]]:
    issuer, jwks = read["oidc_issuer"], read["oidc_jwks"]
    is_entra = read["oidc_profile"] == "entra"
    shared = shared_endpoint(issuer) if is_entra or _ENTRA_HOST in issuer else ""
    if shared and not (is_entra and read["oidc_tenants"]):
        yield (
            "oidc_issuer",
            (
                f', and "{shared}" is no tenant: tokens name their own; give the URL with your '
                f"tenant's id, or set oidc_profile entra and list the accepted tenants in "
                f"{table['oidc_tenants'].flag}"
            ),
        )
    elif TENANT_MARK in issuer or shared:
        if not is_entra:
            yield "oidc_issuer", f" and has {TENANT_MARK}; that needs oidc_profile entra"
        for other in ("oidc_tenants", "oidc_jwks"):
            if not read[other]:
                yield "oidc_issuer", f", and {other} is missing; give {table[other].flag}"
    elif issuer and not jwks and not is_fetchable(issuer):
        yield "oidc_issuer", "; give a URL with https, or oidc_jwks"
    if "://" in jwks and not is_fetchable(jwks):
        yield "oidc_jwks", "; give a URL with https, or a file"


def _named(name: str, values: Mapping[str, object], sources: Mapping[str, str]) -> str:
    """Return 'drain_s is "ten" (flag --drain-s)'."""
    shown = str(without_secrets(values[name]))
    if len(shown) > _SHOWN_CHARACTERS_MAX:
        shown = f"{shown[:_SHOWN_CHARACTERS_MAX]}…"
    source = sources.get(name)
    return f'{name} is "{shown}"' + (f" ({source})" if source else "")


def without_secrets(value: Any) -> Any:
    """Return a value that may be shown: a store URL loses its user and password."""
    if not isinstance(value, str):
        return value
    return _QUERY_SECRET.sub(r"\1…", _USER_INFO.sub("//…@", value))
