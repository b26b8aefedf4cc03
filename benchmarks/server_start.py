"""Starting: imports, and a server from its command to SERVING."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks import service
from benchmarks.figure import Figure, Scale

OVER_GRPC_MS_MOST: Final = 60.0
SERVING_S_MAX: Final = 60.0

NOTHING: Final = "pass"
GRPC: Final = "import grpc"
CLIENT: Final = "import agent_routing; agent_routing.Client; agent_routing.AsyncClient"
"""The client imports a name at its first use, so both names are used."""


def measure(scale: Scale) -> list[Figure]:
    """Return import_client_ms, grpc_import_ms and the start on an empty store."""
    codes = {"nothing": NOTHING, "grpc": GRPC, "client": CLIENT}
    taken: dict[str, list[float]] = {name: [] for name in codes}
    for number in range(scale.starts * 2 + 1):
        for name, code in codes.items():
            taken_ms = _run_ms(code)
            if number:  # The first makes the byte code and fills the disk's cache.
                taken[name].append(taken_ms)
    nothing_ms = statistics.median(taken["nothing"])
    grpc_ms = statistics.median(taken["grpc"]) - nothing_ms
    client_ms = statistics.median(taken["client"]) - nothing_ms
    with tempfile.TemporaryDirectory() as folder:
        starts_s = [serving_s(f"sqlite:///{folder}/{n}.db") for n in range(scale.starts)]
    return [
        Figure(
            "import_client_ms",
            client_ms,
            "ms",
            grpc_ms + OVER_GRPC_MS_MOST,
            is_most=True,
            rounds={f"python and {name} ms": values for name, values in taken.items()},
        ),
        Figure("grpc_import_ms", grpc_ms, "ms"),
        Figure(
            "start_s_empty_store",
            statistics.median(starts_s),
            "s",
            rounds={"start s": starts_s},
            beside={"memory MB": _memory_mb()},
        ),
    ]


def serving_s(store_url: str) -> float:
    """Start a server; return the seconds from its command to the health service's SERVING."""
    begun_s = time.perf_counter()
    with (
        service.server_process(store_url) as (address, _),
        grpc.insecure_channel(address) as channel,
    ):
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service="agent_routing.v1.RoutingService")
        while time.perf_counter() - begun_s < SERVING_S_MAX:
            status = stub.Check(request, wait_for_ready=True, timeout=SERVING_S_MAX).status
            if status == health_pb2.HealthCheckResponse.SERVING:
                return time.perf_counter() - begun_s
    message = f"the server was not SERVING within {SERVING_S_MAX:g} s"
    raise RuntimeError(message)


def _run_ms(code: str) -> float:
    begun_s = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent.parent)
    return (time.perf_counter() - begun_s) * 1e3


def _memory_mb() -> float:
    with service.server_process() as (_, pid):
        return round(service.rss_mb(pid), 1)
