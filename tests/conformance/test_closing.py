"""Closing: once, twice, and with calls in flight."""

import asyncio
import inspect

import pytest

from routing_service.storage.checked_store import Store
from routing_service.storage.queue_entries import LeaseWish, QueueEntry
from routing_service.storage.store import CURSOR_START, StoreClosed


def every_call(store, make):
    """One call of every method but close, by name."""
    key = make.key()
    entry = QueueEntry("vat", 10, "chat-1", "request-1")
    wish = LeaseWish("", "token-1", "worker-1", 1_000_000)
    return {
        "append": lambda: store.append(make.append()),
        "load": lambda: store.load(key),
        "head_revision": lambda: store.head_revision(key),
        "read_changes": lambda: store.read_changes(key, limit=1),
        "find_request": lambda: store.find_request(key, "Route", "request-1"),
        "find_task": lambda: store.find_task("acme", "task-1"),
        "list_tasks": lambda: store.list_tasks(key, limit=1),
        "append_audit": lambda: store.append_audit(make.audit()),
        "count_audit": lambda: store.count_audit(key, "kind", "request-1"),
        "read_audit": lambda: store.read_audit("acme", None, CURSOR_START, 1),
        "list_sessions": lambda: store.list_sessions("acme", CURSOR_START, 1),
        "find_session": lambda: store.find_session(key),
        "list_tenants": lambda: store.list_tenants("", 1),
        "list_settings": lambda: store.list_settings("acme", "", 1),
        "read_log": lambda: store.read_log(CURSOR_START, 1),
        "log_end": store.log_end,
        "get_setting": lambda: store.get_setting("acme", "name"),
        "put_setting": lambda: store.put_setting("acme", "name", b""),
        "swap_setting": lambda: store.swap_setting("acme", "name", None, b""),
        "wait_for_changes": lambda: store.wait_for_changes(0, 0.0),
        "due_sessions": lambda: store.due_sessions(1, 1),
        "acquire_lease": lambda: store.acquire_lease("name", "holder", 1, 2),
        "read_queue": lambda: store.read_queue("acme", "vat", None, 1),
        "find_item": lambda: store.find_item("acme", entry),
        "lease_item": lambda: store.lease_item("acme", entry, wish),
        "mend_queue": lambda: store.mend_queue("acme", (entry,), ()),
        "erase_before": lambda: store.erase_before(key, 1, b""),
        "delete_session": lambda: store.delete_session(key, 1),
        "probe_write": store.probe_write,
    }


async def test_no_method_is_left_out(store, make):
    """The other tests here go through all methods; a new method must be included."""
    methods = {name for name, _ in inspect.getmembers(Store, inspect.iscoroutinefunction)}
    assert set(every_call(store, make)) == methods - {"close"}


async def test_every_call_after_close_says_so(store, make):
    """The error is StoreClosed, not the driver's own."""
    await store.append(make.append())
    await store.close()
    for call in every_call(store, make).values():
        with pytest.raises(StoreClosed):
            await call()


async def test_closing_twice_is_no_error(store):
    """Also concurrently: both calls wait until it is closed."""
    await asyncio.gather(store.close(), store.close(), store.close())
    await store.close()


async def test_calls_in_flight_end_with_a_result_or_closed(store, make):
    """No caller may wait forever."""
    keys = [make.key(f"chat-{number:03}") for number in range(100)]
    writes = [asyncio.create_task(store.append(make.append(key))) for key in keys]
    reads = [asyncio.create_task(store.head_revision(key)) for key in keys]
    await asyncio.sleep(0)
    await asyncio.wait_for(store.close(), 30)
    done, waiting = await asyncio.wait([*writes, *reads], timeout=30)
    assert not waiting
    for task in done:
        assert task.exception() is None or isinstance(task.exception(), StoreClosed)


async def test_writes_accepted_before_close_are_stored(lasting_engine, make):
    """Unlike a crash, closing finishes the accepted writes first."""
    store = await lasting_engine.open()
    keys = [make.key(f"chat-{number:03}") for number in range(300)]
    writes = [asyncio.create_task(store.append(make.append(key))) for key in keys]
    await asyncio.sleep(0)
    await store.close()
    outcomes = await asyncio.gather(*writes, return_exceptions=True)
    again = await lasting_engine.open()
    for key, outcome in zip(keys, outcomes, strict=True):
        assert outcome is None
        assert await again.head_revision(key) == 1


async def test_close_goes_on_when_its_caller_is_cancelled(store, make):
    """A drain that runs out of time must still release the files."""
    await store.append(make.append())
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    await store.close()
    with pytest.raises(StoreClosed):
        await store.head_revision(make.key())
