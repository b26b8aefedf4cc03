"""Watches of the requests that wait for an approval: one look at the index serves all of a tenant.

A replica learns of its own changes at once, and of those of others within POLL_S. Votes change no
entry of the index, so those of others are looked for every VOTES_S.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import structlog

from routing_service.core.errors import Reason, RoutingError
from routing_service.sessions.approval_reads import (
    READS_AT_ONCE,
    ApprovalReads,
    WaitingApproval,
    Wanted,
)
from routing_service.storage.checked_store import Store
from routing_service.storage.queue_entries import APPROVALS_QUEUE, QueueEntry
from routing_service.storage.store import Append, StoreClosed, StoreError

WATCHED_MAX: Final = 10_000
"""Requests of one tenant that are watched, the oldest. Each takes about half a kilobyte here."""

POLL_S: Final = 1.0
"""How often the index is read. Hints of the store are not used: each commit gives one, and only few
commits ask for an approval."""

VOTES_S: Final = 5.0
"""How often requests that need several approvals are read, where other processes may write."""

PAGE_ENTRIES: Final = 256
"""Entries of one read, as for an inbox."""

RETRY_S: Final = 1.0
"""The pause after the store has failed."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Ended:
    """A request that was shown to a watcher and waits no longer."""

    entry: QueueEntry


@dataclass(frozen=True, slots=True)
class Beat:
    """A sign of life. is_complete: all that waited at the beginning has been yielded."""

    is_complete: bool


Seen = WaitingApproval | Ended | Beat


@dataclass(eq=False, slots=True)
class _Board:
    """What waits in a tenant, as the watches of this replica see it.

    versions: of each entry; it grows with each known vote. votes: of requests that need several.
    """

    tenant: str
    versions: dict[QueueEntry, int] = field(default_factory=dict)
    votes: dict[QueueEntry, int] = field(default_factory=dict)
    is_read: bool = False
    votes_read_s: float = 0.0
    watchers: set[asyncio.Event] = field(default_factory=set)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    def tell(self) -> None:
        """Wake all watches."""
        for event in self.watchers:
            event.set()


