"""Group commit on Redis: waiting writes share one round trip and one sync."""

import asyncio

import pytest

from routing_service.storage.open_store import open_store
from routing_service.storage.redis.keys import SHARDS, Keys
from routing_service.storage.redis.pipeline import GROUP_BYTES_MAX
from routing_service.storage.store import CURSOR_START, CursorInvalid, RevisionConflict
from tests.engines.appends import after, append, audit, key, outcomes, task


@pytest.fixture
async def open_here(own_redis):
    """Return a function that opens a store on the module's empty server."""
    with own_redis.client() as client:
        client.flushall()
    opened = []

    async def open_it(query=""):
        # What has to be done on a busy machine too has its time.
        store = await open_store(own_redis.url(f"call_timeout_s=30&{query}".rstrip("&")))
        opened.append(store)
        return store

    yield open_it
    for store in opened:
        await store.close()


def calls(client, command):
    """Count the server's calls of a command."""
    return client.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"]


async def waits(own_redis, work):
    """Count the syncs during some work."""
    with own_redis.client() as client:
        before = calls(client, "waitaof")
        await work
        return calls(client, "waitaof") - before


async def test_writes_that_wait_together_wait_once_for_the_disk(open_here, own_redis):
    """This holds for writes of all kinds."""
    store = await open_here()
    await store.append(append())
    await store.append_audit(audit())
    work = outcomes(
        *(store.append(append(n)) for n in range(1, 101)),
        *(store.append_audit(audit(n)) for n in range(50)),
        *(store.put_setting("acme", f"name-{n}", b"") for n in range(50)),
    )
    assert await waits(own_redis, work) == 1


async def test_groups_are_counted(open_here):
    """With what the operator sees: how many writes there were, and in how many groups."""
    store = await open_here()
    await store.append(append())
    await asyncio.gather(*(store.append(append(n)) for n in range(1, 101)))
    figures = store.write_figures
    assert figures.writes == 101
    assert sum(figures.group_writes_buckets) == 2


async def test_group_of_one_does_not_wait_for_company(open_here, own_redis):
    """One write, one wait."""
    store = await open_here()
    await store.append(append())
    assert await waits(own_redis, store.append(append(0, 1))) == 1


async def test_where_many_write_a_group_waits_for_company(open_here, own_redis):
    """Callers arrive one by one: without the wait, the first write would go alone."""
    store = await open_here()
    await asyncio.gather(*(store.append(append(n)) for n in range(64)))
    work = asyncio.gather(*(after(n, store.append(append(n, 1))) for n in range(64)))
    assert await waits(own_redis, work) <= 4


async def test_a_lone_writer_after_many_soon_waits_for_nobody(open_here, own_redis):
    """Each vain wait makes the next shorter; closing ends one."""
    store = await open_here()
    await asyncio.gather(*(store.append(append(n)) for n in range(64)))
    waiting = asyncio.create_task(store.append(append(1, 1)))
    await asyncio.sleep(0.001)
    company = store._engine._writes._company
    assert company.in_hand.are_many
    await waiting
    for base in range(2, 8):
        await store.append(append(1, base))
    assert not company.in_hand.are_many


async def test_closing_ends_the_wait_for_company(open_here):
    """No other write can come then."""
    store = await open_here()
    store._engine._writes._company._pace_s = 600
    await asyncio.gather(*(store.append(append(n)) for n in range(64)))
    waiting = asyncio.create_task(store.append(append(1, 1)))
    await asyncio.sleep(0.01)
    async with asyncio.timeout(30):
        await store.close()
        await waiting


async def test_groups_are_bounded_by_count(open_here, own_redis):
    """The URL sets the limit."""
    store = await open_here("group_writes_max=10")
    await store.append(append())
    work = outcomes(*(store.append(append(n)) for n in range(1, 36)))
    assert await waits(own_redis, work) == 4


async def test_groups_are_bounded_by_bytes(open_here, own_redis):
    """Large changes do not keep the small ones waiting."""
    store = await open_here()
    await store.append(append())
    events = b"e" * 250_000
    work = outcomes(*(store.append(append(n, events=events)) for n in range(1, 41)))
    groups = await waits(own_redis, work)
    assert 40 * len(events) / GROUP_BYTES_MAX < groups <= 4


async def test_conflict_in_a_group_is_its_own_affair(open_here, own_redis):
    """The group still takes one round trip."""
    store = await open_here()
    await asyncio.gather(*(store.append(append(n)) for n in range(20)))
    results = []

    async def write():
        results.extend(await outcomes(*(store.append(append(n, n % 2)) for n in range(20))))

    assert await waits(own_redis, write()) == 1
    for number, result in enumerate(results):
        if number % 2:
            assert result is None
        else:
            # The same request at its old base counts as a repeat, which is checked first.
            assert result.change.revision == 1
    (conflict,) = await outcomes(store.append(append(0, 0, request_id="another")))
    assert isinstance(conflict, RevisionConflict)


async def test_task_that_the_session_has_costs_one_round_trip(open_here, own_redis):
    """Only a task id that is new to the session must be claimed."""
    store = await open_here()
    await store.append(append())
    first = await waits(own_redis, store.append(append(0, 1, tasks=(task(0),))))
    again = await waits(own_redis, store.append(append(0, 2, tasks=(task(0, data=b"more"),))))
    assert (first, again) == (3, 1)


async def test_reads_that_wait_together_go_together(open_here, own_redis):
    """In as many batches as there are connections; each ends with a check of the server's role."""
    store = await open_here("read_connections=1")
    await asyncio.gather(*(store.append(append(n)) for n in range(50)))
    await store.head_revision(key())
    with own_redis.client() as client:
        before = calls(client, "hello")
        assert await asyncio.gather(*(store.head_revision(key(n)) for n in range(50))) == [1] * 50
        assert calls(client, "hello") - before == 1


async def test_cancelled_write_that_still_waits_is_taken_out(open_here):
    """Nothing was sent."""
    store = await open_here("group_writes_max=1")
    writes = [asyncio.create_task(store.append(append(n))) for n in range(10)]
    await asyncio.sleep(0)
    writes[9].cancel()
    await asyncio.wait(writes)
    await store.probe_write()
    assert [await store.head_revision(key(n)) for n in range(10)] == [1] * 9 + [0]


async def test_sessions_are_spread_over_all_shards(open_here, own_redis):
    """A cluster could have them on as many nodes, and the log merges them."""
    store = await open_here()
    await asyncio.gather(*(store.append(append(n)) for n in range(400)))
    with own_redis.client() as client:
        counts = [int(client.get(name)) for name in Keys("agent-routing").counters]
    assert len(counts) == SHARDS
    assert sum(counts) == 400
    assert min(counts) > 0
    found, cursor = [], CURSOR_START
    while True:
        page, cursor = await store.read_log(cursor, 7)
        if not page:
            break
        found += [name for name, _ in page]
    assert sorted(found) == [key(n) for n in range(400)]


async def test_cursor_ahead_of_a_restored_store_is_refused(open_here, own_redis):
    """Used as a position it would skip new changes."""
    store = await open_here()
    await store.append(append())
    old = await store.log_end()
    with own_redis.client() as client:
        names = Keys("agent-routing").session(key())
        backup = {name: client.dump(name) for name in client.scan_iter()}
        await store.append(append(0, 1))
        ahead = await store.log_end()
        client.flushall()
        for name, value in backup.items():
            client.restore(name, 0, value)
        assert client.exists(names.head)
    assert (await store.read_log(old, 10))[0] == []
    with pytest.raises(CursorInvalid, match="ahead of this store"):
        await store.read_log(ahead, 10)
