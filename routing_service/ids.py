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


def new_uuid7() -> str:
    """Return a UUIDv7 (RFC 9562): milliseconds since 1970, then random bits."""
    milliseconds = time.time_ns() // 1_000_000
    number = (milliseconds & (1 << 48) - 1) << 80 | int.from_bytes(os.urandom(10))
    number = number & ~(0xF << 76) | 0x7 << 76
    number = number & ~(0x3 << 62) | 0x2 << 62
    digits = f"{number:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def derived_session_id(tenant: str, user_id: str, request_id: str) -> str:
    """Return the session id for a first message without one, the same for every repeat of it."""
    # Lengths keep the parts apart, whatever they hold.
    name = f"{len(tenant)}:{tenant}{len(user_id)}:{user_id}{request_id}"
    return str(uuid.uuid5(_SESSIONS, name))
