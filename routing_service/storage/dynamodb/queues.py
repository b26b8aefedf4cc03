"""Queues in DynamoDB: entries with their leases, in partitions of their own.

They are read consistently, and by no index, which would show a commit late. Times are those of the
replica that asks: a lease of another replica is taken over only half a second after its end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from heapq import merge
from itertools import islice
from typing import Any, Final

from routing_service.storage.dynamodb import keys
from routing_service.storage.dynamodb.api import Api
from routing_service.storage.dynamodb.errors import ConditionFailed
from routing_service.storage.dynamodb.items import Item, integer, key, text, to_integer, to_text
from routing_service.storage.queue_entries import LeaseWish, QueueEntry, QueueItem
from routing_service.storage.store import SessionKey

CLOCKS_DIFFER_US: Final = 500_000
"""What replicas' clocks may differ by without one taking over a lease that still runs."""


def entry_actions(
    session: SessionKey, put: tuple[QueueEntry, ...], drop: tuple[QueueEntry, ...]
) -> list[dict[str, Any]]:
    """Make the actions of a transaction that put and drop entries of one session."""
    return [
        # An update puts a missing item, and leaves the lease of a stored one as it is.
        *({"Update": _put(session, entry)} for entry in put),
        *({"Delete": {"Key": _key(session, entry)}} for entry in drop),
    ]


class Queues:
    """Reads and leases entries in one table."""

    def __init__(self, api: Api) -> None:
        """Read nothing yet."""
        self._api = api

    async def read_queue(
        self, tenant: str, queue: str, after: QueueEntry | None, limit: int
    ) -> list[QueueItem]:
        """See Store.read_queue."""
        low = keys.entry_sk(*after[1:]) + keys.NEXT if after else keys.number(0)
        shards = await asyncio.gather(
            *(self._api.query(pk, low, limit=limit) for pk in keys.queue_pks(tenant, queue))
        )
        now_us = _now_us()
        items = [[_to_item(queue, item, now_us) for item in shard] for shard in shards]
        return list(islice(merge(*items, key=lambda item: item.entry), limit))

    async def find_item(self, tenant: str, entry: QueueEntry) -> QueueItem | None:
        """See Store.find_item."""
        item = await self._api.get(_key(SessionKey(tenant, entry.session_id), entry))
        return None if item is None else _to_item(entry.queue, item, _now_us())

    async def lease_item(self, tenant: str, entry: QueueEntry, wish: LeaseWish) -> QueueItem | None:
        """See Store.lease_item. A repeat by the driver finds the lease its own."""
        now_us = _now_us()
        gives_back = wish.lease_us <= 0
        change = "SET lease_token = :token, worker = :worker, until_us = :until"
        values = {
            ":token": text("" if gives_back else wish.token),
            ":worker": text("" if gives_back else wish.worker),
            ":until": integer(0 if gives_back else now_us + wish.lease_us),
        }
        if wish.held:
            condition = "attribute_exists(pk) AND lease_token = :held"
            values[":held"] = text(wish.held)
            if gives_back:
                change += " ADD attempts :by"
                values[":by"] = integer(-1)
        else:
            condition = (
                "attribute_exists(pk) AND (attribute_not_exists(lease_token) "
                "OR lease_token = :none OR until_us <= :lapsed)"
            )
            values |= {":none": text(""), ":lapsed": integer(now_us - CLOCKS_DIFFER_US)}
            change += " ADD attempts :by"
            values[":by"] = integer(1)
        with suppress(ConditionFailed):
            await self._api.on_table(
                "update_item",
                Key=_key(SessionKey(tenant, entry.session_id), entry),
                UpdateExpression=change,
                ConditionExpression=condition,
                ExpressionAttributeValues=values,
            )
        return await self.find_item(tenant, entry)

    async def mend_queue(
        self, tenant: str, put: tuple[QueueEntry, ...], drop: tuple[QueueEntry, ...]
    ) -> None:
        """See Store.mend_queue."""
        for entry in put:
            session = SessionKey(tenant, entry.session_id)
            await self._api.on_table("update_item", **_put(session, entry))
        for entry in drop:
            session = SessionKey(tenant, entry.session_id)
            await self._api.on_table("delete_item", Key=_key(session, entry))


def _put(session: SessionKey, entry: QueueEntry) -> dict[str, Any]:
    return {
        "Key": _key(session, entry),
        "UpdateExpression": "SET place_us = :place, session_id = :session, request_id = :request",
        "ExpressionAttributeValues": {
            ":place": integer(entry.place_us),
            ":session": text(entry.session_id),
            ":request": text(entry.request_id),
        },
    }


def _key(session: SessionKey, entry: QueueEntry) -> Item:
    return key(keys.queue_pk(session, entry.queue), keys.entry_sk(*entry[1:]))


def _to_item(queue: str, item: Mapping[str, Any], now_us: int) -> QueueItem:
    entry = QueueEntry(
        queue,
        to_integer(item, "place_us"),
        to_text(item, "session_id"),
        to_text(item, "request_id"),
    )
    token = to_text(item, "lease_token") if "lease_token" in item else ""
    attempt = max(0, to_integer(item, "attempts")) if "attempts" in item else 0
    if not token:
        return QueueItem(entry, attempt=attempt)
    left_us = to_integer(item, "until_us") + CLOCKS_DIFFER_US - now_us
    return QueueItem(entry, token, to_text(item, "worker"), left_us, attempt)


def _now_us() -> int:
    return time.time_ns() // 1_000
