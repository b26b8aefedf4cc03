"""GetServerStatus: how the server that answers is doing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from agent_routing.v1 import admin_service_pb2 as pb
from routing_service.auth.caller import Caller
from routing_service.rpc import proto_mapping as pm
from routing_service.rpc.request_checks import parse
from routing_service.rpc.rpc_method import Methods, RpcAnswer
from routing_service.telemetry.call_record import CallRecord
from routing_service.telemetry.metrics import LATENCY_BOUNDS_S, MetricsSnapshot

_CALLS: Final = "calls_total"
_US: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatus:
    """A server at one moment. server: HOST/PID. start_us, now_us: microseconds since 1970."""

    server: str
    version: str
    start_us: int
    now_us: int
    store_engine: str
    is_ready: bool
    registry_version: str
    agents: int
    watches: int
    counted: MetricsSnapshot


class ServerStatusCalls:
    """The RPC that describes the server."""

    def __init__(self, read_status: Callable[[], ServerStatus]) -> None:
        """Answer with what read_status returns at each call."""
        self._read_status = read_status

    @property
    def methods(self) -> Methods:
        """This RPC by name."""
        return {"GetServerStatus": self.get_server_status}

    async def get_server_status(self, caller: Caller, data: bytes, record: CallRecord) -> RpcAnswer:
        """Return the status of this server."""
        parse(pb.GetServerStatusRequest, data)
        record.tenant = caller.tenant
        status = self._read_status()
        failed: dict[str, int] = {}
        for (method, code), count in status.counted.counters[_CALLS].items():
            failed[method] = failed.get(method, 0) + (count if code != "OK" else 0)
        made = pb.GetServerStatusResponse(
            server=status.server,
            version=status.version,
            start_time=pm.timestamp(status.start_us),
            current_time=pm.timestamp(status.now_us),
            store_engine=status.store_engine,
            ready=status.is_ready,
            registry_version=status.registry_version,
            agents=status.agents,
            watches=status.watches,
            duration_bounds=[pm.duration(round(bound * _US)) for bound in LATENCY_BOUNDS_S],
            calls=[
                pb.MethodCalls(
                    method=method, counts=latency.bucket_counts, failed=failed.get(method, 0)
                )
                for method, latency in sorted(status.counted.latency.items())
            ],
        )
        return RpcAnswer(made.SerializeToString())
