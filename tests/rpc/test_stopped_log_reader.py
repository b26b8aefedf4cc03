"""A server whose log's reader stops goes on: a collector that hangs is not its callers' trouble."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import grpc
import pytest

from agent_routing.v1 import routing_service_pb2 as pb
from agent_routing.v1 import routing_service_pb2_grpc
from tests.rpc.tls_files import Authority
from tests.tax_without_topics import tax_without_topics

PATIENCE_S = 30
PIPE_BYTES = 4096

SHORT_QUEUE = """
import sys
from routing_service.cli import main
from routing_service.telemetry import line_writer

line_writer.QUEUE_BYTES_MAX = 20_000
sys.exit(main())
"""
"""`agent-routing` whose queue of log lines is full after some fifty calls."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sets the size of a pipe")


def small_pipe():
    """Return the ends of a pipe that is soon full."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return reading, writing


@asynccontextmanager
async def serving(tmp_path, ends, **flags):
    """Start a server whose stderr is the second end; yield its process and the address."""
    reading, writing = ends
    flags = {
        "listen": "127.0.0.1:0",
        "agents": tax_without_topics(tmp_path),
        "store": "memory:",
        "drain_s": 1,
        **flags,
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SHORT_QUEUE, "serve"),
        *(f"--{name.replace('_', '-')}={value}" for name, value in flags.items()),
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        stdout=asyncio.subprocess.PIPE,
        stderr=writing,
    )
    os.close(writing)
    try:
        line = await asyncio.wait_for(process.stdout.readline(), PATIENCE_S)
        assert line.startswith(b"serving on ")
        yield process, line.decode().split()[-1]
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        os.close(reading)


async def answered(channel, count):
    """Send so many messages; fail if one is not answered."""
    stub = routing_service_pb2_grpc.RoutingServiceStub(channel)
    for number in range(count):
        await stub.Route(
            pb.RouteRequest(session_id=f"chat-{number}", user_id="ana", text="hello"), timeout=10
        )


async def ends(process):
    """Stop the server; return its exit code."""
    process.send_signal(signal.SIGTERM)
    return await asyncio.wait_for(process.wait(), PATIENCE_S)


def free_port():
    """Return a port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


async def page(port, path):
    """Return a page of this machine."""
    url = f"http://127.0.0.1:{port}{path}"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return (await asyncio.to_thread(partial(opener.open, url, timeout=10))).read().decode()


def as_a_socket():
    """Return a pair of sockets, which is what systemd's journal gives a service."""
    reading, writing = socket.socketpair()
    writing.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PIPE_BYTES)
    return reading.detach(), writing.detach()


@pytest.mark.parametrize("make_ends", [small_pipe, as_a_socket])
async def test_calls_probes_and_the_stop_go_on(tmp_path, make_ends):
    """The log said nothing any more after 150 calls, and neither did the server."""
    probes = free_port()
    async with (
        serving(tmp_path, make_ends(), probe_listen=f"127.0.0.1:{probes}") as (process, address),
        grpc.aio.insecure_channel(address) as channel,
    ):
        await answered(channel, 300)
        assert await page(probes, "/livez") == "ok\n"
        assert await ends(process) == 0


async def test_lines_that_were_lost_are_counted_and_the_log_says_where(tmp_path):
    """A log with a hole that does not show would be believed."""
    metrics = free_port()
    reading, writing = small_pipe()
    async with (
        serving(tmp_path, (reading, writing), metrics_listen=f"127.0.0.1:{metrics}") as (
            process,
            address,
        ),
        grpc.aio.insecure_channel(address) as channel,
    ):
        await answered(channel, 200)
        await asyncio.sleep(0.2)  # Lines below warning wait a moment.
        lines = (await page(metrics, "/metrics")).splitlines()
        (lost,) = [each for each in lines if each.startswith("agent_routing_log_lines_lost_total ")]
        lost = int(float(lost.split()[1]))
        log = asyncio.create_task(asyncio.to_thread(Path(f"/proc/self/fd/{reading}").read_bytes))
        async with asyncio.timeout(PATIENCE_S):
            await answered(channel, 3)
            assert await ends(process) == 0
            events = [json.loads(line) for line in (await log).splitlines()]
    (gap,) = [each for each in events if each["event"] == "log_lines_lost"]
    assert 0 < lost == gap["lines"]
    assert gap["level"] == "error"
    names = [each["session_id"] for each in events if each["event"] == "decision"]
    at = [each["event"] for each in events[: events.index(gap)]].count("decision")
    assert names[:at] == [f"chat-{number}" for number in range(200 - lost)]
    assert names[-3:] == ["chat-0", "chat-1", "chat-2"]
    assert "server_stopped" in [each["event"] for each in events]


async def test_what_grpc_itself_writes_waits_for_no_reader(tmp_path):
    """Its code writes a line for each failed handshake to stderr, past our log."""
    files = Authority(tmp_path).sign("localhost")
    tls = {"tls_certificate_file": files.certificate, "tls_key_file": files.key}
    async with serving(tmp_path, small_pipe(), **tls) as (process, address):
        for _ in range(60):
            with socket.create_connection(address.rsplit(":", 1), timeout=10) as stranger:
                stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
                with suppress(OSError):
                    stranger.recv(64)
        trusted = grpc.ssl_channel_credentials((tmp_path / "authority.pem").read_bytes())
        name = ("grpc.ssl_target_name_override", "localhost")
        async with grpc.aio.secure_channel(address, trusted, [name]) as channel:
            await answered(channel, 100)
        assert await ends(process) == 0


def test_a_server_that_cannot_start_says_so_to_no_reader_and_exits(tmp_path):
    """Its last line does not wait for a reader that has stopped."""
    reading, writing = small_pipe()
    os.write(writing, b"x" * PIPE_BYTES)
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            SHORT_QUEUE,
            "serve",
            "--example=tax",
            "--store=sqlite:////proc/x/r.db",
        ],
        cwd=tmp_path,
        stderr=writing,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 1
    os.close(reading)
    os.close(writing)
