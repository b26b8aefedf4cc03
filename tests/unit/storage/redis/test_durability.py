"""Acknowledged writes are on the server's disk, as the server itself confirms."""

import asyncio
import signal

import pytest
from structlog.testing import capture_logs

from routing_service.storage.open_store import open_store
from routing_service.storage.redis.pipeline import OnDisk
from routing_service.storage.store import CURSOR_START, RequestSeen, StoreUnavailable
from tests.engines.appends import append, audit, key, outcomes, task
from tests.engines.redis_server import CannotStart, start_server

HASTY = "call_timeout_s=0.3"
PATIENT = "call_timeout_s=30"
"""For what has to be written on a busy machine too."""


@pytest.fixture
def server(own_redis):
    """The module's server, empty and as it was set at its start."""
    with own_redis.client() as client:
        client.flushall()
        yield own_redis
        client.config_set("appendfsync", "always")


def every_write(store, number):
    """Call each kind of write once."""
    return {
        "append": store.append(append(number)),
        "append with a task": store.append(
            append(number + 500, tasks=(task(number + 500, f"task-{number}"),))
        ),
        "audit": store.append_audit(audit(number, data=b"%d" % number)),
        "setting": store.put_setting("acme", f"name-{number}", b"%d" % number),
        "lease": store.acquire_lease(f"lease-{number}", "holder", 1, 2),
        "erase": store.erase_before(key(999), 5, b""),
        "delete": store.delete_session(key(998), 0),
        "probe": store.probe_write(),
    }


async def test_write_that_is_not_on_disk_in_time_is_not_acknowledged(server):
    """WAITAOF returns 0 after its timeout, which is not a confirmation."""
    patient = await open_store(server.url(PATIENT))
    await asyncio.gather(*every_write(patient, 0).values())
    store = await open_store(server.url(HASTY))
    with server.client() as client, capture_logs() as logs:
        # From now on it never syncs, and each WAITAOF returns 0.
        client.config_set("appendfsync", "no")
        for name, write in every_write(store, 1).items():
            (result,) = await outcomes(write)
            assert isinstance(result, StoreUnavailable), name
            assert "did not get it to its disk in time" in result.reason
        client.config_set("appendfsync", "always")
    assert {log["event"] for log in logs} == {"store_group_failed"}
    # The write happened without a confirmation: the repeat has the first answer.
    with pytest.raises(RequestSeen):
        await patient.append(append(1))
    for opened in (store, patient):
        await opened.close()


async def test_repeat_is_not_answered_before_its_first_change_is_on_disk(server):
    """Another replica must not return a result that a crash may undo."""
    here, there, patient = [
        await open_store(server.url(query)) for query in (HASTY, HASTY, PATIENT)
    ]
    await patient.probe_write()
    with server.client() as client:
        client.config_set("appendfsync", "no")
        results = await outcomes(here.append(append()), there.append(append()))
        assert {type(result) for result in results} == {StoreUnavailable}
        (again,) = await outcomes(there.append(append()))
        assert isinstance(again, StoreUnavailable)
        client.config_set("appendfsync", "always")
    (known,) = await outcomes(patient.append(append()))
    assert isinstance(known, RequestSeen)
    for store in (here, there, patient):
        await store.close()


async def test_lazy_server_is_waited_for(server):
    """With everysec an answer is sent after the sync, up to a second later."""
    store = await open_store(server.url(PATIENT))
    with server.client() as client:
        client.config_set("appendfsync", "everysec")
        for number in range(2):
            await asyncio.gather(store.append(append(number)), store.append_audit(audit(number)))
            assert await store.head_revision(key(number)) == 1
    await store.close()


async def test_memory_is_not_waited_for_where_that_is_asked_for(server):
    """durability=memory: even a server that never syncs answers at once."""
    with server.client() as client:
        client.config_set("appendfsync", "no")
        store = await open_store(server.url(f"durability=memory&{PATIENT}"))
        await asyncio.gather(*every_write(store, 0).values())
        before = client.info("commandstats").get("cmdstat_waitaof", {"calls": 0})["calls"]
        await asyncio.gather(*every_write(store, 1).values())
        assert client.info("commandstats").get("cmdstat_waitaof", {"calls": 0})["calls"] == before
    await store.close()


