"""Where an identity provider may be.

Owns: the form of its addresses. Must not know: what is fetched from there.
Rule: imports nothing, so that settings are checked without loading what signs in.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

TENANT_MARK: Final = "{tid}"
"""In an issuer: stands for the tenant of a token, of those that are let in."""

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
