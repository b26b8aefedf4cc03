"""Queues: entries that appends put and drop, and the leases on them."""

import asyncio

import pytest
from msgspec import structs

from routing_service.storage.queue_entries import LeaseWish, QueueEntry, QueueItem
from routing_service.storage.store import AppendRefused, RevisionConflict, TaskTaken

MINUTE_US = 60_000_000


def entry(session_id="chat-1", place_us=10, request_id="r1", queue="vat"):
    """Return an entry."""
    return QueueEntry(queue, place_us, session_id, request_id)


def wish(token="t1", held="", lease_us=MINUTE_US, worker="w1"):
    """Return a wish for a lease."""
    return LeaseWish(held, token, worker, lease_us)


async def put(store, make, *entries):
    """Store a session for each entry, with it."""
    for one in entries:
        append = make.append(make.key(one.session_id))
        await store.append(structs.replace(append, inbox_put=(one,)))


async def entries_of(store, tenant, queue="vat"):
    """Return the entries of a queue."""
    return [item.entry for item in await store.read_queue(tenant, queue, None, 100)]


async def test_an_append_puts_and_drops_its_entries(store, make):
    """In the same write: after it returns, a reader sees them."""
    key = make.key()
    first, second = entry(), entry(place_us=20, request_id="r2")
    await store.append(structs.replace(make.append(), inbox_put=(first,)))
    assert await store.read_queue(key.tenant, "vat", None, 10) == [QueueItem(first)]
    moved = structs.replace(make.append(base=1), inbox_put=(second,), inbox_drop=(first,))
    await store.append(moved)
    assert await entries_of(store, key.tenant) == [second]
    await store.append(structs.replace(make.append(base=2), inbox_drop=(second, first)))
    assert await entries_of(store, key.tenant) == []


async def test_a_refused_append_changes_no_entry(store, make):
    """Entries are part of the change."""
    kept, wrong = entry(), entry(request_id="other")
    await store.append(structs.replace(make.append(), inbox_put=(kept,)))
    late = make.append(request_id="late")
    with pytest.raises(RevisionConflict):
        await store.append(structs.replace(late, inbox_put=(wrong,), inbox_drop=(kept,)))
    assert await entries_of(store, make.key().tenant) == [kept]


async def test_entries_go_with_tasks_in_one_append(store, make):
    """A task of another session refuses the entries as well."""
    mine, other = make.key("mine"), make.key("other")
    task = make.task("mine")
    await store.append(make.append(mine, tasks=(task,)))
    taken = make.append(other, tasks=(structs.replace(task, session_id="other"),))
    with pytest.raises(TaskTaken):
        await store.append(structs.replace(taken, inbox_put=(entry("other"),)))
    assert await entries_of(store, mine.tenant) == []
    fresh = make.append(mine, base=1, tasks=(make.task("mine", "t2"),))
    await store.append(structs.replace(fresh, inbox_put=(entry("mine"),)))
    assert await entries_of(store, mine.tenant) == [entry("mine")]
    assert (await store.find_task(mine.tenant, "t2")).session_id == "mine"


async def test_entries_of_a_large_group_are_each_ones_own(store, make):
    """Appends that wait together are written together, some with entries and some without."""
    appends = [make.append(make.key(f"chat-{n:02}")) for n in range(40)]
    appends = [
        structs.replace(append, inbox_put=(entry(append.key.session_id, n % 3),))
        if n % 2
        else append
        for n, append in enumerate(appends)
    ]
    await asyncio.gather(*(store.append(append) for append in appends))
    wanted = sorted(entry(f"chat-{n:02}", n % 3) for n in range(1, 40, 2))
    assert await entries_of(store, make.key().tenant) == wanted


async def test_a_queue_is_read_in_order_and_in_pages(store, make):
    """The order is that of time, then session and request, byte by byte, on every engine."""
    tenant = make.key().tenant
    order = [entry("b", 5), entry("Z", 7), entry("a", 7), entry("a é", 7), entry("c", 2**62)]
    await put(store, make, *reversed(order))
    await put(store, make, entry("elsewhere", 1, queue="motor"))
    assert await entries_of(store, tenant) == order
    page = await store.read_queue(tenant, "vat", None, 2)
    assert [item.entry for item in page] == order[:2]
    page = await store.read_queue(tenant, "vat", page[-1].entry, 2)
    assert [item.entry for item in page] == order[2:4]
    assert await entries_of(store, "another tenant") == []
    assert await entries_of(store, tenant, "motor") == [entry("elsewhere", 1, queue="motor")]


