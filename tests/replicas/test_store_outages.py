"""The store's server restarts, or hangs, while two replicas are under load.

Callers get errors that they can act on, the service recovers soon after the store, and every
acknowledged write is there.
"""

import asyncio
import pickle
import random
import signal
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import grpc
import pytest

import agent_routing
from routing_service.ids import new_uuid7
from routing_service.storage.open_store import open_store
from tests.replicas.crowd import Crowd
from tests.replicas.replica_set import serving_replicas
from tests.rpc.registries import DESK
from tests.torture.linearisability import check
from tests.torture.recorder import stored_changes

CLIENTS = 8
SESSIONS = 10
BACK_S_MAX = 5.0
"""From the store's being back to the last session's being served again."""

BACK_S_ENOUGH = 60.0
"""The same where it is not measured: on a machine that many share."""


RESTARTS = {
    "postgres": {"in order": "fast", "crash": "immediate"},
    "redis": {"in order": signal.SIGTERM, "crash": signal.SIGKILL},
}
"""How a server of each engine is told to stop before it starts again."""


@pytest.fixture(params=RESTARTS)
def engine(request):
    """Each engine that is a server, in turn."""
    return request.param


@pytest.fixture
def own_server(request, engine):
    """A server for this module's tests, which may stop and freeze it."""
    return request.getfixturevalue(f"own_{engine}")


ROOT = Path(__file__).parents[2]
ORDER = "import pickle, sys; bound, given = pickle.load(sys.stdin.buffer); bound(*given)"


async def order(method, *given):
    """Let a server do something, from another process.

    Starting one forks, which a process with gRPC's threads must not do.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", ORDER, cwd=ROOT, stdin=asyncio.subprocess.PIPE
    )
    await process.communicate(pickle.dumps((method, given)))
    assert process.returncode == 0, method


class Load:
    """Load: clients without retries that continue after any error."""

    def __init__(self, replicas, opened):
        self.once = agent_routing.RetryPolicy(attempts_max=1)
        self.replicas = replicas
        self.opened = opened
        self.crowd = None
        self.name = new_uuid7()
        self.rounds = 0
        self.stopping = False

    async def run(self):
        """Go on until stopped."""
        clients = [
            await self.opened.enter_async_context(
                self.replicas.client(retry=self.once, timeout=3.0)
            )
            for _ in range(CLIENTS)
        ]
        self.crowd = Crowd(clients, random.Random(7), pause_after_error_s=0.05)
        while not self.stopping:
            await self.crowd.round(f"{self.name}-{self.rounds}", sessions=SESSIONS, steps=40)
            self.rounds += 1


@asynccontextmanager
async def load_on(server):
    """Run two replicas and the load on them; compare the results with the store at the end."""
    async with AsyncExitStack() as opened:
        registry = DESK.replace("open_turns: 4", "open_turns: 16")
        replicas = await opened.enter_async_context(serving_replicas(server.url(), registry, 2))
        load = Load(replicas, opened)
        running = asyncio.create_task(load.run())
        try:
            while not load.rounds:
                await asyncio.sleep(0.05)
                if running.done():
                    running.result()
            yield load
            load.stopping = True
            await running
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    store = await open_store(server.url())
    try:
        log = await stored_changes(store)
    finally:
        await store.close()
    prefix = f"default/{load.name}-"
    log = {name: changes for name, changes in log.items() if name.startswith(prefix)}
    assert len(log) >= SESSIONS
    wrong = check(load.crowd.recorder.history, log)
    assert wrong == [], wrong[:10]


async def back_after_s(load):
    """Return the seconds until every replica has written again, asked one by one."""
    begun_s = time.monotonic()
    for replica in load.replicas.replicas:
        async with load.replicas.client(replica.address, retry=load.once, timeout=3.0) as client:
            async with asyncio.timeout(BACK_S_ENOUGH):
                while True:
                    try:
                        await client.route("hello", session_id=f"back-{new_uuid7()}")
                    except agent_routing.RoutingError:
                        await asyncio.sleep(0.05)
                    else:
                        break
    return time.monotonic() - begun_s


def assert_bounded(errors):
    """Every error says that the store is unavailable and when to retry, or is a timeout."""
    told = Counter((error.code, error.reason, error.retry_after is not None) for error in errors)
    assert told.keys() <= {
        (grpc.StatusCode.UNAVAILABLE, "STORE_UNAVAILABLE", True),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE", False),
        # The client's own clock, if the server's answer comes too late.
        (grpc.StatusCode.DEADLINE_EXCEEDED, "", False),
    }, told
    return {f"{code.name} {reason}".strip(): count for (code, reason, _), count in told.items()}


@pytest.mark.parametrize("how", [pytest.param("in order", marks=pytest.mark.torture), "crash"])
@pytest.mark.timeout(300)
async def test_store_server_that_restarts_under_load_is_told_and_loses_nothing(
    engine, own_server, how
):
    """Gracefully or by a crash: errors that callers can act on, then recovery without help."""
    async with load_on(own_server) as load:
        await order(own_server.restart, RESTARTS[engine][how])
        back_s = await back_after_s(load)
    told = assert_bounded(load.crowd.errors)
    print(f"restart ({how}): {told}, back after {back_s:.1f} s")  # noqa: T201 - what was measured


async def freeze(server, load, seconds):
    """Freeze a server for a while under load."""
    await order(server.freeze)
    try:
        await asyncio.sleep(seconds)
        assert load.crowd.errors, "nobody noticed"
    finally:
        await order(server.thaw)
    return await back_after_s(load)


@pytest.mark.timeout(300)
async def test_store_server_that_hangs_under_load_is_told_and_loses_nothing(own_server):
    """No call takes longer than its deadline, and calls succeed once the server continues."""
    async with load_on(own_server) as load:
        back_s = await freeze(own_server, load, 4)
    told = assert_bounded(load.crowd.errors)
    print(f"frozen for 4 s: {told}, back after {back_s:.1f} s")  # noqa: T201 - what was measured


@pytest.mark.torture
@pytest.mark.timeout(300)
async def test_outage_that_makes_every_replica_unhealthy_keeps_its_reason(own_server):
    """After ten seconds the replicas report NOT_SERVING, and gRPC itself refuses calls."""
    async with load_on(own_server) as load:
        back_s = await freeze(own_server, load, 18)
    told = assert_bounded(load.crowd.errors)
    assert told["UNAVAILABLE STORE_UNAVAILABLE"]
    print(f"frozen for 18 s: {told}, back after {back_s:.1f} s")  # noqa: T201 - what was measured


@pytest.mark.torture
@pytest.mark.timeout(600)
async def test_service_is_back_five_seconds_after_its_store(engine, own_server):
    """Frozen for 10 s, restarted gracefully and by a crash, three times each."""
    took = []
    async with load_on(own_server) as load:
        for _ in range(3):
            took.append(("frozen 10 s", await freeze(own_server, load, 10)))
            for how in RESTARTS[engine]:
                await order(own_server.restart, RESTARTS[engine][how])
                took.append((how, await back_after_s(load)))
    told = assert_bounded(load.crowd.errors)
    shown = [f"{what} {seconds:.1f} s" for what, seconds in took]
    print(f"outages: {told}; back after {shown}")  # noqa: T201 - what was measured
    assert max(seconds for _, seconds in took) <= BACK_S_MAX, shown
