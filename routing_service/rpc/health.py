"""Health: the service grpc.health.v1.Health, and the probe of the store behind it.

Liveness (the empty name) does not depend on the store, since a restart would not repair a store.
Readiness (the routing service's name) means that a write reached the disk, not just that a
connection is open.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

import grpc
import structlog
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health_pb2

from agent_routing.v1 import routing_service_pb2
from routing_service.rpc.caller_limits import SHARE_PARTS

HEALTH_DESCRIPTOR: Final = health_pb2.DESCRIPTOR.services_by_name["Health"]
LIVENESS: Final = ""
READINESS: Final = routing_service_pb2.DESCRIPTOR.services_by_name["RoutingService"].full_name

WATCHES_MAX: Final = 4_000
"""Health watches at a time. A client holds one per connection; each costs a few kilobytes. They
need no sign-in, so one host may have a quarter of them."""

PROBE_INTERVAL_S: Final = 2.0
"""From the end of one probe to the start of the next. A probe is one write of a few bytes."""

PROBE_TIMEOUT_S: Final = 4.0
"""A probe that hangs has failed. With the interval, two of them fit into FAILING_MAX_S."""

FAILING_MAX_S: Final = 10.0
"""How long probes fail before the service is not ready. Retries cover shorter outages."""

_SERVING: Final = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING: Final = health_pb2.HealthCheckResponse.NOT_SERVING
_SERVICE_UNKNOWN: Final = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN

_Status = health_pb2.HealthCheckResponse.ServingStatus
_Context = grpc.aio.ServicerContext[bytes, bytes]

_log = structlog.get_logger(__name__)


class HealthService:
    """Answers Check, List and Watch. It starts as ready."""

    def __init__(self, watches_max: int = WATCHES_MAX) -> None:
        self._watches_max = watches_max
        self._statuses: dict[str, _Status] = {LIVENESS: _SERVING, READINESS: _SERVING}
        self._watches: set[asyncio.Event] = set()
        self._watches_of_host: Counter[str] = Counter()
        self._is_draining = False

    def set_ready(self, *, is_ready: bool) -> None:
        """Set whether calls should come here. A draining server stays not ready."""
        self._set_status(_SERVING if is_ready and not self._is_draining else _NOT_SERVING)

    @property
    def is_ready(self) -> bool:
        """Whether calls should come here."""
        return self._statuses[READINESS] == _SERVING

    def drain(self) -> None:
        """Answer NOT_SERVING from now on. Watches get the change and end."""
        self._is_draining = True
        self._set_status(_NOT_SERVING)

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler. It takes bytes, so that it can answer requests that do not parse."""
        return grpc.method_handlers_generic_handler(
            HEALTH_DESCRIPTOR.full_name,
            {
                "Check": grpc.unary_unary_rpc_method_handler(self._check),
                "List": grpc.unary_unary_rpc_method_handler(self._list),
                "Watch": grpc.unary_stream_rpc_method_handler(self._watch),
            },
        )

    def _set_status(self, status: _Status) -> None:
        self._statuses[READINESS] = status
        for changed in self._watches:
            changed.set()

    async def _check(self, data: bytes, context: _Context) -> bytes:
        service = await _service_of(data, context)
        if service not in self._statuses:
            known = ", ".join(f'"{name}"' for name in self._statuses)
            await context.abort(
                grpc.StatusCode.NOT_FOUND, f'service "{service}" is not known; ask for {known}'
            )
        return _answer(self._statuses[service])

    async def _list(self, data: bytes, context: _Context) -> bytes:
        await _read(health_pb2.HealthListRequest(), data, context)
        listed = health_pb2.HealthListResponse()
        for service, status in self._statuses.items():
            listed.statuses[service].status = status
        return listed.SerializeToString()

    async def _watch(self, data: bytes, context: _Context) -> None:
        service = await _service_of(data, context)
        host = context.peer().rpartition(":")[0]
        most_of_host = max(1, self._watches_max // SHARE_PARTS)
        if self._watches_of_host[host] >= most_of_host or len(self._watches) >= self._watches_max:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{self._watches_max} health watches, {most_of_host} of one host, is the limit; "
                "use Check",
            )
        changed = asyncio.Event()
        self._watches.add(changed)
        self._watches_of_host[host] += 1
        try:
            await self._write_changes(service, changed, context)
        finally:
            self._watches.discard(changed)
            self._watches_of_host[host] -= 1
            if not self._watches_of_host[host]:
                del self._watches_of_host[host]

    async def _write_changes(self, service: str, changed: asyncio.Event, context: _Context) -> None:
        """Write the status now and at each change that lasts until it is written."""
        written: _Status | None = None
        while True:
            changed.clear()
            status = self._statuses.get(service, _SERVICE_UNKNOWN)
            if status != written:
                await context.write(_answer(status))
                written = status
            elif self._is_draining:
                await context.abort(
                    grpc.StatusCode.UNAVAILABLE, "the server is stopping; watch another server"
                )
            else:
                await changed.wait()


class StoreProbe:
    """Turns write probes of the store into ready or not ready. It starts as ready."""

    def __init__(
        self,
        probe: Callable[[], Awaitable[None]],
        tell: Callable[[bool], None],
        *,
        interval_s: float = PROBE_INTERVAL_S,
        timeout_s: float = PROBE_TIMEOUT_S,
        failing_max_s: float = FAILING_MAX_S,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Probe the store.

        probe: raises when writes fail. tell: is called with each change. failing_max_s: how long
        probes fail before the store is not ready.
        """
        self._probe = probe
        self._tell = tell
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._failing_max_s = failing_max_s
        self._monotonic_s = monotonic_s
        self._failing_since_s: float | None = None
        self._is_ready = True

    async def run(self) -> None:
        """Probe until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            await self.probe_once()

    async def probe_once(self) -> None:
        """Probe, and report readiness if it has changed."""
        started_s = self._monotonic_s()
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._probe()
        except Exception as error:  # noqa: BLE001 - any error means that writes fail
            self._failed(started_s, error)
        else:
            self._passed()

    def _passed(self) -> None:
        self._failing_since_s = None
        if not self._is_ready:
            self._is_ready = True
            _log.info("store_ready")
            self._tell(True)  # noqa: FBT003 - the only argument

    def _failed(self, started_s: float, error: Exception) -> None:
        if self._failing_since_s is None:
            self._failing_since_s = started_s
            _log.warning("store_probe_failed", error=str(error) or type(error).__name__)
        failing_s = self._monotonic_s() - self._failing_since_s
        if self._is_ready and failing_s >= self._failing_max_s:
            self._is_ready = False
            _log.error("store_not_ready", failing_s=round(failing_s, 1), exc_info=error)
            self._tell(False)  # noqa: FBT003 - as above


async def _service_of(data: bytes, context: _Context) -> str:
    request = health_pb2.HealthCheckRequest()
    await _read(request, data, context)
    return request.service


async def _read(request: Message, data: bytes, context: _Context) -> None:
    try:
        request.ParseFromString(data)
    except DecodeError:
        name = request.DESCRIPTOR.full_name
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the request is not a {name}")


def _answer(status: _Status) -> bytes:
    return health_pb2.HealthCheckResponse(status=status).SerializeToString()
