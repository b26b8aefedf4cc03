"""Engines with persistence: everything is there after closing and opening again."""

import asyncio

from routing_service.storage.store import CURSOR_START, Head


async def test_everything_is_there_after_reopening(lasting_engine, make):
    """Sessions, changes, tasks, audit and settings, byte for byte."""
    store = await lasting_engine.open()
    await make.session(store, make.key(), 3)
    task = make.task(expire_us=5, data=b"\0\xff")
    await store.append(make.append(base=3, tasks=(task,), state=b"\0last"))
    await store.append_audit(make.audit())
    await store.put_setting("acme", "stickiness", b"off")
    changes = await store.read_changes(make.key(), limit=10)
    await store.close()

    store = await lasting_engine.open()
    assert await store.load(make.key()) == Head(4, b"\0last")
    assert await store.read_changes(make.key(), limit=10) == changes
    assert await store.find_task("acme", "task-1") == task
    assert await store.count_audit(make.key(), "handoff_refused", "request-1") == 1
    assert await store.get_setting("acme", "stickiness") == b"off"
    assert await store.find_request(make.key(), "Route", "request-2") == make.change(2)


async def test_session_goes_on_after_reopening(lasting_engine, make):
    """The next revision follows the last one from before."""
    for base in range(5):
        store = await lasting_engine.open()
        await store.append(make.append(base=base))
        await store.close()
    store = await lasting_engine.open()
    changes = await store.read_changes(make.key(), limit=10)
    assert [change.revision for change in changes] == [1, 2, 3, 4, 5]


async def test_cursors_stay_good_after_reopening(lasting_engine, make):
    """A watcher resumes where it was after a restart of the service."""
    store = await lasting_engine.open()
    await make.session(store, make.key(), 3)
    await store.append_audit(make.audit(data=b"before"))
    log = await store.log_end()
    _, audit = await store.read_audit("acme", None, CURSOR_START, 10)
    await store.close()

    store = await lasting_engine.open()
    await store.append(make.append(base=3))
    await store.append_audit(make.audit(data=b"after"))
    page, _ = await store.read_log(log, 10)
    assert [change.revision for _, change in page] == [4]
    entries, _ = await store.read_audit("acme", None, audit, 10)
    assert [entry.data for entry in entries] == [b"after"]


async def test_many_sessions_are_there_after_reopening(lasting_engine, make):
    """Written in groups, read one by one."""
    store = await lasting_engine.open()
    keys = [make.key(f"chat-{number:03}") for number in range(500)]
    await asyncio.gather(*(store.append(make.append(key, state=key[1].encode())) for key in keys))
    await store.close()
    store = await lasting_engine.open()
    for key in keys:
        assert await store.load(key) == Head(1, key[1].encode())
