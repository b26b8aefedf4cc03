"""Hints between replicas: heard soon, never relied on."""

import asyncio
import json
import time

import psycopg
import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from routing_service.storage.open_store import open_store
from routing_service.storage.postgres import hints as postgres_hints
from routing_service.storage.postgres.hints import PAYLOAD_BYTES_MAX, Hint, HintSender, read_payload
from routing_service.storage.store import CURSOR_START, SessionKey, StoreUnavailable
from tests.engines.appends import append, key


@pytest.fixture
async def open_replica(postgres_database, tmp_path):
    """What opens one more store on the test's data."""
    opened = []

    async def open_it(query=""):
        store = await open_store(postgres_database.store_url(tmp_path, query))
        opened.append(store)
        return store

    yield open_it
    for store in opened:
        await store.close()
    postgres_database.clear(tmp_path)


@pytest.fixture
async def replicas(open_replica):
    """Return two stores on the same data, the first of which hears."""
    first, second = await open_replica(), await open_replica()
    # Its first hint is that it has begun to listen, and may have missed some.
    assert await first.wait_for_changes(timeout_s=5) == 1
    return first, second


async def test_change_of_another_replica_is_heard_at_once(replicas):
    """A watcher there hears within 100 ms of the commit, and reads it from the log."""
    here, there = replicas
    end = await here.log_end()
    waits = []
    seen = 1
    for base in range(5):
        waiting = asyncio.create_task(here.wait_for_changes(seen=seen, timeout_s=10))
        await asyncio.sleep(0.01)
        await there.append(append(0, base))
        committed_s = time.monotonic()
        seen = await waiting
        waits.append(time.monotonic() - committed_s)
        page, end = await here.read_log(end, 10)
        assert [change.revision for _, change in page] == [base + 1]
    assert seen == 6
    # Of one that nothing else on the machine got in the way of.
    assert min(waits) < 0.1


async def test_hint_that_came_before_the_wait_is_not_slept_through(replicas):
    """Between a look at the log and the wait there is a moment."""
    here, there = replicas
    await there.append(append())
    seen = await here.wait_for_changes(seen=1, timeout_s=5)
    assert seen == 2
    assert await here.wait_for_changes(seen=1, timeout_s=5) == 2
    assert await here.wait_for_changes(seen=2, timeout_s=0.05) == 2


async def test_own_changes_are_no_news(replicas):
    """This process knows of them already."""
    here, _ = replicas
    await here.append(append())
    assert await here.wait_for_changes(seen=1, timeout_s=0.3) == 1


async def test_hint_names_the_session_and_its_revision(replicas):
    """So that only its watchers are woken, and a stale cache can be dropped."""
    here, there = replicas
    heard = []
    odd = SessionKey("ñ", '"日本" \\ 😀')
    async with here.hearing_changes(lambda key, revision: heard.append((key, revision))):
        await asyncio.gather(*(there.append(append(n)) for n in range(5)))
        await there.append(append(0, 1))
        await there.append(replace(append(), key=odd))
        async with asyncio.timeout(5):
            while len(heard) < 7:
                await here.wait_for_changes(seen=len(heard) + 1, timeout_s=5)
    assert set(heard) == {*((key(n), 1) for n in range(5)), (key(0), 2), (odd, 1)}
    await there.append(append(1, 1))
    await here.wait_for_changes(seen=8, timeout_s=5)
    assert len(heard) == 7


async def test_hints_of_a_large_group_fit_into_payloads(replicas):
    """PostgreSQL refuses a payload of 8,000 bytes; long ids fill one soon."""
    here, there = replicas
    heard = set()
    async with here.hearing_changes(lambda key, revision: heard.add((key, revision))):
        tenant = "t" * 400
        await asyncio.gather(*(there.append(append(n, tenant=tenant)) for n in range(200)))
        async with asyncio.timeout(10):
            while len(heard) < 200:
                await here.wait_for_changes(seen=1 + len(heard), timeout_s=5)
    assert heard == {(key(n, tenant), 1) for n in range(200)}


def test_payloads_are_within_bounds_whatever_the_ids():
    """Escapes make an id longer than its bytes."""
    sender = HintSender(None, "channel", "origin")
    sender._sending = object()
    for number in range(500):
        sender.send([(SessionKey("\x01" * 512, "😀" * 100 + str(number)), number)])
    payloads = sender._take_payloads()
    assert max(len(payload.encode()) for payload in payloads) <= PAYLOAD_BYTES_MAX
    hints = [hint for payload in payloads for hint in read_payload(payload, "other")]
    assert [hint.revision for hint in hints] == list(range(500))


