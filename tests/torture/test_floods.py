"""Floods of resets from one machine for half a minute, next to ordinary callers.

The attacker and the callers have the same address, which is the harder case: it is refused for new
connections if it floods repeatedly.
"""

import asyncio
import statistics
import sys
import time
from contextlib import asynccontextmanager

import pytest

import agent_routing
from tests.tax_without_topics import tax_without_topics
from tests.torture.server_process import ROOT, TcpServer
from tests.torture.test_overload import p99_s

CALLERS = 4
BACK_S_MAX = 5.0
"""From the end of a flood until callers take what they took before it."""


@asynccontextmanager
async def serving(tmp_path):
    """Run a server with probes; give it and the path of the probes' socket."""
    probes = tmp_path / "probes"
    server = TcpServer(
        tmp_path, tax_without_topics(tmp_path), flags={"probe_listen": f"unix:{probes}"}
    )
    await server.start()
    try:
        yield server, probes
    finally:
        await server.stop()


async def called_s(server, seconds):
    """Return the latencies of ordinary callers, and their errors."""
    took_s, failed, end_s = [], [], time.perf_counter() + seconds

    async def call(number):
        async with server.client() as client:
            while time.perf_counter() < end_s:
                begun_s = time.perf_counter()
                try:
                    await client.route("hello", session_id=f"chat-{number}", history_turns=-1)
                except agent_routing.RoutingError as error:
                    failed.append(error)
                took_s.append(time.perf_counter() - begun_s)

    await asyncio.gather(*(call(number) for number in range(CALLERS)))
    return took_s, failed


@asynccontextmanager
async def attacked(server, seconds, per_s):
    """Flood the server from a separate process; the block begins once it runs."""
    attacker = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tests.torture.rapid_reset", str(server.port), str(seconds), str(per_s)),
        cwd=ROOT,
        stdout=asyncio.subprocess.DEVNULL,
    )
    try:
        await asyncio.sleep(1)
        yield
    finally:
        await attacker.wait()


async def probe_s(probes):
    """Check liveness; return the seconds until the answer."""
    begun_s = time.perf_counter()
    async with asyncio.timeout(5):
        reader, writer = await asyncio.open_unix_connection(probes)
        writer.write(b"GET /livez HTTP/1.1\r\n\r\n")
        answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 200"), answer
    return time.perf_counter() - begun_s


@pytest.mark.parametrize(
    ("per_s", "seconds", "may_fail"),
    [
        (20_000, 2, False),
        pytest.param(20_000, 30, False, marks=pytest.mark.torture),
        # The calls of the first second may be refused, until the flood is noticed.
        pytest.param(90_000, 30, True, marks=pytest.mark.torture),
    ],
)
@pytest.mark.timeout(300)
async def test_callers_and_probes_are_answered_during_a_flood(tmp_path, per_s, seconds, may_fail):
    """No call fails, the probes answer, and five seconds later all is as before."""
    async with serving(tmp_path) as (server, probes):
        await called_s(server, 1)
        alone, _ = await called_s(server, 3)
        probed_s = []
        async with attacked(server, seconds + 1, per_s):
            callers = asyncio.create_task(called_s(server, seconds))
            while not callers.done():
                probed_s.append(await probe_s(probes))
                await asyncio.sleep(0.2)
            beside, failed = callers.result()
        ended_s = time.perf_counter()
        after, _ = await called_s(server, 1)
        while statistics.median(after) > 3 * statistics.median(alone):
            assert time.perf_counter() - ended_s < BACK_S_MAX
            after, failed_after = await called_s(server, 1)
            assert not failed_after
        log = server.log
    assert '"reason":"resets"' in log
    assert may_fail or not failed, failed[0]
    assert len(failed) < len(beside) / 10
    print(  # noqa: T201 - the figures
        f"\nflood of {per_s:,}/s for {seconds} s: {len(beside):,} calls, "
        f"{len(failed)} failed; p50 alone "
        f"{statistics.median(alone) * 1e3:.1f}, beside it {statistics.median(beside) * 1e3:.1f}, "
        f"after it {statistics.median(after) * 1e3:.1f} ms; p99 {p99_s(alone) * 1e3:.1f}, "
        f"{p99_s(beside) * 1e3:.1f}, {p99_s(after) * 1e3:.1f} ms; probes at most "
        f"{max(probed_s):.2f} s"
    )
