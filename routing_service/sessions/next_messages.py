"""Sends messages that waited on as soon as the turn before them has ended.

The change that ended it makes the session due, so the sweeper does the same a second later if this
process does not come to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from routing_service.core.queued_messages import is_any_due
from routing_service.core.session import SessionState
from routing_service.sessions.calls import Expiry
from routing_service.storage.store import Append, SessionKey

_log = structlog.get_logger(__name__)


class NextMessages:
    """The sessions of this process whose next message may go on."""

    def __init__(
        self,
        expire: Callable[[SessionKey], Awaitable[Expiry]],
        on_entries: Callable[[Append], None],
    ) -> None:
        """Send them on by the command of time-outs. on_entries: is given each append first."""
        self._expire = expire
        self._on_entries = on_entries
        self._sending: set[asyncio.Task[None]] = set()

    def changed(self, append: Append, state: SessionState) -> None:
        """Take an append that changed entries of queues, and the state after it."""
        self._on_entries(append)
        if is_any_due(state):
            task = asyncio.create_task(self._send_on(append.key), name="next message")
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _send_on(self, key: SessionKey) -> None:
        try:
            await self._expire(key)
        except Exception as error:  # noqa: BLE001 - the sweeper tries it again
            _log.warning("message_not_sent_on", session_id=key.session_id, error=str(error))
