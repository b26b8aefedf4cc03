"""A Redis server's required settings, and the errors and warnings about wrong ones."""

import asyncio

import pytest
from structlog.testing import capture_logs

from routing_service.storage.migrate_store import migrate_store
from routing_service.storage.open_store import open_store, redis_place
from routing_service.storage.redis.connection import Connector
from routing_service.storage.store import SchemaTooNew, StoreCorrupt, StoreUnavailable
from tests.engines.appends import append, key
from tests.engines.redis_server import CannotStart, free_port, start_server

PREFIX = "agent-routing"
RIGHTS = (
    "~agent-routing:* resetchannels -@all "
    "+@read +@write +@scripting +@connection +waitaof +time +info +config|get +cluster|info"
)
ALL_BUT_SETTINGS = "~* &* +@all -config -info -cluster"
META = f"{PREFIX}:{{00}}:meta"


@pytest.fixture
def server(own_redis):
    """The module's server, empty and as it was set at its start."""
    with own_redis.client() as client:
        client.flushall()
        yield own_redis
        client.replicaof("NO", "ONE")
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("appendonly", "yes")
        client.config_set("appendfsync", "always")
        client.flushall()


def set_to(server, **settings):
    """Set the options of a test."""
    with server.client() as client:
        for name, value in settings.items():
            client.config_set(name.replace("_", "-"), value)


async def opened_logs(url):
    """Open a store, write, close; return the log."""
    with capture_logs() as logs:
        store = await open_store(url)
        await store.append(append())
        assert await store.head_revision(key()) == 1
        await store.close()
    return logs


async def test_durable_server_is_opened_without_a_word(server):
    """Correct settings cause no log lines."""
    assert await opened_logs(server.url()) == []


async def test_unix_socket_will_do(server):
    """No port has to be open."""
    assert await opened_logs(server.socket_url()) == []


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
async def test_server_that_throws_keys_away_is_refused(server, policy):
    """With full memory, sessions would be lost silently."""
    set_to(server, maxmemory_policy=policy)
    with pytest.raises(StoreUnavailable, match=f"{policy}.*set maxmemory-policy noeviction"):
        await open_store(server.url())


async def test_server_without_a_disk_is_refused(server):
    """No write could be acknowledged."""
    set_to(server, appendonly="no")
    with pytest.raises(StoreUnavailable, match=r"appendonly no.*set appendonly yes"):
        await open_store(server.url())


async def test_server_that_never_syncs_is_refused(server):
    """It never confirms a sync: each write would time out."""
    set_to(server, appendfsync="no")
    with pytest.raises(StoreUnavailable, match=r"appendfsync no.*set appendfsync always"):
        await open_store(server.url())


async def test_lazy_sync_is_told_with_what_it_costs(server):
    """Slow, but safe: the answer waits for the disk."""
    set_to(server, appendfsync="everysec")
    (logged,) = await opened_logs(server.url())
    assert (logged["event"], logged["log_level"]) == ("store_waits_for_sync", "warning")
    assert "up to a second" in logged["effect"]
    assert logged["remedy"] == "set appendfsync always"


@pytest.mark.parametrize(
    ("settings", "window"),
    [
        ({"appendonly": "no"}, "all since the last snapshot (RDB), if there are any"),
        ({"appendfsync": "no"}, "what the operating system has not written, some 30 seconds"),
        ({"appendfsync": "everysec"}, "about the last second"),
    ],
)
async def test_loss_that_was_asked_for_is_told_with_its_window(server, settings, window):
    """With durability=memory each start logs its consequences."""
    set_to(server, **settings)
    (logged,) = await opened_logs(server.url("durability=memory"))
    assert (logged["event"], logged["log_level"]) == ("store_may_lose_writes", "warning")
    assert logged["window"] == window
    assert server.password not in repr(logged)


async def test_replica_is_refused(server):
    """It may have old data, and accepts no writes."""
    with server.client() as client:
        client.replicaof("127.0.0.1", 1)
    with pytest.raises(StoreUnavailable, match=r"is a replica.*address of the primary"):
        await open_store(server.url())


@pytest.mark.parametrize("user", ["", "nobody"])
async def test_wrong_password_is_told_without_it(server, user):
    """The error has neither the wrong password nor the right one."""
    url = server.url(password="wr0ng").replace("redis://:", f"redis://{user}:")
    with capture_logs() as logs, pytest.raises(StoreUnavailable) as raised:
        await open_store(url)
    assert "refuses this user or password" in str(raised.value)
    assert logs[0]["event"] == "store_connect_failed"
    for secret in ("wr0ng", server.password):
        assert secret not in f"{raised.value} {logs}"


