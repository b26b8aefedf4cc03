import asyncio
import functools
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from routing_service.examples import EXAMPLES
from routing_service.rpc.health import LIVENESS, READINESS, HealthService, StoreProbe
from routing_service.server.bounds import DEFAULT_BOUNDS, Bounds
from routing_service.server.server import RoutingServer
from routing_service.settings.settings import Settings
from routing_service.storage.memory_store import MemoryStore
from routing_service.storage.store import StoreUnavailable

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class FailingStore(MemoryStore):
    """A store whose writes fail when a test says so."""

    fails = False

    async def probe_write(self):
        if self.fails:
            raise StoreUnavailable("the disk is full")


@pytest.fixture
def store():
    """The store of the test's server."""
    return FailingStore()


@pytest.fixture
async def running(store, request):
    """Run a server that probes its store every 10 ms and gives up on it after 50 ms.

    A test may set other limits as its indirect parameter.
    """

    async def opener(_url):
        return store

    server = await RoutingServer.start(
        Settings(listen="127.0.0.1:0", agents=str(EXAMPLES["tax"].registry_path)),
        store_opener=opener,
        make_probe=functools.partial(StoreProbe, interval_s=0.01, failing_max_s=0.05),
        bounds=getattr(request, "param", DEFAULT_BOUNDS),
    )
    yield server
    await server.stop(0)


@pytest.fixture
async def stub(running):
    """Ask a server for its health."""
    async with grpc.aio.insecure_channel(running.address) as channel:
        yield health_pb2_grpc.HealthStub(channel)


async def check(stub, service):
    """Ask once."""
    answer = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=5)
    return answer.status


async def until(stub, service, status):
    """Poll until the health status is the wanted one."""
    async with asyncio.timeout(5):
        while await check(stub, service) != status:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def watch(stub, service):
    """Begin to watch."""
    return stub.Watch(health_pb2.HealthCheckRequest(service=service), timeout=20)


async def test_a_started_server_lives_and_is_ready(stub):
    """Both names answer from the first moment, and List has them both."""
    assert await check(stub, LIVENESS) == SERVING
    assert await check(stub, READINESS) == SERVING
    listed = await stub.List(health_pb2.HealthListRequest(), timeout=5)
    assert {name: entry.status for name, entry in listed.statuses.items()} == {
        "": SERVING,
        "agent_routing.v1.RoutingService": SERVING,
    }


async def test_a_store_that_cannot_be_written_ends_readiness_and_not_life(stub, store):
    """A restart would not repair the store, so liveness stays; readiness ends until it is back."""
    store.fails = True
    await until(stub, READINESS, NOT_SERVING)
    assert await check(stub, LIVENESS) == SERVING
    store.fails = False
    await until(stub, READINESS, SERVING)


async def test_a_watch_hears_of_every_change(stub, store):
    """Load balancers watch instead of polling."""
    call = watch(stub, READINESS)
    assert (await call.read()).status == SERVING
    store.fails = True
    assert (await call.read()).status == NOT_SERVING
    store.fails = False
    assert (await call.read()).status == SERVING


async def test_a_name_that_is_not_served_is_not_found_and_may_be_watched(stub):
    """Per the protocol, Check returns NOT_FOUND and Watch waits for the service to come."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await check(stub, "agent_routing.v1.Nonsense")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert READINESS in caught.value.details()
    call = watch(stub, "agent_routing.v1.Nonsense")
    assert (await call.read()).status == SERVICE_UNKNOWN


async def test_a_stopping_server_tells_its_watches_and_does_not_wait_for_them(running, stub):
    """A watch never ends on its own; waiting for it would use up the time for calls in flight."""
    calls = [watch(stub, READINESS), watch(stub, LIVENESS)]
    assert [(await call.read()).status for call in calls] == [SERVING, SERVING]
    started_s = time.monotonic()
    await running.stop(10)
    assert time.monotonic() - started_s < 2
    assert (await calls[0].read()).status == NOT_SERVING
    for call in calls:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_server_that_drains_does_not_become_ready_again():
    """A probe that passes during the drain must not make the server ready again."""
    service = HealthService()
    service.drain()
    service.set_ready(is_ready=True)
    assert service._statuses == {LIVENESS: SERVING, READINESS: NOT_SERVING}


@pytest.mark.parametrize("method", ["Check", "List", "Watch"])
async def test_bytes_that_are_no_request_are_the_callers_mistake(running, method):
    """The error is INVALID_ARGUMENT, without the server's internal message."""
    async with grpc.aio.insecure_channel(running.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(f"/grpc.health.v1.Health/{method}")(b"\xff\xff", timeout=5)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details().startswith("the request is not a grpc.health.v1.Health")


@pytest.mark.parametrize("running", [Bounds(health_watches_max=8)], indirect=True)
async def test_watches_are_bounded(stub):
    """Each watch holds memory until its client ends it."""
    calls = [watch(stub, LIVENESS), watch(stub, LIVENESS)]
    for call in calls:
        await call.read()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await watch(stub, LIVENESS).read()
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    calls[0].cancel()
    async with asyncio.timeout(5):
        while True:
            call = watch(stub, LIVENESS)
            try:
                assert (await call.read()).status == SERVING
                break
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.01)


class Probed:
    """A StoreProbe with a fake clock, and the statuses it reported."""

    def __init__(self):
        self.now_s = 1000.0
        self.error = None
        self.takes_s = 0.0
        self.told = []
        self.probe = StoreProbe(
            self.write, self.told.append, timeout_s=0.01, monotonic_s=lambda: self.now_s
        )

    async def write(self):
        self.now_s += self.takes_s
        if self.error is not None:
            raise self.error
        if self.takes_s:
            await asyncio.sleep(60)

    async def at(self, second):
        self.now_s = 1000.0 + second
        await self.probe.probe_once()
        return self.told


@pytest.mark.parametrize("error", [StoreUnavailable("full"), OSError("gone"), ZeroDivisionError()])
async def test_readiness_ends_after_ten_seconds_of_failed_probes(error):
    """Retries cover shorter outages; any error of a probe means that writes fail."""
    probed = Probed()
    assert await probed.at(0) == []
    probed.error = error
    assert await probed.at(2) == []
    assert await probed.at(11.9) == []
    assert await probed.at(12) == [False]
    assert await probed.at(100) == [False]
    probed.error = None
    assert await probed.at(101) == [False, True]


async def test_one_probe_that_passes_starts_the_count_again():
    """The ten seconds must be without a break."""
    probed = Probed()
    for second in range(0, 40, 2):
        probed.error = OSError() if second % 8 else None
        assert await probed.at(second) == []


async def test_a_probe_that_hangs_has_failed():
    """A disk that does not answer counts like one that refuses."""
    probed = Probed()
    probed.takes_s = 4
    assert await probed.at(0) == []
    assert await probed.at(6) == [False]