async def test_one_lease_holds_until_it_lapses(store, make):
    """Of many that ask at once one gets it; the next gets it when its time is over."""
    tenant, one = make.key().tenant, entry()
    await put(store, make, one)
    asked = [wish(f"t{n}") for n in range(8)]
    got = await asyncio.gather(*(store.lease_item(tenant, one, each) for each in asked))
    tokens = {item.token for item in got}
    assert len(tokens) == 1
    (token,) = tokens
    item = await store.find_item(tenant, one)
    assert (item.token, item.worker, item.attempt) == (token, "w1", 1)
    assert item.left_us > 0
    assert not item.is_free
    await store.lease_item(tenant, one, wish(token, held=token, lease_us=100_000))
    async with asyncio.timeout(5):
        while not (await store.find_item(tenant, one)).is_free:  # noqa: ASYNC110 - a lease's end
            await asyncio.sleep(0.05)
    again = await store.lease_item(tenant, one, wish("late", worker="w2"))
    assert (again.token, again.worker, again.attempt) == ("late", "w2", 2)


async def test_a_lease_is_extended_by_its_holder_alone(store, make):
    """Also after its end, as long as no other has it; the attempt stays."""
    tenant, one = make.key().tenant, entry()
    await put(store, make, one)
    await store.lease_item(tenant, one, wish("mine", lease_us=1_000))
    await asyncio.sleep(0.05)
    kept = await store.lease_item(tenant, one, wish("mine", held="mine", lease_us=MINUTE_US))
    assert (kept.token, kept.attempt) == ("mine", 1)
    assert kept.left_us > MINUTE_US // 2
    for strange in (wish("other"), wish("other", held="other")):
        refused = await store.lease_item(tenant, one, strange)
        assert (refused.token, refused.attempt) == ("mine", 1)


async def test_a_lease_that_is_given_back_counts_as_no_attempt(store, make):
    """The entry is free at once, in its old place."""
    tenant, one = make.key().tenant, entry()
    await put(store, make, one)
    await store.lease_item(tenant, one, wish("mine"))
    freed = await store.lease_item(tenant, one, wish("mine", held="mine", lease_us=0))
    assert freed == QueueItem(one)
    assert (await store.lease_item(tenant, one, wish("next"))).attempt == 1


async def test_a_lease_goes_with_its_entry(store, make):
    """An entry that is put again begins without one; a lease on nothing is None."""
    tenant, one = make.key().tenant, entry()
    await put(store, make, one)
    await store.lease_item(tenant, one, wish())
    await store.append(structs.replace(make.append(base=1), inbox_drop=(one,)))
    assert await store.find_item(tenant, one) is None
    assert await store.lease_item(tenant, one, wish()) is None
    await store.append(structs.replace(make.append(base=2), inbox_put=(one,)))
    assert await store.read_queue(tenant, "vat", None, 10) == [QueueItem(one)]


async def test_a_stored_entry_keeps_its_lease_when_it_is_put_again(store, make):
    """What puts missing entries back must not take work from who does it."""
    tenant, one = make.key().tenant, entry()
    await put(store, make, one)
    await store.lease_item(tenant, one, wish("mine"))
    await store.mend_queue(tenant, (one,), ())
    await store.append(structs.replace(make.append(base=1), inbox_put=(one,)))
    assert (await store.find_item(tenant, one)).token == "mine"


async def test_a_queue_is_mended_without_an_append(store, make):
    """What is missing is put, what has no work is dropped."""
    tenant = make.key().tenant
    old, new = entry("old"), entry("new")
    await store.mend_queue(tenant, (old,), ())
    await store.mend_queue(tenant, (new,), (old, entry("never there")))
    assert await entries_of(store, tenant) == [new]
    await store.mend_queue(tenant, (), (new,))
    await store.mend_queue(tenant, (), ())
    assert await entries_of(store, tenant) == []


async def test_entries_that_no_engine_can_hold_are_refused(store, make):
    """Before anything is written."""
    for wrong in (entry(queue=""), entry(request_id="\0"), entry(place_us=-1)):
        with pytest.raises(AppendRefused):
            await store.append(structs.replace(make.append(), inbox_put=(wrong,)))
        with pytest.raises(AppendRefused):
            await store.mend_queue(make.key().tenant, (wrong,), ())
    with pytest.raises(AppendRefused):
        await store.lease_item(make.key().tenant, entry(), wish(token=""))
    assert await store.head_revision(make.key()) == 0
