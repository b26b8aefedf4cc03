"""One call from its first attempt to its answer or error: deadline, attempts, metadata.

Both clients use it; they only add how to wait. One deadline covers all attempts, and each attempt
sends the same request.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import grpc

from agent_routing.circuit import Circuit
from agent_routing.errors import (
    DeadlineExceeded,
    Overloaded,
    RoutingError,
    Unauthenticated,
    Unavailable,
)
from agent_routing.fallback import Fallback, KnownAgents, is_undecided
from agent_routing.messages import routing_service_pb2 as pb
from agent_routing.plain_values import Seconds, positive_seconds
from agent_routing.retry import (
    RetryPolicy,
    RetryThrottle,
    was_refused_unread,
    was_unanswered,
)
from agent_routing.route_result import RouteResult
from agent_routing.tokens import AsyncToken, TokenSource, token_source

if TYPE_CHECKING:
    from google.protobuf.message import Message

DEADLINE_S_DEFAULT: Final = 5.0
"""How long a user waits for the routing decision, before the client decides alone."""

REPLAYED_KEY: Final = "agent-routing-replayed"
TENANT_KEY: Final = "agent-routing-tenant"

_log: Final = logging.getLogger("agent_routing")

Metadata = tuple[tuple[str, str | bytes], ...]

GivenMetadata = Iterable[tuple[str, str | bytes]] | Callable[[], Iterable[tuple[str, str | bytes]]]
"""Metadata of every call, or a function that returns it for each attempt."""


@dataclass(slots=True)
class CallInfo:
    """Facts about a call that are not in its answer. Pass one as info=, and read it afterwards.

    attempts: how often the request was sent. replayed: whether the answer is the stored answer to
    an earlier request with this request_id; this call then changed nothing.
    """

    attempts: int = 0
    replayed: bool = False


@dataclass(slots=True)
class CallQueue:
    """The calls of a client that wait until fewer are on their way.

    last_s: when one last began to, on the monotonic clock.
    """

    last_s: float = -math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSettings:
    """What all calls of a client share."""

    target: str
    timeout_s: float
    metadata: Metadata
    retry: RetryPolicy
    known: KnownAgents | None
    throttle: RetryThrottle = field(default_factory=RetryThrottle)
    circuit: Circuit = field(default_factory=Circuit)
    queue: CallQueue = field(default_factory=CallQueue)
    token: TokenSource | None = None
    metadata_giver: Callable[[], Iterable[tuple[str, str | bytes]]] | None = None

    def _own_metadata(self) -> Metadata:
        if self.metadata_giver is None:
            return self.metadata
        return (*self.metadata, *self.metadata_giver())

    def metadata_now(self) -> Metadata:
        """Return the metadata of an attempt. Raises what the given functions raise."""
        own = self._own_metadata()
        return own if self.token is None else own + self.token.now()

    async def metadata_soon(self) -> Metadata:
        """As metadata_now(); awaits a token function that is a coroutine function."""
        own = self._own_metadata()
        return own if self.token is None else own + await self.token.soon()

    def may_renew(self, error: RoutingError) -> bool:
        """Tell whether an error may go away with another token."""
        is_refused = isinstance(error, Unauthenticated)
        return is_refused and self.token is not None and self.token.is_renewable

    def begin(self, request: Message, timeout: Seconds | None, info: CallInfo | None) -> Call:
        """Return a call; its time starts now. Raises ValueError for an invalid timeout."""
        timeout_s = self.timeout_s if timeout is None else positive_seconds("timeout", timeout)
        return Call(
            settings=self,
            request=request,
            method=request.DESCRIPTOR.name.removesuffix("Request"),
            request_id=getattr(request, "request_id", ""),
            session_id=getattr(request, "session_id", ""),
            timeout_s=timeout_s,
            deadline_s=time.monotonic() + timeout_s,
            info=CallInfo() if info is None else info,
        )

    @property
    def is_answering(self) -> bool:
        """Whether the service has answered a call of this client within a call's time."""
        return self.circuit.answered_within(self.timeout_s)

    def limited_s(self, request: pb.RouteRequest, timeout: Seconds | None) -> float:
        """Return how long a message may wait; 0: decide it now, the service has been away.

        Raises ValueError for an invalid timeout.
        """
        asked_s = self.timeout_s if timeout is None else positive_seconds("timeout", timeout)
        if self.known is None or not self.known.may_decide(request):
            return asked_s
        return min(asked_s, self.circuit.limit_s())

    def decided_now(self, request: pb.RouteRequest) -> RouteResult | None:
        """Return the client's decision for a message that was not sent, because of an outage."""
        return self.degraded(request, self.away(request))

    def away(self, request: pb.RouteRequest) -> Unavailable:
        """Return the error for a message that is not sent, because of an outage."""
        return Unavailable(
            f'Route: "{self.target}" has not answered for a while; the client decided at once',
            code=grpc.StatusCode.UNAVAILABLE,
            method="Route",
            request_id=request.request_id,
            session_id=request.session_id,
            attempts=0,
        )

    def degraded(self, request: pb.RouteRequest, error: RoutingError) -> RouteResult | None:
        """Return the client's own decision for a message that the service did not route.

        None: the client may not decide about it. It never may beside a service that is there: one
        that refuses this call for its load, and answers others.
        """
        if was_refused_unread(error) and self.is_answering:
            return None
        answer = None if self.known is None else self.known.degraded_answer(request, error)
        if answer is None:
            return None
        _log.warning(
            "route_degraded session_id=%s request_id=%s agent_id=%s code=%s reason=%s attempts=%d",
            answer.session_id,
            answer.request_id,
            answer.dispatch.agent.agent_id,
            error.code.name,
            error.reason,
            error.attempts,
        )
        return RouteResult(
            answer,
            degraded=True,
            error=error,
            base_revision=None if self.known is None else self.known.revision(answer.session_id),
            decided_us=time.time_ns() // 1000,
        )