class ApprovalWatches:
    """The watches of approvals of one server."""

    def __init__(self, store: Store, *, poll_s: float = POLL_S, votes_s: float = VOTES_S) -> None:
        """Watch one store. poll_s, votes_s: see POLL_S, VOTES_S."""
        self._store = store
        self._poll_s = poll_s
        self._votes_s = votes_s
        self._reads: ApprovalReads | None = None
        self._boards: dict[str, _Board] = {}
        self._closed = False

    def serve(self, reads: ApprovalReads) -> None:
        """Take what reads the sessions; it is made with ``entries_changed``."""
        self._reads = reads

    def entries_changed(self, append: Append) -> None:
        """Note what a commit of this process has put and dropped; a vote has neither.

        Other changes of tasks with neither only make the watches look at a session again.
        """
        board = self._boards.get(append.key.tenant)
        if board is None:
            return
        entries = (*append.inbox_put, *append.inbox_drop)
        if not entries:
            for entry in board.versions:
                if entry.session_id == append.key.session_id:
                    board.versions[entry] += 1
            board.tell()
        elif any(entry.queue == APPROVALS_QUEUE for entry in entries):
            board.wake.set()

    def close(self) -> None:
        """End every watch with SHUTTING_DOWN."""
        self._closed = True
        for board in self._boards.values():
            board.tell()

    async def watch(self, tenant: str, wanted: Wanted, heartbeat_s: float) -> AsyncIterator[Seen]:
        """Yield what waits, then what begins, changes and ends.

        Raises SHUTTING_DOWN when the server stops; StoreError.
        """
        assert self._reads is not None
        changed = asyncio.Event()
        with self._watching(tenant, changed) as board:
            looked: dict[QueueEntry, int] = {}
            shown: set[QueueEntry] = set()
            is_complete = False
            while True:
                changed.clear()
                for entry in [entry for entry in looked if entry not in board.versions]:
                    del looked[entry]
                    if entry in shown:
                        shown.discard(entry)
                        yield Ended(entry)
                fresh = [e for e, version in board.versions.items() if looked.get(e) != version]
                for at in range(0, len(fresh), READS_AT_ONCE):
                    part = fresh[at : at + READS_AT_ONCE]
                    for entry in part:
                        looked[entry] = board.versions.get(entry, 0)
                    found = await self._reads.find_all(tenant, part, wanted)
                    for entry, waiting in zip(part, found, strict=True):
                        if waiting is not None:
                            shown.add(entry)
                            self._note_votes(board, waiting)
                            yield waiting
                        elif entry in shown:
                            shown.discard(entry)
                            yield Ended(entry)
                if board.is_read and not is_complete and not changed.is_set():
                    is_complete = True
                    yield Beat(is_complete)
                if self._closed:
                    raise RoutingError(
                        Reason.SHUTTING_DOWN,
                        "the server is shutting down; watch again",
                        retry_after_s=1.0,
                    )
                try:
                    async with asyncio.timeout(heartbeat_s):
                        await changed.wait()
                except TimeoutError:
                    yield Beat(is_complete)

    @contextmanager
    def _watching(self, tenant: str, changed: asyncio.Event) -> Iterator[_Board]:
        board = self._boards.get(tenant)
        if board is None:
            board = self._boards[tenant] = _Board(tenant)
            board.task = asyncio.create_task(self._run(board), name="approvals")
        board.watchers.add(changed)
        try:
            yield board
        finally:
            board.watchers.discard(changed)
            if not board.watchers and board.task is not None:
                board.task.cancel()
                self._boards.pop(tenant, None)

    async def _run(self, board: _Board) -> None:
        """Look at a tenant's index for as long as it has watches."""
        while True:
            board.wake.clear()
            try:
                await self._look(board)
                await self._look_at_votes(board)
            except StoreClosed:
                return
            except StoreError as error:
                _log.warning("approvals_not_read", tenant=board.tenant, error=str(error))
                await asyncio.sleep(RETRY_S)
            except Exception:  # noqa: BLE001 - the watches must go on with the next look
                _log.exception("approvals_not_read", tenant=board.tenant)
                await asyncio.sleep(RETRY_S)
            try:
                async with asyncio.timeout(self._poll_s):
                    await board.wake.wait()
            except TimeoutError:
                pass

    async def _look(self, board: _Board) -> None:
        """Read the index, and tell the watches of what it has and has not."""
        assert self._reads is not None
        seen: dict[QueueEntry, int] = {}
        after: QueueEntry | None = None
        while len(seen) < WATCHED_MAX:
            page = await self._reads.entries(board.tenant, after, PAGE_ENTRIES)
            for entry in page:
                seen[entry] = board.versions.get(entry, 1)
            if len(page) < PAGE_ENTRIES:
                break
            after = page[-1]
        is_new = seen != board.versions or not board.is_read
        board.versions = seen
        board.votes = {entry: n for entry, n in board.votes.items() if entry in seen}
        board.is_read = True
        if is_new:
            board.tell()

    async def _look_at_votes(self, board: _Board) -> None:
        """Look for votes that other processes have counted."""
        assert self._reads is not None
        now_s = asyncio.get_running_loop().time()
        if not self._store.shared_writers or now_s - board.votes_read_s < self._votes_s:
            return
        board.votes_read_s = now_s
        for entry, known in list(board.votes.items()):
            votes = await self._reads.votes(board.tenant, entry)
            if votes not in (None, known) and entry in board.versions:
                board.votes[entry] = votes or 0
                board.versions[entry] += 1
                board.tell()

    @staticmethod
    def _note_votes(board: _Board, waiting: WaitingApproval) -> None:
        approval = waiting.approval
        if approval is not None and approval.needs > 1 and waiting.entry in board.versions:
            board.votes[waiting.entry] = len(approval.voters)
