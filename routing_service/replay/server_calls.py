"""Calls to the server of a replay, with deadlines and retries.

Its rule: a call that may have happened is repeated with the same ids, so that a server that is
killed and comes back does not change the figures.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeVar

import grpc
import grpc.aio
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    stop_after_delay,
    wait_random_exponential,
)

from agent_routing.errors import (
    DeadlineExceeded,
    Overloaded,
    RevisionMismatch,
    RoutingError,
    Unavailable,
)
from agent_routing.status_details import routing_error
from agent_routing.v1 import routing_service_pb2 as pb
from agent_routing.v1.routing_service_pb2_grpc import RoutingServiceStub
from routing_service.replay.choices import PATIENCE_DEFAULT_S

DEADLINE_S: Final = 30.0
"""For one try. A server under load answers within a second; a dead connection should be noticed."""

_FIRST_WAIT_S: Final = 0.05
_LONGEST_WAIT_S: Final = 1.0

CHANNEL_OPTIONS: Final = (
    # This module retries, so gRPC must not.
    ("grpc.enable_retries", 0),
    # Reconnect soon after a server comes back.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)

TENANT_METADATA: Final = "agent-routing-tenant"


class Server(Protocol):
    """The server calls that playing a dialogue needs. Every call raises RoutingError."""

    async def route(self, request: pb.RouteRequest) -> pb.RouteResponse:
        """See RoutingService.Route."""
        ...

    async def complete_turn(self, request: pb.CompleteTurnRequest) -> pb.CompleteTurnResponse:
        """See RoutingService.CompleteTurn."""
        ...


def is_away(error: BaseException) -> bool:
    """Whether a call failed undecided, so that the same call may succeed later.

    RevisionMismatch counts if the call expected no revision: other writers came first, and nothing
    was written.
    """
    return isinstance(error, Unavailable | DeadlineExceeded | Overloaded | RevisionMismatch)


_Response = TypeVar("_Response")


Metadata = tuple[tuple[str, str], ...]


class PatientServer:
    """A server over gRPC that may go away and come back. target: its name in errors."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        target: str,
        *,
        tenant: str = "",
        patience_s: float = PATIENCE_DEFAULT_S,
        metadata: Callable[[], Metadata] = lambda: (),
    ) -> None:
        """Call over a channel. metadata: returns the sign-in metadata, for each call."""
        self._stub = RoutingServiceStub(channel)
        self._target = target
        self._tenant: Metadata = ((TENANT_METADATA, tenant),) if tenant else ()
        self._signs_in = metadata
        self._repeats = AsyncRetrying(
            stop=stop_after_delay(patience_s),
            wait=wait_random_exponential(multiplier=_FIRST_WAIT_S, max=_LONGEST_WAIT_S),
            retry=retry_if_exception(is_away),
            retry_error_callback=_raise_last,
        )

    async def route(self, request: pb.RouteRequest) -> pb.RouteResponse:
        """See RoutingService.Route."""
        return await self._call("Route", self._stub.Route, request, request.request_id)

    async def complete_turn(self, request: pb.CompleteTurnRequest) -> pb.CompleteTurnResponse:
        """See RoutingService.CompleteTurn."""
        return await self._call(
            "CompleteTurn", self._stub.CompleteTurn, request, request.request_id
        )

    async def list_agents(self) -> pb.ListAgentsResponse:
        """Return the server's agents. Not retried: a server that never answered is misaddressed."""
        request = pb.ListAgentsRequest()
        return await self._call("ListAgents", self._stub.ListAgents, request, "", repeats=False)

    async def _call(
        self,
        name: str,
        method: Callable[..., Awaitable[_Response]],
        request: object,
        request_id: str,
        *,
        repeats: bool = True,
    ) -> _Response:
        """Make a call until it is answered. Raises RoutingError."""
        attempts = 0

        async def once() -> _Response:
            nonlocal attempts
            attempts += 1
            try:
                return await method(
                    request, timeout=DEADLINE_S, metadata=(*self._tenant, *self._signs_in())
                )
            except grpc.aio.AioRpcError as failure:
                raise routing_error(
                    failure,
                    method=name,
                    target=self._target,
                    request_id=request_id,
                    timeout_s=DEADLINE_S,
                    attempts=attempts,
                ) from failure

        try:
            # Nearly every call ends here, without the cost of retries.
            return await once()
        except RoutingError as error:
            if not (repeats and is_away(error)):
                raise
        return await self._repeats.copy()(once)


def _raise_last(state: RetryCallState) -> object:
    """Raise the last try's error rather than one about retrying."""
    assert state.outcome is not None
    return state.outcome.result()
