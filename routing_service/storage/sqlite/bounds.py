"""The bounds of a SQLite store's queues and waits, with the reasons for their values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from routing_service.storage.write_company import PACE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteBounds:
    """Bounds that only tests change."""

    waiting_writes_max: int = 8_192
    """Writes that may wait: about a second's worth. Further writes would time out in the queue."""
    waiting_bytes_max: int = 64 * 1024 * 1024
    """Memory that waiting writes may hold."""
    write_company_pace_s: float = PACE_S
    """See write_company.PACE_S."""
    checkpoint_idle_s: float = 1.0
    """After this long without a write the log is checkpointed, while no write waits."""
    reads_max: int = 128
    """Sessions of one read. A state is a few hundred bytes, 8 KiB at most: 1 MiB."""
    read_company_pace_s: float = 0.0001
    """If many write, a read waits this long for each write in hand: 0.8 ms with 8, 4 ms with 40."""
    read_company_s_max: float = 0.005
    """But at most this long: a tenth of what a caller waits among 64."""


DEFAULT_BOUNDS: Final = SqliteBounds()
