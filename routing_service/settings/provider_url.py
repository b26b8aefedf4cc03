"""The form of an identity provider's addresses.

Rule: imports nothing of the project, so that settings are checked without loading the sign-in.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

TENANT_MARK: Final = "{tid}"
"""In an issuer: stands for the tenant of a token, which must be an accepted one."""

_SHARED: Final = frozenset({"common", "organizations", "consumers"})
"""Endpoints of Entra ID for many tenants. Tokens name their own tenant in iss, never these."""

_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


def is_fetchable(url: str) -> bool:
    """Say whether keys may be fetched from a URL: by https, or from this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        return False
    return bool(host) and (
        parts.scheme == "https" or (parts.scheme == "http" and host in _LOOPBACK)
    )


def shared_endpoint(issuer: str) -> str:
    """Return which endpoint for many tenants an issuer of Entra ID names; "" for none."""
    return next((part for part in issuer.split("/") if part in _SHARED), "")


def with_tenant_mark(issuer: str) -> str:
    """Return an issuer of Entra ID as tokens have it: with TENANT_MARK for a shared endpoint."""
    return "/".join(TENANT_MARK if part in _SHARED else part for part in issuer.split("/"))
