"""The log of all sessions: every change at least once, also during concurrent commits."""

import asyncio
import random

import pytest

from routing_service.storage.store import CURSOR_START, CursorInvalid


async def rest_of_log(store, cursor, limit):
    """Read the log to its end in pages."""
    found = []
    while True:
        page, cursor = await store.read_log(cursor, limit)
        if not page:
            return found, cursor
        found += page


async def test_log_has_every_change_of_every_tenant(store, make):
    """Each entry has its session and all its bytes."""
    keys = [make.key("a"), make.key("b"), make.key("a", tenant="other")]
    expected = []
    for base in range(5):
        for key in keys:
            append = make.append(key, base, answer=b"%d" % base)
            await store.append(append)
            expected.append((key, append.change))
    found, _ = await rest_of_log(store, CURSOR_START, 4)
    assert sorted(found, key=repr) == sorted(expected, key=repr)


async def test_pages_of_the_log_fit_together(store, make):
    """Without concurrent writes, each change is read exactly once across pages."""
    for number in range(30):
        await store.append(make.append(make.key(f"chat-{number % 4}"), number // 4))
    for limit in (1, 3, 29, 30, 31):
        found, _ = await rest_of_log(store, CURSOR_START, limit)
        names = [(key.session_id, change.revision) for key, change in found]
        assert len(names) == len(set(names)) == 30, limit
        for session in range(4):
            revisions = [revision for name, revision in names if name == f"chat-{session}"]
            assert revisions == sorted(revisions), limit


async def test_cursor_at_the_end_waits_for_later_changes(store, make):
    """A watcher that has caught up uses the same cursor again."""
    await make.session(store, make.key(), 3)
    found, cursor = await rest_of_log(store, CURSOR_START, 10)
    assert len(found) == 3
    for _ in range(3):
        page, cursor = await store.read_log(cursor, 10)
        assert page == []
    await store.append(make.append(base=3))
    page, _ = await store.read_log(cursor, 10)
    assert [change.revision for _, change in page] == [4]


async def test_end_of_an_empty_log_is_before_the_first_change(store, make):
    """A watcher may start before the first change."""
    end = await store.log_end()
    page, cursor = await store.read_log(CURSOR_START, 10)
    assert page == []
    await store.append(make.append())
    for place in (end, cursor):
        page, _ = await store.read_log(place, 10)
        assert [change for _, change in page] == [make.change(1)]


async def test_log_end_leaves_out_what_was_before(store, make):
    """A reader of new changes does not have to read the old ones."""
    await make.session(store, make.key(), 5)
    end = await store.log_end()
    page, _ = await store.read_log(end, 10)
    assert page == []
    await store.append(make.append(base=5))
    page, _ = await store.read_log(end, 10)
    assert [change.revision for _, change in page] == [6]


async def test_refused_appends_are_not_in_the_log(store, make):
    """A rolled-back append is not in the log, and leaves no hole that stops a reader."""
    await store.append(make.append())
    outcomes = await asyncio.gather(
        *(store.append(make.append(request_id=f"again-{number}")) for number in range(5)),
        store.append(make.append(make.key("chat-2"))),
        return_exceptions=True,
    )
    assert sum(outcome is None for outcome in outcomes) == 1
    found, _ = await rest_of_log(store, CURSOR_START, 2)
    assert [key.session_id for key, _ in found] == ["chat-1", "chat-2"]


async def test_reader_beside_writers_misses_nothing(store, make):
    """Row ids are assigned before the commit, so reading `id > last` would miss late ones."""
    dice = random.Random(7)
    callers, changes = 16, 8

    async def write(number):
        key = make.key(f"chat-{number}")
        for base in range(changes):
            events = bytes(dice.randrange(1, 2_000))
            await store.append(make.append(key, base, events=events))

    async def follow():
        found, cursor = [], CURSOR_START
        while len(found) < callers * changes:
            page, cursor = await store.read_log(cursor, dice.randrange(1, 40))
            found += [(key.session_id, change.revision) for key, change in page]
            if not page:
                # Lets the writers continue; the test waits for the next commit, not for a time.
                await asyncio.sleep(0)
        return found

    async with asyncio.timeout(50):
        found, *_ = await asyncio.gather(follow(), *(write(number) for number in range(callers)))
    assert len(set(found)) == callers * changes
    for number in range(callers):
        revisions = [revision for name, revision in found if name == f"chat-{number}"]
        assert revisions == list(range(1, changes + 1))


async def test_cursor_of_another_store_is_refused(engine, tmp_path_factory, make):
    """After the data was lost and recreated, an old cursor would skip new changes."""
    store = await engine.open()
    await make.session(store, make.key(), 2)
    cursor = await store.log_end()
    await store.close()
    engine.folder = tmp_path_factory.mktemp("another")
    another = await engine.open()
    await make.session(another, make.key(), 5)
    with pytest.raises(CursorInvalid):
        await another.read_log(cursor, 10)
