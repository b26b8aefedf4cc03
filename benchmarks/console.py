"""The console: first rows of a large store, how far its live table is behind, and at what cost.

The page is in headless Chromium on the same machine, so one clock measures both ends. The server
speaks for itself at 200 changes a second. At 2,000 a second a stub plays a recorded stream, so that
the page alone is measured. Needs Node and Chromium.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import grpc

from agent_routing.v1 import routing_service_pb2 as pb
from agent_routing.v1 import routing_service_pb2_grpc as rpc
from benchmarks import console_stub, service
from benchmarks.figure import Figure, Scale, percentile
from benchmarks.growth import copied_store
from benchmarks.story import USER_TEXT
from routing_service.ids import new_uuid7

ROOT: Final = Path(__file__).parent.parent
DRIVER: Final = Path(__file__).with_name("console_page.mjs")

FIRST_ROWS_S_MOST: Final = 1.0
BEHIND_MS_MOST: Final = 250.0
BEHIND_GROWS_MS_MOST: Final = 50.0
PAGE_MB_MOST: Final = 300.0
FRAME_MS_MOST: Final = 8.0

CHANGES_PER_S: Final = 200
SESSIONS_SHOWN: Final = 50
"""The rows of a page: every change is one of these sessions'."""

CONSOLES: Final = 10
AT_ONCE: Final = 8


def measure(scale: Scale) -> list[Figure]:
    """Return the figures of the console. Longer than a minute."""
    subprocess.run([sys.executable, str(ROOT / "scripts" / "console.py"), "install"], check=True)
    live_s, stub_s = (10, 20) if scale.is_quick else (30, 60)
    return [
        _first_rows(scale),
        _behind(live_s),
        *_stubbed(stub_s),
        _ten_consoles(scale.rounds, 10 if not scale.is_quick else 5),
    ]


def _first_rows(scale: Scale) -> Figure:
    """Open the table of a store with many sessions, each time in a new profile."""
    with tempfile.TemporaryDirectory() as name:
        path = copied_store(Path(name), scale.sessions_many)
        with _serving(f"sqlite:///{path}") as (_, url, _pid):
            seen = _page(url, "rows", times=scale.rounds)
    seconds = [each / 1e3 for each in seen["rows_ms"]]
    return Figure(
        "console_first_rows_s",
        statistics.median(seconds),
        "s",
        FIRST_ROWS_S_MOST,
        is_most=True,
        rounds={"s": seconds},
        beside={"sessions": scale.sessions_many},
    )


def _behind(seconds: int) -> Figure:
    """Say how long after its answer a change of the real server is in the table."""
    with _serving() as (address, url, _), _opened(url, "follow", seconds) as page:
        answered = asyncio.run(_talk(address, seconds, page))
        seen = page.ended()
    behind = [
        shown_ms - answered[session_id, revision]
        for session_id, revision, shown_ms in seen["shown"]
        if (session_id, revision) in answered
    ]
    return Figure(
        "console_behind_ms_200",
        percentile(behind, 0.95),
        "ms, p95",
        BEHIND_MS_MOST,
        is_most=True,
        beside={
            "changes_per_s": round(len(answered) / seconds),
            "seen": len(behind),
            "p50_ms": round(statistics.median(behind)),
            "max_ms": round(max(behind)),
        },
    )


def _stubbed(seconds: int) -> list[Figure]:
    """Play 2,000 changes a second from a stub to one page."""
    with console_stub.playing() as (url, read_sent), _opened(url, "trace", seconds) as page:
        seen = page.ended()
        sent_ms = read_sent()
    shown = [(revision, at) for _, revision, at in seen["shown"] if revision in sent_ms]
    rows = [(at, at - sent_ms[revision]) for revision, at in shown]
    first, last = rows[0][0], rows[-1][0]
    tenth = (last - first) / 10
    early = statistics.median(lag for at, lag in rows if at < first + tenth)
    late = statistics.median(lag for at, lag in rows if at > last - tenth)
    sent_s = (max(sent_ms.values()) - min(sent_ms.values())) / 1e3
    beside = {
        "changes_per_s": round(len(sent_ms) / sent_s),
        "early_ms": round(early),
        "late_ms": round(late),
        "scripting_share": round(seen["scripting_ms"] / (seconds * 1e3), 3),
        "frames": seen["frames"],
        "frame_max_ms": round(seen["frame_max_ms"], 1),
    }
    made = (
        ("console_behind_grows_ms_2000", late - early, "ms", BEHIND_GROWS_MS_MOST),
        ("console_page_mb_2000", seen["page_mb"], "MB", PAGE_MB_MOST),
        ("console_frame_ms_2000", seen["frame_p99_ms"], "ms, p99", FRAME_MS_MOST),
    )
    return [
        Figure(key, value, unit, most, is_most=True, beside=beside)
        for key, value, unit, most in made
    ]


