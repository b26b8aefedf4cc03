"""New ids for requests.

They are ordered by time and use the system's randomness, so that a forked process gets its own.
"""

from __future__ import annotations

import os
import time


def new_uuid7() -> str:
    """Return a UUIDv7 (RFC 9562) in its canonical form: the time in milliseconds, random bits."""
    milliseconds = time.time_ns() // 1_000_000
    number = (milliseconds & (1 << 48) - 1) << 80 | int.from_bytes(os.urandom(10))
    number = number & ~(0xF << 76) | 0x7 << 76
    number = number & ~(0x3 << 62) | 0x2 << 62
    digits = f"{number:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
