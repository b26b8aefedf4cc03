"""Calls that ended before the service read them: counted, and logged as overload.

gRPC's core refuses calls while too many wait to start (pending_requests_max), and leaves no trace
of them in Python. The count is what its channelz saw begin, less what the service read.
"""

from __future__ import annotations

import asyncio
from typing import Final

import grpc
import structlog

from routing_service.server.open_calls import (
    calls_refused,
    calls_started,
    connections_of,
    newest_server,
)

LOOK_S: Final = 1.0
"""Seconds between two counts: at most one log line each."""

CONNECTIONS_MAX: Final = 200
"""Up to this number the streams of all connections are counted, to tell refused calls from waiting
ones. With more, those that may wait are left out of the count."""

_log = structlog.get_logger(__name__)


class UnreadCalls(grpc.GenericRpcHandler):
    """Counts for the gRPC servers of one process, of which it is the first handler."""

    def __init__(self, waiting_max: int) -> None:
        """waiting_max: calls that may wait before all others are refused."""
        self._waiting_max = waiting_max
        self._servers: list[int] = []
        self._read = 0
        self.refused = 0
        """Calls refused for overload, or cancelled by their callers while they waited."""

    def count_of(self, server: grpc.aio.Server) -> None:
        """Count the calls of a server that was made just now."""
        self._servers.append(newest_server())
        server.add_generic_rpc_handlers((self,))

    def service(self, _handler_call_details: grpc.HandlerCallDetails) -> None:
        """Count a call that is read, and leave it to the next handler."""
        self._read += 1

    def look(self) -> int:
        """Return how many more were refused since the last look."""
        unread = sum(map(calls_started, self._servers)) - self._read
        if unread <= self.refused:
            return 0
        if sum(map(connections_of, self._servers)) <= CONNECTIONS_MAX:
            refused = min(unread, sum(map(calls_refused, self._servers)))
        else:
            refused = unread - self._waiting_max
        more = max(0, refused - self.refused)
        self.refused += more
        return more

    async def run(self) -> None:
        """Count and log until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            if more := self.look():
                _log.warning("overloaded", refused_unread=more)
