"""A store on several clusters: which one has a tenant, adding one, and what is refused."""

import asyncio
import json

import pytest

from routing_service.settings import rules
from routing_service.storage.open_store import (
    StoreUrlInvalid,
    open_store,
    open_store_to_read,
    without_secrets,
)
from routing_service.storage.postgres import cluster_map
from routing_service.storage.postgres.cluster_map import choose
from routing_service.storage.postgres.schema import migrations
from routing_service.storage.store import CURSOR_START, CursorInvalid, StoreUnavailable
from tests.engines.appends import append, audit, key, outcomes

TENANTS = [f"tenant-{number:02}" for number in range(24)]


@pytest.fixture
def urls(postgres_database, tmp_path):
    """Three empty clusters, here three schemas."""
    folders = [tmp_path / name for name in ("a", "b", "c")]
    yield [postgres_database.store_url(folder) for folder in folders]
    for folder in folders:
        postgres_database.clear(folder)


async def fill(store, tenants, base=0):
    """Append a change to a session of each tenant."""
    for tenant in tenants:
        await store.append(append(0, base, tenant=tenant))


async def log_of(store, cursor=CURSOR_START, limit=7):
    """Read the log from a cursor to its end; return its tenants and the last cursor."""
    found = []
    while page := await store.read_log(cursor, limit):
        entries, cursor = page
        found += [(name.tenant, change.revision) for name, change in entries]
        if len(entries) < limit:
            return found, cursor
    raise AssertionError


def placed(postgres_database, url):
    """The tenants whose sessions a cluster has."""
    schema = url.partition("schema=")[2]
    return {name for (name,) in postgres_database.execute(f"SELECT tenant FROM {schema}.sessions")}


async def test_tenants_spread_over_the_clusters_and_stay(urls, postgres_database):
    """Each tenant is whole on one cluster, in whatever order the URLs come."""
    store = await open_store(" ".join(urls))
    await fill(store, TENANTS)
    await store.close()
    parts = [placed(postgres_database, url) for url in urls]
    assert all(parts)
    assert sorted(name for part in parts for name in part) == TENANTS

    again = await open_store(" ".join(reversed(urls)))
    await fill(again, TENANTS, base=1)
    assert [placed(postgres_database, url) for url in urls] == parts
    assert await again.list_tenants("", 10) == TENANTS[:10]
    assert await again.list_tenants(TENANTS[9], 100) == TENANTS[10:]
    assert sorted((await log_of(again))[0]) == [(name, rev) for name in TENANTS for rev in (1, 2)]
    await again.close()


async def test_a_cluster_that_is_added_moves_nothing(urls, postgres_database):
    """A store of one cluster becomes one of several: tenants, log cursors and settings go on."""
    alone = await open_store(urls[0])
    await alone.put_setting("*", "stickiness", b"off")
    await fill(alone, TENANTS[:6])
    _, cursor = await log_of(alone)
    await alone.close()

    both = await open_store(" ".join(urls[:2]))
    assert await both.get_setting("*", "stickiness") == b"off"
    await fill(both, TENANTS[:6], base=1)
    assert placed(postgres_database, urls[1]) == set()
    await fill(both, TENANTS[6:])
    assert placed(postgres_database, urls[0]) > set(TENANTS[:6])
    assert placed(postgres_database, urls[1])
    # The cursor from before goes on, and misses nothing of the cluster that was added.
    found, cursor = await log_of(both, cursor)
    assert sorted(found) == [(name, 2) for name in TENANTS[:6]] + [(n, 1) for n in TENANTS[6:]]

    # A process that was started with the shorter URL goes on for the tenants that it can reach.
    three = await open_store(" ".join(urls))
    later = [f"later-{number}" for number in range(30)]
    await fill(three, later)
    refused = []
    for name, outcome in zip(
        later, await outcomes(*(both.load(key(tenant=name)) for name in later)), strict=True
    ):
        if isinstance(outcome, StoreUnavailable):
            refused.append(name)
            assert "restart this server with the store URL that names it" in outcome.reason
        else:
            assert outcome.revision == 1
    assert set(refused) == placed(postgres_database, urls[2])
    assert sorted((await log_of(three, cursor))[0]) == sorted((name, 1) for name in later)
    _, longer = await log_of(three)
    with pytest.raises(CursorInvalid):
        await both.read_log(longer, 1)
    for store in (both, three):
        await store.close()


async def test_urls_that_do_not_name_one_store_are_refused(urls):
    """Served with a cluster too few, a tenant would seem to have nothing."""
    store = await open_store(" ".join(urls[:2]))
    await fill(store, TENANTS)
    await store.close()
    for name, message in (
        (urls[0], "one of several clusters"),
        (urls[1], "one of several clusters"),
    ):
        with pytest.raises(StoreUnavailable, match=message):
            await open_store(name)
    for given, message in (
        ((urls[1], urls[2]), "does not name the store's first cluster"),
        ((urls[0], urls[2]), "does not name all clusters of the store; add those of postgres://"),
        ((urls[0], urls[0]), "names one cluster twice"),
    ):
        with pytest.raises(StoreUrlInvalid, match=message):
            await open_store(" ".join(given))


