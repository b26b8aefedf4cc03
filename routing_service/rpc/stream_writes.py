"""Writing one message of a stream with a time limit.

A write that has started is never given up: gRPC accepts no other operation on a call, not even its
end, while a write is in progress.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from routing_service.core.errors import RoutingError


class ReaderTooSlow(Exception):
    """The reader has not taken a message in time. The write goes on."""

    def __init__(self, writing: asyncio.Future[None]) -> None:
        """Keep the write. The call can be ended when it is done."""
        super().__init__("the stream's reader does not read")
        self.writing = writing


class ReaderRefused(RoutingError):
    """The error for a reader that was too slow, to be sent after the pending write."""

    def __init__(self, error: RoutingError, slow: ReaderTooSlow) -> None:
        """Copy an error, and remember the write that it has to wait for."""
        super().__init__(
            error.reason,
            error.message,
            metadata=error.metadata,
            retry_after_s=error.retry_after_s,
        )
        self._writing = slow.writing

    async def wait_for_write(self) -> None:
        """Wait until the reader has taken the message, or has disconnected.

        There is no time limit. The wait costs the memory of the message, and ends at the latest
        when the connection is renewed.
        """
        with suppress(Exception):  # gRPC raises an error of its own, unnamed, for a lost peer.
            await self._writing


async def write_in_time(write: Coroutine[Any, Any, None], seconds: float) -> None:
    """Send one message. Raises ReaderTooSlow after so many seconds."""
    writing = asyncio.ensure_future(write)
    try:
        done, _ = await asyncio.wait({writing}, timeout=seconds)
    except asyncio.CancelledError:
        writing.cancel()  # The call has ended.
        raise
    if not done:
        raise ReaderTooSlow(writing)
    writing.result()
