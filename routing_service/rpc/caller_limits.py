"""How much one caller may ask for: calls a second, and streams at a time.

A refused caller is told how long to wait. A call that passes costs one dictionary look-up.

Rule: of each kind of stream a server has a bound, and one caller or one tenant may have a share of
it. So none of them can refuse the streams of all others.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple

from routing_service.core.errors import Reason, RoutingError

BURST_S: Final = 2.0
"""The burst that an idle caller may send at once, in seconds of its rate."""

CALLERS_MAX: Final = 100_000
"""Callers that are remembered, in about 15 MB. Beyond that, callers below their rate are forgotten;
if all are above it, the ones seen first are."""

STREAMS_RETRY_S: Final = 1.0

_ROUNDING_S: Final = 1e-6
"""The rounding error that sums of intervals may have."""

WATCHES_MAX: Final = 6_700
"""Watches of sessions and of the log on one server. More belong on more replicas. A tenant's share
is 5,000, and the default of a caller's streams fits into a caller's."""

INBOX_WATCHES_MAX: Final = 4_000
"""Workers of one server: a caller's share is the 1,000 workers of the benchmark."""

APPROVAL_WATCHES_MAX: Final = 400
"""Watches of approvals: people in front of a screen, and what notifies them."""

MESSAGE_STREAMS_MAX: Final = 4_000
"""Message streams (RouteStream) of one server."""

OTHER_STREAMS_MAX: Final = 200
"""Streams of every other kind, such as the watches of replays and exports of a user."""

SHARE_PARTS: Final = 4
"""Each of these has four parts: a caller may have one of them, a tenant three."""


class StreamKind(NamedTuple):
    """A kind of stream. limit: its name in refusals. text: for people. most: on one server."""

    limit: str
    text: str
    most: int

    @property
    def most_of_tenant(self) -> int:
        """How many one tenant may have."""
        return max(1, self.most - self.most // SHARE_PARTS)

    @property
    def most_of_caller(self) -> int:
        """How many one caller may have."""
        return max(1, self.most // SHARE_PARTS)


_WATCHES: Final = StreamKind("watches", "watches", WATCHES_MAX)
STREAM_KINDS: Final[Mapping[str, StreamKind]] = {
    "WatchSession": _WATCHES,
    "WatchEvents": _WATCHES,
    "WatchInbox": StreamKind("inbox_watches", "watches of inboxes", INBOX_WATCHES_MAX),
    "WatchApprovals": StreamKind("approval_watches", "watches of approvals", APPROVAL_WATCHES_MAX),
    "RouteStream": StreamKind("message_streams", "message streams", MESSAGE_STREAMS_MAX),
}
"""By RPC. Those that are not listed share OTHER_STREAMS_MAX."""

_OTHER: Final = StreamKind("other_streams", "streams of replays and exports", OTHER_STREAMS_MAX)


class CallerLimits:
    """Counts calls and streams per caller. For the event loop's thread only.

    A caller's due time advances by one interval with each call. It may be BURST_S ahead of the
    clock. Source: the generic cell rate algorithm (ITU-T I.371), which needs one number a caller
    and no timer.
    """

    def __init__(
        self,
        calls_per_s: int = 0,
        streams_max: int = 0,
        clock_s: Callable[[], float] = time.monotonic,
        *,
        callers_max: int = CALLERS_MAX,
        kinds: Mapping[str, StreamKind] = STREAM_KINDS,
    ) -> None:
        """Limit each caller. 0 = no limit. callers_max: the number that is remembered.

        kinds: of streams, by RPC.
        """
        self._kinds = kinds
        self._calls_per_s = calls_per_s
        self._streams_max = streams_max
        self._clock_s = clock_s
        self._callers_max = callers_max
        self._interval_s = 1 / calls_per_s if calls_per_s else 0.0
        # At one call a second and less, the first call must still pass.
        self._ahead_s_max = max(BURST_S, self._interval_s) - self._interval_s + _ROUNDING_S
        self._due_s: dict[str, float] = {}
        self._streams: Counter[tuple[str, ...]] = Counter()

    @property
    def limits_calls(self) -> bool:
        """Whether calls are counted."""
        return self._calls_per_s > 0

    def admit(self, caller: str) -> None:
        """Count one call. Raises OVERLOADED, with the time after which the next call passes."""
        now_s = self._clock_s()
        due_s = self._due_s.get(caller, now_s)
        ahead_s = due_s - now_s
        if ahead_s > self._ahead_s_max:
            raise RoutingError(
                Reason.OVERLOADED,
                f"this caller sends more than {self._calls_per_s} calls a second; repeat after the "
                "delay, with the same request_id",
                metadata={"limit": "caller_calls_per_s", "value": str(self._calls_per_s)},
                retry_after_s=ahead_s - self._ahead_s_max,
            )
        self._due_s[caller] = (due_s if ahead_s > 0 else now_s) + self._interval_s
        if len(self._due_s) > self._callers_max:
            self._forget(now_s)

    @contextmanager
    def stream(
        self, method: str, tenant: str, caller: str, *, has_share: bool = True
    ) -> Iterator[None]:
        """Count a stream while it is open. Raises OVERLOADED if there are too many.

        has_share: False for a caller that stands for all users of its tenant: then it may have what
        the tenant may.
        """
        kind = self._kinds.get(method, _OTHER)
        counted = ((caller,), (kind.limit, tenant, caller), (kind.limit, tenant), (kind.limit, ""))
        if self._streams_max and self._streams[counted[0]] >= self._streams_max:
            raise RoutingError(
                Reason.OVERLOADED,
                f"this caller has {self._streams_max} streams open; end one, or watch more "
                "sessions through fewer of them",
                metadata={"limit": "caller_streams_max", "value": str(self._streams_max)},
                retry_after_s=STREAMS_RETRY_S,
            )
        if has_share and self._streams[counted[1]] >= kind.most_of_caller:
            raise _too_many(kind, "caller", kind.most_of_caller)
        if self._streams[counted[2]] >= kind.most_of_tenant:
            raise _too_many(kind, "tenant", kind.most_of_tenant)
        if self._streams[counted[3]] >= kind.most:
            raise _too_many(kind, "server", kind.most)
        self._streams.update(counted)
        try:
            yield
        finally:
            for each in counted:
                self._streams[each] -= 1
                if not self._streams[each]:
                    del self._streams[each]

    def _forget(self, now_s: float) -> None:
        """Forget callers below their rate; then those seen first, until half the room is free."""
        self._due_s = {caller: due_s for caller, due_s in self._due_s.items() if due_s > now_s}
        for caller in list(self._due_s)[: max(0, len(self._due_s) - self._callers_max // 2)]:
            del self._due_s[caller]


def _too_many(kind: StreamKind, share: str, most: int) -> RoutingError:
    whose = {"caller": "this caller", "tenant": "this tenant", "server": "this server"}[share]
    of = "" if share == "server" else f", its share of the server's {kind.most}"
    return RoutingError(
        Reason.OVERLOADED,
        f"{whose} has {most} {kind.text} open{of}; end one, or use another replica",
        metadata={"limit": kind.limit, "share": share, "value": str(most)},
        retry_after_s=STREAMS_RETRY_S,
    )