def test_too_many_to_name_are_one_hint(monkeypatch):
    """After a long time without a connection."""
    monkeypatch.setattr(postgres_hints, "SEND_CHANGES_MAX", 3)
    sender = HintSender(None, "channel", "origin")
    sender._sending = object()
    sender.send((key(number), 1) for number in range(9))
    assert [read_payload(p, "other") for p in sender._take_payloads()] == [[Hint(None, 0)]]
    sender.send([(key(), 2)])
    assert [read_payload(p, "other") for p in sender._take_payloads()] == [[Hint(key(), 2)]]


@pytest.mark.parametrize(
    "payload",
    [
        *("", "x", "{}", "[]", "7", "null", '["o", 1]', '["o", ["a"]]', '["o", ["a", "b", "c"]]'),
        json.dumps(["o", ["a", "b", {}]]),
        json.dumps(["o", ["a", "b", 1, "newer"]]),
    ],
)
def test_payload_that_is_not_understood_is_some_change(payload):
    """Anybody who may connect may send; a newer release may send more."""
    assert read_payload(payload, "own") == [Hint(None, 0)]


async def test_word_from_anybody_does_no_harm(replicas, postgres_database, tmp_path):
    """It costs a look at the log."""
    here, there = replicas
    schema = postgres_database.schema(tmp_path)
    for seen, payload in enumerate(["", "rubbish", '["x", ["a", "b", 99]]'], start=1):
        postgres_database.execute(f"NOTIFY {schema}, '{payload}'")
        assert await here.wait_for_changes(seen=seen, timeout_s=5) == seen + 1
    await there.append(append())
    assert await here.wait_for_changes(seen=4, timeout_s=5) == 5


async def test_listener_comes_back_after_its_connection_was_lost(replicas, postgres_database):
    """And hints that some may have been missed meanwhile."""
    here, there = replicas
    with capture_logs() as logs:
        postgres_database.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND query LIKE 'LISTEN%'"
        )
        assert await here.wait_for_changes(seen=1, timeout_s=5) == 2
    assert "store_listener_lost" in [entry["event"] for entry in logs]
    await there.append(append())
    assert await here.wait_for_changes(seen=2, timeout_s=5) == 3


async def test_nobody_listens_until_somebody_wants_to_hear(open_replica, postgres_database):
    """A replica that nobody watches holds no connection for it."""
    store = await open_replica()
    await store.append(append())
    listening = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
    listening += " AND datname = current_database() AND pid <> pg_backend_pid()"
    assert postgres_database.execute(listening) == [(0,)]
    await store.wait_for_changes(timeout_s=5)
    assert postgres_database.execute(listening) == [(1,)]


async def test_hints_can_be_left_out(open_replica):
    """Then the wait is only for its time, and nothing is sent."""
    here, there = await open_replica("hints=off"), await open_replica("hints=off")
    async with here.hearing_changes(lambda *_: pytest.fail("nobody should have sent")):
        await there.append(append())
        begun_s = time.monotonic()
        assert await here.wait_for_changes(seen=0, timeout_s=0.1) == 0
        assert time.monotonic() - begun_s >= 0.1
    page, _ = await here.read_log(CURSOR_START, 10)
    assert len(page) == 1


async def test_hint_that_cannot_be_sent_fails_nobody(open_replica, monkeypatch):
    """The append has happened, whatever becomes of the word of it."""
    store = await open_replica()
    sent = asyncio.Event()

    async def no_room(_work):
        sent.set()
        raise StoreUnavailable("no connection to the store became free; try again")

    with capture_logs() as logs:
        monkeypatch.setattr(store._hints._pool, "run", no_room)
        await store.append(append())
        await sent.wait()
        await asyncio.sleep(0)
    assert [entry["event"] for entry in logs] == ["store_hints_not_sent"]
    monkeypatch.undo()
    assert await store.head_revision(key()) == 1


async def test_hints_of_many_small_commits_are_sent_together(open_replica, monkeypatch):
    """A hint costs as much as a small append: there are no more than some 50 a second."""
    store = await open_replica("write_connections=1&group_writes_max=1")
    sent = []
    execute = psycopg.AsyncConnection.execute

    async def counted(self, query, *args, **kwargs):
        if "pg_notify" in str(query):
            sent.append(args)
        return await execute(self, query, *args, **kwargs)

    monkeypatch.setattr(psycopg.AsyncConnection, "execute", counted)
    begun_s = time.monotonic()
    await asyncio.gather(*(store.append(append(n)) for n in range(100)))
    taken_s = time.monotonic() - begun_s
    assert 1 <= len(sent) <= 1 + taken_s / postgres_hints.SEND_PAUSE_S


async def test_closing_ends_those_who_wait(open_replica):
    """A watcher is not left behind."""
    store = await open_replica()
    waiting = asyncio.create_task(store.wait_for_changes(seen=99, timeout_s=60))
    await asyncio.sleep(0.05)
    await store.close()
    async with asyncio.timeout(5):
        await waiting
