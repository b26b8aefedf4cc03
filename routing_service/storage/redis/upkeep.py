"""What a sweep of the Redis store does: due sessions, leases, erasing and deleting.

Each step is whole, and what an interrupted sequence of steps leaves behind is either finished by
the next call or has no effect.

Deleting hides the session in one script. Its entries in the log, its tasks' claims and its audit
are in other places, or too many for one script, and follow. If the process stops in between, the
next delete in the shard removes the rest, except for the audit, which a delete at revision 0
blanks. Until then the log skips such entries, and the claims own nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

import structlog

from routing_service.storage.redis.connection import Reply
from routing_service.storage.redis.keys import SHARDS, Keys, SessionKeys, session_of, text_bytes
from routing_service.storage.redis.pipeline import Pipeline
from routing_service.storage.redis.records import number, to_due, to_revision
from routing_service.storage.redis.scripts import Command, script_call
from routing_service.storage.redis.writer import TOKEN_BYTES, fence_command
from routing_service.storage.store import (
    ERASE_CHANGES_MAX,
    INT_MAX,
    RevisionConflict,
    SessionKey,
    StoreCorrupt,
)

_log = structlog.get_logger(__name__)

NAME_BYTES: Final = 8
"""Random bytes in the name of a deleted session's remains, which keep several of one name apart."""

DAMAGED_BYTES_SHOWN: Final = 64
"""Of an entry that cannot be read, so that an operator finds it."""

BATCH: Final = ERASE_CHANGES_MAX
"""Rows that one script touches: other calls wait no longer than for a group of appends."""


async def due_sessions(pipeline: Pipeline, keys: Keys, now_us: int, limit: int) -> list[SessionKey]:
    """Read what is due, the earliest first. A damaged entry is skipped, with a line in the log."""
    # Members begin with their time: those below the next microsecond are due.
    end = b"(" + number(min(max(now_us, -1), INT_MAX) + 1)
    commands: list[Command] = [
        ("ZRANGE", shard, "-", end, "BYLEX", "LIMIT", 0, limit) for shard in keys.due
    ]
    members = [member for reply in await pipeline.call(commands) for member in reply]
    assert len(members) <= SHARDS * limit
    due = []
    for member in members:
        try:
            due.append(to_due(member))
        except StoreCorrupt:
            _log.error("due_entry_damaged", entry=member[:DAMAGED_BYTES_SHOWN].hex())
    return [key for _, key in sorted(due)[:limit]]


async def acquire_lease(
    pipeline: Pipeline, keys: Keys, name: str, holder: str, *, now_us: int, until_us: int
) -> bool:
    """Take, renew or give up a lease."""
    command = script_call(
        "acquire_lease", [keys.lease(name)], text_bytes(holder), str(now_us), str(until_us)
    )
    (reply,) = await pipeline.call([command])
    return bool(reply)


async def swap_setting(
    pipeline: Pipeline, keys: Keys, tenant: str, name: str, *, before: bytes | None, value: bytes
) -> bool:
    """Write a setting if it is unchanged; return whether it was."""
    settings, tenants = keys.settings(tenant)
    there = (b"0", b"") if before is None else (b"1", before)
    # The tenant first: a listed tenant without content is harmless.
    _, reply = await pipeline.call(
        [
            ("ZADD", tenants, 0, text_bytes(tenant)),
            script_call("swap_setting", [settings], text_bytes(name), value, *there),
        ]
    )
    return bool(reply)


async def erase_before(
    pipeline: Pipeline, keys: Keys, key: SessionKey, revision: int, blank: bytes
) -> int:
    """Blank the changes below a revision, the tasks, the audit, and last the owner."""
    await _blank_audit(pipeline, keys, key)
    names = keys.session(key)
    await _blank_tasks(pipeline, names)
    erased = 0
    for first in range(1, min(revision, INT_MAX), BATCH):
        last = min(first + BATCH - 1, revision - 1)
        command = script_call("erase_changes", [names.changes], first, last, blank)
        ((blanked, looked_at),) = await pipeline.call([command])
        erased += blanked
        if looked_at < BATCH:
            break
    await pipeline.call([script_call("erase_owner", [names.head])])
    return erased


