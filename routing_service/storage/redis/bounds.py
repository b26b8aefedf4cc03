"""The bounds of a Redis store's queues and waits, with the reasons for their values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from routing_service.storage.write_company import PACE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisBounds:
    """Bounds that only tests change."""

    waiting_calls_max: int = 8_192
    """Calls that may wait: about a second's worth. Further calls would time out in the queue."""
    waiting_bytes_max: int = 64 * 1024 * 1024
    """Memory that waiting calls may hold."""
    write_company_pace_s: float = PACE_S
    """See write_company.PACE_S."""
    claim_wait_s: float = 0.25
    """How long another writer's claim may lack its task before it is fenced off. Its append follows
    within a round trip; a slower one was abandoned, or has to claim again."""


DEFAULT_BOUNDS: Final = RedisBounds()
