"""The Redis and Valkey engine: any number of replicas of this service on one primary.

An append is one script, which compares and writes in one step, and is the only coordination between
replicas. Writes go in groups (see pipeline), each one round trip and one wait for the disk. Reads
that wait go together too, on connections of their own.

Durable means that the server has confirmed by WAITAOF that the write is in its append-only file on
disk. With appendfsync=always a crash of the server loses nothing that any client has read. With
everysec it loses nothing that was acknowledged, though others may have read a write before it was
on disk. A replica that takes over has what it had: sync_replicas=N waits for N of them as well.
With durability=memory no write waits, and a crash loses what the server's own settings let it.

On a cluster. Every script and command touches keys of one hash tag, so of one slot: this holds, and
the tests run on a server in cluster mode, which refuses anything else. Spreading over several
primaries is not built (following MOVED, a pipeline for each node) and not tested: a cluster of more
than one primary is refused at the start.

All data is in the server's memory: docs/redis.md has what a session takes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from itertools import count
from os import urandom
from typing import Final

from routing_service.storage.engine import ChangeHints, Span
from routing_service.storage.page_cursor import (
    AUDIT,
    LOG,
    STORE_ID_BYTES,
    CursorForm,
    Places,
    check_reached,
)
from routing_service.storage.queue_entries import LeaseWish, QueueEntry, QueueItem
from routing_service.storage.redis import queues
from routing_service.storage.redis import upkeep as redis_upkeep
from routing_service.storage.redis.bounds import DEFAULT_BOUNDS, RedisBounds
from routing_service.storage.redis.connection import Connector, Reply
from routing_service.storage.redis.keys import SHARDS, Keys, request_field, text_bytes
from routing_service.storage.redis.log import LogReader
from routing_service.storage.redis.pipeline import GroupEnd, InMemory, OnDisk, OnPrimary, Pipeline
from routing_service.storage.redis.records import (
    HEAD_ROW_BYTES,
    from_audit,
    place_task_id,
    task_place,
    to_audit,
    to_change,
    to_head,
    to_listed_change,
    to_revision,
    to_session_row,
    to_task,
)
from routing_service.storage.redis.relay import PublishRelay
from routing_service.storage.redis.scripts import Command, script_call
from routing_service.storage.redis.writer import TOKEN_BYTES, AppendWriter
from routing_service.storage.store import (
    INT_MAX,
    Append,
    AuditEntry,
    Change,
    Head,
    SessionKey,
    SessionRow,
    StoreCorrupt,
    TaskCursor,
    TaskRow,
)
from routing_service.storage.write_figures import WriteFigures

READ_GROUP_CALLS_MAX: Final = 64
"""Reads in one round trip: their replies are of any size, so fewer than of writes."""


RELAY_ORIGIN_BYTES: Final = 8
"""Of the name of a replica, in front of its messages."""


class RedisEngine:
    """An Engine under one prefix of a database."""

    shared_writers = True
    hints: ChangeHints | None = None

    def __init__(
        self,
        store_id: bytes,
        connector: Connector,
        keys: Keys,
        bounds: RedisBounds = DEFAULT_BOUNDS,
    ) -> None:
        """Connect at the first call."""
        options = connector.place.options
        end: GroupEnd = InMemory()
        if options.durability == "disk":
            end = OnDisk(
                keys.probe, replicas=options.sync_replicas, timeout_s=options.call_timeout_s
            )
        self._store_id = store_id
        self.log_form = CursorForm(LOG, store_id, places=SHARDS)
        self._keys = keys
        self._writes = Pipeline(
            "writes",
            connector,
            end,
            group_calls_max=options.group_writes_max,
            gathers=True,
            bounds=bounds,
        )
        self._reads = [
            Pipeline(
                "reads",
                connector,
                OnPrimary(),
                group_calls_max=READ_GROUP_CALLS_MAX,
                bounds=bounds,
            )
            for _ in range(options.read_connections)
        ]
        self._turns = count()
        self._writer = AppendWriter(self._writes, keys, bounds)
        self.relay = PublishRelay(
            connector, keys.channel, urandom(RELAY_ORIGIN_BYTES), self._read_all
        )

    @property
    def write_figures(self) -> WriteFigures:
        """See Engine.write_figures."""
        return self._writes.figures

    def audit_form(self, tenant: str) -> CursorForm:
        """See Engine.audit_form. Positions count one tenant's entries, so each has its own."""
        list_id = hashlib.blake2b(
            text_bytes(tenant), key=self._store_id, digest_size=STORE_ID_BYTES
        ).digest()
        return CursorForm(AUDIT, list_id)

    async def append(self, append: Append) -> None:
        """See Store.append."""
        await self._writer.append(append)

    async def load(self, key: SessionKey) -> Head | None:
        """See Store.load."""
        head = await self._read("GET", self._keys.session(key).head)
        return None if head is None else to_head(head)

    async def head_revision(self, key: SessionKey) -> int:
        """See Store.head_revision."""
        head = self._keys.session(key).head
        return to_revision(key, await self._read("GETRANGE", head, 0, 7))

    async def read_changes(self, key: SessionKey, span: Span) -> list[Change]:
        """See Store.read_changes."""
        bounds = (span.after, span.before, span.limit, int(span.newest_first))
        rows = await self._read(
            *script_call("read_changes", [self._keys.session(key).changes], *bounds)
        )
        try:
            found = [to_change(key, row) for row in rows]
        except StoreCorrupt:
            first = await self._first_revision(key, span, rows)
            found = [to_listed_change(key, first + place, row) for place, row in enumerate(rows)]
        return found[::-1] if span.newest_first else found

    async def _first_revision(self, key: SessionKey, span: Span, rows: Sequence[bytes]) -> int:
        """Return the first revision of rows of which some are damaged."""
        if not span.newest_first:
            return span.after + 1
        for place, row in enumerate(rows):
            with suppress(StoreCorrupt):
                return to_change(key, row).revision - place
        length = int(await self._read("LLEN", self._keys.session(key).changes))
        return min(span.before - 1, length) - len(rows) + 1

    async def find_request(
        self, key: SessionKey, method: str, request_id: str, actor: str
    ) -> Change | None:
        """See Store.find_request."""
        names = self._keys.session(key)
        field = request_field(method, request_id, actor)
        wanted = script_call("find_request", [names.changes, names.requests], field)
        row = await self._read(*wanted)
        return None if row is None else to_change(key, row)

    async def find_task(self, tenant: str, task_id: str) -> TaskRow | None:
        """See Store.find_task. The claim names the session, whose stored tasks decide."""
        wanted = text_bytes(task_id)
        claim = await self._read("HGET", self._keys.claims(tenant, task_id), wanted)
        if claim is None:
            return None
        key = SessionKey(tenant, claim[TOKEN_BYTES:].decode())
        row = await self._read("HGET", self._keys.session(key).tasks, wanted)
        return None if row is None else to_task(key, task_id, row)

    async def list_tasks(self, key: SessionKey, after: TaskCursor, limit: int) -> list[TaskRow]:
        """See Store.list_tasks."""
        names = self._keys.session(key)
        wanted = script_call(
            "list_tasks", [names.tasks, names.task_order], task_place(after), limit
        )
        found = await self._read(*wanted)
        return [
            to_task(key, place_task_id(key, place), row)
            for place, row in zip(found[::2], found[1::2], strict=True)
        ]

    async def append_audit(self, entry: AuditEntry) -> None:
        """See Store.append_audit."""
        names = self._keys.audit(entry.tenant, entry.session_id)
        counted = _audit_field(entry.kind, entry.request_id)
        tenant = text_bytes(entry.tenant)
        await self._write(script_call("append_audit", names, from_audit(entry), counted, tenant))

    async def count_audit(self, key: SessionKey, kind: str, request_id: str) -> int:
        """See Store.count_audit."""
        counts = self._keys.audit(*key).counts
        return int(await self._read("HGET", counts, _audit_field(kind, request_id)) or 0)

    async def read_audit(
        self, tenant: str, session_id: str | None, places: Places, limit: int
    ) -> tuple[list[AuditEntry], Places]:
        """See Engine.read_audit."""
        (position,) = places
        names = self._keys.audit(tenant, session_id or "")
        if session_id is None:
            last = min(position + limit - 1, INT_MAX)
            rows = await self._read("LRANGE", names.entries, position, last)
            position += len(rows)
        else:
            wanted = [names.entries, names.positions]
            found = await self._read(*script_call("read_audit", wanted, position, limit))
            rows = found[1::2]
            position = int(found[-2]) if found else position
        if not rows:
            length = await self._read("LLEN", names.entries)
            check_reached(position, length)
        key = SessionKey(tenant, session_id or "")
        return [to_audit(key, row) for row in rows], (position,)

    async def list_sessions(self, tenant: str, after: str, limit: int) -> list[SessionRow]:
        """See Engine.list_sessions."""
        page: list[SessionRow] = []
        while len(page) < limit:
            wanted = limit - len(page)
            ids = await self._session_ids(tenant, after, wanted)
            found = [SessionKey(tenant, session_id) for session_id in ids]
            heads = await self._read_all(
                [("GETRANGE", self._keys.session(key).head, 0, HEAD_ROW_BYTES - 1) for key in found]
            )
            # A session without a head was deleted between the two reads.
            page += [
                to_session_row(key, head) for key, head in zip(found, heads, strict=True) if head
            ]
            if len(ids) < wanted:
                break
            after = ids[-1]
        return page

    async def _session_ids(self, tenant: str, last_id: str, limit: int) -> list[str]:
        found = await self._read_names(self._keys.sessions(tenant), last_id, limit)
        return sorted(found)[:limit]

    async def _read_names(self, lists: Sequence[bytes], after: str, limit: int) -> list[str]:
        """Read the next names of each list, which code points sort as their bytes do."""
        first = b"(" + text_bytes(after) if after else b"-"
        replies = await self._read_all(
            [("ZRANGE", names, first, "+", "BYLEX", "LIMIT", 0, limit) for names in lists]
        )
        return [name.decode() for names in replies for name in names]

    async def find_session(self, key: SessionKey) -> SessionRow | None:
        """See Store.find_session."""
        head = self._keys.session(key).head
        found = await self._read("GETRANGE", head, 0, HEAD_ROW_BYTES - 1)
        return to_session_row(key, found) if found else None

    async def list_tenants(self, after: str, limit: int) -> list[str]:
        """See Store.list_tenants."""
        found = await self._read_names(self._keys.tenants, after, limit)
        return sorted(set(found))[:limit]

    async def read_log(
        self, places: Places, limit: int
    ) -> tuple[list[tuple[SessionKey, Change]], Places]:
        """See Engine.read_log."""
        return await LogReader(self._read_pipeline(), self._keys).read(places, limit)

    async def log_end(self) -> Places:
        """See Engine.log_end."""
        return await LogReader(self._read_pipeline(), self._keys).end()

    async def get_setting(self, tenant: str, name: str) -> bytes | None:
        """See Store.get_setting."""
        settings, _ = self._keys.settings(tenant)
        value = await self._read("HGET", settings, text_bytes(name))
        return None if value is None else bytes(value)

    async def list_settings(self, tenant: str, after: str, limit: int) -> list[tuple[str, bytes]]:
        """See Store.list_settings. A tenant has few, so that their names are read together."""
        settings, _ = self._keys.settings(tenant)
        stored = [name.decode() for name in await self._read("HKEYS", settings)]
        names = sorted(name for name in stored if name > after)[:limit]
        if not names:
            return []
        values = await self._read("HMGET", settings, *map(text_bytes, names))
        return list(zip(names, values, strict=True))

    async def put_setting(self, tenant: str, name: str, value: bytes) -> None:
        """See Store.put_setting."""
        settings, tenants = self._keys.settings(tenant)
        # The tenant first: a listed tenant without content is harmless.
        await self._writes.call(
            [
                ("ZADD", tenants, 0, text_bytes(tenant)),
                ("HSET", settings, text_bytes(name), value),
            ]
        )

    async def swap_setting(
        self, tenant: str, name: str, before: bytes | None, value: bytes
    ) -> bool:
        """See Store.swap_setting."""
        return await redis_upkeep.swap_setting(
            self._writes, self._keys, tenant, name, before=before, value=value
        )

    async def due_sessions(self, now_us: int, limit: int) -> list[SessionKey]:
        """See Store.due_sessions."""
        return await redis_upkeep.due_sessions(self._read_pipeline(), self._keys, now_us, limit)

    async def acquire_lease(self, name: str, holder: str, now_us: int, until_us: int) -> bool:
        """See Store.acquire_lease."""
        return await redis_upkeep.acquire_lease(
            self._writes, self._keys, name, holder, now_us=now_us, until_us=until_us
        )

    async def read_queue(
        self, tenant: str, queue: str, after: QueueEntry | None, limit: int
    ) -> list[QueueItem]:
        """See Store.read_queue."""
        return await queues.read_queue(
            self._read_pipeline(), self._keys, tenant, queue, after=after, limit=limit
        )

    async def find_item(self, tenant: str, entry: QueueEntry) -> QueueItem | None:
        """See Store.find_item."""
        return await queues.find_item(self._read_pipeline(), self._keys, tenant, entry)

    async def lease_item(self, tenant: str, entry: QueueEntry, wish: LeaseWish) -> QueueItem | None:
        """See Store.lease_item."""
        # Not through the writes, whose groups wait for the disk.
        return await queues.lease_item(self._read_pipeline(), self._keys, tenant, entry, wish)

    async def mend_queue(
        self, tenant: str, put: tuple[QueueEntry, ...], drop: tuple[QueueEntry, ...]
    ) -> None:
        """See Store.mend_queue."""
        await queues.mend_queue(self._writes, self._keys, tenant, put, drop)

    async def erase_before(self, key: SessionKey, revision: int, blank: bytes) -> int:
        """See Store.erase_before. The old content stays in the append-only file until a rewrite."""
        # After the writes that were accepted before, like every call.
        await self._writer.settle()
        return await redis_upkeep.erase_before(self._writes, self._keys, key, revision, blank)

    async def delete_session(self, key: SessionKey, revision: int) -> None:
        """See Store.delete_session.

        The session goes in one step. Its audit, which is in another slot, is blanked after it:
        a caller that gets StoreUnavailable and then finds no session calls again with revision 0.
        """
        await redis_upkeep.delete_session(self._writes, self._keys, key, revision)

    async def probe_write(self) -> None:
        """See Store.probe_write."""
        await self._writer.settle()
        await self._write(("SET", self._keys.probe, b"1"))

    async def close(self) -> None:
        """See Engine.close."""
        async with AsyncExitStack() as opened:
            for pipeline in (self._writes, *self._reads):
                opened.push_async_callback(pipeline.close)
            opened.push_async_callback(self.relay.close)
            await self._writer.settle()

    async def _write(self, command: Command) -> None:
        await self._writes.call([command])

    async def _read(self, *command: bytes | str | int) -> Reply:
        (reply,) = await self._read_all([command])
        return reply

    async def _read_all(self, commands: list[Command]) -> list[Reply]:
        if not commands:
            return []
        return await self._read_pipeline().call(commands)

    def _read_pipeline(self) -> Pipeline:
        """Choose the pipeline with the fewest waiting calls; in rotation if they are equal."""
        first = next(self._turns) % len(self._reads)
        pipelines = self._reads[first:] + self._reads[:first]
        return min(pipelines, key=lambda pipeline: pipeline.waiting)


def _audit_field(kind: str, request_id: str) -> bytes:
    return text_bytes(kind) + b"\0" + text_bytes(request_id)
