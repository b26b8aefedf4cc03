"""One service on two PostgreSQL clusters: kills, tenants on both, and a cluster that is away."""

import asyncio

import grpc
import pytest

from agent_routing.v1 import admin_service_pb2, admin_service_pb2_grpc, routing_service_pb2
from routing_service.ids import new_uuid7
from tests.conformance.conftest import clear_clusters, cluster_urls
from tests.replicas.conftest import SharedStoreUrl
from tests.replicas.test_replica_histories import SESSIONS, histories_under_kills
from tests.rpc.live_service import TENANT_KEY, serving

pb = admin_service_pb2
TENANTS = [f"tenant-{number}" for number in range(8)]
REGISTRY = """\
api_version: agent_routing/v1
version: clusters
default_agent: front
agents: [{id: front, name: Front}]
"""


@pytest.fixture
def shared_clusters(postgres_database, tmp_path):
    """An empty store on two clusters, here two schemas of one database."""
    yield SharedStoreUrl("clusters", cluster_urls(tmp_path, postgres_database))
    clear_clusters(tmp_path, postgres_database)


@pytest.mark.timeout(300)
async def test_replicas_killed_under_load_lose_nothing_on_clusters(shared_clusters):
    """As on one database: what was answered is there, once and in order."""
    figures = await histories_under_kills(
        shared_clusters, rounds=1, steps=12, kills=2, pause_s_max=0.4
    )
    assert figures["histories"] >= SESSIONS
    assert figures["kills"] >= 1


async def route(server, tenant, text="hello", timeout_s=60):
    """Send a message of a tenant's user; return its session, or the code of the error."""
    request = routing_service_pb2.RouteRequest(
        session_id="chat", user_id="ana", text=text, request_id=new_uuid7()
    )
    try:
        answer = await server.stub.Route(
            request, metadata=((TENANT_KEY, tenant),), timeout=timeout_s
        )
    except grpc.aio.AioRpcError as error:
        return error.code()
    return answer.session_id


@pytest.mark.timeout(300)
async def test_tenants_of_other_clusters_go_on_while_one_is_away(
    postgres_database, own_postgres, tmp_path
):
    """Two servers on two database servers, of which one stops and comes back."""
    home = postgres_database.store_url(tmp_path)
    own_url = own_postgres.url(query="connect_timeout_s=2&schema=second")
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    url = f"{home} {own_url}"
    async with (
        serving(folders[0], REGISTRY, store=url) as one,
        serving(folders[1], REGISTRY, store=url) as two,
    ):
        operator = admin_service_pb2_grpc.AdminServiceStub(two.channel)
        watch = operator.WatchEvents(
            pb.WatchEventsRequest(tenant="*", from_beginning=True), timeout=240
        )
        for tenant in TENANTS:
            assert await route(one, tenant) == "chat"
        seen = set()
        while not seen >= set(TENANTS):
            seen.add((await watch.read()).tenant)
        watch.cancel()
        for tenant in TENANTS:
            listed = await operator.ListSessions(pb.ListSessionsRequest(tenant=tenant))
            assert [each.session_id for each in listed.sessions] == ["chat"]

        schema = home.partition("schema=")[2].partition("&")[0]
        at_home = {
            name for (name,) in postgres_database.execute(f"SELECT tenant FROM {schema}.sessions")
        }
        assert at_home
        assert at_home < set(TENANTS)
        await asyncio.to_thread(own_postgres.stop, "immediate")
        for tenant in TENANTS:
            for server in (one, two):
                answer = await route(server, tenant, timeout_s=20)
                assert answer == "chat" if tenant in at_home else answer != "chat"
        await asyncio.to_thread(own_postgres.start)
        async with asyncio.timeout(120):
            for tenant in TENANTS:
                while await route(two, tenant) != "chat":  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.1)
        for server in (one, two):
            # What the cluster that was away cost its tenants is what this test is about.
            assert server.observer.failures
            server.observer.failures.clear()
    postgres_database.drop(tmp_path)
