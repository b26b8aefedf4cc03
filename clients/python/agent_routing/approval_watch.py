"""A watch of approvals over its connections: each begins with everything that waits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from agent_routing.calls import CallSettings
from agent_routing.messages import routing_service_pb2 as pb
from agent_routing.watching import Reconnecting


class ApprovalWatch(Reconnecting):
    """What the caller has seen of a watch, so that a new connection repeats nothing."""

    def __init__(
        self,
        settings: CallSettings,
        request: pb.WatchApprovalsRequest,
        away_s_max: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(settings, "WatchApprovals", away_s_max, clock)
        self._request = request
        self._seen: dict[tuple[str, str], pb.WaitingApproval] = {}
        self._not_again: set[tuple[str, str]] = set()

    def connect(self) -> pb.WatchApprovalsRequest:
        """Return the request for the next connection."""
        self.connecting()
        self._not_again = set(self._seen)
        return self._request

    def received(self, response: pb.WatchApprovalsResponse) -> Iterator[pb.WatchApprovalsResponse]:
        """Record a message; yield what is new in it for the caller."""
        self.alive()
        match response.WhichOneof("kind"):
            case "waiting":
                waiting = response.waiting
                key = (waiting.session_id, waiting.approval.request_id)
                self._not_again.discard(key)
                if self._seen.get(key) != waiting:
                    self._seen[key] = waiting
                    yield response
            case "ended":
                key = (response.ended.session_id, response.ended.request_id)
                if self._seen.pop(key, None) is not None:
                    yield response
            case "heartbeat" if response.heartbeat.is_complete:
                # What ended while there was no connection.
                for key in sorted(self._not_again):
                    del self._seen[key]
                    ended = pb.EndedApproval(session_id=key[0], request_id=key[1])
                    yield pb.WatchApprovalsResponse(ended=ended)
                self._not_again = set()