async def test_replicas_that_are_missing_are_waited_for_in_vain(server):
    """sync_replicas=1 without a replica: written here, but not acknowledged."""
    store = await open_store(server.url("sync_replicas=1&call_timeout_s=1"))
    (result,) = await outcomes(store.append(append()))
    assert isinstance(result, StoreUnavailable)
    assert "0 of 1 replicas got it to their disks in time" in result.reason
    assert await store.head_revision(key()) == 1
    await store.close()


async def test_replica_that_is_there_has_what_is_acknowledged(server):
    """The write is on the replica's disk at the moment of the answer."""
    try:
        replica = start_server({"masterauth": server.password})
    except CannotStart as error:
        pytest.skip(f"redis: {error}")
    try:
        with server.client() as client, replica.client() as other:
            client.config_set("repl-diskless-sync-delay", 0)
            other.replicaof("127.0.0.1", server.port)
            async with asyncio.timeout(50):
                while client.info("replication")["connected_slaves"] == 0:  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.02)
                store = await open_store(server.url("sync_replicas=1&call_timeout_s=30"))
                await store.append(append())
            for number in range(5):
                await store.append(append(number, 1 if number == 0 else 0))
            await store.close()
            replica.stop(signal.SIGKILL)
            replica.start()
        promoted = await open_store(replica.url())
        assert [await promoted.head_revision(key(n)) for n in range(5)] == [2, 1, 1, 1, 1]
        await promoted.close()
    finally:
        replica.remove()


async def test_acknowledged_writes_survive_a_crash_of_the_server(server):
    """Killed during writes: every acknowledged write is complete."""
    store = await open_store(server.url(PATIENT))
    await asyncio.gather(*every_write(store, 7).values())
    acknowledged = {}

    async def write(number):
        base = 0
        while True:
            new = task(number, f"task-{number}-{base}")
            try:
                await store.append(append(number, base, tasks=(new,)))
            except StoreUnavailable:
                return
            base += 1
            acknowledged[number] = base

    writers = [asyncio.create_task(write(number)) for number in range(100, 116)]
    while len(acknowledged) < 16 or min(acknowledged.values()) < 5:  # noqa: ASYNC110 - progress
        await asyncio.sleep(0.005)
    await asyncio.to_thread(server.stop, signal.SIGKILL)
    await asyncio.gather(*writers)
    await store.close()
    server.start()

    store = await open_store(server.url(PATIENT))
    log, _ = await store.read_log(CURSOR_START, 1_000)
    for number, revision in acknowledged.items():
        head = await store.load(key(number))
        assert head is not None
        # The write in progress may be there as well.
        assert head.revision in {revision, revision + 1}
        assert head.state == b"state %d" % head.revision
        changes = await store.read_changes(key(number), limit=1_000)
        assert [change.revision for change in changes] == list(range(1, head.revision + 1))
        assert [change for name, change in log if name == key(number)] == changes
        tasks = await store.list_tasks(key(number), limit=1_000)
        assert len(tasks) == head.revision
        assert await store.find_task("acme", f"task-{number}-{revision - 1}") in tasks
        await store.append(append(number, head.revision, request_id="after the crash"))
    assert await store.head_revision(key(7)) == 1
    assert await store.get_setting("acme", "name-7") == b"7"
    entries, _ = await store.read_audit("acme", None, CURSOR_START, 10)
    assert [entry.data for entry in entries] == [b"7"]
    await store.close()


def test_end_of_a_group_checks_what_the_server_says():
    """On its own disk and on enough replicas'; an error is not a confirmation either."""
    end = OnDisk(b"probe", replicas=2, timeout_s=1.5)
    assert end.commands == (("SET", b"probe", b"1"), ("WAITAOF", 1, 2, 1500))
    end.check([b"OK", [1, 2]])
    for reply in ([0, 2], [1, 1], [0, 0]):
        with pytest.raises(StoreUnavailable):
            end.check([b"OK", reply])
