"""A watch over its connections: where it stands, and whether it goes on.

Owns: the revision up to which the caller has seen everything, and how long the service may be away.
Must not know: how a stream is read (one client blocks, the other awaits). Rule: every change is
given to the caller exactly once and in order, over any number of connections.
"""

from __future__ import annotations

import logging
import time
from typing import Final

import grpc

from agent_routing.calls import CallSettings
from agent_routing.errors import Overloaded, RoutingError, Unavailable, WatchTooSlow
from agent_routing.v1.routing_service_pb2 import WatchSessionRequest, WatchSessionResponse
from agent_routing.v1.session_event_pb2 import Change

AWAY_S_DEFAULT: Final = 60.0
"""A watcher runs beside the chat and nobody waits for it: longer than a restart, or an upgrade."""

METHOD: Final = "WatchSession"

_log: Final = logging.getLogger("agent_routing")


class Watch:
    """One watch of one session."""

    def __init__(
        self, settings: CallSettings, request: WatchSessionRequest, away_s_max: float
    ) -> None:
        self._settings = settings
        self._request = request
        self._away_s_max = away_s_max
        self._away_since_s: float | None = None
        self._attempts = 0
        self._is_first = True

    def connect(self) -> WatchSessionRequest:
        """Return the request for the next connection: from where the caller is."""
        self._attempts += 1
        self._is_first = True
        return self._request

    def received(self, response: WatchSessionResponse) -> Change | None:
        """Take note of a message. Return the change, if it is one for the caller."""
        self._away_since_s, self._attempts = None, 0
        is_first, self._is_first = self._is_first, False
        match response.WhichOneof("kind"):
            case "change":
                self._request.after_revision = response.change.revision
                return response.change
            case "heartbeat":
                # The first one says where the session is, not how far this stream has come. That
                # is where the caller begins only if nothing before it was asked for.
                if not is_first or not self._request.HasField("after_revision"):
                    self._request.after_revision = response.heartbeat.revision
        return None

    def wait_after(self, failure: grpc.RpcError | None) -> float:
        """Return the seconds to wait before the next connection.

        failure: None: the stream ended without one. Raises it as RoutingError if it is a refusal,
        or if the service has been away for too long.
        """
        now_s = time.monotonic()
        if self._away_since_s is None:
            self._away_since_s = now_s
        attempts = max(1, self._attempts)
        backoff_s = self._settings.retry.backoff_s(attempts)
        error = self._error(failure, attempts)
        if error.retry_after is not None:
            backoff_s += error.retry_after.total_seconds()
        away_s = now_s - self._away_since_s
        # A watch that was under way when its token expired goes on with another one.
        may_renew = self._attempts == 0 and self._settings.may_renew(error)
        may_come_back = may_renew or _may_come_back(error)
        if not may_come_back or away_s + backoff_s > self._away_s_max:
            raise error from failure
        _log.debug(
            "watch_resumed session_id=%s after_revision=%d wait_s=%.3f code=%s reason=%s",
            self._request.session_id,
            self._request.after_revision,
            backoff_s,
            error.code.name,
            error.reason,
        )
        return backoff_s

    def _error(self, failure: grpc.RpcError | None, attempts: int) -> RoutingError:
        target = self._settings.target
        if failure is not None:
            from agent_routing.status_details import (  # noqa: PLC0415 - as in calls.py
                routing_error,
            )

            return routing_error(
                failure,
                method=METHOD,
                target=target,
                request_id="",
                timeout_s=self._away_s_max,
                attempts=attempts,
            )
        # Such as by a proxy that limits how long a connection may last.
        return Unavailable(
            f'{METHOD}: "{target}" ends each watch as it begins; is there a proxy in between?',
            code=grpc.StatusCode.UNAVAILABLE,
            method=METHOD,
            attempts=attempts,
        )


def _may_come_back(error: RoutingError) -> bool:
    """Tell whether another connection may go on where this one ended."""
    return isinstance(error, (Unavailable, Overloaded, WatchTooSlow))
