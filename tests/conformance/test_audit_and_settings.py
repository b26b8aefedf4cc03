"""What is stored next to the changes: the audit, the settings, and the probe."""

import pytest
from msgspec import structs

from routing_service.storage.store import CURSOR_START, AppendRefused, TooLarge


async def all_entries(store, tenant, session_id, limit):
    """Read the audit to its end in pages."""
    found, cursor = [], CURSOR_START
    while True:
        page, cursor = await store.read_audit(tenant, session_id, cursor, limit)
        if not page:
            return found
        found += page


async def test_audit_entry_is_read_back_field_by_field(store, make):
    """Also for a session that was never stored, since a refusal may name one."""
    entry = make.audit(
        "never-stored",
        time_us=7,
        revision=0,
        kind="k",
        request_id="",
        user_id="",
        data=b"\0\xff",
    )
    await store.append_audit(entry)
    page, _ = await store.read_audit("acme", None, CURSOR_START, 10)
    assert page == [entry]
    assert await store.head_revision(make.key("never-stored")) == 0


async def test_audit_takes_no_revision(store, make):
    """A refusal changes only the audit."""
    await store.append(make.append())
    await store.append_audit(make.audit())
    assert await store.head_revision(make.key()) == 1
    log, _ = await store.read_log(CURSOR_START, 10)
    assert len(log) == 1


async def test_audit_comes_in_the_order_it_was_written(store, make):
    """Not by time: callers' clocks differ, and a cursor must not skip entries."""
    entries = [make.audit(time_us=100 - number, data=b"%d" % number) for number in range(10)]
    for entry in entries:
        await store.append_audit(entry)
    assert await all_entries(store, "acme", None, 3) == entries


async def test_equal_entries_are_all_kept(store, make):
    """Three refusals of one request are three entries."""
    for _ in range(3):
        await store.append_audit(make.audit())
    assert await store.count_audit(make.key(), "handoff_refused", "request-1") == 3
    assert await all_entries(store, "acme", "chat-1", 10) == [make.audit()] * 3


async def test_count_is_by_session_kind_and_request(store, make):
    """The limit of refusals counts one request in one session."""
    await store.append_audit(make.audit())
    await store.append_audit(make.audit(kind="other"))
    await store.append_audit(make.audit(request_id="request-2"))
    await store.append_audit(make.audit("chat-2"))
    await store.append_audit(make.audit(tenant="other"))
    assert await store.count_audit(make.key(), "handoff_refused", "request-1") == 1
    assert await store.count_audit(make.key(), "handoff_refused", "request-3") == 0
    assert await store.count_audit(make.key("chat-9"), "handoff_refused", "request-1") == 0


async def test_pages_of_the_audit_fit_together(store, make):
    """For a tenant and for one session, with others' entries in between."""
    mine, chat = [], []
    for number in range(20):
        entry = make.audit(f"chat-{number % 3}", data=b"%d" % number)
        await store.append_audit(entry)
        await store.append_audit(make.audit(f"chat-{number % 3}", tenant="other"))
        mine.append(entry)
        if number % 3 == 1:
            chat.append(entry)
    for limit in (1, 4, 20, 100):
        assert await all_entries(store, "acme", None, limit) == mine, limit
        assert await all_entries(store, "acme", "chat-1", limit) == chat, limit
        assert await all_entries(store, "acme", "chat-9", limit) == [], limit


async def test_audit_cursor_finds_later_entries(store, make):
    """A reader at the end comes back for more."""
    await store.append_audit(make.audit(data=b"1"))
    _, cursor = await store.read_audit("acme", None, CURSOR_START, 10)
    page, cursor = await store.read_audit("acme", None, cursor, 10)
    assert page == []
    await store.append_audit(make.audit(data=b"2"))
    page, _ = await store.read_audit("acme", None, cursor, 10)
    assert [entry.data for entry in page] == [b"2"]


async def test_empty_audit_gives_a_cursor_to_wait_at(store, make):
    """The same holds for a session without entries."""
    page, cursor = await store.read_audit("acme", "chat-1", CURSOR_START, 10)
    assert page == []
    await store.append_audit(make.audit())
    page, _ = await store.read_audit("acme", "chat-1", cursor, 10)
    assert page == [make.audit()]


@pytest.mark.parametrize(
    "fields", [{"kind": ""}, {"request_id": "a\0"}, {"time_us": -1}, {"user_id": "\ud800"}]
)
async def test_audit_entry_that_no_engine_can_hold_is_refused(store, make, fields):
    """As with appends."""
    with pytest.raises(AppendRefused):
        await store.append_audit(structs.replace(make.audit(), **fields))
    assert await all_entries(store, "acme", None, 10) == []


async def test_setting_is_read_as_last_put(store):
    """For example the switch for stickiness."""
    assert await store.get_setting("acme", "stickiness") is None
    await store.put_setting("acme", "stickiness", b"off")
    assert await store.get_setting("acme", "stickiness") == b"off"
    await store.put_setting("acme", "stickiness", b"")
    assert await store.get_setting("acme", "stickiness") == b""


async def test_settings_are_by_tenant_and_name(store):
    """One tenant's switch is not another's."""
    await store.put_setting("acme", "stickiness", b"1")
    await store.put_setting("acme", "Stickiness", b"2")
    await store.put_setting("other", "stickiness", b"3")
    assert await store.get_setting("acme", "stickiness") == b"1"
    assert await store.get_setting("acme", "Stickiness") == b"2"
    assert await store.get_setting("other", "stickiness") == b"3"
    assert await store.get_setting("nobody", "stickiness") is None


async def test_setting_too_large_or_without_name_is_refused(store):
    """Settings are read during requests, so they stay small."""
    with pytest.raises(TooLarge):
        await store.put_setting("acme", "big", b"x" * (64 * 1024 + 1))
    with pytest.raises(AppendRefused):
        await store.put_setting("acme", "", b"x")
    assert await store.get_setting("acme", "big") is None


async def test_probe_leaves_no_trace_in_the_data(store, make):
    """Readiness probes run permanently on real data."""
    await store.append(make.append())
    end = await store.log_end()
    for _ in range(3):
        await store.probe_write()
    assert await store.log_end() == end
    assert await store.head_revision(make.key()) == 1
    page, _ = await store.list_sessions("acme", CURSOR_START, 10)
    assert len(page) == 1