async def delete_session(pipeline: Pipeline, keys: Keys, key: SessionKey, revision: int) -> None:
    """Remove a session and blank its audit. Raises RevisionConflict, StoreCorrupt."""
    names = keys.session(key)
    leaving = os.urandom(NAME_BYTES).hex().encode() + names.member
    changes, tasks = _put_aside(names.prefix, leaving)
    command = script_call(
        "delete_session",
        [
            *(names.head, names.changes, names.requests, names.tasks, names.task_order),
            *(names.sessions, names.due, names.leavings, changes, tasks),
        ],
        number(revision),
        text_bytes(key.session_id),
        names.member,
        leaving,
    )
    (outcome,) = await pipeline.call([command])
    match outcome:
        case [b"conflict", actual]:
            raise RevisionConflict(key, revision, to_revision(key, actual))
        case [b"corrupt", *_]:
            raise StoreCorrupt(f'session "{key}" is damaged; restore it from a backup')
    await _blank_audit(pipeline, keys, key)
    (leavings,) = await pipeline.call([("SMEMBERS", names.leavings)])
    for left in leavings:
        await _purge(pipeline, keys, names, left)


async def _purge(pipeline: Pipeline, keys: Keys, names: SessionKeys, leaving: bytes) -> None:
    """Remove the remains of a deleted session. Several calls at once are safe."""
    changes, tasks = _put_aside(names.prefix, leaving)
    purge = script_call("purge_changes", [changes, names.log], BATCH)
    while (await pipeline.call([purge]))[0] == BATCH:
        pass
    key = session_of(leaving[2 * NAME_BYTES :])
    (task_ids,) = await pipeline.call([("HKEYS", tasks)])
    for at in range(0, len(task_ids), BATCH):
        await _release(pipeline, keys, key, task_ids[at : at + BATCH])
    await pipeline.call([("UNLINK", tasks), ("SREM", names.leavings, leaving)])


async def _release(
    pipeline: Pipeline, keys: Keys, key: SessionKey, task_ids: Sequence[bytes]
) -> None:
    """Give up a session's claims of tasks that it no longer has.

    Fenced first, as by another session: a new session of that name may be about to use them.
    """
    found = [keys.claims(key.tenant, task_id.decode()) for task_id in task_ids]
    replies: list[Reply] = await pipeline.call(
        [("HGET", claims, task_id) for claims, task_id in zip(found, task_ids, strict=True)]
    )
    owner = text_bytes(key.session_id)
    ours = [
        (claims, task_id, claim)
        for claims, task_id, claim in zip(found, task_ids, replies, strict=True)
        if claim is not None and claim[TOKEN_BYTES:] == owner
    ]
    if not ours:
        return
    names = keys.session(key)
    counted = await pipeline.call(
        [fence_command(names, task_id, claim) for _, task_id, claim in ours]
    )
    commands = [
        script_call("unclaim", [claims], task_id, claim)
        for (claims, task_id, claim), counts in zip(ours, counted, strict=True)
        if not counts
    ]
    if commands:
        await pipeline.call(commands)


async def _blank_tasks(pipeline: Pipeline, names: SessionKeys) -> None:
    (places,) = await pipeline.call([("ZRANGE", names.task_order, 0, -1)])
    # A place is a time and the task's id.
    task_ids = [place[8:] for place in places]
    for at in range(0, len(task_ids), BATCH):
        await pipeline.call([script_call("erase_tasks", [names.tasks], *task_ids[at : at + BATCH])])


async def _blank_audit(pipeline: Pipeline, keys: Keys, key: SessionKey) -> None:
    audit = keys.audit(*key)
    (positions,) = await pipeline.call([("ZRANGE", audit.positions, 0, -1)])
    for at in range(0, len(positions), BATCH):
        command = script_call("erase_audit", [audit.entries], *positions[at : at + BATCH])
        await pipeline.call([command])


def _put_aside(prefix: bytes, leaving: bytes) -> tuple[bytes, bytes]:
    """Name the keys where a deleted session's changes and tasks wait."""
    return prefix + b"y:" + leaving, prefix + b"z:" + leaving
