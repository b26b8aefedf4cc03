"""The bounds of a DynamoDB store's queue and waits, with the reasons for their values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamodbBounds:
    """Bounds that only tests change."""

    waiting_writes_max: int = 8_192
    """Writes that may wait: some seconds' worth. Further writes would time out in the queue."""
    hole_wait_s: float = 1.0
    """How long a hole is left to its writer, who needs some 10 ms; a slower writer writes again. It
    is also how long watchers wait in vain after a process was killed between the two steps."""
    settle_step: int = 256
    """Places that a sequence must grow by before its settled place is stored again."""
    settle_every: int = 1_024
    """Places after which a writer does that if no reader has: finding the end then reads no more
    than a few thousand places, of some 150 bytes, from each sequence."""


DEFAULT_BOUNDS: Final = DynamodbBounds()