async def test_no_password_at_all_is_told(server, monkeypatch):
    """The server asks for one."""
    monkeypatch.delenv("REDISCLI_AUTH", raising=False)
    with pytest.raises(StoreUnavailable, match="refuses this user or password"):
        await open_store(server.url(password=""))


async def test_user_with_the_documented_rights_is_enough(server):
    """docs/redis.md lists the rights; the test does everything with them."""
    with server.client() as client:
        client.execute_command(*f"ACL SETUSER router on >word resetkeys {RIGHTS}".split())
        try:
            url = server.url(password="word").replace("redis://:", "redis://router:")
            assert await opened_logs(url) == []
            with pytest.raises(StoreUnavailable, match="does not let this user"):
                await open_store(f"{url}?prefix=another")
        finally:
            client.acl_deluser("router")


async def test_server_that_hides_its_settings_is_taken(server):
    """Managed servers do this; each sync is still confirmed."""
    with server.client() as client:
        client.execute_command(*f"ACL SETUSER router on >word {ALL_BUT_SETTINGS}".split())
        try:
            url = server.url(password="word").replace("redis://:", "redis://router:")
            logs = await opened_logs(url)
            assert {log["log_level"] for log in logs} == {"info"}
            assert logs[-1]["event"] == "store_sync_unknown"
        finally:
            client.acl_deluser("router")


async def test_empty_place_is_marked_once(server):
    """The first server or the migrate command writes the mark."""
    first = await migrate_store(server.url())
    again = await migrate_store(server.url())
    assert (first.before, first.after, again.before, again.after) == (0, 1, 1, 1)
    assert server.password not in first.store
    with server.client() as client:
        before = client.hgetall(META)
        assert await opened_logs(server.url()) == []
        assert client.hgetall(META) == before


async def test_newer_schema_is_refused(server):
    """Data of a newer release is not interpreted."""
    await migrate_store(server.url())
    with server.client() as client:
        client.hset(META, "schema", "2")
    with pytest.raises(SchemaTooNew, match="has schema version 2, this release reads up to 1"):
        await open_store(server.url())


@pytest.mark.parametrize("spoilt", ["type", "schema", "id"])
async def test_mark_that_is_no_mark_is_refused(server, spoilt):
    """The key belongs to another application, or the store was changed by hand."""
    await migrate_store(server.url())
    with server.client() as client:
        match spoilt:
            case "type":
                client.set(META, "something else")
            case "schema":
                client.hset(META, "schema", "new")
            case "id":
                client.hdel(META, "store_id")
    with pytest.raises(StoreCorrupt):
        await open_store(server.url())


async def test_prefixes_and_databases_are_stores_of_their_own(server):
    """Two stores on one server may have the same session ids."""
    stores = [
        await open_store(url)
        for url in (server.url(), server.url("prefix=b"), server.url(database=1))
    ]
    for number, store in enumerate(stores):
        for base in range(number):
            await store.append(append(0, base))
    assert [await store.head_revision(key()) for store in stores] == [0, 1, 2]
    for store in stores:
        await store.close()


@pytest.fixture
def nodes():
    """Two servers in cluster mode, not yet connected."""
    started = []
    try:
        for _ in range(2):
            settings = {"cluster-enabled": "yes", "cluster-port": str(free_port())}
            started.append(start_server(settings))
        yield started
    except CannotStart as error:
        pytest.skip(f"redis: {error}")
    finally:
        for server in started:
            server.remove()


async def cluster_is(client, words):
    """Wait for a state of the cluster, as a node reports it."""
    while words not in client.execute_command("CLUSTER", "INFO"):  # noqa: ASYNC110 - another process
        await asyncio.sleep(0.02)


async def test_cluster_of_one_serves_and_of_several_is_refused(nodes):
    """Several nodes are not supported: the store would miss data on the other nodes."""
    here, there = nodes
    with here.client() as client, there.client() as other:
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 8_191)
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 8_192, 16_383)
        await cluster_is(client, b"cluster_state:ok")
        assert await opened_logs(here.url()) == []
        client.execute_command("CLUSTER", "DELSLOTSRANGE", 8_192, 16_383)
        other.execute_command("CLUSTER", "ADDSLOTSRANGE", 8_192, 16_383)
        bus = there.settings["cluster-port"]
        client.execute_command("CLUSTER", "MEET", "127.0.0.1", there.port, bus)
        await cluster_is(client, b"cluster_size:2")
    with pytest.raises(StoreUnavailable, match="cluster of 2 primaries; this release talks to one"):
        await open_store(here.url())


async def test_server_too_old_is_named(server):
    """The first version that can confirm a sync is 7.2."""
    connector = Connector(redis_place(server.url()), server_version_min=(99, 1))
    with pytest.raises(StoreUnavailable, match=r"is redis \d.*needs 99.1 or newer"):
        await connector.connect()
