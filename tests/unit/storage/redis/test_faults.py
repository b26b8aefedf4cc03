"""A Redis server that stops, hangs, is full or refuses: one error in time, then recovery.

Each test has the server to itself and leaves it as it was.
"""

import asyncio
import signal
import time

import pytest
from structlog.testing import capture_logs

from routing_service.storage.open_store import redis_place
from routing_service.storage.redis.bounds import DEFAULT_BOUNDS, RedisBounds
from routing_service.storage.redis.connection import RECONNECT_PAUSE_S
from routing_service.storage.redis.pipeline import GRACE_S, Pipeline
from routing_service.storage.redis.store import open_redis_store
from routing_service.storage.store import (
    CURSOR_START,
    DAMAGED,
    RequestSeen,
    StoreCorrupt,
    StoreUnavailable,
    TaskTaken,
)
from tests.engines.appends import append, audit, key, outcomes, task
from tests.engines.cut_line import cut_line

PATIENT = "connect_timeout_s=30&call_timeout_s=30"
"""For what has to be done on a busy machine too."""

HASTY = "connect_timeout_s=1&call_timeout_s=0.5&group_writes_max=1"
BOUND_S = 1 + 0.5 + GRACE_S + RECONNECT_PAUSE_S + 20
"""The time of a call, the grace for its answer, and an attempt to connect; the rest is for a busy
machine. Fifty calls one after the other would take longer."""


@pytest.fixture
async def open_here(own_redis):
    """Return a function that opens a store on the module's empty server."""
    with own_redis.client() as client:
        client.flushall()
    opened = []

    async def open_it(query=PATIENT, url=None, bounds=DEFAULT_BOUNDS):
        place = redis_place(f"{url or own_redis.url()}?{query}")
        store = await open_redis_store(place, bounds=bounds)
        opened.append(store)
        return store

    yield open_it
    for store in opened:
        await store.close()


async def works_again(store, within_s=30.0):
    """Wait until the store writes and reads."""
    ends_s = time.monotonic() + within_s
    while True:
        try:
            await store.probe_write()
            await store.head_revision(key())
        except StoreUnavailable:
            assert time.monotonic() < ends_s, f"still away after {within_s} s"
            await asyncio.sleep(0.05)
        else:
            return


async def test_flushed_scripts_are_sent_again(open_here, own_redis):
    """Callers do not notice, and calls sent together keep their order."""
    store = await open_here()
    await store.append(append())
    with own_redis.client() as client:
        client.script_flush()
        results = await outcomes(*(store.append(append(0, base)) for base in range(1, 6)))
        assert results == [None] * 5
        client.script_flush()
        assert len(await store.read_changes(key(), limit=10)) == 6


async def test_scripts_that_are_gone_each_time_are_unavailable(open_here, own_redis, monkeypatch):
    """If they are flushed in a loop, callers get an error, and retries end."""
    store = await open_here()
    with own_redis.client() as client:
        client.script_flush()
    monkeypatch.setattr("routing_service.storage.redis.pipeline.load_commands", lambda: [("PING",)])
    with pytest.raises(StoreUnavailable, match="refused a call"):
        await store.append(append())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_restart_between_calls_is_not_noticed(open_here, own_redis, number):
    """Dead idle connections are detected before use; the scripts are loaded again."""
    store = await open_here()
    await asyncio.gather(
        *(store.append(append(n)) for n in range(20)),
        *(store.head_revision(key(n)) for n in range(20)),
    )
    own_redis.restart(number)
    results = await outcomes(
        *(store.append(append(n, 1)) for n in range(20)),
        *(store.head_revision(key(n)) for n in range(100, 120)),
    )
    assert results == [None] * 20 + [0] * 20


async def test_connection_that_is_killed_between_calls_is_not_noticed(open_here, own_redis):
    """Operators or firewalls end connections."""
    store = await open_here()
    await store.append(append())
    await store.head_revision(key())
    with own_redis.client() as client:
        client.client_kill_filter(_type="normal", skipme=True)
    await store.append(append(0, 1))
    assert await store.head_revision(key()) == 2


async def test_server_that_is_away_is_unavailable_at_once(open_here, own_redis):
    """Many callers make few connection attempts, and recovery is automatic."""
    store = await open_here()
    await store.append(append())
    own_redis.stop()
    try:
        with capture_logs() as logs:
            results = await outcomes(
                *(store.append(append(n)) for n in range(1, 200)),
                *(store.head_revision(key()) for _ in range(200)),
            )
        assert {type(result) for result in results} == {StoreUnavailable}
        assert own_redis.password not in f"{logs} {results}"
    finally:
        own_redis.start()
    await works_again(store)
    assert await store.head_revision(key()) == 1


