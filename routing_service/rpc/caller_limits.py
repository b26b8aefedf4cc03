"""How much one caller may ask for: calls a second, and streams at a time.

A refused caller is told how long to wait. A call that passes costs one dictionary look-up.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from routing_service.core.errors import Reason, RoutingError

BURST_S: Final = 2.0
"""The burst that an idle caller may send at once, in seconds of its rate."""

CALLERS_MAX: Final = 100_000
"""Callers that are remembered, in about 15 MB. Beyond that, callers below their rate are forgotten;
if all are above it, the ones seen first are."""

STREAMS_RETRY_S: Final = 1.0

_ROUNDING_S: Final = 1e-6
"""The rounding error that sums of intervals may have."""


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
    ) -> None:
        """Limit each caller. 0 = no limit. callers_max: the number that is remembered."""
        self._calls_per_s = calls_per_s
        self._streams_max = streams_max
        self._clock_s = clock_s
        self._callers_max = callers_max
        self._interval_s = 1 / calls_per_s if calls_per_s else 0.0
        # At one call a second and less, the first call must still pass.
        self._ahead_s_max = max(BURST_S, self._interval_s) - self._interval_s + _ROUNDING_S
        self._due_s: dict[str, float] = {}
        self._streams: Counter[str] = Counter()

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
    def stream(self, caller: str) -> Iterator[None]:
        """Count a stream while it is open. Raises OVERLOADED if there are too many."""
        if self._streams_max and self._streams[caller] >= self._streams_max:
            raise RoutingError(
                Reason.OVERLOADED,
                f"this caller has {self._streams_max} streams open; end one, or watch more "
                "sessions through fewer of them",
                metadata={"limit": "caller_streams_max", "value": str(self._streams_max)},
                retry_after_s=STREAMS_RETRY_S,
            )
        self._streams[caller] += 1
        try:
            yield
        finally:
            self._streams[caller] -= 1
            if not self._streams[caller]:
                del self._streams[caller]

    def _forget(self, now_s: float) -> None:
        """Forget callers below their rate; then those seen first, until half the room is free."""
        self._due_s = {caller: due_s for caller, due_s in self._due_s.items() if due_s > now_s}
        for caller in list(self._due_s)[: max(0, len(self._due_s) - self._callers_max // 2)]:
            del self._due_s[caller]
