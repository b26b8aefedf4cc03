"""Inboxes of this replica: offers waiting turns to the workers that are connected to it.

Rule: a turn is sent only with a lease that the store has granted, and only if the session's state
has it open and live. One task serves all workers of an agent, so that a queue is read once however
many wait for it.

A replica learns of its own changes at once, without a read, and of those of others by hints, where
the store has them, or within POLL_S. The same read finds leases that have lapsed.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

import structlog

from routing_service.core.errors import Reason, RoutingError
from routing_service.core.registry import Agent, AgentKind
from routing_service.sessions.command_handler import CommandHandler
from routing_service.sessions.inbox_backlog import ENTRIES_MAX, OFFERS_AHEAD, Backlog
from routing_service.sessions.inbox_entries import place_at
from routing_service.sessions.inbox_turns import WaitingTurn
from routing_service.storage.checked_store import Store
from routing_service.storage.queue_entries import LeaseWish, QueueEntry, QueueItem
from routing_service.storage.store import (
    Append,
    SessionKey,
    StoreClosed,
    StoreError,
    StoreUnavailable,
)

POLL_S: Final = 0.5
"""How often a queue with workers is read without a hint: a lapsed lease is offered again within
this time."""

PAGE_ENTRIES: Final = 256
"""Entries of one page. Leased ones are the oldest, so more pages follow if these are all leased."""

OFFERS_AT_ONCE: Final = 16
"""Turns that are leased and loaded at the same time."""

ATTEMPTS_MAX: Final = 5
"""Leases of one turn that may lapse. Then it is abandoned: it may be what makes workers crash."""

RETRY_S: Final = 1.0
"""The pause after the store has failed."""

_RESUME_BYTES: Final = 16
_TOKEN_BYTES: Final = 8

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Offer:
    """A turn for one worker, with its lease."""

    key: SessionKey
    item: QueueItem
    waiting: WaitingTurn


@dataclass(slots=True)
class InboxFigures:
    """What the workers of this process did; depth and oldest_s are of this moment."""

    workers: int = 0
    """Workers that are connected."""
    offers: int = 0
    redeliveries: int = 0
    leases_lost: int = 0
    abandoned: int = 0
    depth: int = 0
    """Entries that the latest looks at the watched queues found, at most those that were read."""
    oldest_s: float = 0.0
    """The age of the oldest turn without a lease in any watched queue."""


@dataclass(eq=False, slots=True)
class InboxWatch:
    """One worker's stream.

    held: the leases of turns that it has. resume_token: begins the tokens of its leases.
    """

    tenant: str
    agent_ids: tuple[str, ...]
    worker_id: str
    capacity: int
    lease_us: int
    history_turns: int
    resume_token: str
    held: dict[QueueEntry, str] = field(default_factory=dict)
    offers: deque[Offer] = field(default_factory=deque)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    has_ended: bool = False

    @property
    def room(self) -> int:
        """How many more turns it takes."""
        return 0 if self.has_ended else self.capacity - len(self.held)


@dataclass(eq=False, slots=True)
class _Queue:
    """An agent's inbox with the workers of this replica.

    is_behind: others may have changed it since it was read. read_s: when it was last read as far as
    it is followed, by the event loop's clock.
    """

    tenant: str
    agent_id: str
    watches: list[InboxWatch] = field(default_factory=list)
    backlog: Backlog = field(default_factory=Backlog)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    is_behind: bool = False
    read_s: float = -math.inf
    depth: int = 0
    oldest_us: int = 0

    def look_again(self) -> None:
        """Have it read once more: others may have changed it."""
        self.is_behind = True
        self.wake.set()

    def holder_of(self, entry: QueueEntry) -> InboxWatch | None:
        """Return the stream that has an entry's lease."""
        for watch in self.watches:
            if entry in watch.held:
                return watch
        return None