@dataclass(slots=True, kw_only=True)
class Call:
    """A call on its way.

    deadline_s: on the monotonic clock. is_renewed: whether it was repeated with another token.
    was_refused: whether the service refused it unread. is_queued: whether it waited for a place.
    """

    settings: CallSettings
    request: Message
    method: str
    request_id: str
    session_id: str
    timeout_s: float
    deadline_s: float
    info: CallInfo
    attempts: int = 0
    is_renewed: bool = False
    was_refused: bool = False
    is_queued: bool = False

    def next_timeout_s(self) -> float:
        """Count an attempt, and return its time limit."""
        self.attempts += 1
        self.info.attempts = self.attempts
        is_first = self.attempts == 1 and not self.is_queued
        return self.timeout_s if is_first else self.deadline_s - time.monotonic()

    @property
    def is_held_up(self) -> bool:
        """Whether the client, or the service, has had more calls in its time than it can send."""
        queued_s = self.settings.queue.last_s
        return self.was_refused or queued_s >= self.deadline_s - self.timeout_s

    def enter_queue(self) -> None:
        """Record that the call waits for a place among the calls of its client."""
        self.is_queued = True
        self.settings.queue.last_s = time.monotonic()

    def leave_queue(self) -> None:
        """Raise Unavailable for a message that the client may decide, if the service has gone."""
        request, settings = self.request, self.settings
        if settings.circuit.state == "closed" or settings.known is None:
            return
        if isinstance(request, pb.RouteRequest) and settings.known.may_decide(request):
            raise settings.away(request)

    def too_late(self) -> RoutingError:
        """Return the error for a call that waited for a place until its deadline."""
        settings, codes = self.settings, grpc.StatusCode
        is_load = settings.is_answering
        return (Overloaded if is_load else DeadlineExceeded)(
            f'{self.method}: "{settings.target}" did not get to this call within '
            f"{self.timeout_s:g} s, because of other calls; repeat it later with the same"
            " request_id",
            code=codes.RESOURCE_EXHAUSTED if is_load else codes.DEADLINE_EXCEEDED,
            method=self.method,
            request_id=self.request_id,
            session_id=self.session_id,
            attempts=self.attempts,
        )

    def succeeded(
        self, answer: Message, trailing_metadata: Iterable[tuple[str, str | bytes]] | None
    ) -> None:
        """Record an answer."""
        self.settings.throttle.succeeded()
        self.settings.circuit.succeeded()
        if self.settings.known is not None:
            self.settings.known.learn(self.request, answer)
        self.info.replayed = any(
            key == REPLAYED_KEY and value in ("true", b"true")
            for key, value in trailing_metadata or ()
        )

    def wait_after(self, failure: grpc.RpcError) -> float:
        """Return the seconds to wait before the next attempt.

        Raises the failure as RoutingError if there is no next attempt.
        """
        try:
            return self._wait_after(failure)
        except RoutingError as error:
            settings = self.settings
            if not is_undecided(error):
                settings.circuit.succeeded()
            elif was_refused_unread(error) and settings.is_answering:
                pass
            elif not error.reason or was_unanswered(error):
                settings.circuit.failed()
            raise

    def _wait_after(self, failure: grpc.RpcError) -> float:
        from agent_routing.status_details import (  # noqa: PLC0415 - only failures need it
            routing_error,
        )

        settings = self.settings
        error = routing_error(
            failure,
            method=self.method,
            target=settings.target,
            request_id=self.request_id,
            session_id=self.session_id,
            timeout_s=self.timeout_s,
            attempts=self.attempts,
        )
        if settings.may_renew(error) and not self.is_renewed:
            # Once per call, for a token that expired on the way or whose key was revoked.
            self.is_renewed = True
            return 0.0
        if isinstance(error, DeadlineExceeded) and self.is_held_up and settings.is_answering:
            raise self.too_late() from failure
        if not was_unanswered(error):
            if settings.known is not None:
                settings.known.forget(self.session_id, error)
            raise error from failure
        if was_refused_unread(error):
            self.was_refused = True
        elif not settings.throttle.may_retry():
            raise error from failure
        remaining_s = self.deadline_s - time.monotonic()
        wait_s = settings.retry.wait_s(error, attempts=self.attempts, remaining_s=remaining_s)
        if wait_s is None:
            raise error from failure
        _log.debug(
            "call_repeated method=%s request_id=%s attempt=%d wait_s=%.3f code=%s reason=%s",
            self.method,
            self.request_id,
            self.attempts + 1,
            wait_s,
            error.code.name,
            error.reason,
        )
        return wait_s


