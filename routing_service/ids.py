"""New ids for those that callers leave out.

Ids are time-ordered (UUIDv7), or derived (UUIDv5) if a retry has to find the same thing again.
"""

from __future__ import annotations

import os
import re
import time
import uuid
from typing import Final

_SESSIONS: Final = uuid.UUID("6f2d1e0a-3c53-5b61-9f0e-5a1d0c7be4a1")
"""The namespace of derived session ids. Never changes: a retry over a release must find them."""


_RANDOM_BYTES: Final = 10
_BATCH: Final = 256
_RANDOM_BITS: Final = int.from_bytes(bytes.fromhex("0fff3fffffffffffffff") * _BATCH)
_FIXED_BITS: Final = int.from_bytes(bytes.fromhex("70008000000000000000") * _BATCH)
"""The version is a digit of its own, the variant the upper two bits of the next group."""
_GROUPS: Final = re.compile("(.{4})(.{4})(.{12})")
_random_halves: list[str] = []


def _more_random_halves() -> str:
    """Make the last three groups of 256 ids; return one of them.

    Each fetch of the system's randomness lets other threads have Python's interpreter lock, which
    costs a busy event loop ten times the fetch itself. Taking a list's last entry is one step, so
    no two callers get the same.
    """
    fetched = int.from_bytes(os.urandom(_RANDOM_BYTES * _BATCH)) & _RANDOM_BITS | _FIXED_BITS
    digits = fetched.to_bytes(_RANDOM_BYTES * _BATCH).hex()
    mine, *others = map("-".join, _GROUPS.findall(digits))
    _random_halves.extend(others)
    return mine


if hasattr(os, "register_at_fork"):
    # A child process would make its parent's ids.
    os.register_at_fork(after_in_child=_random_halves.clear)


def new_uuid7() -> str:
    """Return a UUIDv7 (RFC 9562): milliseconds since 1970, then random bits."""
    when = f"{time.time_ns() // 1_000_000:012x}"
    try:
        random_half = _random_halves.pop()
    except IndexError:
        random_half = _more_random_halves()
    return f"{when[:8]}-{when[8:]}-{random_half}"


def derived_session_id(tenant: str, user_id: str, request_id: str) -> str:
    """Return the session id for a first message without one, the same for every repeat of it."""
    # Lengths keep the parts apart, whatever they hold.
    name = f"{len(tenant)}:{tenant}{len(user_id)}:{user_id}{request_id}"
    return str(uuid.uuid5(_SESSIONS, name))