def _ten_consoles(rounds: int, seconds: int) -> Figure:
    """Compare the server's processor time with ten open consoles and with none, in turn."""
    cost: dict[str, list[float]] = {"none µs a change": [], "ten µs a change": []}
    with _serving() as (address, url, pid):
        for _ in range(rounds):
            for name, measured in cost.items():
                with contextlib.ExitStack() as opened:
                    page = None
                    if name.startswith("ten"):
                        page = opened.enter_context(_opened(url, "many", seconds, CONSOLES))
                    begun_s = service.cpu_s(pid)
                    answered = asyncio.run(_talk(address, seconds, page))
                    measured.append((service.cpu_s(pid) - begun_s) * 1e6 / len(answered))
    none, ten = (statistics.median(values) for values in cost.values())
    return Figure("console_ten_over_none", ten / none, "of none", rounds=cost)


async def _talk(address: str, seconds: int, page: _Page | None) -> dict[tuple[str, int], float]:
    """Send messages at a steady rate once the page is open; return when each was answered."""
    answered: dict[tuple[str, int], float] = {}
    async with grpc.aio.insecure_channel(address) as channel:
        stub = rpc.RoutingServiceStub(channel)

        async def say(session: int) -> None:
            session_id = f"live-{session:02}"
            request = pb.RouteRequest(
                session_id=session_id, user_id="user", text=USER_TEXT, request_id=new_uuid7()
            )
            # On a busy machine the server refuses some: what is measured is of those that it took.
            with contextlib.suppress(grpc.aio.AioRpcError):
                answer = await stub.Route(request, timeout=30)
                answered[session_id, answer.revision] = time.time() * 1e3

        await asyncio.gather(*(say(session) for session in range(SESSIONS_SHOWN)))
        if page is not None:
            await asyncio.to_thread(page.wait_ready)
        answered.clear()
        begun_s = time.monotonic()
        calls = []
        for number in range(seconds * CHANGES_PER_S):
            await asyncio.sleep(begun_s + number / CHANGES_PER_S - time.monotonic())
            calls.append(asyncio.create_task(say(number % SESSIONS_SHOWN)))
        await asyncio.gather(*calls)
    return answered


@contextlib.contextmanager
def _serving(store_url: str = "") -> Iterator[tuple[str, str, int]]:
    """Run a server with a console; yield its address, the console's URL and its process id."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    listen = f"127.0.0.1:{port}"
    options = ("--console-listen", listen)
    with service.server_process(store_url, *options) as (address, pid):
        yield address, f"http://{listen}", pid


class _Page:
    """A browser that does one thing and prints what it saw."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert process.stdout is not None
        self._said = process.stdout

    def wait_ready(self) -> None:
        """Wait until the page is open."""
        line = self._said.readline()
        if line != "ready\n":
            message = f"the page did not open: {line!r}"
            raise RuntimeError(message)

    def ended(self) -> dict[str, Any]:
        """Wait until it has seen everything; return it."""
        for line in self._said:
            if line != "ready\n":
                found: dict[str, Any] = json.loads(line)
                return found
        message = "the browser has ended"
        raise RuntimeError(message)


@contextlib.contextmanager
def _opened(url: str, what: str, seconds: int, pages: int = 1, times: int = 1) -> Iterator[_Page]:
    given = {
        "modules": str(ROOT / "console"),
        "chromium": shutil.which("chromium") or "chromium",
        "url": url,
        "what": what,
        "seconds": seconds,
        "pages": pages,
        "times": times,
    }
    command = [shutil.which("node") or "node", str(DRIVER), json.dumps(given)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield _Page(process)
        finally:
            process.kill()


def _page(url: str, what: str, times: int) -> dict[str, Any]:
    with _opened(url, what, 0, times=times) as page:
        return page.ended()
