"""The engine of a store on several PostgreSQL clusters: each tenant is whole on one of them.

Owns the merging of what concerns all tenants. What concerns one tenant goes to its cluster, which
``cluster_map`` knows, and is as it is on one cluster. The first cluster also has what concerns no
tenant alone: the leases, the settings of all tenants, the list of tenants.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import Final, TypeVar

import structlog

from routing_service.storage.engine import Span
from routing_service.storage.page_cursor import AUDIT, LOG, CursorForm, Places
from routing_service.storage.postgres.cluster_map import ClusterMap
from routing_service.storage.postgres.engine import PostgresEngine
from routing_service.storage.postgres.log import PLACES
from routing_service.storage.queue_entries import LeaseWish, QueueEntry, QueueItem
from routing_service.storage.relay import Relay
from routing_service.storage.store import (
    Append,
    AuditEntry,
    Change,
    Head,
    SessionKey,
    SessionRow,
    StoreUnavailable,
    TaskCursor,
    TaskRow,
)
from routing_service.storage.write_figures import WriteFigures

HINT_WAIT_S: Final = 3600.0
"""How long one wait for a cluster's hint lasts before the next begins."""

T = TypeVar("T")

_log = structlog.get_logger(__name__)


class ClusterLogForm(CursorForm):
    """The cursors of the log: the places of every cluster, one after the other.

    A cursor from before a cluster was added, also from when there was one alone, stays good: it is
    before the first change of that cluster.
    """

    __slots__ = ("_earlier", "_places")

    def __init__(self, store_id: bytes, clusters: int) -> None:
        """Describe the cursors of so many clusters. store_id: of the first."""
        super().__init__(LOG, store_id, places=PLACES * clusters)
        self._places = PLACES * clusters
        forms = [CursorForm(LOG, store_id, places=PLACES * count) for count in range(1, clusters)]
        self._earlier = {form.size_bytes: form for form in forms}

    def unpack(self, cursor: bytes) -> Places:
        """See CursorForm.unpack."""
        form = self._earlier.get(len(cursor))
        if form is None:
            return super().unpack(cursor)
        places = form.unpack(cursor)
        return places + (0,) * (self._places - len(places))