class Inbox:
    """The inboxes of one store, as the workers of this replica see them."""

    def __init__(self, store: Store, *, poll_s: float = POLL_S) -> None:
        """Serve one store. poll_s: see POLL_S."""
        self._store = store
        self._poll_s = poll_s
        self._handler: CommandHandler | None = None
        self._queues: dict[tuple[str, str], _Queue] = {}
        self._watches = 0
        self._closed = False
        self._hints: asyncio.Task[None] | None = None
        self._counts = InboxFigures()
        self._offering: set[asyncio.Task[None]] = set()

    def serve(self, handler: CommandHandler) -> None:
        """Take the handler whose sessions have the turns; it is made with ``entries_changed``."""
        self._handler = handler

    def figures(self, now_us: int) -> InboxFigures:
        """Return the counts, and depth and age of the watched queues."""
        queues = self._queues.values()
        ages = (now_us - queue.oldest_us for queue in queues if queue.oldest_us)
        return replace(
            self._counts,
            workers=self._watches,
            depth=sum(queue.depth for queue in queues),
            oldest_s=max(0, max(ages, default=0)) / 1_000_000,
        )

    def entries_changed(self, append: Append) -> None:
        """Note what a commit of this process has put and dropped."""
        tenant = append.key.tenant
        for entry in append.inbox_drop:
            queue = self._queues.get((tenant, entry.queue))
            if queue is not None:
                queue.backlog.discard(entry)
                if watch := queue.holder_of(entry):
                    self._freed(queue, watch, entry)
        for entry in append.inbox_put:
            queue = self._queues.get((tenant, entry.queue))
            if queue is not None:
                queue.backlog.add(entry, append.user_id)
                queue.wake.set()

    def given_back(self, tenant: str, entry: QueueEntry) -> None:
        """Note that a worker has given a turn back."""
        queue = self._queues.get((tenant, entry.queue))
        if queue is not None:
            if watch := queue.holder_of(entry):
                self._freed(queue, watch, entry)
            queue.look_again()

    async def keep(
        self, tenant: str, entry: QueueEntry, token: str, lease_us: int | None
    ) -> QueueItem | None:
        """Extend a lease, or give it back if lease_us is 0; None leaves it. Return its entry.

        None = it is not the caller's. Raises StoreError.
        """
        found = await self._store.find_item(tenant, entry)
        if found is None or found.token != token:
            return None
        if lease_us is None:
            return found
        wish = LeaseWish(token, token, found.worker, lease_us)
        kept = await self._store.lease_item(tenant, entry, wish)
        if kept is None or (lease_us and kept.token != token):
            return None
        if not lease_us:
            self.given_back(tenant, entry)
        return kept

    async def take_back(self, tenant: str, entry: QueueEntry) -> None:
        """Take a turn from the worker that has it, if one has; another gets it at once.

        Raises StoreError.
        """
        found = await self._store.find_item(tenant, entry)
        if found is None or not found.token:
            return
        wish = LeaseWish(found.token, found.token, found.worker, 0)
        taken = await self._store.lease_item(tenant, entry, wish)
        if taken is not None and not taken.token:
            self.given_back(tenant, entry)

    def close(self) -> None:
        """End every stream with SHUTTING_DOWN; its leases stand until they lapse."""
        self._closed = True
        for queue in self._queues.values():
            for watch in queue.watches:
                watch.wake.set()

    async def offers(self, watch: InboxWatch, heartbeat_s: float) -> AsyncIterator[Offer | None]:
        """Yield the turns for a worker; None = a heartbeat is due.

        Raises SHUTTING_DOWN when the server stops.
        """
        with self._watching(watch):
            try:
                while True:
                    watch.wake.clear()
                    while watch.offers:
                        offer = watch.offers.popleft()
                        # It may have been completed, or have lapsed, while the stream was slow.
                        if offer.item.entry in watch.held:
                            self._counts.offers += 1
                            self._counts.redeliveries += offer.item.attempt > 1
                            yield offer
                    if watch.has_ended:
                        return  # The worker has another stream by now.
                    if self._closed:
                        raise RoutingError(
                            Reason.SHUTTING_DOWN,
                            "the server is shutting down; watch again, with the resume token",
                            retry_after_s=1.0,
                        )
                    try:
                        async with asyncio.timeout(heartbeat_s):
                            await watch.wake.wait()
                    except TimeoutError:
                        yield None
            finally:
                watch.has_ended = True
                unsent = [offer.item for offer in watch.offers]
                watch.offers.clear()
                await asyncio.shield(self._give_back(watch, unsent))

    @contextmanager
    def _watching(self, watch: InboxWatch) -> Iterator[None]:
        self._watches += 1
        self._take_over(watch)
        queues = [self._queue(watch.tenant, agent_id) for agent_id in watch.agent_ids]
        for queue in queues:
            queue.watches.append(watch)
            queue.look_again()
        try:
            yield
        finally:
            self._watches -= 1
            for queue in queues:
                queue.watches.remove(watch)
                queue.look_again()
                if not queue.watches and queue.task is not None:
                    # Its turns of this replica are leased to streams that have ended.
                    queue.task.cancel()
                    self._queues.pop((queue.tenant, queue.agent_id), None)
            if not self._watches and self._hints is not None:
                self._hints.cancel()
                self._hints = None

    def _take_over(self, watch: InboxWatch) -> None:
        """End the stream that a worker had before, if this server has not noticed its end yet."""
        for agent_id in watch.agent_ids:
            queue = self._queues.get((watch.tenant, agent_id))
            for other in queue.watches if queue is not None else ():
                if other.resume_token == watch.resume_token:
                    other.has_ended = True
                    other.held.clear()
                    other.offers.clear()
                    other.wake.set()

    def _queue(self, tenant: str, agent_id: str) -> _Queue:
        queue = self._queues.get((tenant, agent_id))
        if queue is None:
            queue = self._queues[tenant, agent_id] = _Queue(tenant, agent_id)
            queue.task = asyncio.create_task(self._run(queue), name="inbox")
        if self._hints is None and self._store.hears_changes:
            self._hints = asyncio.create_task(self._follow_hints(), name="inbox hints")
        return queue

    async def _follow_hints(self) -> None:
        """Look at all queues when another process may have put something."""
        seen = 0
        while True:
            try:
                hints = await self._store.wait_for_changes(seen, self._poll_s)
            except StoreError:
                await asyncio.sleep(RETRY_S)
                continue
            if hints != seen:
                seen = hints
                for queue in self._queues.values():
                    queue.look_again()

    async def _run(self, queue: _Queue) -> None:
        """Serve a queue for as long as it has workers."""
        while True:
            queue.wake.clear()
            try:
                await self._look(queue)
            except StoreClosed:
                return
            except StoreError as error:
                _log.warning("inbox_not_read", agent_id=queue.agent_id, error=str(error))
                await asyncio.sleep(RETRY_S)
            except Exception:  # noqa: BLE001 - the other turns must still be offered
                _log.exception("inbox_not_read", agent_id=queue.agent_id)
                await asyncio.sleep(RETRY_S)
            try:
                async with asyncio.timeout_at(queue.read_s + self._poll_s):
                    await queue.wake.wait()
            except TimeoutError:
                pass

    async def _look(self, queue: _Queue) -> None:
        """Offer what is free, after reading as much of the queue as has to be read."""
        wanted = sum(watch.room for watch in queue.watches)
        holds = any(watch.held for watch in queue.watches)
        now_s = asyncio.get_running_loop().time()
        is_due = now_s - queue.read_s >= self._poll_s
        if is_due:
            queue.read_s = now_s
        if not wanted and not holds:
            queue.is_behind = queue.is_behind or is_due
            return
        if is_due or (queue.backlog.is_cut and len(queue.backlog) < wanted):
            await self._read(queue, wanted, max(ENTRIES_MAX, OFFERS_AHEAD * wanted))
        elif queue.is_behind:
            await self._read(queue, wanted, OFFERS_AHEAD * wanted)
        if wanted and self._is_served(queue.agent_id):
            await self._offer_all(queue)

    async def _read(self, queue: _Queue, wanted: int, most: int) -> None:
        """Read a queue until so many entries are free, and as far as its workers have some."""
        queue.is_behind = False
        queue.backlog.begin_read()
        # A worker of several agents holds entries of several queues.
        before = {
            entry: watch
            for watch in queue.watches
            for entry in watch.held
            if entry.queue == queue.agent_id
        }
        free: list[QueueItem] = []
        seen: set[QueueEntry] = set()
        after: QueueEntry | None = None
        while True:
            page = await self._store.read_queue(queue.tenant, queue.agent_id, after, PAGE_ENTRIES)
            holders = {entry: watch for watch in queue.watches for entry in watch.held}
            resuming = {watch.resume_token: watch for watch in queue.watches}
            for item in page:
                seen.add(item.entry)
                if self._is_free(queue, item, holders.get(item.entry), resuming):
                    free.append(item)
            if len(page) < PAGE_ENTRIES:
                after = None
                break
            after = page[-1].entry
            if len(free) >= most and all(entry <= after for entry in before):
                break
        for entry, watch in before.items():
            # Completed on another replica.
            if entry not in seen and (after is None or entry <= after):
                self._freed(queue, watch, entry)
        queue.depth = len(seen)
        queue.oldest_us = min((item.entry.place_us for item in free), default=0)
        users: dict[QueueEntry, str] = {}
        if len(free) > wanted:
            assert self._handler is not None
            new = [item.entry for item in free if not queue.backlog.is_known(item.entry)]
            users = await self._handler.inbox.users_of(queue.tenant, new)
        queue.backlog.replace(free, users, after)

    def _is_free(
        self,
        queue: _Queue,
        item: QueueItem,
        watch: InboxWatch | None,
        resuming: Mapping[str, InboxWatch],
    ) -> bool:
        """Say whether an entry may be offered; take note of a lease that a worker has lost.

        watch: the stream that has its lease. resuming: the streams by their resume tokens.
        """
        if watch is None:
            resumed = None if item.is_free else resuming.get(item.token.rpartition(".")[0])
            if resumed is None or resumed.has_ended or resumed.worker_id != item.worker:
                return item.is_free
            resumed.held[item.entry] = item.token
            again = asyncio.create_task(self._offer_again(queue, resumed, item))
            self._offering.add(again)
            again.add_done_callback(self._offering.discard)
            return False
        token = watch.held[item.entry]
        if not token:  # It is being leased.
            return False
        if item.token == token and not item.is_free:
            return False
        self._counts.leases_lost += 1
        self._freed(queue, watch, item.entry)
        return item.is_free

    def _is_served(self, agent_id: str) -> bool:
        """Say whether an agent's turns are offered: those of a disabled one, or of people, wait."""
        assert self._handler is not None
        agent: Agent | None = self._handler.registry.agent(agent_id)
        return agent is None or (agent.enabled and agent.kind is not AgentKind.HUMAN)

    async def _offer_all(self, queue: _Queue) -> None:
        watches = [watch for watch in queue.watches if watch.room > 0]
        wanted = sum(watch.room for watch in watches)
        free = queue.backlog.take(wanted, spread=self._store.shared_writers)
        chosen: list[tuple[InboxWatch, QueueItem]] = []
        takers = deque(watches)
        for item in free:
            # A worker that lost the turn may hang, so others are asked first.
            others = (n for n, taker in enumerate(takers) if taker.worker_id != item.worker)
            place = next(others, 0)
            watch = takers[place]
            del takers[place]
            watch.held[item.entry] = ""
            chosen.append((watch, item))
            if watch.room > 0:
                takers.append(watch)
        try:
            for at in range(0, len(chosen), OFFERS_AT_ONCE):
                part = chosen[at : at + OFFERS_AT_ONCE]
                await asyncio.gather(*(self._offer(queue, watch, item) for watch, item in part))
        except BaseException:
            # The store failed. What was not offered takes no room of its worker.
            for watch, item in chosen:
                if watch.held.get(item.entry) == "":
                    self._freed(queue, watch, item.entry)
            raise

    async def _offer(self, queue: _Queue, watch: InboxWatch, item: QueueItem) -> None:
        """Lease one turn for a worker and give it to its stream."""
        entry = item.entry
        token = f"{watch.resume_token}.{secrets.token_hex(_TOKEN_BYTES)}"
        leased: QueueItem | None = None
        try:
            wish = LeaseWish("", token, watch.worker_id, watch.lease_us)
            leased = await self._store.lease_item(queue.tenant, entry, wish)
            if leased is None or leased.token != token:
                self._freed(queue, watch, entry)
            elif leased.attempt > ATTEMPTS_MAX:
                self._freed(queue, watch, entry)
                await self._abandon(queue, entry)
            else:
                watch.held[entry] = token
                await self._send(queue, watch, leased, is_again=False)
        except (StoreError, RoutingError) as error:
            # The lease, if it was granted, keeps the turn back for a while.
            self._freed(queue, watch, entry)
            if isinstance(error, StoreUnavailable | StoreClosed):
                raise
            _log.warning("inbox_turn_not_offered", session_id=entry.session_id, error=str(error))
        except BaseException:
            self._freed(queue, watch, entry)
            raise

    async def _offer_again(self, queue: _Queue, watch: InboxWatch, item: QueueItem) -> None:
        """Send a turn again to the worker that has its lease."""
        try:
            wish = LeaseWish(item.token, item.token, watch.worker_id, watch.lease_us)
            leased = await self._store.lease_item(queue.tenant, item.entry, wish)
            if leased is None or leased.token != item.token:
                self._freed(queue, watch, item.entry)
            else:
                await self._send(queue, watch, leased, is_again=True)
        except (StoreError, RoutingError) as error:
            self._freed(queue, watch, item.entry)
            _log.warning(
                "inbox_turn_not_offered", session_id=item.entry.session_id, error=str(error)
            )

    async def _send(
        self, queue: _Queue, watch: InboxWatch, item: QueueItem, *, is_again: bool
    ) -> None:
        """Give a leased turn to a worker's stream, if its session still has it.

        One that was overtaken, and has lost its worker, is given up. is_again: the worker had it.
        """
        assert self._handler is not None
        entry = item.entry
        waiting = await self._handler.inbox.find(
            queue.tenant, entry, watch.history_turns, is_again=is_again
        )
        if waiting is None:
            self._freed(queue, watch, entry)
            key = SessionKey(queue.tenant, entry.session_id)
            if not await self._handler.abandon(key, place_at(entry)):
                await self._store.mend_queue(queue.tenant, (), (entry,))
        elif watch.has_ended:
            await self._give_back(watch, [item])
        elif entry in watch.held:
            watch.offers.append(Offer(SessionKey(queue.tenant, entry.session_id), item, waiting))
            watch.wake.set()

    async def _abandon(self, queue: _Queue, entry: QueueEntry) -> None:
        assert self._handler is not None
        key = SessionKey(queue.tenant, entry.session_id)
        if await self._handler.abandon(key, place_at(entry)):
            self._counts.abandoned += 1
            _log.error(
                "inbox_turn_abandoned",
                session_id=entry.session_id,
                request_id=entry.request_id,
                agent_id=entry.queue,
                attempts=ATTEMPTS_MAX,
            )
        else:
            await self._store.mend_queue(queue.tenant, (), (entry,))

    async def _give_back(self, watch: InboxWatch, items: list[QueueItem]) -> None:
        """Free the leases of turns that were never sent."""
        for item in items:
            wish = LeaseWish(item.token, item.token, watch.worker_id, 0)
            try:
                await self._store.lease_item(watch.tenant, item.entry, wish)
            except StoreError:
                return  # They lapse.
            self.given_back(watch.tenant, item.entry)

    @staticmethod
    def _freed(queue: _Queue, watch: InboxWatch, entry: QueueEntry) -> None:
        """Let a worker take another turn."""
        if watch.held.pop(entry, None) is not None:
            queue.wake.set()


def new_resume_token() -> str:
    """Return what begins the tokens of a stream's leases; only its worker learns it."""
    return secrets.token_hex(_RESUME_BYTES)