async def test_hung_server_is_given_up_in_time_and_found_again(open_here, own_redis):
    """This holds for writes and reads; the timeouts of waiting calls do not add up."""
    patient, store = await open_here(), await open_here(HASTY)
    await patient.append(append())
    await works_again(store)
    own_redis.freeze()
    try:
        begun_s = time.monotonic()
        results = await outcomes(
            *(store.append(append(n, 1 if n == 0 else 0)) for n in range(50)),
            *(store.head_revision(key()) for _ in range(50)),
            store.probe_write(),
        )
        assert {type(result) for result in results} == {StoreUnavailable}
        assert time.monotonic() - begun_s < BOUND_S
    finally:
        own_redis.thaw()
    await works_again(store)
    # Calls that had reached it may have been applied: a repeat shows which.
    (repeat,) = await outcomes(patient.append(append(0, 1)))
    assert repeat is None or isinstance(repeat, RequestSeen)
    assert await patient.head_revision(key()) == 2


async def test_append_that_was_done_and_not_told_is_found_by_its_request(open_here, own_redis):
    """The connection ends between the script and its answer, and the driver does not retry."""
    async with cut_line(own_redis.port) as line:
        url = own_redis.url().replace(str(own_redis.port), str(line.port))
        store = await open_here(url=url)
        await store.append(append())
        line.cut_answers = True
        results = await outcomes(
            store.append(append(0, 1)), store.append(append(1, tasks=(task(1),)))
        )
        assert {type(result) for result in results} == {StoreUnavailable}
        assert line.cuts >= 1
        line.cut_answers = False
        await works_again(store)
        with pytest.raises(RequestSeen) as seen:
            await store.append(append(0, 1))
        assert seen.value.change == append(0, 1).change
        assert [c.revision for c in await store.read_changes(key(), limit=10)] == [1, 2]
        # Only the first step of the other one was done, which has written nothing.
        await store.append(append(1, tasks=(task(1),)))
        assert await store.find_task("acme", "task-1") == task(1)
        await store.close()


async def test_server_without_memory_takes_no_writes_and_reads_on(open_here, own_redis):
    """It evicts no keys; once it has memory, writes work again."""
    store = await open_here()
    await store.append(append())
    with own_redis.client() as client:
        client.config_set("maxmemory", 1)
        try:
            results = await outcomes(
                store.append(append(0, 1)),
                store.append(append(1, tasks=(task(1),))),
                store.append_audit(audit()),
                store.put_setting("acme", "name", b"value"),
                store.probe_write(),
            )
            for result in results:
                assert isinstance(result, StoreUnavailable)
                assert "no memory left" in result.reason
            head = await store.load(key())
            assert head is not None
            assert head.revision == 1
        finally:
            client.config_set("maxmemory", 0)
    await store.append(append(0, 1))
    assert await store.find_task("acme", "task-1") is None


@pytest.mark.parametrize("durability", ["disk", "memory"])
async def test_server_that_becomes_a_replica_is_left(open_here, own_redis, durability):
    """It may have old data, and accepts no writes."""
    store = await open_here(f"{PATIENT}&durability={durability}")
    await store.append(append())
    assert await store.head_revision(key()) == 1
    with own_redis.client() as client:
        client.config_set("replica-serve-stale-data", "yes")
        client.replicaof("127.0.0.1", 1)
        try:
            for call in (
                store.append(append(0, 1)),
                store.head_revision(key()),
                store.load(key()),
            ):
                (result,) = await outcomes(call)
                assert isinstance(result, StoreUnavailable), result
            # The next call reconnects to the current primary.
            assert store._engine._writes._connection is None
            assert {pipeline._connection for pipeline in store._engine._reads} == {None}
        finally:
            client.replicaof("NO", "ONE")
    await works_again(store)
    await store.append(append(0, 1))


async def test_password_that_was_changed_is_told_without_it(open_here, own_redis):
    """Open connections still work; new ones are refused, which is logged."""
    store = await open_here()
    await store.append(append())
    with own_redis.client() as client:
        client.config_set("requirepass", "another")
        client.client_kill_filter(_type="normal", skipme=True)
        try:
            with capture_logs() as logs:
                (result,) = await outcomes(store.append(append(0, 1)))
            assert isinstance(result, StoreUnavailable)
            assert "refuses this user or password" in result.reason
            assert own_redis.password not in f"{logs}"
        finally:
            client.config_set("requirepass", own_redis.password)
    await works_again(store)


PREFIX = "agent-routing"


def stored(client, kind, number):
    """Return a session's key of one kind."""
    session = key(number)
    name = f"{session.tenant}\0{session.session_id}".encode()
    (found,) = [k for k in client.scan_iter(match=f"{PREFIX}:*") if k.endswith(kind + name)]
    return found


