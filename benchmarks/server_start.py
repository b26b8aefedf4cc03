"""Starting: a server from its command to SERVING."""

from __future__ import annotations

import statistics
import tempfile
import time
from typing import Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks import service
from benchmarks.figure import Figure, Scale

SERVING_S_MAX: Final = 60.0


def measure(scale: Scale) -> list[Figure]:
    """Return the start on an empty store."""
    with tempfile.TemporaryDirectory() as folder:
        starts_s = [serving_s(f"sqlite:///{folder}/{n}.db") for n in range(scale.starts)]
    return [
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


def _memory_mb() -> float:
    with service.server_process() as (_, pid):
        return round(service.rss_mb(pid), 1)
