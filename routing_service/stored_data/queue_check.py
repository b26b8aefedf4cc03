"""The entries of queues compared with the sessions that they are hints to, and put right.

An entry is wrong if its session does not wait there, or missing if a session waits for an approval
without one. Whether an inbox lacks an entry depends on the registry, which a store does not have:
the server puts such an entry back when it next loads the session.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Final

from routing_service.core.inbox import InboxPlace, find_placed
from routing_service.core.session import SessionState
from routing_service.core.strand_fold import every_open_turn
from routing_service.storage.checked_store import Store
from routing_service.storage.event_codec import decode_state
from routing_service.storage.queue_entries import APPROVALS_QUEUE, QueueEntry, approval_entries
from routing_service.storage.store import CURSOR_START, SchemaTooNew, SessionKey, StoreCorrupt
from routing_service.stored_data.whole_session import SESSIONS_PER_READ, tenants_of

ENTRIES_FORMAT: Final = 2
"""The store's format from which every release that writes there keeps the index of approvals."""

ENTRIES_PER_READ: Final = 256
"""Entries of a queue in one page; they are small."""


@dataclass(frozen=True, slots=True)
class WrongEntry:
    """An entry that does not fit its session.

    is_missing: it should be there and is not; otherwise it is there and should not.
    """

    tenant: str
    entry: QueueEntry
    is_missing: bool

    def __str__(self) -> str:
        key = SessionKey(self.tenant, self.entry.session_id)
        if self.is_missing:
            return (
                f'session "{key}" waits for the approval of request {self.entry.request_id}, and '
                "the index of approvals does not have it"
            )
        is_approval = self.entry.queue == APPROVALS_QUEUE
        where = "the index of approvals" if is_approval else f'the inbox of "{self.entry.queue}"'
        return (
            f'{where} has request {self.entry.request_id} of session "{key}", which does not wait '
            "there"
        )


class QueueCheck:
    """Compares the queues of one tenant with its sessions.

    Give it each session, then ask for the entries that are left over.
    """

    def __init__(self, store: Store, tenant: str) -> None:
        """Begin without sessions."""
        self._store = store
        self._tenant = tenant
        self._queues = {APPROVALS_QUEUE}

    async def missing(self, session_id: str) -> WrongEntry | None:
        """Return an entry that a session lacks, if any. Raises StoreUnavailable."""
        state = await self._state(session_id)
        if state is None:
            return None
        self._queues.update(_agents_of(state))
        for entry in approval_entries(state):
            if await self._store.find_item(self._tenant, entry) is not None:
                continue
            # It may have been decided between the two reads.
            if entry in approval_entries(await self._state(session_id)):
                return WrongEntry(self._tenant, entry, is_missing=True)
        return None

    async def left_over(self) -> AsyncIterator[WrongEntry]:
        """Yield the entries whose sessions do not wait there.

        In the index of approvals, and in the inboxes of agents that the sessions name.
        """
        for queue in sorted(self._queues):
            after: QueueEntry | None = None
            while True:
                page = await self._store.read_queue(self._tenant, queue, after, ENTRIES_PER_READ)
                for item in page:
                    if not await self._fits(item.entry):
                        yield WrongEntry(self._tenant, item.entry, is_missing=False)
                if len(page) < ENTRIES_PER_READ:
                    break
                after = page[-1].entry

    async def _fits(self, entry: QueueEntry) -> bool:
        """Say whether a session waits where its entry says. One that is unreadable may."""
        try:
            head = await self._store.load(SessionKey(self._tenant, entry.session_id))
            state = None if head is None else decode_state(head.state)
        except (StoreCorrupt, SchemaTooNew):
            return True
        if _waits(state, entry):
            return True
        # It may have been answered between the two reads.
        return await self._store.find_item(self._tenant, entry) is None

    async def _state(self, session_id: str) -> SessionState | None:
        """Return a session's state; None = it has none that can be read."""
        try:
            head = await self._store.load(SessionKey(self._tenant, session_id))
            return None if head is None else decode_state(head.state)
        except (StoreCorrupt, SchemaTooNew):
            return None


async def rebuild_queues(store: Store) -> int:
    """Put what the index of approvals lacks, remove entries that no session waits at; return both.

    Safe while servers run, and to repeat. Raises StoreUnavailable.
    """
    mended = 0
    async for tenant in tenants_of(store):
        check = QueueCheck(store, tenant)
        async for wrong in wrong_entries(store, tenant, check):
            put, drop = ((wrong.entry,), ()) if wrong.is_missing else ((), (wrong.entry,))
            await store.mend_queue(tenant, put, drop)
            mended += 1
    return mended


async def wrong_entries(store: Store, tenant: str, check: QueueCheck) -> AsyncIterator[WrongEntry]:
    """Yield every wrong entry of a tenant. Raises StoreUnavailable."""
    cursor = CURSOR_START
    while True:
        page, cursor = await store.list_sessions(tenant, cursor, SESSIONS_PER_READ)
        if not page:
            break
        for row in page:
            wrong = await check.missing(row.key.session_id)
            if wrong is not None:
                yield wrong
    async for wrong in check.left_over():
        yield wrong


def _agents_of(state: SessionState) -> Iterable[str]:
    """Return the agents that a state names: what waits for one is in its inbox."""
    yield from state.turns_by_agent
    for turn in every_open_turn(state):
        yield from turn.path
    yield state.previous_agent


def _waits(state: SessionState | None, entry: QueueEntry) -> bool:
    if state is None:
        return False
    if entry.queue == APPROVALS_QUEUE:
        return entry in approval_entries(state)
    return find_placed(state, InboxPlace(entry.queue, entry.place_us, entry.request_id)) is not None
