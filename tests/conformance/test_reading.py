"""Changes and sessions in pages: order, limits, and completeness."""

import asyncio
import time

import pytest

from routing_service.storage.store import CURSOR_START, INT_MAX, CursorInvalid


async def revisions(store, key, **bounds):
    """Read one page of changes, as their revisions."""
    return [change.revision for change in await store.read_changes(key, **bounds)]


async def test_changes_come_in_the_order_of_their_revisions(store, make):
    """Replay depends on it."""
    await make.session(store, make.key(), 12)
    assert await revisions(store, make.key(), limit=100) == list(range(1, 13))


BOUNDS = [
    ({"limit": 3}, [1, 2, 3]),
    ({"after": 4, "limit": 3}, [5, 6, 7]),
    ({"after": 9, "limit": 3}, [10]),
    ({"after": 10, "limit": 3}, []),
    ({"before": 4, "limit": 9}, [1, 2, 3]),
    ({"after": 2, "before": 6, "limit": 9}, [3, 4, 5]),
    ({"after": 2, "before": 6, "limit": 2}, [3, 4]),
    ({"after": 5, "before": 6, "limit": 9}, []),
    ({"after": 8, "before": 3, "limit": 9}, []),
    ({"before": 1, "limit": 9}, []),
    ({"before": 0, "limit": 9}, []),
    ({"limit": 3, "newest_first": True}, [10, 9, 8]),
    ({"before": 8, "limit": 3, "newest_first": True}, [7, 6, 5]),
    ({"after": 3, "before": 6, "limit": 9, "newest_first": True}, [5, 4]),
    ({"after": 3, "limit": 2, "newest_first": True}, [10, 9]),
    ({"before": 1, "limit": 9, "newest_first": True}, []),
    ({"after": -5, "limit": 2}, [1, 2]),
    ({"after": INT_MAX + 1, "limit": 2}, []),
    ({"before": INT_MAX + 2, "limit": 2, "newest_first": True}, [10, 9]),
]
"""What is asked of a session of ten changes, and the revisions of the answer."""


async def test_bounds_of_changes(store, make):
    """Both bounds are exclusive, and every number that a caller may send is accepted."""
    await make.session(store, make.key(), 10)
    await make.session(store, make.key("chat-2"), 11)
    for bounds, expected in BOUNDS:
        assert await revisions(store, make.key(), **bounds) == expected, bounds


async def test_changes_of_no_session_are_an_empty_page(store, make):
    """Whether the session exists is checked elsewhere."""
    assert await store.read_changes(make.key(), limit=5) == []


async def test_deep_pages_of_changes_pass_over_nothing(store, make):
    """Forwards and backwards, the pages together are the whole session."""
    await make.session(store, make.key(), 137)
    forwards, last = [], 0
    while page := await revisions(store, make.key(), after=last, limit=10):
        forwards += page
        last = page[-1]
    backwards, first = [], None
    while page := await revisions(store, make.key(), before=first, limit=10, newest_first=True):
        backwards += page
        first = page[-1]
    assert forwards == list(range(1, 138))
    assert backwards == forwards[::-1]


async def test_page_limit_is_kept_within_bounds(store, make):
    """A wrong page limit is a programming error: requests are checked before."""
    for limit in (0, -1, 1_001):
        with pytest.raises(AssertionError):
            await store.read_changes(make.key(), limit=limit)
        with pytest.raises(AssertionError):
            await store.list_tasks(make.key(), limit=limit)
        with pytest.raises(AssertionError):
            await store.list_sessions("acme", CURSOR_START, limit)
        with pytest.raises(AssertionError):
            await store.read_log(CURSOR_START, limit)
        with pytest.raises(AssertionError):
            await store.read_audit("acme", None, CURSOR_START, limit)


async def all_sessions(store, tenant, limit):
    """Read the tenant's sessions to the end in pages."""
    found, cursor = [], CURSOR_START
    while True:
        page, cursor = await store.list_sessions(tenant, cursor, limit)
        if not page:
            return found
        found += page


async def test_sessions_are_listed_in_the_order_of_their_ids(store, make):
    """By code point, which every engine can do, and not by a locale's order."""
    names = ["b", "a", "B", "ab", "a b", "ñ", "z", "日本", "😀", "\uffee", "a.b", "0"]
    for name in names:
        await store.append(make.append(make.key(name)))
    listed = await all_sessions(store, "acme", 5)
    assert [row.key.session_id for row in listed] == sorted(names)


