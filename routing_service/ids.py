"""New ids for what callers leave out.

Owns: how task, request and session ids are made. Must not know: what they are for.
Rule: time-ordered (UUIDv7) where nobody could have named it, derived (UUIDv5) where a retry has to
find the same thing again.
"""

from __future__ import annotations

import os
import time
import uuid
from typing import Final

_SESSIONS: Final = uuid.UUID("6f2d1e0a-3c53-5b61-9f0e-5a1d0c7be4a1")
"""The namespace of derived session ids. Never changes: a retry over a release must find them."""


_VARIANT_DIGITS: Final = "89ab" * 4
_RANDOM_BYTES: Final = 10
_CHUNKS: Final = 256
_chunks: list[bytes] = []


def _random_bytes() -> bytes:
    """Return ten bytes of the system's randomness, fetched for 256 ids at once.

    Each fetch lets other threads have Python's interpreter lock, which costs a busy event loop ten
    times the fetch itself. Taking a list's last chunk is one step, so no two callers get the same.
    """
    try:
        return _chunks.pop()
    except IndexError:
        fetched = os.urandom(_RANDOM_BYTES * _CHUNKS)
        pieces = [fetched[at : at + _RANDOM_BYTES] for at in range(0, len(fetched), _RANDOM_BYTES)]
        _chunks.extend(pieces[1:])
        return pieces[0]


if hasattr(os, "register_at_fork"):
    # A child process would make its parent's ids.
    os.register_at_fork(after_in_child=_chunks.clear)


def new_uuid7() -> str:
    """Return a UUIDv7 (RFC 9562): milliseconds since 1970, then random bits."""
    milliseconds = time.time_ns() // 1_000_000
    when = f"{milliseconds:012x}"
    rest = _random_bytes().hex()
    # The version is a digit of its own, the variant the upper two bits of the next group's first.
    variant = _VARIANT_DIGITS[int(rest[3], 16)]
    return f"{when[:8]}-{when[8:]}-7{rest[:3]}-{variant}{rest[4:7]}-{rest[7:19]}"


def derived_session_id(tenant: str, user_id: str, request_id: str) -> str:
    """Return the session id for a first message without one, the same for every repeat of it."""
    # Lengths keep the parts apart, whatever they hold.
    name = f"{len(tenant)}:{tenant}{len(user_id)}:{user_id}{request_id}"
    return str(uuid.uuid5(_SESSIONS, name))
