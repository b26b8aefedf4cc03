"""The names of the Redis store's keys, and which slot each belongs to.

All keys that one script touches have one hash tag, so that on a cluster they are in one slot, on
one node. A session belongs to one of SHARDS shards, by its key's checksum; all keys of the session
and the shard's own (its log, its lists) have the shard's number as their tag. Keys of a tenant as a
whole, or of a name, are in the shard of that name's checksum.
"""

from __future__ import annotations

import zlib
from typing import Final, NamedTuple

from routing_service.storage.store import SessionKey

SHARDS: Final = 16
"""How many nodes of a cluster one store could be spread over. More would make every read that goes
over all of them (the log, lists of sessions) dearer. Part of the stored form: never change it."""


class SessionKeys(NamedTuple):
    """The keys of one session and of its shard."""

    head: bytes
    """Revision, times, due time, owner and state: see redis_records."""
    changes: bytes
    """A list: revision n is at index n - 1."""
    requests: bytes
    """A hash: request field to revision."""
    tasks: bytes
    """A hash: task id to row."""
    task_order: bytes
    """A sorted set of places, by their bytes."""
    fences: bytes
    """A hash: task id to the token of a claim that must never count."""
    counter: bytes
    """How many changes the shard's log has had."""
    log: bytes
    """A stream: 0-n is the n-th change of the shard."""
    sessions: bytes
    """A sorted set of the tenant's session ids in this shard, by their bytes."""
    due: bytes
    """A sorted set of due time and member, by their bytes."""
    tenants: bytes
    """A sorted set of the tenants that have had something in this shard, by their bytes."""
    leavings: bytes
    """A set: names of the remains of deleted sessions, to be removed."""
    member: bytes
    """The session's name in the shard's lists, not a key."""
    prefix: bytes
    """The prefix of the shard's keys, not a key."""


class AuditKeys(NamedTuple):
    """The keys of one session's audit, which are in the tenant's shard."""

    entries: bytes
    """A list of all of the tenant's entries: position n is at index n - 1."""
    positions: bytes
    """A sorted set: those of the session."""
    counts: bytes
    """A hash: kind and request id to how many the session has."""
    tenants: bytes
    """As for a session, but of the tenant's shard."""


class Keys:
    """The keys of one store."""

    def __init__(self, prefix: str) -> None:
        """Name them all with a prefix, which has no brace."""
        self._shards = [f"{prefix}:{{{shard:02}}}:".encode() for shard in range(SHARDS)]
        self.meta = self._shards[0] + b"meta"
        """A hash: what the store is."""
        self.probe = self._shards[0] + b"probe"
        """Written by each group, so that WAITAOF has a write to wait for."""
        self.channel = self._shards[0] + b"live"
        """The channel of messages between replicas, not a key."""
        self.counters = [shard + b"n" for shard in self._shards]
        self.logs = [shard + b"log" for shard in self._shards]
        self.due = [shard + b"due" for shard in self._shards]
        self.tenants = [shard + b"tenants" for shard in self._shards]

    def session(self, key: SessionKey) -> SessionKeys:
        """Name the keys of a session."""
        tenant = text_bytes(key.tenant)
        member = tenant + b"\0" + text_bytes(key.session_id)
        shard = self._shard(member)
        return SessionKeys(
            head=shard + b"h:" + member,
            changes=shard + b"c:" + member,
            requests=shard + b"q:" + member,
            tasks=shard + b"t:" + member,
            task_order=shard + b"o:" + member,
            fences=shard + b"f:" + member,
            counter=shard + b"n",
            log=shard + b"log",
            sessions=shard + b"l:" + tenant,
            due=shard + b"due",
            tenants=shard + b"tenants",
            leavings=shard + b"x",
            member=member,
            prefix=shard,
        )

    def sessions(self, tenant: str) -> list[bytes]:
        """Name the lists of a tenant's sessions, one for each shard."""
        name = text_bytes(tenant)
        return [shard + b"l:" + name for shard in self._shards]

    def queue(self, key: SessionKey, queue: str) -> tuple[bytes, bytes]:
        """Name the entries and the leases of a queue, in a session's shard."""
        tenant = text_bytes(key.tenant)
        shard = self._shard(tenant + b"\0" + text_bytes(key.session_id))
        return _queue(shard, tenant, queue)

    def queue_shards(self, tenant: str, queue: str) -> list[tuple[bytes, bytes]]:
        """Name the entries and the leases of a queue in every shard."""
        name = text_bytes(tenant)
        return [_queue(shard, name, queue) for shard in self._shards]

    def claims(self, tenant: str, task_id: str) -> bytes:
        """Name the hash that has the claim of a task id."""
        name = text_bytes(tenant)
        return self._shard(name + b"\0" + text_bytes(task_id)) + b"k:" + name

    def audit(self, tenant: str, session_id: str = "") -> AuditKeys:
        """Name the keys of a session's audit; "" = only that of the tenant counts."""
        name = text_bytes(tenant)
        shard = self._shard(name)
        member = name + b"\0" + text_bytes(session_id)
        return AuditKeys(
            shard + b"a:" + name, shard + b"b:" + member, shard + b"e:" + member, shard + b"tenants"
        )

    def settings(self, tenant: str) -> tuple[bytes, bytes]:
        """Name the hash of a tenant's settings, and the tenants of its shard."""
        name = text_bytes(tenant)
        shard = self._shard(name)
        return shard + b"s:" + name, shard + b"tenants"

    def lease(self, name: str) -> bytes:
        """Name the hash of a lease."""
        wanted = text_bytes(name)
        return self._shard(wanted) + b"v:" + wanted

    def _shard(self, name: bytes) -> bytes:
        return self._shards[zlib.crc32(name) % SHARDS]


def _queue(shard: bytes, tenant: bytes, queue: str) -> tuple[bytes, bytes]:
    name = tenant + b"\0" + text_bytes(queue)
    return shard + b"w:" + name, shard + b"u:" + name


def session_of(member: bytes) -> SessionKey:
    """Read a member of a shard's list back. Raises ValueError."""
    tenant, _, session_id = member.partition(b"\0")
    return SessionKey(tenant.decode(), session_id.decode())


def request_field(method: str, request_id: str, actor: str) -> bytes:
    """Name a request within its session; b"" where it has no id."""
    if not request_id:
        return b""
    return b"\0".join(map(text_bytes, (method, request_id, actor)))


def text_bytes(text: str) -> bytes:
    """Encode a name. A name that cannot be stored gives bytes that match no stored name."""
    return text.encode(errors="surrogatepass")
