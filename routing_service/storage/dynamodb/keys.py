"""The keys of the DynamoDB table: where each thing is, and over how many partitions it is spread.

A session has all its own items in one partition, so that it is read by one query. No item or
partition is touched by all sessions. No two names can be confused, whichever characters they have
(a tenant comes behind its length).

==================  ===========================  ==================================================
partition (pk)      sort key (sk)                what it is
==================  ===========================  ==================================================
s/LEN:TENANT/ID     h                            the head: revision, state, owner, times
s/LEN:TENANT/ID     c/REVISION                   a change
s/LEN:TENANT/ID     r/SHA-256                    a request id, with the revision that it made
s/LEN:TENANT/ID     t/CREATE_US/TASK_ID          a task's place in the session's list
s/LEN:TENANT/ID     a/POSITION                   an audit entry
t/LEN:TENANT/ID     t                            a task, by its id alone
l/SHARD/TENANT      SESSION_ID                   a session in its tenant's list
w/SHARD/LEN:TENANT/QUEUE  PLACE_US/ID REQUEST   an entry of a queue, with its lease
q/log/SHARD         POSITION                     a place of the log: whose change it is
q/audit/TENANT      POSITION                     a place of the audit: whose entry it is
n/NAME              n                            how many places of that sequence are given out
k/TENANT            NAME                         a setting
i                   TENANT                       a tenant
e/NAME              e                            a lease
p/ANY               p                            what probes write
m                   m                            the schema version and the store's identity
==================  ===========================  ==================================================

The index ``due`` has the heads with a due time by due_shard and due_us.
"""

from __future__ import annotations

import hashlib
import zlib
from typing import Final

from routing_service.storage.store import INT_MAX, SessionKey, StoreCorrupt

LOG_SHARDS: Final = 16
"""Sequences of the log. A partition takes 1,000 write units a second and a place of the log takes
two: 500 appends a second each, 8,000 in all. A waiting reader asks for all in one call, which costs
one read unit per shard. Cursors contain the number, so changing it needs a new schema version."""

DUE_SHARDS: Final = 8
"""Partitions of the index of due times. An append moves a session in it, which is two write units:
4,000 appends a second in all. A search for due sessions queries each partition."""

LIST_SHARDS: Final = 4
"""Partitions of a tenant's list of sessions, written when a session is new: two write units, so
2,000 new sessions a second for each tenant. A page queries each."""

QUEUE_SHARDS: Final = 8
"""Partitions of a queue. An entry takes one write unit to be put and one for each lease: 2,000
entries a second. A reader queries each partition."""

DUE_INDEX: Final = "due"
HEAD: Final = "h"
TASK: Final = "t"
COUNTER: Final = "n"
LEASE: Final = "e"
PROBE: Final = "p"
META: Final = "m"
TENANTS: Final = "i"

CHANGES_PREFIX: Final = "c/"
TASK_PLACES_PREFIX: Final = "t/"
AUDIT_PREFIX: Final = "a/"

NEXT: Final = "\0"
"""Appended to a text: the first text that sorts after it. No stored name contains it."""

LAST: Final = "~"
"""Sorts after every digit: the end of a range of numbers."""


def session_pk(key: SessionKey) -> str:
    """Name the partition of a session."""
    return f"s/{len(key.tenant)}:{key.tenant}/{key.session_id}"


def to_session(pk: str) -> SessionKey:
    """Read a session's name back. Raises StoreCorrupt."""
    length, colon, rest = pk.removeprefix("s/").partition(":")
    if not pk.startswith("s/") or not colon or not length.isdecimal():
        raise StoreCorrupt(
            f"the item {pk!r} does not belong to a session; restore the table from a backup"
        )
    tenant_chars = int(length)
    return SessionKey(rest[:tenant_chars], rest[tenant_chars + 1 :])


def number(value: int) -> str:
    """Write a number so that texts sort as the numbers do; out of bounds is clamped."""
    return f"{min(max(value, 0), INT_MAX):019}"


def change_sk(revision: int) -> str:
    """Name a change within its session."""
    return f"{CHANGES_PREFIX}{number(revision)}"


def request_sk(method: str, request_id: str, actor: str) -> str:
    """Name a request within its session. The three together may be longer than a key can be."""
    parts = (method.encode(), request_id.encode(), actor.encode())
    digest = hashlib.sha256(b"".join(b"%d:%b" % (len(part), part) for part in parts))
    return f"r/{digest.hexdigest()}"


def task_place_sk(create_us: int, task_id: str) -> str:
    """Name a task's place in its session's list. Names sort in the list's order."""
    return f"{TASK_PLACES_PREFIX}{number(create_us)}/{task_id}"


def task_pk(tenant: str, task_id: str) -> str:
    """Name the partition of a task."""
    return f"t/{len(tenant)}:{tenant}/{task_id}"


def audit_sk(position: int) -> str:
    """Name an audit entry within its session."""
    return f"{AUDIT_PREFIX}{number(position)}"


def list_pks(tenant: str) -> tuple[str, ...]:
    """Name the partitions of a tenant's list of sessions."""
    return tuple(f"l/{shard}/{tenant}" for shard in range(LIST_SHARDS))


def list_pk(key: SessionKey) -> str:
    """Name the partition that lists a session."""
    return list_pks(key.tenant)[_shard(key, LIST_SHARDS)]


def queue_pks(tenant: str, queue: str) -> tuple[str, ...]:
    """Name the partitions of a queue."""
    return tuple(f"w/{shard}/{len(tenant)}:{tenant}/{queue}" for shard in range(QUEUE_SHARDS))


def queue_pk(key: SessionKey, queue: str) -> str:
    """Name the partition of a queue that has a session's entries."""
    return queue_pks(key.tenant, queue)[_shard(key, QUEUE_SHARDS)]


def entry_sk(place_us: int, session_id: str, request_id: str) -> str:
    """Name an entry within its queue. Names sort as the entries do."""
    return f"{number(place_us)}/{session_id}\0{request_id}"


def due_shards() -> tuple[str, ...]:
    """Name the partitions of the index of due times."""
    return tuple(f"{shard}" for shard in range(DUE_SHARDS))


def due_shard(key: SessionKey) -> str:
    """Name the partition of the index that has a session's due time."""
    return due_shards()[_shard(key, DUE_SHARDS)]


def log_names() -> tuple[str, ...]:
    """Name the sequences of the log."""
    return tuple(f"log/{shard:02}" for shard in range(LOG_SHARDS))


def log_name(key: SessionKey) -> str:
    """Name the sequence that has all of a session's changes."""
    return log_names()[_shard(key, LOG_SHARDS)]


def audit_name(tenant: str) -> str:
    """Name the sequence of a tenant's audit."""
    return f"audit/{tenant}"


def sequence_pk(name: str) -> str:
    """Name the partition that has a sequence's places."""
    return f"q/{name}"


def counter_pk(name: str) -> str:
    """Name the partition of a sequence's counter."""
    return f"n/{name}"


def setting_pk(tenant: str) -> str:
    """Name the partition of a tenant's settings."""
    return f"k/{tenant}"


def lease_pk(name: str) -> str:
    """Name the partition of a lease."""
    return f"e/{name}"


def _shard(key: SessionKey, shards: int) -> int:
    return zlib.crc32(session_pk(key).encode()) % shards
