"""Calls that find everything in a store: tenants, their settings, one session's row."""

import asyncio

import pytest
from msgspec import structs

from routing_service.storage.store import CURSOR_START

NAMES = ["b", "a", "B", "ab", "a b", "ñ", "日本", "😀", "\uffee", "a.b", "0"]
"""In code points' order U+FFEE comes before the emoji, in UTF-16's after it."""


async def all_tenants(store, limit):
    """Read the tenants to the end in pages."""
    found, after = [], ""
    while page := await store.list_tenants(after, limit):
        found += page
        after = page[-1]
    return found


@pytest.mark.parametrize("limit", [1, 4, 1000])
async def test_tenants_are_listed_by_code_point_each_once(store, make, limit):
    """A tenant may have sessions, an audit entry, a setting, or all of these."""
    for number, name in enumerate(NAMES):
        if number % 3 != 1:
            await store.append(make.append(make.key(tenant=name)))
            await store.append(make.append(make.key("chat-2", tenant=name)))
        if number % 3 != 2:
            await store.append_audit(make.audit(tenant=name))
        if number % 3 != 0:
            await store.put_setting(name, "stickiness", b"on")
    assert await all_tenants(store, limit) == sorted(NAMES)


async def test_tenant_is_listed_for_any_one_thing_it_has(store, make):
    """A copy that finds tenants by their sessions would miss the other two."""
    await store.append_audit(make.audit(tenant="audit-alone"))
    await store.put_setting("setting-alone", "stickiness", b"")
    await store.append(make.append(make.key(tenant="session-alone")))
    assert await all_tenants(store, 10) == ["audit-alone", "session-alone", "setting-alone"]


async def test_tenants_that_were_only_asked_for_are_not_listed(store, make):
    """Reading creates nothing."""
    assert await store.load(make.key(tenant="asked")) is None
    assert await store.get_setting("asked", "stickiness") is None
    assert (await store.list_sessions("asked", CURSOR_START, 10))[0] == []
    assert await store.list_tenants("", 10) == []


async def test_tenants_are_listed_as_soon_as_their_first_write_has_returned(store, make):
    """Many concurrent first writes, as after a start: no tenant is missing."""
    names = [f"tenant-{number:02}" for number in range(40)]
    await asyncio.gather(*(store.append(make.append(make.key(tenant=name))) for name in names))
    assert await all_tenants(store, 7) == names


async def test_tenants_are_known_after_reopening(lasting_engine, make):
    """Also to the process that opens the store next."""
    store = await lasting_engine.open()
    for name in NAMES:
        await store.append(make.append(make.key(tenant=name)))
    await store.close()
    assert await all_tenants(await lasting_engine.open(), 3) == sorted(NAMES)


@pytest.mark.parametrize("limit", [1, 4, 1000])
async def test_settings_are_listed_by_code_point_with_their_values(store, limit):
    """With the latest values; other tenants' settings are not included."""
    for name in NAMES:
        await store.put_setting("acme", name, b"before")
        await store.put_setting("acme", name, name.encode())
        await store.put_setting("other", name, b"other")
    await store.put_setting("acme", "empty", b"")
    found, after = [], ""
    while page := await store.list_settings("acme", after, limit):
        found += page
        after = page[-1][0]
    assert found == sorted([(name, name.encode()) for name in NAMES] + [("empty", b"")])
    assert await store.list_settings("nobody", "", limit) == []


async def test_one_session_s_row_is_the_one_that_the_list_has(store, make):
    """Owner, revision and times, by key."""
    await store.append(make.append(make.key(tenant="other"), time_us=1))
    for base in range(3):
        await store.append(make.append(base=base, user_id="ana" if base else "", time_us=10 + base))
    ((row,), _) = await store.list_sessions("acme", CURSOR_START, 10)
    assert await store.find_session(make.key()) == row
    assert (row.user_id, row.revision, row.create_us, row.update_us) == ("ana", 3, 10, 12)
    assert await store.find_session(make.key("chat-2")) is None
    assert await store.find_session(make.key(tenant="nobody")) is None


async def test_session_s_row_tells_when_it_falls_due(store, make):
    """It has the last append's due time, which a copy needs."""
    for base, due_us in enumerate([None, 2**62, 5, None]):
        await store.append(structs.replace(make.append(base=base), due_us=due_us))
        row = await store.find_session(make.key())
        assert row is not None
        assert row.due_us == due_us
        assert (await store.list_sessions("acme", CURSOR_START, 10))[0] == [row]


async def test_session_s_row_is_as_fresh_as_its_head(store, make):
    """A call that begins after an append has returned sees that append."""
    for base in range(20):
        await store.append(make.append(base=base))
        row = await store.find_session(make.key())
        assert row is not None
        assert row.revision == base + 1


async def test_any_bytes_and_times_are_taken_as_they_are(store, make):
    """A copied session may have old times, no content, or several changes at one time."""
    for base in range(3):
        await store.append(
            make.append(base=base, state=b"", time_us=7, events=b"", answer=b"", fingerprint=b"")
        )
    changes = await store.read_changes(make.key(), limit=10)
    assert [(c.revision, c.time_us, c.events, c.answer) for c in changes] == [
        (1, 7, b"", b""),
        (2, 7, b"", b""),
        (3, 7, b"", b""),
    ]
    head = await store.load(make.key())
    assert head is not None
    assert head.state == b""