@pytest.mark.parametrize("kind", [b"}:h:", b"}:c:", b"}:q:", b"}:t:", b"}:o:"])
async def test_key_of_a_wrong_type_is_corrupt_for_that_session_alone(open_here, own_redis, kind):
    """Other sessions of the group are stored, and nothing is half written."""
    store = await open_here()
    for number in range(3):
        tasks = (task(number, f"task-{number}"),)
        await store.append(append(number, tasks=tasks))
    with own_redis.client() as client:
        spoilt = stored(client, kind, 1)
        client.delete(spoilt)
        client.sadd(spoilt, "something else")
        before = {k: client.dump(k) for k in client.scan_iter() if b"chat-0001" in k}
        # With its task, so that each of its keys is touched.
        results = await outcomes(
            *(store.append(append(n, 1, tasks=(task(n, f"task-{n}"),))) for n in range(3))
        )
        assert results[0] is results[2] is None
        assert isinstance(results[1], StoreCorrupt), results[1]
        assert {k: client.dump(k) for k in client.scan_iter() if b"chat-0001" in k} == before
    changes, _ = await store.read_log(CURSOR_START, 100) if kind != b"}:c:" else ([], b"")
    assert all(change.revision == 1 for k, change in changes if k == key(1))


@pytest.mark.parametrize(
    ("kind", "read"),
    [
        (b"}:h:", lambda store: store.head_revision(key(1))),
        (b"}:h:", lambda store: store.append(append(1, 1))),
        (b"}:h:", lambda store: store.delete_session(key(1), 1)),
        (b"}:c:", lambda store: store.find_request(key(1), "Route", "request-1")),
        (b"}:c:", lambda store: store.erase_before(key(1), 2, b"")),
        (b"}:t:", lambda store: store.list_tasks(key(1), limit=5)),
        (b"}:t:", lambda store: store.find_task("acme", "task-1")),
        (b"}:t:", lambda store: store.erase_before(key(1), 2, b"")),
    ],
)
async def test_value_that_is_cut_short_is_corrupt_for_that_session_alone(
    open_here, own_redis, kind, read
):
    """A read of it says so, and other sessions are unaffected."""
    store = await open_here()
    for number in range(2):
        await store.append(append(number, tasks=(task(number, f"task-{number}"),)))
    with own_redis.client() as client:
        spoilt = stored(client, kind, 1)
        match kind:
            case b"}:h:":
                client.set(spoilt, b"\0\0\1")
            case b"}:c:":
                client.lset(spoilt, 0, b"\0\0\1")
            case b"}:t:":
                client.hset(spoilt, "task-1", b"\0\0\1")
    with pytest.raises(StoreCorrupt):
        await read(store)
    # Where it is one of many, it is damaged in its place.
    match kind:
        case b"}:h:":
            assert (await store.load(key(1))).state == DAMAGED
            assert (await store.find_session(key(1))).revision == 0
        case b"}:c:":
            (change,) = await store.read_changes(key(1), limit=5)
            assert (change.revision, change.events) == (1, DAMAGED)
    await store.append(append(0, 1))
    assert len(await store.read_changes(key(0), limit=5)) == 2


async def test_changes_that_do_not_fit_the_head_are_corrupt(open_here, own_redis):
    """After a half restored backup the next change would be in the wrong place."""
    store = await open_here()
    for base in range(2):
        await store.append(append(0, base))
    with own_redis.client() as client:
        client.rpop(stored(client, b"}:c:", 0))
    with pytest.raises(StoreCorrupt, match="changes of session"):
        await store.append(append(0, 2))


async def test_mistake_of_ours_ends_one_group_and_not_the_store(open_here, monkeypatch):
    """The result of its calls is unknown, and later calls work."""
    store = await open_here()

    async def broken(*_):
        raise ValueError("a mistake")

    with monkeypatch.context() as patch, capture_logs() as logs:
        patch.setattr(Pipeline, "_send", broken)
        results = await outcomes(*(store.append(append(n)) for n in range(3)))
    assert {type(result) for result in results} == {StoreUnavailable}
    assert [log["event"] for log in logs] == ["store_group_failed"]
    await store.append(append())


async def test_too_many_waiting_calls_are_refused(open_here):
    """An unlimited queue would use unlimited memory."""
    store = await open_here(bounds=RedisBounds(waiting_calls_max=10))
    results = await outcomes(*(store.append(append(n)) for n in range(15)))
    assert results[:10] == [None] * 10
    for result in results[10:]:
        assert isinstance(result, StoreUnavailable)
        assert "wait for the store" in result.reason


async def test_task_of_another_session_stays_its_own_over_a_restart(open_here, own_redis):
    """Claims are as durable as their tasks."""
    store = await open_here()
    await store.append(append(0, tasks=(task(0),)))
    own_redis.restart()
    with pytest.raises(TaskTaken):
        await store.append(append(1, tasks=(task(1),)))
