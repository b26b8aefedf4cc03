"""The DynamoDB engine: any number of replicas on one table.

An append is one transaction, whose conditions are the only coordination between replicas (see
writer). Reads are consistent, the log is complete (see sequence), and no item or partition is
touched by all sessions (see keys).

Durable means that DynamoDB has answered: the write is then on disk in at least two of the region's
zones. Only the index of due times may be behind, by about a second.

An append that was sent continues if its caller is cancelled: cancelling would not stop the server.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

from routing_service.ids import new_uuid7
from routing_service.storage.dynamodb import keys
from routing_service.storage.dynamodb.api import Api
from routing_service.storage.dynamodb.bounds import DEFAULT_BOUNDS, DynamodbBounds
from routing_service.storage.dynamodb.items import key as item_key
from routing_service.storage.dynamodb.log import LogReader
from routing_service.storage.dynamodb.queues import Queues
from routing_service.storage.dynamodb.reads import Reads
from routing_service.storage.dynamodb.removal import Removal
from routing_service.storage.dynamodb.sequence import Sequences
from routing_service.storage.dynamodb.settings import Settings
from routing_service.storage.dynamodb.writer import Writer
from routing_service.storage.engine import ChangeHints, Span
from routing_service.storage.page_cursor import AUDIT, LOG, CursorForm, Places
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

APPENDS_AT_ONCE: Final = 32
"""Appends in flight. The limit keeps an append that has its place in the log from waiting for a
connection, because readers wait for that place."""


class DynamodbEngine:
    """An Engine on one table."""

    shared_writers = True
    hints: ChangeHints | None = None
    relay: Relay | None = None

    def __init__(
        self,
        store_id: bytes,
        api: Api,
        *,
        opened: AsyncExitStack,
        bounds: DynamodbBounds = DEFAULT_BOUNDS,
    ) -> None:
        """Take over what is open."""
        self.log_form = CursorForm(LOG, store_id, places=keys.LOG_SHARDS)
        self._store_id = store_id
        self._api = api
        self._opened = opened
        self._waiting_writes_max = bounds.waiting_writes_max
        self._sequences = Sequences(api, bounds)
        self._settings = Settings(api)
        self._removal = Removal(api)
        self._queues = Queues(api)
        self._reads = Reads(api, finish_removal=self._removal.finish)
        self._writer = Writer(
            api,
            self._sequences,
            finish_removal=self._removal.finish,
            settle_every=bounds.settle_every,
        )
        self._log = LogReader(api, self._sequences, poll_s=api.place.options.log_poll_s)
        self._room = asyncio.Semaphore(APPENDS_AT_ONCE)
        self._writes: set[asyncio.Task[None]] = set()
        self._last_append: dict[SessionKey, asyncio.Task[None]] = {}
        """By session: the last append that is under way."""
        self._calls = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def write_figures(self) -> WriteFigures:
        """See Engine.write_figures."""
        return self._writer.figures

    def audit_form(self, tenant: str) -> CursorForm:
        """See Engine.audit_form. Each tenant has a sequence, which its cursors are marked with."""
        mark = hashlib.sha256(tenant.encode()).digest()[:8]
        return CursorForm(AUDIT, self._store_id, mark=mark)

    async def append(self, append: Append) -> None:
        """See Store.append."""
        before = self._last_append.get(append.key)

        async def write() -> None:
            if before is not None:
                await asyncio.wait([before])
            async with self._room:
                if append.base_revision == 0:
                    await self._settings.list_tenant(append.key.tenant)
                await self._writer.append(append)
            self._log.tell()

        task = self._start(write)
        self._last_append[append.key] = task
        task.add_done_callback(lambda done: self._forget(append.key, done))
        await asyncio.shield(task)

    async def load(self, key: SessionKey) -> Head | None:
        """See Store.load."""
        async with self._call():
            return await self._reads.load(key)

    async def head_revision(self, key: SessionKey) -> int:
        """See Store.head_revision."""
        async with self._call():
            return await self._reads.head_revision(key)

    async def read_changes(self, key: SessionKey, span: Span) -> list[Change]:
        """See Store.read_changes."""
        async with self._call():
            return await self._reads.read_changes(key, span)

    async def find_request(
        self, key: SessionKey, method: str, request_id: str, actor: str
    ) -> Change | None:
        """See Store.find_request."""
        async with self._call():
            return await self._reads.find_request(key, method, request_id, actor)

    async def find_task(self, tenant: str, task_id: str) -> TaskRow | None:
        """See Store.find_task."""
        async with self._call():
            return await self._reads.find_task(tenant, task_id)

    async def list_tasks(self, key: SessionKey, after: TaskCursor, limit: int) -> list[TaskRow]:
        """See Store.list_tasks."""
        async with self._call():
            return await self._reads.list_tasks(key, after, limit)

    async def append_audit(self, entry: AuditEntry) -> None:
        """See Store.append_audit."""

        async def write() -> None:
            async with self._room:
                await self._settings.list_tenant(entry.tenant)
                await self._writer.append_audit(entry)

        await asyncio.shield(self._start(write))

    async def count_audit(self, key: SessionKey, kind: str, request_id: str) -> int:
        """See Store.count_audit."""
        async with self._call():
            return await self._reads.count_audit(key, kind, request_id)

    async def read_audit(
        self, tenant: str, session_id: str | None, places: Places, limit: int
    ) -> tuple[list[AuditEntry], Places]:
        """See Engine.read_audit."""
        async with self._call():
            return await self._log.read_audit(tenant, session_id, places, limit)

    async def list_sessions(self, tenant: str, after: str, limit: int) -> list[SessionRow]:
        """See Engine.list_sessions."""
        async with self._call():
            return await self._reads.list_sessions(tenant, after, limit)

    async def find_session(self, key: SessionKey) -> SessionRow | None:
        """See Store.find_session."""
        async with self._call():
            return await self._reads.find_session(key)

    async def list_tenants(self, after: str, limit: int) -> list[str]:
        """See Store.list_tenants."""
        async with self._call():
            return await self._settings.list_tenants(after, limit)

    async def read_log(
        self, places: Places, limit: int
    ) -> tuple[list[tuple[SessionKey, Change]], Places]:
        """See Engine.read_log. At the end it waits before it gives an empty page again."""
        async with self._call():
            return await self._log.read_log(places, limit)

    async def log_end(self) -> Places:
        """See Engine.log_end."""
        async with self._call():
            return await self._log.log_end()

    async def get_setting(self, tenant: str, name: str) -> bytes | None:
        """See Store.get_setting."""
        async with self._call():
            return await self._settings.get(tenant, name)

    async def list_settings(self, tenant: str, after: str, limit: int) -> list[tuple[str, bytes]]:
        """See Store.list_settings."""
        async with self._call():
            return await self._settings.list(tenant, after, limit)

    async def put_setting(self, tenant: str, name: str, value: bytes) -> None:
        """See Store.put_setting."""

        async def write() -> None:
            await self._settings.put(tenant, name, value)

        await asyncio.shield(self._start(write))

    async def swap_setting(
        self, tenant: str, name: str, before: bytes | None, value: bytes
    ) -> bool:
        """See Store.swap_setting."""
        swapped: list[bool] = []

        async def write() -> None:
            swapped.append(await self._settings.swap(tenant, name, before, value))

        await asyncio.shield(self._start(write))
        return swapped[0]

    async def due_sessions(self, now_us: int, limit: int) -> list[SessionKey]:
        """See Store.due_sessions."""
        async with self._call():
            return await self._reads.due_sessions(now_us, limit)

    async def acquire_lease(self, name: str, holder: str, now_us: int, until_us: int) -> bool:
        """See Store.acquire_lease."""
        async with self._call():
            return await self._settings.acquire_lease(name, holder, now_us, until_us)

    async def read_queue(
        self, tenant: str, queue: str, after: QueueEntry | None, limit: int
    ) -> list[QueueItem]:
        """See Store.read_queue."""
        async with self._call():
            return await self._queues.read_queue(tenant, queue, after, limit)

    async def find_item(self, tenant: str, entry: QueueEntry) -> QueueItem | None:
        """See Store.find_item."""
        async with self._call():
            return await self._queues.find_item(tenant, entry)

    async def lease_item(self, tenant: str, entry: QueueEntry, wish: LeaseWish) -> QueueItem | None:
        """See Store.lease_item."""
        async with self._call():
            return await self._queues.lease_item(tenant, entry, wish)

    async def mend_queue(
        self, tenant: str, put: tuple[QueueEntry, ...], drop: tuple[QueueEntry, ...]
    ) -> None:
        """See Store.mend_queue."""
        async with self._call():
            await self._queues.mend_queue(tenant, put, drop)

    async def erase_before(self, key: SessionKey, revision: int, blank: bytes) -> int:
        """See Store.erase_before. Point-in-time backups keep the old content until they expire."""
        async with self._call():
            return await self._removal.erase_before(key, revision, blank)

    async def delete_session(self, key: SessionKey, revision: int) -> None:
        """See Store.delete_session.

        One write removes the session. Its content goes next; if that is interrupted, the next call
        that asks for due sessions finishes it.
        """

        async def remove() -> None:
            await self._removal.delete_session(key, revision)

        await asyncio.shield(self._start(remove))

    async def probe_write(self) -> None:
        """See Store.probe_write. It runs after all writes that were accepted before it."""
        before = list(self._writes)

        async def probe() -> None:
            if before:
                await asyncio.wait(before)
            # One of several items, so that replicas' probes seldom conflict.
            item = item_key(f"{keys.PROBE}/{str(new_uuid7())[-1]}", keys.PROBE)
            await self._api.transact([{"Put": {"Item": item}}], str(new_uuid7()))

        await asyncio.shield(self._start(probe))

    async def close(self) -> None:
        """See Engine.close."""
        try:
            while self._writes:
                await asyncio.wait(self._writes)
            await self._idle.wait()
            await self._sequences.close()
        finally:
            await self._opened.aclose()

    def _start(self, write: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        """Run a write to its end, even if its caller is cancelled."""
        if len(self._writes) >= self._waiting_writes_max:
            raise StoreUnavailable(f"{len(self._writes)} writes wait for the store; try again")
        task = asyncio.create_task(write(), name="dynamodb write")
        self._writes.add(task)
        task.add_done_callback(self._written)
        return task

    def _written(self, task: asyncio.Task[None]) -> None:
        self._writes.discard(task)
        # Read even if the caller is gone, or asyncio would log it.
        if not task.cancelled():
            task.exception()

    def _forget(self, session: SessionKey, task: asyncio.Task[None]) -> None:
        if self._last_append.get(session) is task:
            del self._last_append[session]

    @asynccontextmanager
    async def _call(self) -> AsyncIterator[None]:
        """Keep the client open for a call."""
        self._calls += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._calls -= 1
            if not self._calls:
                self._idle.set()
