"""Queues in Redis: entries in a sorted set of each shard, their leases in a hash next to it.

The entries of a session are in its own shard, so that the script of its appends can write them.
Leases are written without waiting for the disk.
"""

from __future__ import annotations

from heapq import merge
from itertools import islice

from routing_service.storage.queue_entries import LeaseWish, QueueEntry, QueueItem
from routing_service.storage.redis.connection import Reply
from routing_service.storage.redis.keys import Keys, text_bytes
from routing_service.storage.redis.pipeline import Pipeline
from routing_service.storage.redis.records import NUMBER_BYTES, number, to_number
from routing_service.storage.redis.scripts import Command, script_call
from routing_service.storage.store import SessionKey, StoreCorrupt


def entry_member(entry: QueueEntry) -> bytes:
    """Name an entry within its queue. Members sort as the entries do."""
    return (
        number(entry.place_us) + text_bytes(entry.session_id) + b"\0" + text_bytes(entry.request_id)
    )


async def read_queue(
    pipeline: Pipeline,
    keys: Keys,
    tenant: str,
    queue: str,
    *,
    after: QueueEntry | None,
    limit: int,
) -> list[QueueItem]:
    """Read a queue's entries after one of them, from all shards in one round trip."""
    start = b"(" + entry_member(after) if after else b"-"
    commands: list[Command] = [
        script_call("read_queue", [entries, leases], start, limit)
        for entries, leases in keys.queue_shards(tenant, queue)
    ]
    shards = [_to_items(queue, reply) for reply in await pipeline.call(commands)]
    return list(islice(merge(*shards, key=lambda item: item.entry), limit))


async def find_item(
    pipeline: Pipeline, keys: Keys, tenant: str, entry: QueueEntry
) -> QueueItem | None:
    """Read one entry."""
    names = keys.queue(SessionKey(tenant, entry.session_id), entry.queue)
    member = entry_member(entry)
    (reply,) = await pipeline.call([script_call("read_queue", list(names), b"[" + member, 1)])
    found = _to_items(entry.queue, reply)
    return found[0] if found and found[0].entry == entry else None


async def lease_item(
    pipeline: Pipeline, keys: Keys, tenant: str, entry: QueueEntry, wish: LeaseWish
) -> QueueItem | None:
    """Change an entry's lease if it may be; return the entry as it then is."""
    names = keys.queue(SessionKey(tenant, entry.session_id), entry.queue)
    texts = [text_bytes(text) for text in (wish.held, wish.token, wish.worker)]
    command = script_call("lease_item", list(names), entry_member(entry), *texts, wish.lease_us)
    (reply,) = await pipeline.call([command])
    if not reply:
        return None
    now, lease = reply
    return _to_item(entry, lease, to_number(now))


async def mend_queue(
    pipeline: Pipeline,
    keys: Keys,
    tenant: str,
    put: tuple[QueueEntry, ...],
    drop: tuple[QueueEntry, ...],
) -> None:
    """Put and drop entries, each in a step of its own."""
    await pipeline.call(
        [
            script_call(
                "mend_queue",
                list(keys.queue(SessionKey(tenant, entry.session_id), entry.queue)),
                entry_member(entry),
                act,
            )
            for act, entries in (("put", put), ("drop", drop))
            for entry in entries
        ]
    )


def _to_items(queue: str, reply: list[Reply]) -> list[QueueItem]:
    now_us = to_number(reply[0])
    return [
        _to_item(_to_entry(queue, member), lease, now_us)
        for member, lease in zip(reply[1::2], reply[2::2], strict=True)
    ]


def _to_entry(queue: str, member: bytes) -> QueueEntry:
    session_id, mark, request_id = member[NUMBER_BYTES:].partition(b"\0")
    if not mark:
        raise StoreCorrupt(f'an entry of the queue "{queue}" is damaged; restore it from a backup')
    place_us = to_number(member[:NUMBER_BYTES])
    return QueueEntry(queue, place_us, session_id.decode(), request_id.decode())


def _to_item(entry: QueueEntry, lease: bytes, now_us: int) -> QueueItem:
    if not lease:
        return QueueItem(entry)
    ends_us, attempt = to_number(lease[:8]), to_number(lease[8:16])
    token, _, worker = lease[16:].partition(b"\0")
    left_us = ends_us - now_us if token else 0
    return QueueItem(entry, token.decode(), worker.decode(), left_us, attempt)
