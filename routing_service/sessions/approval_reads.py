"""The requests of a tenant that wait for an approval, read through their index.

Rule: an entry of the index is only a hint. A request is shown only if its session's state waits for
it; an entry of one that does not is removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import structlog

from routing_service.core.session import Approval, OpenTurn, SessionState
from routing_service.core.strand_fold import parked_views
from routing_service.sessions.calls import PendingApproval
from routing_service.sessions.session_cache import SessionCache
from routing_service.sessions.session_reads import SessionReads
from routing_service.storage.checked_store import Store
from routing_service.storage.queue_entries import APPROVALS_QUEUE, QueueEntry, approval_entry
from routing_service.storage.store import SchemaTooNew, SessionKey, StoreCorrupt

READS_AT_ONCE: Final = 16
"""Sessions that one listing loads at the same time, as many as an inbox does."""

_log = structlog.get_logger(__name__)


class WaitingApproval(msgspec.Struct, frozen=True):
    """A request that waits for an approval, and what its agent wrote.

    state: the session as it is seen from the task that waits. voters: the hashes of all names of
    those who have approved.
    """

    key: SessionKey
    entry: QueueEntry
    state: SessionState
    paused: OpenTurn
    pending: PendingApproval
    voters: frozenset[str]

    @property
    def approval(self) -> Approval | None:
        """Its rule and votes; None for one that was asked for in a store of format 1."""
        return self.state.approval


Wanted = Callable[[SessionState, OpenTurn, frozenset[str]], bool]
"""Says of a paused session whether its request is wanted, before what the agent wrote is read. The
last argument: as voters of WaitingApproval."""


class ApprovalReads:
    """The waiting approvals of one store's sessions."""

    def __init__(
        self,
        store: Store,
        cache: SessionCache,
        reads: SessionReads,
        clock_us: Callable[[], int],
    ) -> None:
        """Read through a cache of sessions."""
        self._store = store
        self._cache = cache
        self._reads = reads
        self._clock_us = clock_us

    async def entries(
        self, tenant: str, after: QueueEntry | None, count: int
    ) -> tuple[QueueEntry, ...]:
        """Return up to count entries of the index after one of them, the oldest first.

        Raises StoreError.
        """
        items = await self._store.read_queue(tenant, APPROVALS_QUEUE, after, count)
        return tuple(item.entry for item in items)

    async def find_all(
        self, tenant: str, entries: Sequence[QueueEntry], wanted: Wanted
    ) -> list[WaitingApproval | None]:
        """Return the request of each entry; None for one that is not there, or not wanted.

        Raises StoreError; a damaged session is logged and left out.
        """
        found: list[WaitingApproval | None] = []
        for at in range(0, len(entries), READS_AT_ONCE):
            part = entries[at : at + READS_AT_ONCE]
            found += await asyncio.gather(*(self.find(tenant, entry, wanted) for entry in part))
        return found

    async def find(self, tenant: str, entry: QueueEntry, wanted: Wanted) -> WaitingApproval | None:
        """Return the request of one entry. As ``find_all``."""
        key = SessionKey(tenant, entry.session_id)
        try:
            async with self._cache.hold(key) as hot:
                state = await self._cache.current(key, hot)
                if state is not None and approval_entry(state) != entry:
                    views = (seen for _, seen in parked_views(state))
                    state = next((seen for seen in views if approval_entry(seen) == entry), state)
                if approval_entry(state) != entry:
                    await self._store.mend_queue(tenant, (), (entry,))
                    return None
                assert state is not None
                paused = state.paused
                assert paused is not None
                if self._has_expired(state):
                    return None
                voters = await self._reads.voter_names(key, state)
                if not wanted(state, paused, voters):
                    return None
                pending = await self._reads.pending_approval(key, paused)
        except (StoreCorrupt, SchemaTooNew) as error:
            _log.warning("approval_not_read", session_id=entry.session_id, error=str(error))
            return None
        return WaitingApproval(key, entry, state, paused, pending, voters)

    async def votes(self, tenant: str, entry: QueueEntry) -> int | None:
        """Return how many people have approved a request; None = it waits no longer.

        Raises StoreError.
        """
        votes: list[int] = []

        def note(state: SessionState, _paused: OpenTurn, _voters: frozenset[str]) -> bool:
            votes.append(len(state.approval.voters) if state.approval else 0)
            return False

        await self.find(tenant, entry, note)
        return votes[0] if votes else None

    def _has_expired(self, state: SessionState) -> bool:
        """Say whether its time has passed; the change that says so may be a moment away."""
        task, approval = state.task, state.approval
        times = (task.expire_us if task else None, approval.expire_us if approval else None)
        now_us = self._clock_us()
        return any(time_us is not None and time_us <= now_us for time_us in times)
