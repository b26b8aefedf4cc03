"""One call from its first attempt to its answer or error.

Owns: deadline, attempts, and what is read beside the answer: everything in which the two clients
do not differ. Must not know: what a request means, or how to wait (one sleeps, the other awaits).
Rule: one deadline over all attempts, and the same request on each.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

import grpc
from google.protobuf.message import Message

from agent_routing.errors import RoutingError, Unauthenticated
from agent_routing.fallback import KnownAgents
from agent_routing.plain_values import Seconds, positive_seconds
from agent_routing.retry import RetryPolicy, RetryThrottle, was_unanswered
from agent_routing.route_result import RouteResult
from agent_routing.tokens import TokenSource
from agent_routing.v1.routing_service_pb2 import RouteRequest

DEADLINE_S_DEFAULT: Final = 5.0
"""What a user waits for an agent to be named, before the client decides by itself."""

REPLAYED_KEY: Final = "agent-routing-replayed"
TENANT_KEY: Final = "agent-routing-tenant"

_log: Final = logging.getLogger("agent_routing")

Metadata = tuple[tuple[str, str | bytes], ...]

GivenMetadata = Iterable[tuple[str, str | bytes]] | Callable[[], Iterable[tuple[str, str | bytes]]]
"""What a caller sends along: always the same, or a function that is asked for each attempt."""


@dataclass(slots=True)
class CallInfo:
    """What there is to know about a call beside its answer. Pass one as info=, read it afterwards.

    attempts: how often the request was sent. replayed: whether the answer is the stored one of an
    earlier request with this request_id, so that nothing was done this time.
    """

    attempts: int = 0
    replayed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSettings:
    """What all calls of a client have in common."""

    target: str
    timeout_s: float
    metadata: Metadata
    retry: RetryPolicy
    known: KnownAgents | None
    throttle: RetryThrottle = field(default_factory=RetryThrottle)
    token: TokenSource | None = None
    metadata_giver: Callable[[], Iterable[tuple[str, str | bytes]]] | None = None

    def _own_metadata(self) -> Metadata:
        if self.metadata_giver is None:
            return self.metadata
        return (*self.metadata, *self.metadata_giver())

    def metadata_now(self) -> Metadata:
        """Return what goes along with a call made now. Raises what the givers of it do."""
        own = self._own_metadata()
        return own if self.token is None else own + self.token.now()

    async def metadata_soon(self) -> Metadata:
        """As metadata_now(), for a token that is awaited."""
        own = self._own_metadata()
        return own if self.token is None else own + await self.token.soon()

    def may_renew(self, error: RoutingError) -> bool:
        """Tell whether another token may help against an error."""
        is_refused = isinstance(error, Unauthenticated)
        return is_refused and self.token is not None and self.token.is_renewable

    def begin(self, request: Message, timeout: Seconds | None, info: CallInfo | None) -> Call:
        """Return a call whose time begins now. Raises ValueError for a timeout that is none."""
        timeout_s = self.timeout_s if timeout is None else positive_seconds("timeout", timeout)
        return Call(
            settings=self,
            request=request,
            method=request.DESCRIPTOR.name.removesuffix("Request"),
            request_id=getattr(request, "request_id", ""),
            timeout_s=timeout_s,
            deadline_s=time.monotonic() + timeout_s,
            info=CallInfo() if info is None else info,
        )

    def degraded(self, request: RouteRequest, error: RoutingError) -> RouteResult | None:
        """Return the client's own decision for a message that was not routed.

        None: it is not the client's to make.
        """
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
        return RouteResult(answer, degraded=True, error=error)


@dataclass(slots=True, kw_only=True)
class Call:
    """A call on its way. deadline_s: on the monotonic clock. is_renewed: by another token."""

    settings: CallSettings
    request: Message
    method: str
    request_id: str
    timeout_s: float
    deadline_s: float
    info: CallInfo
    attempts: int = 0
    is_renewed: bool = False

    def next_timeout_s(self) -> float:
        """Count an attempt, and return how long it may take."""
        self.attempts += 1
        self.info.attempts = self.attempts
        return self.timeout_s if self.attempts == 1 else self.deadline_s - time.monotonic()

    def succeeded(
        self, answer: Message, trailing_metadata: Iterable[tuple[str, str | bytes]] | None
    ) -> None:
        """Take note of an answer."""
        self.settings.throttle.succeeded()
        if self.settings.known is not None:
            self.settings.known.learn(self.request, answer)
        self.info.replayed = any(
            key == REPLAYED_KEY and value in ("true", b"true")
            for key, value in trailing_metadata or ()
        )

    def wait_after(self, failure: grpc.RpcError) -> float:
        """Return the seconds to wait before the next attempt.

        Raises the failure as RoutingError if there is to be none.
        """
        from agent_routing.status_details import (  # noqa: PLC0415 - only what goes wrong needs it
            routing_error,
        )

        settings = self.settings
        error = routing_error(
            failure,
            method=self.method,
            target=settings.target,
            request_id=self.request_id,
            timeout_s=self.timeout_s,
            attempts=self.attempts,
        )
        if settings.may_renew(error) and not self.is_renewed:
            # Once: a token that expired on the way, or whose key was withdrawn.
            self.is_renewed = True
            return 0.0
        if not was_unanswered(error):
            if settings.known is not None:
                settings.known.forget(getattr(self.request, "session_id", ""), error)
            raise error from failure
        if not settings.throttle.may_retry():
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


def call_metadata(tenant: str, extra: GivenMetadata) -> Metadata:
    """Return the metadata of every call. tenant: empty: the credential's, else "default"."""
    return (*(((TENANT_KEY, tenant),) if tenant else ()), *(() if callable(extra) else extra))


def closed_error(target: str) -> RuntimeError:
    """Return the error for a call on a client that is closed."""
    return RuntimeError(f'the client of "{target}" is closed; make another one')


def forked_error(target: str) -> RuntimeError:
    """Return the error for a call in another process than the client's first."""
    return RuntimeError(
        f'the client of "{target}" was used before this process was forked, and gRPC does not'
        " survive that; make the client, or use it first, in the new process"
    )