def call_settings(
    target: str,
    *,
    token: AsyncToken | None,
    is_encrypted: bool,
    tenant: str,
    metadata: GivenMetadata,
    timeout: Seconds,
    retry: RetryPolicy,
    fallback: Fallback | None,
) -> CallSettings:
    """Return the settings that a client's arguments make. Raises ValueError for invalid ones."""
    return CallSettings(
        target=target,
        timeout_s=positive_seconds("timeout", timeout),
        metadata=call_metadata(tenant, metadata),
        metadata_giver=metadata if callable(metadata) else None,
        retry=retry,
        known=None if fallback is None else KnownAgents(fallback),
        token=token_source(token, target, is_encrypted=is_encrypted),
    )


def call_metadata(tenant: str, extra: GivenMetadata) -> Metadata:
    """Return the metadata of every call. tenant: empty: the credential's, or else "default"."""
    return (*(((TENANT_KEY, tenant),) if tenant else ()), *(() if callable(extra) else extra))


def closed_error(target: str) -> RuntimeError:
    """Return the error for a call on a client that is closed."""
    return RuntimeError(f'the client of "{target}" is closed; create another one')


def forked_error(target: str) -> RuntimeError:
    """Return the error for a call in another process than the client's first."""
    return RuntimeError(
        f'the client of "{target}" was used before this process was forked, and gRPC does not'
        " survive a fork; create the client, or use it first, in the new process"
    )
