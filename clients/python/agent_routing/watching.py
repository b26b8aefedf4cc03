"""Watches over their connections: up to where the caller has seen everything, and when to give up.

A watch of one session yields each change exactly once and in order; a watch of all sessions yields
each change at least once. Both clients use them; they only add how to read a stream and to wait.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

import grpc

from agent_routing.calls import CallSettings
from agent_routing.errors import Overloaded, RoutingError, Unavailable, WatchTooSlow
from agent_routing.messages import routing_service_pb2 as pb
from agent_routing.messages import session_event_pb2

if TYPE_CHECKING:
    from agent_routing.v1.admin_service_pb2 import WatchEventsRequest, WatchEventsResponse

AWAY_S_DEFAULT: Final = 60.0
"""How long the service may be away: longer than a restart or an upgrade. No user is waiting."""

Watched: TypeAlias = "session_event_pb2.Change | pb.TurnDelta | pb.TurnNote"

_log: Final = logging.getLogger("agent_routing")


class Reconnecting:
    """When a watch connects again, and when it gives up.

    method: the RPC. away_s_max: how long the service may be away. clock: in seconds, monotonic.
    """

    def __init__(
        self,
        settings: CallSettings,
        method: str,
        away_s_max: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._method = method
        self._away_s_max = away_s_max
        self._clock = clock
        self._away_since_s: float | None = None
        self._attempts = 0

    @property
    def attempts(self) -> int:
        """Connections since the last sign of life."""
        return self._attempts

    def connecting(self) -> None:
        """Count a connection."""
        self._attempts += 1

    def alive(self) -> None:
        """Record a sign of life of the service."""
        self._away_since_s, self._attempts = None, 0

    def wait_after(self, failure: grpc.RpcError | None) -> float:
        """Return the seconds to wait before the next connection.

        failure: None: the stream ended without an error. Raises it as RoutingError if it is a
        refusal, or if the service has been away for too long.
        """
        now_s = self._clock()
        if self._away_since_s is None:
            self._away_since_s = now_s
        attempts = max(1, self._attempts)
        backoff_s = self._settings.retry.backoff_s(attempts)
        error = self._error(failure, attempts)
        if error.retry_after is not None:
            backoff_s += error.retry_after.total_seconds()
        # A watch whose token expired under way continues with another token.
        may_renew = self._attempts == 0 and self._settings.may_renew(error)
        may_come_back = may_renew or isinstance(error, (Unavailable, Overloaded, WatchTooSlow))
        if not may_come_back or now_s - self._away_since_s + backoff_s > self._away_s_max:
            raise error from failure
        _log.debug(
            "watch_resumed %s wait_s=%.3f code=%s reason=%s",
            self._position(),
            backoff_s,
            error.code.name,
            error.reason,
        )
        return backoff_s

    def _position(self) -> str:
        """Return where the watch continues, for the log."""
        return f"method={self._method}"

    def _session_id(self) -> str:
        """Return the session that is watched; empty: all."""
        return ""

    def _error(self, failure: grpc.RpcError | None, attempts: int) -> RoutingError:
        target = self._settings.target
        if failure is not None:
            from agent_routing.status_details import (  # noqa: PLC0415 - as in calls.py
                routing_error,
            )

            return routing_error(
                failure,
                method=self._method,
                target=target,
                request_id="",
                session_id=self._session_id(),
                timeout_s=self._away_s_max,
                attempts=attempts,
            )
        # For example by a proxy that limits how long a connection may last.
        return Unavailable(
            f'{self._method}: "{target}" ends each watch as it begins; is there a proxy in'
            " between?",
            code=grpc.StatusCode.UNAVAILABLE,
            method=self._method,
            session_id=self._session_id(),
            attempts=attempts,
        )


class Watch(Reconnecting):
    """A watch of one session."""

    def __init__(
        self,
        settings: CallSettings,
        request: pb.WatchSessionRequest,
        away_s_max: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(settings, "WatchSession", away_s_max, clock)
        self._request = request
        self._is_first = True

    def connect(self) -> pb.WatchSessionRequest:
        """Return the request for the next connection, from the last change that was yielded."""
        self.connecting()
        self._is_first = True
        return self._request

    def received(self, response: pb.WatchSessionResponse) -> Watched | None:
        """Record a message; return what is in it for the caller, if there is something."""
        self.alive()
        is_first, self._is_first = self._is_first, False
        match response.WhichOneof("kind"):
            case "change":
                self._request.after_revision = response.change.revision
                return response.change
            case "delta":
                return response.delta
            case "note":
                return response.note
            case "heartbeat":
                # The first heartbeat carries the session's revision, not the stream's position.
                # The caller starts there only if it did not ask for earlier changes.
                if not is_first or not self._request.HasField("after_revision"):
                    self._request.after_revision = response.heartbeat.revision
        return None

    def _position(self) -> str:
        request = self._request
        return f"session_id={request.session_id} after_revision={request.after_revision}"

    def _session_id(self) -> str:
        return self._request.session_id


class LogWatch(Reconnecting):
    """A watch of all sessions."""

    def __init__(
        self, settings: CallSettings, request: WatchEventsRequest, away_s_max: float
    ) -> None:
        super().__init__(settings, "WatchEvents", away_s_max)
        self._request = request

    def connect(self) -> WatchEventsRequest:
        """Return the request for the next connection, from the last message."""
        self.connecting()
        return self._request

    def received(self, message: WatchEventsResponse) -> bool:
        """Record a message; say if the caller gets it: a change, or what is unreadable."""
        self.alive()
        if message.cursor:
            self._request.cursor = message.cursor
            self._request.from_beginning = False
        return message.HasField("change") or message.HasField("unreadable")
