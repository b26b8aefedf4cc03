"""Long load with a third of the calls cancelled: memory use stays constant.

Memory, tasks and descriptors are read from outside while no call is in progress.
"""

import asyncio
import random
import signal
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from agent_routing.v1 import routing_service_pb2
from tests.tax_without_topics import tax_without_topics
from tests.torture.raw_http2 import OK, Tally, connect, headers_of, message_of
from tests.torture.server_process import TcpServer

SERVICE = "/agent_routing.v1.RoutingService/"
COUNTED = (sys.executable, "-m", "tests.torture.counted_server")

SESSIONS = 100
AT_ONCE = 32
CANCELLED_SHARE = 0.3
CANCEL_AFTER_S_MAX = 0.02
DEADLINE_MS = 60_000

REQUESTS = 300_000
SAMPLES = 20
WARM_UP_SHARE = 0.25
"""Until caches are full, SQLite's and Python's own included."""

BYTES_PER_MILLION_MAX = 64 * 1024 * 1024
"""64 bytes a request: what a leak of any object for each would cost at least."""

REST_S_MAX = 60

SPARE_DESCRIPTORS = 4
"""SQLite opens its files for readers as they are needed."""


@dataclass(frozen=True)
class Held:
    """What a server holds while no call is in progress."""

    requests: int
    rss_bytes: int
    descriptors: int
    tasks: int
    objects: int


def calls_of(number):
    """Return the kinds of calls of one session, each with headers and message."""
    rs = routing_service_pb2
    session = {"session_id": f"soak-{number}", "user_id": "ana"}
    return [
        (headers_of(SERVICE + rpc, DEADLINE_MS), message_of(request.SerializeToString()))
        for rpc, request in (
            ("Route", rs.RouteRequest(**session, text="hello", history_turns=-1)),
            ("Route", rs.RouteRequest(**session, text="and then?", history_turns=5)),
            ("Status", rs.StatusRequest(**session)),
            ("ListTurns", rs.ListTurnsRequest(**session, page_size=5, order=2)),
            # A stream that is not read to its end.
            ("WatchSession", rs.WatchSessionRequest(**session)),
        )
    ]


