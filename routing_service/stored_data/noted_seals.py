"""Seals noted outside a store, as files have them: one JSON object a line.

A line is a note of a server (``audit_seals_file``), a line ``audit_sealed`` of its log, or a record
of ``agent-routing audit export``. Lines about anything else are passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec

_HASH: Final = re.compile(r"[0-9a-f]{64}")


class NotedSeal(msgspec.Struct, frozen=True, omit_defaults=True):
    """A seal that a store should have. seal: its number. hash: in hexadecimal.

    missing_us: since when a server has missed it there, in microseconds since 1970; 0 = it has not.
    """

    tenant: str
    seal: int
    hash: str
    missing_us: int = 0


class NotASeal(Exception):
    """A line is not JSON, or names a seal in another form. Its text says which and why."""


def noted_seal(tenant: str, text: str) -> NotedSeal:
    """Read SEAL:HASH. Raises NotASeal."""
    number, _, link = text.partition(":")
    return _checked({"tenant": tenant, "seal": number, "hash": link}, f'"{text}"')


def seals_in(lines: Iterable[bytes]) -> list[NotedSeal]:
    """Return the seals that lines name, in their order. Raises NotASeal."""
    found: list[NotedSeal] = []
    for place, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            read = msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.DecodeError as error:
            message = f"line {place} is not a JSON object"
            raise NotASeal(message) from error
        event = read.get("event")
        if isinstance(event, dict):
            sealed = event.get("audit_sealed")
            if not isinstance(sealed, dict):
                continue
            read = {**sealed, "tenant": read.get("tenant")}
        if "seal" in read and "hash" in read:
            found.append(_checked(read, f"line {place}"))
    return found


def _checked(read: dict[str, Any], where: str) -> NotedSeal:
    tenant, number, link = read.get("tenant"), str(read["seal"]), read["hash"]
    is_hash = isinstance(link, str) and _HASH.fullmatch(link)
    if not isinstance(tenant, str) or not number.isdecimal() or not int(number) or not is_hash:
        message = f"{where} is not the number of a seal and its hash of 64 hexadecimal digits"
        raise NotASeal(message)
    missing = read.get("missing_us", 0)
    return NotedSeal(tenant, int(number), link, missing if isinstance(missing, int) else 0)
