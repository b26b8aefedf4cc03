"""What an audit's proof says of a store that lacks a seal or a hash, on every engine."""

import time

from msgspec.structs import replace

from routing_service.sessions.audit_log import AuditLog, Operator
from routing_service.sessions.audit_sealer import AuditSealer
from routing_service.storage.audit_seals import (
    SealPlace,
    chained_since,
    note_chained,
    put_place,
    read_place,
)
from routing_service.storage.store import Append, Change, SessionKey
from routing_service.storage.store_format import NEWEST_FORMAT, raise_format, settle_format
from routing_service.stored_data.audit_verification import verify_audit
from routing_service.stored_data.noted_seals import NotedSeal

TENANT = "default"
NOW_US = 1_000_000
EVENTS = b'{"v":1,"events":[{"kind":"session_started","profile":{"user_id":"ana"}}]}'
STATE = b'{"v":1,"state":{"session_id":"old","revision":1,"create_us":5,"update_us":5}}'


async def proved(store, *expected):
    """Return what the proof says of the tenant."""
    (found,) = [each async for each in verify_audit(store, TENANT, expected)]
    return found


async def acted_and_sealed(store, times):
    """Seal an operator's act, several times."""
    log = AuditLog(store, lambda: NOW_US)
    sealer = AuditSealer(store, lambda: NOW_US, holder="one", logs=(log,))
    for _ in range(times):
        await log.act(Operator(TENANT), TENANT, "ReloadAgents", reason="", target="")
        await sealer.note_grown()
        await sealer.seal()


async def test_store_that_lacks_its_last_seal_is_broken(store):
    """Each engine has its own way to lose the end of an audit; the setting knows its last seal."""
    await settle_format(store)
    await acted_and_sealed(store, 2)
    found = await proved(store)
    assert (found.problems, found.seals, found.entries) == ([], 2, 2)
    place = await read_place(store, TENANT)
    assert (place.n, place.link.hex()) == (found.last_seal, found.last_seal_hash)
    await put_place(store, TENANT, SealPlace(place.cursor, 3, b"x" * 32))
    assert (await proved(store)).problems == [
        "seal 3: the store has noted it as the last one, and it is missing or was changed since"
    ]


async def test_store_that_lacks_an_expected_seal_is_broken(store):
    """A tenant of which nothing is left is reported too."""
    await settle_format(store)
    await acted_and_sealed(store, 1)
    found = await proved(store)
    last = NotedSeal(TENANT, found.last_seal, found.last_seal_hash)
    assert (await proved(store, last)).problems == []
    later = NotedSeal(TENANT, 7, "0" * 64)
    gone = NotedSeal("gone", 1, "1" * 64)
    reports = [each async for each in verify_audit(store, "", [last, later, gone])]
    assert [(each.tenant, len(each.problems)) for each in reports] == [(TENANT, 1), ("gone", 1)]


async def test_change_without_a_hash_is_a_break_since_all_have_one(store):
    """In a store that began with this release; in an older one since no older release writes."""
    await settle_format(store)
    assert await chained_since(store) == 0
    change = Change(1, NOW_US, "Route", "r1", "", b"print", EVENTS, b"answer")
    await store.append(Append(SessionKey(TENANT, "old"), 0, change, STATE, "ana"))
    (problem,) = (await proved(store)).problems
    assert problem.startswith("session old, revision 1: has no hash")
    await note_chained(store, NOW_US)
    found = await proved(store)
    assert (found.problems, found.unchained) == ([], 1)
    later = replace(change, revision=2, time_us=NOW_US + 1, request_id="r2")
    await store.append(Append(SessionKey(TENANT, "old"), 1, later, STATE, "ana"))
    (problem,) = (await proved(store)).problems
    assert problem.startswith("session old, revision 2: has no hash")


async def test_older_store_expects_hashes_since_a_server_of_this_release_started(store):
    """What release 0.1 wrote before cannot have any."""
    change = Change(1, NOW_US - 1, "Route", "r1", "", b"print", EVENTS, b"answer")
    await store.append(Append(SessionKey(TENANT, "old"), 0, change, STATE, "ana"))
    await raise_format(store, NEWEST_FORMAT)
    before_us = time.time_ns() // 1_000
    await settle_format(store)
    since_us = await chained_since(store)
    assert before_us <= since_us <= time.time_ns() // 1_000
    await settle_format(store)
    assert await chained_since(store) == since_us
    found = await proved(store)
    assert (found.problems, found.unchained) == ([], 1)
