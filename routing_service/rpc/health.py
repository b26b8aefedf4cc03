"""Health: whether this process lives, and whether it can take calls.

Owns the service grpc.health.v1.Health and the probing of the store behind it. It must not know
which store it is. The rule: liveness (the empty name) does not depend on the store, as a restart
would not bring a store back; readiness (the routing service's name) is a write that reached the
disk, not a connection that happens to be open.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

import grpc
import structlog
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health_pb2

from agent_routing.v1 import routing_service_pb2

HEALTH_DESCRIPTOR: Final = health_pb2.DESCRIPTOR.services_by_name["Health"]
LIVENESS: Final = ""
READINESS: Final = routing_service_pb2.DESCRIPTOR.services_by_name["RoutingService"].full_name

WATCHES_MAX: Final = 1_000
"""Health watches at a time. A client holds one a connection; each costs a few kilobytes."""

PROBE_INTERVAL_S: Final = 2.0
"""From the end of one probe to the start of the next. A probe is one write of a few bytes."""

PROBE_TIMEOUT_S: Final = 4.0
"""A probe that hangs has failed. With the interval, two of them fit into FAILING_MAX_S."""

FAILING_MAX_S: Final = 10.0
"""How long probes fail before load is sent elsewhere: shorter outages are ridden out by retries."""

_SERVING: Final = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING: Final = health_pb2.HealthCheckResponse.NOT_SERVING
_SERVICE_UNKNOWN: Final = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN

_Status = health_pb2.HealthCheckResponse.ServingStatus
_Context = grpc.aio.ServicerContext[bytes, bytes]

_log = structlog.get_logger(__name__)


class HealthService:
    """Answers Check, List and Watch. Ready until told otherwise."""

    def __init__(self) -> None:
        self._statuses: dict[str, _Status] = {LIVENESS: _SERVING, READINESS: _SERVING}
        self._watches: set[asyncio.Event] = set()
        self._is_draining = False

    def set_ready(self, *, is_ready: bool) -> None:
        """Say whether calls should come here. While draining they should not, whatever is said."""
        self._set_status(_SERVING if is_ready and not self._is_draining else _NOT_SERVING)

    @property
    def is_ready(self) -> bool:
        """Whether calls should come here."""
        return self._statuses[READINESS] == _SERVING

    def drain(self) -> None:
        """Say NOT_SERVING for good. Watches hear of it and end, so that nobody waits for them."""
        self._is_draining = True
        self._set_status(_NOT_SERVING)

    def handler(self) -> grpc.GenericRpcHandler:
        """Return what a server needs to serve it. Bytes in and out: bad ones are answered here."""
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
        if len(self._watches) >= WATCHES_MAX:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{WATCHES_MAX} health watches are open, which is the most; use Check",
            )
        changed = asyncio.Event()
        self._watches.add(changed)
        try:
            await self._tell_changes(service, changed, context)
        finally:
            self._watches.discard(changed)

    async def _tell_changes(self, service: str, changed: asyncio.Event, context: _Context) -> None:
        """Write the status now and at each change; what changes back in between goes untold."""
        told: _Status | None = None
        while True:
            changed.clear()
            status = self._statuses.get(service, _SERVICE_UNKNOWN)
            if status != told:
                await context.write(_answer(status))
                told = status
            elif self._is_draining:
                await context.abort(
                    grpc.StatusCode.UNAVAILABLE, "the server is stopping; watch another one"
                )
            else:
                await changed.wait()


class StoreProbe:
    """Turns write probes of the store into ready or not ready. It begins as ready."""

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
        """Probe with ``probe``, which raises when writes fail; tell it only what has changed."""
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
        """Probe, and tell whether the service is ready if that has changed."""
        started_s = self._monotonic_s()
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._probe()
        except Exception as error:  # noqa: BLE001 - whatever keeps writes from working
            self._failed(started_s, error)
        else:
            self._passed()

    def _passed(self) -> None:
        self._failing_since_s = None
        if not self._is_ready:
            self._is_ready = True
            _log.info("store_ready")
            self._tell(True)  # noqa: FBT003 - what is_ready is told

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
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the request is no {name}")


def _answer(status: _Status) -> bytes:
    return health_pb2.HealthCheckResponse(status=status).SerializeToString()
