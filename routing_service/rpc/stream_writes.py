"""One message of a stream, sent while its reader reads.

Owns: what becomes of a write that is not taken. Must not know: what is written, or what a reader is
told. Rule: a write that was begun is never given up: gRPC takes no other operation on a call, not
even its end, while one is under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from routing_service.core.errors import RoutingError


class ReaderTooSlow(Exception):
    """The reader has not taken a message in its time; the write of it goes on."""

    def __init__(self, writing: asyncio.Future[None]) -> None:
        """Keep the write. The call can be ended once it is done."""
        super().__init__("the stream's reader does not read")
        self.writing = writing


class ReaderRefused(RoutingError):
    """What a reader that was too slow is told, as soon as it can be told anything."""

    def __init__(self, error: RoutingError, slow: ReaderTooSlow) -> None:
        """Say what an error says, after a write."""
        super().__init__(
            error.reason,
            error.message,
            metadata=error.metadata,
            retry_after_s=error.retry_after_s,
        )
        self._writing = slow.writing

    async def can_be_told(self) -> None:
        """Wait until the reader has taken what was written for it, or has gone.

        As long as that takes: this costs the message, and ends with the call, at the latest when
        its connection is renewed.
        """
        with suppress(Exception):  # gRPC has its own, unnamed, for a peer that is gone.
            await self._writing


async def write_in_time(write: Coroutine[Any, Any, None], seconds: float) -> None:
    """Send one message. Raises ReaderTooSlow after so many seconds."""
    writing = asyncio.ensure_future(write)
    try:
        done, _ = await asyncio.wait({writing}, timeout=seconds)
    except asyncio.CancelledError:
        writing.cancel()  # The call is gone.
        raise
    if not done:
        raise ReaderTooSlow(writing)
    writing.result()
