"""Which failed calls are sent again, how often and when.

Owns: the policy, and the throttle that keeps a whole client from repeating into an outage. Must not
know: how a call is made, or the clock. Rule: a repeat is the same request under the same
request_id, which the service handles once; so what nobody answered may be sent again.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final

import grpc

from agent_routing.errors import Overloaded, RoutingError, Unavailable

TOKENS_MAX: Final = 100.0
"""Of the throttle, as in gRPC's retryThrottling: an attempt that nobody answered takes one, and a
repeat needs more than half of them. So fifty calls that were on their way to a replica that died
are all repeated, and an outage ends a client's repeats after fifty attempts over all calls."""

TOKENS_PER_SUCCESS: Final = 0.5
"""What a successful call gives back: repeats add at most half again to the load of a server that
fails now and then, and are back a hundred successful calls after an outage."""

DOUBLINGS_MAX: Final = 30
"""Of the backoff: by then any first wait has long met its bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often and when a call that nobody answered is sent again.

    attempts_max: the first one included; 1: never again. backoff_first_s, backoff_max_s: the wait
    before attempt n+1 is drawn evenly from 0 to backoff_first_s * 2**(n-1), at most backoff_max_s
    (full jitter); where the service says how long to wait, that comes before it. All of it within
    the call's deadline: a wait that would outlast it is not begun.
    """

    attempts_max: int = 4
    backoff_first_s: float = 0.2
    backoff_max_s: float = 2.0

    def __post_init__(self) -> None:
        """Check the values. Raises ValueError."""
        if self.attempts_max < 1:
            raise ValueError(f"attempts_max is {self.attempts_max}; the first attempt counts: 1")
        if not 0 <= self.backoff_first_s <= self.backoff_max_s:
            raise ValueError(
                f"backoff_first_s {self.backoff_first_s} and backoff_max_s {self.backoff_max_s}:"
                " give seconds, 0 <= first <= max"
            )

    def wait_s(self, error: RoutingError, *, attempts: int, remaining_s: float) -> float | None:
        """Return seconds to wait before the call is sent again; None: it is not.

        attempts: how often it was sent. remaining_s: until the call's deadline.
        """
        if attempts >= self.attempts_max or not was_unanswered(error):
            return None
        wait_s = self.backoff_s(attempts)
        if error.retry_after is not None:
            wait_s += error.retry_after.total_seconds()
        return wait_s if wait_s < remaining_s else None

    def backoff_s(self, attempts: int) -> float:
        """Return seconds to wait after so many attempts, 1 or more, drawn anew each time."""
        doublings = min(attempts - 1, DOUBLINGS_MAX)
        ceiling_s = min(self.backoff_first_s * 2**doublings, self.backoff_max_s)
        import random  # noqa: PLC0415 - only what goes wrong needs it

        return random.uniform(0, ceiling_s)  # noqa: S311 - spreads callers, guards nothing


RETRY_DEFAULT: Final = RetryPolicy()


def was_unanswered(error: RoutingError) -> bool:
    """Tell whether nobody decided about the call: UNAVAILABLE, or refused unread.

    An Overloaded with a reason is an answer: the server asks for fewer calls, and when to come back
    is for the caller to decide.
    """
    if isinstance(error, Overloaded):
        return error.code is grpc.StatusCode.CANCELLED
    return isinstance(error, Unavailable)


class RetryThrottle:
    """Stops a client's repeats while most of its calls fail. Safe in threads."""

    __slots__ = ("_lock", "_tokens")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tokens = TOKENS_MAX

    def succeeded(self) -> None:
        """Count a call that succeeded."""
        # Read without the lock: nearly always it is full, and a stale value costs nothing.
        if self._tokens < TOKENS_MAX:
            with self._lock:
                self._tokens = min(TOKENS_MAX, self._tokens + TOKENS_PER_SUCCESS)

    def may_retry(self) -> bool:
        """Count an attempt that nobody answered, and tell whether another may follow."""
        with self._lock:
            self._tokens = max(0.0, self._tokens - 1)
            return self._tokens > TOKENS_MAX / 2