async def test_a_cluster_with_data_of_its_own_is_not_added(urls):
    """Its tenants would be in two places."""
    other = await open_store(urls[1])
    await fill(other, TENANTS[:1])
    await other.close()
    with pytest.raises(StoreUrlInvalid, match="has data of its own; add a cluster that is empty"):
        await open_store(" ".join(urls[:2]))
    await (await open_store(urls[0])).close()
    await (await open_store(urls[2])).close()
    with pytest.raises(StoreUnavailable, match="is not part of the store yet"):
        await open_store_to_read(" ".join((urls[0], urls[2])))


async def test_servers_that_begin_at_once_make_one_store(urls):
    """Each adds what is missing, and none serves with clusters of another list."""
    opened = await outcomes(*(open_store(" ".join(urls)) for _ in range(4)))
    stores = [store for store in opened if not isinstance(store, Exception)]
    assert len(stores) == 4, opened
    await fill(stores[0], TENANTS)
    for store in stores:
        assert await store.list_tenants("", 100) == TENANTS
        assert [await store.head_revision(key(tenant=tenant)) for tenant in TENANTS] == [1] * 24
        await store.close()


async def test_servers_that_disagree_about_the_first_cluster_do_not_serve(urls):
    """Their lists would give one tenant to two clusters."""
    opened = await outcomes(open_store(" ".join(urls)), open_store(" ".join(reversed(urls))))
    serving = [each for each in opened if not isinstance(each, Exception)]
    for store in serving:
        await store.close()
    for error in opened:
        assert error in serving or isinstance(error, StoreUrlInvalid), error
    assert len({store._engine._home.store_id for store in serving}) <= 1


async def test_processes_that_meet_a_tenant_at_once_agree(urls):
    """The list decides, and appends of one session keep their order while it is asked."""
    stores = [await open_store(" ".join(urls)) for _ in range(2)]
    for tenant in TENANTS[:8]:
        found = await outcomes(*(store.append(append(0, 0, tenant=tenant)) for store in stores))
        assert sum(outcome is None for outcome in found) == 1
        chain = [stores[0].append(append(0, base, tenant=tenant)) for base in range(1, 5)]
        assert await outcomes(*chain) == [None] * 4
        assert await stores[1].head_revision(key(tenant=tenant)) == 5
    for store in stores:
        await store.close()


async def test_a_process_remembers_so_many_tenants_and_finds_the_others_again(urls, monkeypatch):
    """Its memory is bounded, however many tenants it meets."""
    monkeypatch.setattr(cluster_map, "TENANTS_CACHED_MAX", 3)
    store = await open_store(" ".join(urls))
    for base in range(2):
        await fill(store, TENANTS, base)
    assert [await store.head_revision(key(tenant=tenant)) for tenant in TENANTS] == [2] * 24
    assert len(store._engine._map._known) <= 4
    assert await store.head_revision(key(tenant="nobody")) == 0
    assert await store.list_tenants("", 100) == TENANTS
    await store.close()


async def test_due_sessions_of_all_clusters_come_in_one_order(urls):
    """The sweeper takes the earliest first, on whichever cluster it is."""
    store = await open_store(" ".join(urls))
    for place, tenant in enumerate(TENANTS):
        due = append(0, 0, tenant=tenant)
        await store.append(due.__class__(**{**_fields(due), "due_us": 1_000 - place}))
    found = await store.due_sessions(2_000, 5)
    assert [name.tenant for name in found] == list(reversed(TENANTS))[:5]
    await store.close()


def _fields(made):
    return {name: getattr(made, name) for name in made.__struct_fields__}


async def test_audit_cursor_of_another_tenant_is_refused(urls):
    """On another cluster it would be another place."""
    store = await open_store(" ".join(urls))
    await store.append_audit(audit())
    _, cursor = await store.read_audit("acme", None, CURSOR_START, 10)
    with pytest.raises(CursorInvalid, match="another tenant"):
        await store.read_audit("tenant-1", None, cursor, 10)
    await store.close()


def test_clusters_share_tenants_evenly_and_no_secret_is_shown():
    """Rendezvous hashing; and each URL of the list loses its own password."""
    ids = [bytes([number]) * 8 for number in range(4)]
    counts = [0] * 4
    for number in range(4_000):
        counts[choose(f"tenant-{number}", ids)] += 1
    assert min(counts) > 900
    url = "postgres://a:s1@h1/chat postgresql://b:p w@h2/chat?x=1"
    assert without_secrets(url) == "postgres://…@h1/chat postgresql://…@h2/chat?x=1"
    assert rules.without_secrets(url) == without_secrets(url)


def test_the_commands_know_all_clusters(run, urls):
    """Migrate brings each up to date; verify, copy and doctor read the tenants of all."""
    url = " ".join(urls)
    code, out, _ = run("migrate", "--store", url, "--json")
    migrated = json.loads(out)
    assert code == 0
    assert migrated["after"] == len(migrations())
    assert migrated["store"].count("postgres://") == 3
    assert "@" not in out

    async def fill_all():
        store = await open_store(url)
        await fill(store, TENANTS)
        await store.close()

    asyncio.run(fill_all())
    _, out, _ = run("verify", "--store", url, "--json")
    assert json.loads(out.splitlines()[-1])["tenants"] >= len(TENANTS)
    _, out, _ = run("doctor", "--store", url, "--json")
    (found,) = (finding for finding in json.loads(out)["findings"] if finding["what"] == "store")
    assert found["level"] == "ok"
    assert f"{len(TENANTS)} sessions of {len(TENANTS)} tenants" in json.dumps(found)
    code, _, told = run("verify", "--store", urls[0])
    assert code == 1
    assert "one of several clusters of a store" in told