class Soak:
    """Callers on a few connections that cancel some of their calls."""

    def __init__(self, port, seed):
        self.dice = random.Random(seed)
        self.tally = Tally()
        self.cancelled = 0
        self.calls = [calls_of(number) for number in range(SESSIONS)]
        self.port = port
        self.left = 0
        self.connections = []

    async def connect(self):
        self.connections = [
            await connect("127.0.0.1", self.port, self.tally, self._again) for _ in range(4)
        ]

    async def run(self, requests):
        """Send a number of calls, and wait until none is in progress."""
        # The server closes connections now and then: new ones replace them.
        for connection in self.connections:
            connection.transport.close()
        await self.connect()
        self.left = requests
        for place in range(AT_ONCE):
            self._again(self.connections[place % len(self.connections)])
        async with asyncio.timeout(1_800):
            while self.left > 0 or any(each.open for each in self.connections):
                await asyncio.sleep(0.02)
                for place, each in enumerate(self.connections):
                    if each.is_lost and not each.open and self.left > 0:
                        fresh = await connect("127.0.0.1", self.port, self.tally, self._again)
                        self.connections[place] = fresh
                        for _ in range(AT_ONCE // 4):
                            self._again(fresh)

    def _again(self, connection):
        if self.left <= 0 or not connection.has_room:
            return
        self.left -= 1
        kinds = self.dice.choice(self.calls)
        kind = self.dice.choices(range(len(kinds)), (50, 15, 20, 10, 5))[0]
        stream = connection.call(*kinds[kind])
        is_watch = kind == len(kinds) - 1
        # The cancelled share does not depend on the speed of answers.
        behind = self.cancelled < CANCELLED_SHARE * self.tally.sent
        if is_watch or (behind and self.dice.random() < 2 * CANCELLED_SHARE):
            after_s = self.dice.random() * CANCEL_AFTER_S_MAX
            asyncio.get_running_loop().call_later(after_s, self._take_back, connection, stream)

    def _take_back(self, connection, stream):
        if connection.cancel(stream):
            self.cancelled += 1
            self._again(connection)


async def held(server, counts, requests):
    """Read what the server holds, once that is stable."""
    before = len(counts.read_text("ascii").splitlines()) if counts.exists() else 0
    server.send(signal.SIGUSR1)
    async with asyncio.timeout(60):
        while not counts.exists() or len(counts.read_text("ascii").splitlines()) == before:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    tasks, objects = map(int, counts.read_text("ascii").splitlines()[-1].split())
    process = Path(f"/proc/{server.pid}")
    status = process.joinpath("status").read_text("ascii")
    (rss_kb,) = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")]
    descriptors = len(list(process.joinpath("fd").iterdir()))
    return Held(requests, int(rss_kb) * 1024, descriptors, tasks, objects)


async def soak(requests, samples, seed):
    """Send requests in parts; return what was held after each part, and the load."""
    with TemporaryDirectory(prefix="routing-") as name:
        counts = Path(name) / "counts"
        server = TcpServer(
            Path(name),
            tax_without_topics(Path(name)),
            command=COUNTED,
            environment={"TORTURE_COUNTS": str(counts)},
        )
        await server.start()
        try:
            load = Soak(server.port, seed)
            found = []
            for number in range(1, samples + 1):
                await load.run(requests // samples)
                for connection in load.connections:
                    connection.transport.close()
                load.connections = []
                tasks = found[0].tasks if found else None
                found.append(await at_rest(server, counts, requests // samples * number, tasks))
        finally:
            await server.stop()
        assert "internal_error" not in server.log, server.log[-2_000:]
    return found, load


async def at_rest(server, counts, requests, tasks):
    """Wait until closed connections are released and cancelled calls have ended.

    tasks: the number at rest before; None: until nothing changes. What is held after a minute
    counts as held forever.
    """
    last = await held(server, counts, requests)
    end_s = time.monotonic() + REST_S_MAX
    while time.monotonic() < end_s:
        await asyncio.sleep(0.2 if tasks else 1)
        now = await held(server, counts, requests)
        if now.tasks == (last.tasks if tasks is None else tasks):
            return now
        last = now
    return last


def growth_per_million(found):
    """Return the bytes a million requests add, by the median of all pairs' slopes (Theil-Sen)."""
    slopes = [
        (later.rss_bytes - earlier.rss_bytes) / (later.requests - earlier.requests)
        for place, earlier in enumerate(found)
        for later in found[place + 1 :]
    ]
    return statistics.median(slopes) * 1e6


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads /proc")
async def test_calls_that_are_taken_back_leave_nothing_behind():
    """The short version: tasks and descriptors are as before."""
    found, load = await soak(1_500, 3, 7)
    assert load.cancelled > 200
    assert load.tally.statuses[OK] > 500
    assert found[-1].tasks == found[0].tasks
    assert found[-1].descriptors <= found[0].descriptors + SPARE_DESCRIPTORS


@pytest.mark.torture
@pytest.mark.timeout(3_600)
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads /proc")
async def test_nothing_grows_under_load_that_is_taken_back():
    """Hundreds of thousands of calls, a third cancelled: memory and tasks stay constant."""
    begun_s = time.monotonic()
    found, load = await soak(REQUESTS, SAMPLES, 7)
    warm = found[int(SAMPLES * WARM_UP_SHARE) :]
    grown = growth_per_million(warm)
    tasks, descriptors = {each.tasks for each in warm}, {each.descriptors for each in warm}
    print(  # noqa: T201 - the figures
        f"\nsoak: {load.tally.sent:,} calls in {time.monotonic() - begun_s:.0f} s, "
        f"{load.cancelled / load.tally.sent:.0%} cancelled, by status {load.tally.statuses}; after "
        f"warm-up {grown / 1e6:+.2f} MB per million calls ({warm[0].rss_bytes / 1e6:.1f} to "
        f"{warm[-1].rss_bytes / 1e6:.1f} MB), tasks {sorted(tasks)}, descriptors "
        f"{sorted(descriptors)}, objects {warm[0].objects:,} to {warm[-1].objects:,}"
    )
    assert load.cancelled > load.tally.sent * (CANCELLED_SHARE - 0.02)
    assert len(tasks) == 1
    assert max(descriptors) - min(descriptors) <= SPARE_DESCRIPTORS
    assert grown < BYTES_PER_MILLION_MAX
