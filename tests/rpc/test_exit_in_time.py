"""A stopping process exits in time, even if something in it hangs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc
import pytest

from agent_routing.v1 import routing_service_pb2 as pb
from agent_routing.v1 import routing_service_pb2_grpc
from routing_service.examples import EXAMPLES
from routing_service.server.exit_watchdog import EXIT_BEYOND_DRAIN_S, ExitWatchdog
from routing_service.telemetry.otlp import LAST_EXPORT_S

DRAIN_S = 1.0
PATIENCE_S = 30

HANGING_STORE = """
import asyncio, sys, threading
from routing_service.cli import main
from routing_service.storage.sqlite.store import SqliteStore

async def close(self):
    await asyncio.to_thread(threading.Event().wait)

SqliteStore.close = close
sys.exit(main())
"""
"""`agent-routing` with a driver whose close never returns, in a thread of the pool."""

HANGING_LOOP = """
import asyncio, sys, threading
from routing_service.cli import main
from routing_service.server import exit_watchdog, process

exit_watchdog.EXIT_BEYOND_DRAIN_S = 0.5

def hang(settings):
    asyncio.get_running_loop().call_later(0.5, threading.Event().wait)

process.log_sign_in = hang
sys.exit(main())
"""
"""`agent-routing` with an event loop that stops for good half a second after its start."""


@contextmanager
def dripping_server():
    """Accept connections and send one byte at a time, without end."""
    listening = socket.create_server(("127.0.0.1", 0))
    stop = threading.Event()

    def drip(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
            while not stop.wait(0.2):
                connection.sendall(b"a")

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=drip, args=(listening.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"127.0.0.1:{listening.getsockname()[1]}"
    finally:
        stop.set()
        listening.close()


@contextmanager
def silent_server():
    """Accept connections and never answer."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


async def stopped_after_s(
    tmp_path, flags, *, program=None, env=None, call=False, signals=(signal.SIGTERM,)
):
    """Start a server and stop it; return its exit code, the seconds it took, and its log lines."""
    log = tmp_path / "log"
    command = program or [str(Path(sys.executable).parent / "agent-routing")]
    given = {
        "listen": "127.0.0.1:0",
        "agents": EXAMPLES["tax"].registry_path,
        "store": f"sqlite:///{tmp_path / 'r.db'}",
        "drain_s": DRAIN_S,
        **flags,
    }
    with log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            *command,
            "serve",
            *(f"--{name.replace('_', '-')}={value}" for name, value in given.items()),
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), **(env or {})},
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
        )
    try:
        line = await asyncio.wait_for(process.stdout.readline(), PATIENCE_S)
        assert line.startswith(b"serving on "), log.read_text()
        if call:
            async with grpc.aio.insecure_channel(line.decode().split()[-1]) as channel:
                stub = routing_service_pb2_grpc.RoutingServiceStub(channel)
                await stub.Route(pb.RouteRequest(session_id="s", user_id="ana", text="hello"))
        await asyncio.sleep(1.5)  # A fetch or an export is in progress then.
        started_s = time.monotonic()
        for number in signals:
            process.send_signal(number)
            await asyncio.sleep(0.2)
        code = await asyncio.wait_for(process.wait(), PATIENCE_S)
        took_s = time.monotonic() - started_s
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    lines = [json.loads(each) for each in log.read_text().splitlines() if each[:1] == "{"]
    return code, took_s, [each["event"] for each in lines], lines


async def test_provider_that_drips_delays_no_exit(tmp_path):
    """In an earlier version the thread of such a fetch delayed the exit by more than 40 s."""
    with dripping_server() as address:
        code, took_s, events, _ = await stopped_after_s(
            tmp_path,
            {
                "sign_in": "oidc",
                "oidc_issuer": f"http://{address}",
                "oidc_audience": "agent-routing",
            },
        )
    assert (code, "server_stopped" in events, "exit_forced" in events) == (0, True, False)
    assert took_s < DRAIN_S


async def test_collector_that_never_answers_delays_no_exit(tmp_path):
    """Unsent spans are dropped, including the last ones."""
    with silent_server() as address:
        code, took_s, events, _ = await stopped_after_s(
            tmp_path,
            {"traces": "otlp"},
            env={
                "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{address}",
                "OTEL_EXPORTER_OTLP_TIMEOUT": "60",
            },
            call=True,
        )
    assert (code, "server_stopped" in events, "exit_forced" in events) == (0, True, False)
    assert took_s < DRAIN_S + EXIT_BEYOND_DRAIN_S


@pytest.mark.parametrize("hanging", [silent_server, dripping_server])
async def test_collector_of_metrics_and_traces_that_hangs_delays_no_exit(tmp_path, hanging):
    """Both give up at the same time, not one after the other."""
    with hanging() as address:
        code, took_s, events, _ = await stopped_after_s(
            tmp_path,
            {"traces": "otlp", "metrics": "otlp"},
            env={
                "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{address}",
                "OTEL_EXPORTER_OTLP_TIMEOUT": "60",
                "OTEL_METRIC_EXPORT_INTERVAL": "500",
            },
            call=True,
        )
    assert (code, "server_stopped" in events, "exit_forced" in events) == (0, True, False)
    assert took_s < DRAIN_S + LAST_EXPORT_S + 1


async def test_driver_that_hangs_at_close_is_left_behind(tmp_path):
    """An answer is sent once it is stored, so nothing is lost; the log reports the hang."""
    code, took_s, events, lines = await stopped_after_s(
        tmp_path, {}, program=[sys.executable, "-c", HANGING_STORE], call=True
    )
    assert code == 1
    assert "server_draining" in events
    (forced,) = [each for each in lines if each["event"] == "exit_forced"]
    assert forced["level"] == "error"
    assert forced["after_s"] == DRAIN_S + EXIT_BEYOND_DRAIN_S
    assert set(forced["threads"]) - {"MainThread"}
    assert took_s < DRAIN_S + EXIT_BEYOND_DRAIN_S + 2


async def test_loop_that_hangs_is_left_behind(tmp_path):
    """A signal that only the event loop sees would have no effect then."""
    code, took_s, events, _ = await stopped_after_s(
        tmp_path, {}, program=[sys.executable, "-c", HANGING_LOOP]
    )
    assert (code, "stop_asked" in events, "exit_forced" in events) == (1, False, True)
    assert took_s < DRAIN_S + EXIT_BEYOND_DRAIN_S


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_second_interrupt_needs_no_loop(tmp_path, number):
    """The second Ctrl-C means that the user does not want to wait."""
    code, took_s, events, _ = await stopped_after_s(
        tmp_path,
        {"drain_s": 60},
        program=[sys.executable, "-c", HANGING_LOOP],
        signals=(number, signal.SIGINT),
    )
    assert (code, "stopped_at_once" in events) == (130, True)
    assert took_s < EXIT_BEYOND_DRAIN_S


@pytest.mark.parametrize("flush", [lambda: None, threading.Event().wait])
def test_log_that_cannot_be_written_delays_no_forced_exit(flush):
    """The reader of stderr may hang as well."""
    ended, codes = threading.Event(), []

    def end(code: int) -> None:
        codes.append(code)
        ended.set()

    watchdog = ExitWatchdog(-EXIT_BEYOND_DRAIN_S, flush, 1, end=end)
    watchdog.begin()
    watchdog.begin()
    assert ended.wait(5)
    assert codes == [1]
