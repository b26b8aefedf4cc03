"""The bounds of a PostgreSQL store's queue and waits, with the reasons for their values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from routing_service.storage.write_company import PACE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresBounds:
    """Bounds that only tests change."""

    waiting_writes_max: int = 8_192
    """Writes that may wait: about a second's worth. Further writes would time out in the queue."""
    waiting_bytes_max: int = 64 * 1024 * 1024
    """Memory that waiting writes may hold."""
    write_company_pace_s: float = PACE_S
    """See write_company.PACE_S."""
    held_back_wait_s: float = 0.2
    """How long a read waits for committed rows that a running transaction holds back. A group of
    appends takes some milliseconds; a longer transaction is another application's."""


DEFAULT_BOUNDS: Final = PostgresBounds()
