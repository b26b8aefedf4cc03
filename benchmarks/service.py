"""The service under load: its own process, a store on disk, a client in another process."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, cast

import grpc

from agent_routing.v1 import routing_service_pb2 as pb
from agent_routing.v1 import routing_service_pb2_grpc as rpc
from benchmarks.story import (
    SPECIALIST,
    SUPERVISOR,
    USER_TEXT,
    Load,
    Result,
    Stopwatch,
)
from benchmarks.talk import completion
from routing_service.ids import new_uuid7

REGISTRY: Final = f"""\
api_version: agent_routing/v1
version: benchmark
supervisor: {SUPERVISOR}
agents:
  - id: {SUPERVISOR}
    name: {{en: Coordinator}}
    description: Hands over to the specialist.
    kind: supervisor
  - id: {SPECIALIST}
    name: {{en: Billing}}
    description: Invoices and payments.
"""
READY: Final = "serving on "
CHANNELS: Final = 4
STOP_S_MAX: Final = 15


@contextlib.contextmanager
def server(store_url: str = "") -> Iterator[str]:
    """Run `agent-routing serve` with all its defaults; yield its address.

    store_url: "" = a new SQLite store.
    """
    with server_process(store_url) as (address, _pid):
        yield address


@contextlib.contextmanager
def server_process(
    store_url: str = "", *options: str, registry: str = REGISTRY
) -> Iterator[tuple[str, int]]:
    """Run it; yield its address and its process id.

    options: of `agent-routing serve`. registry: the text of its file.
    """
    with tempfile.TemporaryDirectory() as folder:
        agents = Path(folder) / "agents.yaml"
        agents.write_text(registry)
        store = store_url or f"sqlite:///{folder}/routing.db"
        command = [str(Path(sys.executable).parent / "agent-routing"), "serve"]
        command += ["--listen", "127.0.0.1:0", "--store", store, "--agents", str(agents), *options]
        with (Path(folder) / "server.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
            try:
                assert process.stdout is not None
                line = process.stdout.readline()
                if not line.startswith(READY):
                    message = f"the server did not start: {line!r}"
                    raise RuntimeError(message)
                yield line.removeprefix(READY).strip(), process.pid
            finally:
                process.terminate()
                process.wait(STOP_S_MAX)


def cpu_s(pid: int) -> float:
    """Return the processor time of a process so far, all its threads together."""
    tasks = Path(f"/proc/{pid}/task")
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e9


def rss_mb(pid: int) -> float:
    """Return the memory that a process has now, in 10^6 bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024 / 1e6


def play(address: str, load: Load) -> Result:
    """Play the load: every turn a Route and, for each agent it reaches, a CompleteTurn.

    Runs on uvloop if there is one, so that the client uses little of the machine.
    """
    try:
        from uvloop import run  # noqa: PLC0415 - not on every platform
    except ImportError:
        run = asyncio.run
    return cast("Result", run(_play(address, load)))


async def _play(address: str, load: Load) -> Result:
    channels = [grpc.aio.insecure_channel(address, _apart(place)) for place in range(CHANNELS)]
    places = asyncio.Semaphore(load.concurrency)
    run = new_uuid7()

    async def converse(session: int) -> None:
        stub = rpc.RoutingServiceStub(channels[session % CHANNELS])
        async with places:
            for _ in range(load.turns_per_session):
                await _turn(stub, f"{run}-{session}")

    with Stopwatch() as watch:
        await asyncio.gather(*(converse(session) for session in range(load.sessions)))
    for channel in channels:
        await channel.close()
    return Result(load.turns, watch.seconds)


def _apart(place: int) -> list[tuple[str, int]]:
    """Return options by which channels do not share a connection."""
    return [("grpc.use_local_subchannel_pool", 1), ("benchmark.place", place)]


async def _turn(stub: rpc.RoutingServiceAsyncStub, session_id: str) -> None:
    request = pb.RouteRequest(
        session_id=session_id, user_id="user", text=USER_TEXT, request_id=new_uuid7()
    )
    response = await stub.Route(request, timeout=30)
    dispatch = response.dispatch
    while dispatch.request_id:
        answer = completion(session_id, dispatch)
        completed = await stub.CompleteTurn(answer, timeout=30)
        dispatch = completed.next
