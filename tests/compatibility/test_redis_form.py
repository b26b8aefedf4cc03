"""What the Redis store of schema version 1 has under which keys, byte for byte, for ever.

A later release that stores something else has another schema version, and reads this one's.
"""

import pytest
from msgspec import structs

from routing_service.storage.open_store import open_store
from tests.engines.appends import append, audit, key, task

CHANGE = (
    "0000000000000001 0000000000000001 00000000000003e8 0005 0009 0000 00000005 00000006"
    "526f757465 726571756573742d31 7072696e74 6576656e7473 616e73776572"
)
"""Position, revision, time, lengths; Route, request-1, print, events, answer."""

HEAD = (
    "0000000000000001 00000000000003e8 00000000000003e8 01 0000000000000005 0003"
    "616e61 73746174652031"
)
"""Revision, created, updated, due, length; ana, state 1."""

TASK = (
    "00000000000003e8 00000000000007d0 00 0000000000000000 0007 0003 72756e6e696e67 616e61 64617461"
)
"""Created, updated, no expiry, lengths; running, ana, data."""

AUDIT = (
    "0000000000000000 00000000000003e8 000f 0009 0009 0003"
    "68616e646f66665f72656675736564 726571756573742d31 636861742d30303030 616e61 776879"
)
"""Revision, time, lengths; handoff_refused, request-1, chat-0000, ana, why."""

LOGGED = "0000000000000001 61636d6500636861742d30303030"
"""After the server's time: revision; acme, chat-0000."""

DUE = "0000000000000005 61636d6500636861742d30303030"
PLACE = "00000000000003e8 7461736b2d31"


@pytest.fixture
async def stored(redis_database, tmp_path):
    """All keys of a store with one of everything, without their prefix, and their values."""
    store = await open_store(redis_database.store_url(tmp_path))
    await store.append(structs.replace(append(tasks=(task(0),)), due_us=5))
    await store.append_audit(audit())
    await store.put_setting("acme", "name", b"value")
    await store.acquire_lease("sweep", "holder", 1, 2)
    await store.close()
    prefix = redis_database.prefix(tmp_path).encode() + b":"
    found = {}
    with redis_database.client() as client:
        for name in client.scan_iter(match=prefix + b"*"):
            read = {
                b"string": client.get,
                b"hash": client.hgetall,
                b"list": lambda name: client.lrange(name, 0, -1),
                b"zset": lambda name: client.zrange(name, 0, -1, withscores=True),
                b"stream": client.xrange,
            }[client.type(name)]
            found[name.removeprefix(prefix)] = read(name)
    redis_database.clear(tmp_path)
    return found


def test_keys_and_values_are_as_they_were(stored):
    """Names, shards, types and bytes."""
    ((entry_id, entry),) = stored.pop(b"{06}:log")
    claims = stored.pop(b"{07}:k:acme")
    mark = stored.pop(b"{00}:meta")
    assert stored == {
        b"{06}:h:acme\0chat-0000": bytes.fromhex(HEAD),
        b"{06}:c:acme\0chat-0000": [bytes.fromhex(CHANGE)],
        b"{06}:q:acme\0chat-0000": {b"Route\0request-1\0": b"1"},
        b"{06}:t:acme\0chat-0000": {b"task-1": bytes.fromhex(TASK)},
        b"{06}:o:acme\0chat-0000": [(bytes.fromhex(PLACE), 0.0)],
        b"{06}:n": b"1",
        b"{06}:l:acme": [(b"chat-0000", 0.0)],
        b"{06}:due": [(bytes.fromhex(DUE), 0.0)],
        b"{06}:tenants": [(b"acme", 0.0)],
        b"{14}:tenants": [(b"acme", 0.0)],
        b"{14}:a:acme": [bytes.fromhex(AUDIT)],
        b"{14}:b:acme\0chat-0000": [(b"1", 1.0)],
        b"{14}:e:acme\0chat-0000": {b"handoff_refused\0request-1": b"1"},
        b"{14}:s:acme": {b"name": b"value"},
        b"{02}:v:sweep": {b"holder": b"holder", b"until": b"2"},
        b"{00}:probe": b"1",
    }
    assert entry_id == b"0-1"
    assert entry[b"e"][8:] == bytes.fromhex(LOGGED)
    assert claims[b"task-1"][8:] == key().session_id.encode()
    assert mark[b"schema"] == b"1"
    assert len(mark[b"store_id"]) == 8
