"""Reading sessions, tasks, lists and settings of the DynamoDB store.

Every read is consistent (ConsistentRead) except the index of due times, which follows the heads
within about a second and cannot be read consistently.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from routing_service.storage.dynamodb import keys
from routing_service.storage.dynamodb.api import Api
from routing_service.storage.dynamodb.items import (
    HEAD_ATTRIBUTES,
    integer,
    is_gone,
    key,
    text,
    to_change,
    to_head,
    to_integer,
    to_listed_change,
    to_revision,
    to_session_row,
    to_task,
    to_text,
)
from routing_service.storage.engine import Span
from routing_service.storage.store import (
    INT_MAX,
    Change,
    Head,
    SessionKey,
    SessionRow,
    StoreCorrupt,
    TaskCursor,
    TaskRow,
)


class Reads:
    """The reading methods on one table."""

    def __init__(
        self, api: Api, *, finish_removal: Callable[[SessionKey], Awaitable[None]]
    ) -> None:
        """Read nothing yet. finish_removal: removes the rest of a session."""
        self._api = api
        self._finish_removal = finish_removal

    async def load(self, session: SessionKey) -> Head | None:
        """See Store.load."""
        item = await self._api.get(
            key(keys.session_pk(session), keys.HEAD), "pk, sk, revision, state_data, gone"
        )
        return None if item is None else to_head(item)

    async def head_revision(self, session: SessionKey) -> int:
        """See Store.head_revision."""
        item = await self._api.get(key(keys.session_pk(session), keys.HEAD), "pk, sk, revision")
        return 0 if item is None else to_revision(item)

    async def read_changes(self, session: SessionKey, span: Span) -> list[Change]:
        """See Store.read_changes."""
        if span.after + 1 >= span.before:
            return []
        found = await self._api.query(
            keys.session_pk(session),
            keys.change_sk(span.after + 1),
            keys.change_sk(span.before - 1),
            limit=span.limit,
            newest_first=span.newest_first,
        )
        return [
            to_listed_change(item, int(item["sk"]["S"].removeprefix(keys.CHANGES_PREFIX)))
            for item in found
        ]

    async def find_request(
        self, session: SessionKey, method: str, request_id: str, actor: str
    ) -> Change | None:
        """See Store.find_request."""
        pk = keys.session_pk(session)
        request = await self._api.get(key(pk, keys.request_sk(method, request_id, actor)))
        if request is None:
            return None
        revision = to_revision(request)
        item = await self._api.get(key(pk, keys.change_sk(revision)))
        if item is not None:
            return to_change(item)
        head = await self._api.get(key(pk, keys.HEAD), "pk, sk, gone")
        if head is None or is_gone(head):
            return None  # The session was removed in between.
        raise StoreCorrupt(
            f'session "{session}" has lost revision {revision}; restore the table from a backup'
        )

    async def find_task(self, tenant: str, task_id: str) -> TaskRow | None:
        """See Store.find_task."""
        item = await self._api.get(key(keys.task_pk(tenant, task_id), keys.TASK))
        return None if item is None else to_task(item)

    async def list_tasks(self, session: SessionKey, after: TaskCursor, limit: int) -> list[TaskRow]:
        """See Store.list_tasks."""
        prefix = keys.TASK_PLACES_PREFIX
        places = await self._api.query(
            keys.session_pk(session),
            keys.task_place_sk(after.create_us, after.task_id) + keys.NEXT,
            prefix + keys.LAST,
            limit=limit,
        )
        wanted = [
            (keys.task_pk(session.tenant, to_text(place, "task_id")), keys.TASK) for place in places
        ]
        found = await self._api.get_many([key(*name) for name in wanted])
        return [to_task(found[name]) for name in wanted if name in found]

    async def list_sessions(self, tenant: str, last_id: str, limit: int) -> list[SessionRow]:
        """Read a tenant's sessions after an id. Fewer than limit = no more for now."""
        rows: list[SessionRow] = []
        while len(rows) < limit:
            left, after = limit - len(rows), last_id + keys.NEXT
            pages = await asyncio.gather(
                *(self._api.query(pk, after, limit=left) for pk in keys.list_pks(tenant))
            )
            # Code points sort as their UTF-8 bytes do.
            ids = sorted(to_text(item, "sk") for page in pages for item in page)[:left]
            if not ids:
                break
            sessions = [SessionKey(tenant, session_id) for session_id in ids]
            wanted = [key(keys.session_pk(session), keys.HEAD) for session in sessions]
            heads = await self._api.get_many(wanted, HEAD_ATTRIBUTES)
            for session in sessions:
                head = heads.get((keys.session_pk(session), keys.HEAD))
                row = None if head is None else to_session_row(session, head)
                # A session without a head is being removed.
                if row is not None:
                    rows.append(row)
            last_id = ids[-1]
        return rows

    async def find_session(self, session: SessionKey) -> SessionRow | None:
        """See Store.find_session."""
        head = await self._api.get(key(keys.session_pk(session), keys.HEAD), HEAD_ATTRIBUTES)
        return None if head is None else to_session_row(session, head)

    async def count_audit(self, session: SessionKey, kind: str, request_id: str) -> int:
        """See Store.count_audit."""
        found = await self._api.query(
            keys.session_pk(session),
            keys.AUDIT_PREFIX,
            keys.AUDIT_PREFIX + keys.LAST,
            condition="kind = :kind AND request_id = :request",
            values={":kind": text(kind), ":request": text(request_id)},
        )
        return len(found)

    async def due_sessions(self, now_us: int, limit: int) -> list[SessionKey]:
        """See Store.due_sessions. It finishes interrupted removals of sessions."""
        pages = await asyncio.gather(
            *(self._due(shard, now_us, limit) for shard in keys.due_shards())
        )
        due = sorted(
            (to_integer(item, "due_us"), keys.to_session(to_text(item, "pk")))
            for page in pages
            for item in page
        )[:limit]
        found = []
        for due_us, session in due:
            if due_us == 0 and await self._is_gone(session):
                await self._finish_removal(session)
            else:
                found.append(session)
        return found

    async def _due(self, shard: str, now_us: int, limit: int) -> list[dict[str, Any]]:
        answer = await self._api.on_table(
            "query",
            IndexName=keys.DUE_INDEX,
            KeyConditionExpression="due_shard = :shard AND due_us <= :now",
            ExpressionAttributeValues={
                ":shard": text(shard),
                ":now": integer(min(now_us, INT_MAX)),
            },
            Limit=limit,
        )
        items: list[dict[str, Any]] = answer.get("Items", [])
        return items

    async def _is_gone(self, session: SessionKey) -> bool:
        item = await self._api.get(key(keys.session_pk(session), keys.HEAD), "pk, sk, gone")
        return item is not None and is_gone(item)