class ClusterHints:
    """Hints of all clusters, as those of one."""

    def __init__(self, engines: Sequence[PostgresEngine]) -> None:
        """Listen to nothing yet."""
        self._hints = [each.hints for each in engines if each.hints is not None]
        self._count = 0
        self._heard = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def is_live(self) -> bool:
        """See ChangeHints.is_live: a cluster that is not heard has to be polled."""
        return bool(self._hints) and all(hints.is_live for hints in self._hints)

    async def wait(self, seen: int, timeout_s: float) -> int:
        """See ChangeHints.wait."""
        if not self._tasks:
            self._tasks = [
                asyncio.create_task(self._hear(place), name="cluster hints")
                for place in range(len(self._hints))
            ]
        try:
            async with asyncio.timeout(timeout_s):
                while self._count <= seen:
                    await self._heard.wait()
        except TimeoutError:
            pass
        return self._count

    async def close(self) -> None:
        """Stop listening; every wait returns."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._hear_one()

    async def _hear(self, place: int) -> None:
        seen = 0
        while True:
            now = await self._hints[place].wait(seen, HINT_WAIT_S)
            if now > seen:
                seen = now
                self._hear_one()

    def _hear_one(self) -> None:
        self._count += 1
        # A new event for later waits: each wait is for the next hint.
        self._heard.set()
        self._heard = asyncio.Event()


class ClusterEngine:
    """An Engine on several clusters, each with an engine of its own."""

    shared_writers = True

    def __init__(
        self, engines: Sequence[PostgresEngine], tenants: ClusterMap, figures: WriteFigures
    ) -> None:
        """Take the engines over, by the clusters' numbers. figures: where all of them count."""
        self._engines = engines
        self._home = engines[0]
        self._map = tenants
        self.write_figures = figures
        self.log_form = ClusterLogForm(self._home.store_id, len(engines))
        listens = all(each.hints is not None for each in engines)
        self._hints = ClusterHints(engines) if listens else None

    @property
    def hints(self) -> ClusterHints | None:
        """See Engine.hints."""
        return self._hints

    @property
    def relay(self) -> Relay | None:
        """See Engine.relay. All processes meet at the first cluster."""
        return self._home.relay

    def audit_form(self, tenant: str) -> CursorForm:
        """See Engine.audit_form. Two tenants may be on two clusters, so each has its mark."""
        mark = hashlib.blake2b(tenant.encode(), digest_size=8).digest()
        return CursorForm(AUDIT, self._home.store_id, places=PLACES, mark=mark)

    async def append(self, append: Append) -> None:
        """See Store.append."""
        await (await self._writing(append.key.tenant)).append(append)

    async def load(self, key: SessionKey) -> Head | None:
        """See Store.load."""
        return await (await self._reading(key.tenant)).load(key)

    async def head_revision(self, key: SessionKey) -> int:
        """See Store.head_revision."""
        return await (await self._reading(key.tenant)).head_revision(key)

    async def read_changes(self, key: SessionKey, span: Span) -> list[Change]:
        """See Store.read_changes."""
        return await (await self._reading(key.tenant)).read_changes(key, span)

    async def find_request(
        self, key: SessionKey, method: str, request_id: str, actor: str
    ) -> Change | None:
        """See Store.find_request."""
        engine = await self._reading(key.tenant)
        return await engine.find_request(key, method, request_id, actor)

    async def find_task(self, tenant: str, task_id: str) -> TaskRow | None:
        """See Store.find_task."""
        return await (await self._reading(tenant)).find_task(tenant, task_id)

    async def list_tasks(self, key: SessionKey, after: TaskCursor, limit: int) -> list[TaskRow]:
        """See Store.list_tasks."""
        return await (await self._reading(key.tenant)).list_tasks(key, after, limit)

    async def append_audit(self, entry: AuditEntry) -> None:
        """See Store.append_audit."""
        await (await self._writing(entry.tenant)).append_audit(entry)

    async def count_audit(self, key: SessionKey, kind: str, request_id: str) -> int:
        """See Store.count_audit."""
        return await (await self._reading(key.tenant)).count_audit(key, kind, request_id)

    async def read_audit(
        self, tenant: str, session_id: str | None, places: Places, limit: int
    ) -> tuple[list[AuditEntry], Places]:
        """See Engine.read_audit."""
        engine = await self._reading(tenant)
        return await engine.read_audit(tenant, session_id, places, limit)

    async def list_sessions(self, tenant: str, after: str, limit: int) -> list[SessionRow]:
        """See Engine.list_sessions."""
        return await (await self._reading(tenant)).list_sessions(tenant, after, limit)

    async def find_session(self, key: SessionKey) -> SessionRow | None:
        """See Store.find_session."""
        return await (await self._reading(key.tenant)).find_session(key)

    async def list_tenants(self, after: str, limit: int) -> list[str]:
        """See Store.list_tenants. A cluster that is away makes it fail: the list is whole."""
        lists = await self._all(lambda engine: engine.list_tenants(after, limit))
        return sorted({name for names in lists for name in names})[:limit]

    async def read_log(
        self, places: Places, limit: int
    ) -> tuple[list[tuple[SessionKey, Change]], Places]:
        """See Engine.read_log. A cluster that is away makes it fail, so that nothing is missed.

        The clusters are read one after the other until the page is full. Which is first follows
        from the places: the same cursor gives the same page, and none is always last.
        """
        found: list[tuple[SessionKey, Change]] = []
        after = list(places)
        first = sum(places) % len(self._engines)
        for offset in range(len(self._engines)):
            if len(found) == limit:
                break
            number = (first + offset) % len(self._engines)
            own = slice(PLACES * number, PLACES * (number + 1))
            page, after[own] = await self._engines[number].read_log(places[own], limit - len(found))
            found += page
        return found, tuple(after)

    async def log_end(self) -> Places:
        """See Engine.log_end."""
        ends = await self._all(lambda engine: engine.log_end())
        return tuple(place for end in ends for place in end)

    async def get_setting(self, tenant: str, name: str) -> bytes | None:
        """See Store.get_setting."""
        return await (await self._reading(tenant)).get_setting(tenant, name)

    async def list_settings(self, tenant: str, after: str, limit: int) -> list[tuple[str, bytes]]:
        """See Store.list_settings."""
        return await (await self._reading(tenant)).list_settings(tenant, after, limit)

    async def put_setting(self, tenant: str, name: str, value: bytes) -> None:
        """See Store.put_setting."""
        await (await self._writing(tenant)).put_setting(tenant, name, value)

    async def swap_setting(
        self, tenant: str, name: str, before: bytes | None, value: bytes
    ) -> bool:
        """See Store.swap_setting."""
        engine = await self._writing(tenant)
        return await engine.swap_setting(tenant, name, before, value)

    async def due_sessions(self, now_us: int, limit: int) -> list[SessionKey]:
        """See Store.due_sessions. Sessions of a cluster that is away wait until it is back."""
        rows = await self._those_there(lambda engine: engine.due_rows(now_us, limit))
        return [key for _, key in islice(heapq.merge(*rows, key=lambda row: row[0]), limit)]

    async def acquire_lease(self, name: str, holder: str, now_us: int, until_us: int) -> bool:
        """See Store.acquire_lease."""
        return await self._home.acquire_lease(name, holder, now_us, until_us)

    async def read_queue(
        self, tenant: str, queue: str, after: QueueEntry | None, limit: int
    ) -> list[QueueItem]:
        """See Store.read_queue."""
        return await (await self._reading(tenant)).read_queue(tenant, queue, after, limit)

    async def find_item(self, tenant: str, entry: QueueEntry) -> QueueItem | None:
        """See Store.find_item."""
        return await (await self._reading(tenant)).find_item(tenant, entry)

    async def lease_item(self, tenant: str, entry: QueueEntry, wish: LeaseWish) -> QueueItem | None:
        """See Store.lease_item."""
        return await (await self._reading(tenant)).lease_item(tenant, entry, wish)

    async def mend_queue(
        self, tenant: str, put: tuple[QueueEntry, ...], drop: tuple[QueueEntry, ...]
    ) -> None:
        """See Store.mend_queue."""
        await (await self._writing(tenant)).mend_queue(tenant, put, drop)

    async def erase_before(self, key: SessionKey, revision: int, blank: bytes) -> int:
        """See Store.erase_before."""
        return await (await self._reading(key.tenant)).erase_before(key, revision, blank)

    async def delete_session(self, key: SessionKey, revision: int) -> None:
        """See Store.delete_session."""
        await (await self._reading(key.tenant)).delete_session(key, revision)

    async def probe_write(self) -> None:
        """See Store.probe_write. One cluster is enough: the tenants of the others do not wait."""
        await self._those_there(lambda engine: engine.probe_write())

    async def close(self) -> None:
        """See Engine.close."""
        if self._hints is not None:
            await self._hints.close()
        await self._map.settle()
        outcomes = await asyncio.gather(
            *(engine.close() for engine in self._engines), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _reading(self, tenant: str) -> PostgresEngine:
        return self._engines[await self._map.find(tenant)]

    async def _writing(self, tenant: str) -> PostgresEngine:
        return self._engines[await self._map.place(tenant)]

    async def _all(self, call: Callable[[PostgresEngine], Awaitable[T]]) -> list[T]:
        """Call every cluster at once, and return what all answered."""
        return await asyncio.gather(*(call(engine) for engine in self._engines))

    async def _those_there(self, call: Callable[[PostgresEngine], Awaitable[T]]) -> list[T]:
        """Call every cluster at once; leave out those that are away, unless all are."""
        answers = await asyncio.gather(
            *(call(engine) for engine in self._engines), return_exceptions=True
        )
        found: list[T] = []
        away: StoreUnavailable | None = None
        for number, answer in enumerate(answers):
            if isinstance(answer, StoreUnavailable):
                away = answer
                _log.warning("store_cluster_away", cluster=number, error=answer.reason)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found.append(answer)
        if away is not None and not found:
            raise away
        return found