async def test_pages_of_sessions_fit_together(store, make):
    """Every session once, with pages of any size."""
    for number in range(20):
        await store.append(make.append(make.key(f"chat-{number:03}")))
        await store.append(make.append(make.key(f"chat-{number:03}", tenant="other")))
    for limit in (1, 7, 20, 21):
        listed = await all_sessions(store, "acme", limit)
        assert [row.key for row in listed] == [make.key(f"chat-{n:03}") for n in range(20)], limit


async def test_session_row_tells_owner_revision_and_times(store, make):
    """The admin's list shows this without reading states."""
    await store.append(make.append(time_us=10))
    await store.append(make.append(base=1, time_us=20))
    await store.append(make.append(base=2, time_us=30))
    ((row,), _) = await store.list_sessions("acme", CURSOR_START, 10)
    assert (row.key, row.user_id, row.revision) == (make.key(), "ana", 3)
    assert (row.create_us, row.update_us) == (10, 30)


async def test_sessions_used_while_paging_are_listed_once(store, make):
    """A list by time would skip sessions or list them twice."""
    names = [f"chat-{number:02}" for number in range(20)]
    for name in names:
        await store.append(make.append(make.key(name)))
    found, cursor = [], CURSOR_START
    while True:
        page, cursor = await store.list_sessions("acme", cursor, 3)
        if not page:
            break
        found += [row.key.session_id for row in page]
        for name in (names[0], names[-1], found[-1]):
            revision = await store.head_revision(make.key(name))
            await store.append(make.append(make.key(name), revision))
    assert found == names


async def test_cursor_after_the_last_session_finds_later_ones(store, make):
    """New sessions may follow later."""
    await store.append(make.append(make.key("a")))
    page, cursor = await store.list_sessions("acme", CURSOR_START, 10)
    assert len(page) == 1
    page, cursor = await store.list_sessions("acme", cursor, 10)
    assert page == []
    await store.append(make.append(make.key("b")))
    page, _ = await store.list_sessions("acme", cursor, 10)
    assert [row.key.session_id for row in page] == ["b"]


@pytest.mark.parametrize("cursor", [b"x", b"\0", b"S\xff\xfe", b"L" * 17, b"A" * 40])
async def test_cursor_of_another_list_is_refused(store, make, cursor):
    """Page tokens come back from callers and may be anything."""
    await store.append(make.append())
    if not cursor.startswith(b"S") or cursor == b"S\xff\xfe":
        with pytest.raises(CursorInvalid):
            await store.list_sessions("acme", cursor, 10)
    with pytest.raises(CursorInvalid):
        await store.read_log(cursor, 10)
    with pytest.raises(CursorInvalid):
        await store.read_audit("acme", None, cursor, 10)


async def test_cursors_of_two_lists_cannot_be_mixed_up(store, make):
    """A cursor used with another list would silently skip rows."""
    await store.append(make.append())
    await store.append_audit(make.audit())
    _, log = await store.read_log(CURSOR_START, 10)
    _, audit = await store.read_audit("acme", None, CURSOR_START, 10)
    _, sessions = await store.list_sessions("acme", CURSOR_START, 10)
    for cursor in (audit, sessions):
        with pytest.raises(CursorInvalid):
            await store.read_log(cursor, 10)
    for cursor in (log, sessions):
        with pytest.raises(CursorInvalid):
            await store.read_audit("acme", None, cursor, 10)
    for cursor in (log, audit):
        with pytest.raises(CursorInvalid):
            await store.list_sessions("acme", cursor, 10)


async def test_wait_for_changes_ends_after_its_time(store):
    """A reader polls the log at this interval; only a hint from another process ends it sooner."""
    seen, heard, waited_s = -1, 0, 0.0
    async with asyncio.timeout(10):
        while heard != seen:  # The first hint may only say that the store has begun to listen.
            seen, begun_s = heard, time.monotonic()
            heard = await store.wait_for_changes(seen, timeout_s=0.05)
            waited_s = time.monotonic() - begun_s
    assert waited_s >= 0.05
