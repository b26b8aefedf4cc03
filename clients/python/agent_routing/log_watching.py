"""A watch of all sessions over its connections: where it stands, and whether it goes on.

Owns: the cursor up to which the caller has seen everything, and how long the service may be away.
Must not know: how a stream is read. Rule: every change is given to the caller at least once, over
any number of connections.
"""

from __future__ import annotations

import logging
import time
from typing import Final

import grpc

from agent_routing.calls import CallSettings
from agent_routing.errors import Overloaded, RoutingError, Unavailable, WatchTooSlow
from agent_routing.status_details import routing_error
from agent_routing.v1.admin_service_pb2 import WatchEventsRequest, WatchEventsResponse

METHOD: Final = "WatchEvents"

_log: Final = logging.getLogger("agent_routing")


class LogWatch:
    """One watch of all sessions."""

    def __init__(
        self, settings: CallSettings, request: WatchEventsRequest, away_s_max: float
    ) -> None:
        self._settings = settings
        self._request = request
        self._away_s_max = away_s_max
        self._away_since_s: float | None = None
        self._attempts = 0

    def connect(self) -> WatchEventsRequest:
        """Return the request for the next connection: from where the caller is."""
        self._attempts += 1
        return self._request

    def received(self, message: WatchEventsResponse) -> bool:
        """Take note of a message; say whether it is one for the caller."""
        self._away_since_s, self._attempts = None, 0
        if message.cursor:
            self._request.cursor = message.cursor
            self._request.from_beginning = False
        return message.HasField("change")

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
        # A watch that was under way when its token expired goes on with another one.
        may_renew = self._attempts == 0 and self._settings.may_renew(error)
        may_come_back = may_renew or isinstance(error, (Unavailable, Overloaded, WatchTooSlow))
        if not may_come_back or now_s - self._away_since_s + backoff_s > self._away_s_max:
            raise error from failure
        _log.debug("log_watch_resumed wait_s=%.3f code=%s", backoff_s, error.code.name)
        return backoff_s

    def _error(self, failure: grpc.RpcError | None, attempts: int) -> RoutingError:
        target = self._settings.target
        if failure is None:
            # Such as by a proxy that limits how long a connection may last.
            return Unavailable(
                f'{METHOD}: "{target}" ended the watch',
                code=grpc.StatusCode.UNAVAILABLE,
                method=METHOD,
                attempts=attempts,
            )
        return routing_error(
            failure,
            method=METHOD,
            target=target,
            request_id="",
            timeout_s=self._away_s_max,
            attempts=attempts,
        )
