"""Which failed calls are sent again, how often and when.

Owns the policy, and the throttle that stops a client's repeats during an outage. A repeat is the
same request under the same request_id, which the service handles once, so an unanswered call may be
sent again.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final

from agent_routing.errors import Overloaded, RoutingError, Unavailable

TOKENS_MAX: Final = 100.0
"""Of the throttle, as in gRPC's retryThrottling: an unanswered attempt takes one, and a repeat
needs more than half of them. So fifty calls on their way to a replica that died are all repeated,
and an outage stops a client's repeats after fifty attempts over all calls."""

TOKENS_PER_SUCCESS: Final = 0.5
"""What a successful call returns: repeats add at most 50 % to the load of a server that fails now
and then, and are possible again a hundred successful calls after an outage."""

DOUBLINGS_MAX: Final = 30
"""Limit of the exponent: by then any first wait has reached its maximum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often and when an unanswered call is sent again.

    attempts_max: including the first; 1: no repeats. backoff_first_s, backoff_max_s: the wait
    before attempt n+1 is random between 0 and backoff_first_s * 2**(n-1), at most backoff_max_s
    (full jitter). If the service gives a delay, it is added. All attempts are within the call's
    deadline: a wait that would outlast it is not begun. A call that an overloaded service refused
    unread is repeated until then, however often, unless attempts_max is 1.
    """

    attempts_max: int = 4
    backoff_first_s: float = 0.2
    backoff_max_s: float = 2.0

    def __post_init__(self) -> None:
        """Check the values. Raises ValueError."""
        if self.attempts_max < 1:
            raise ValueError(
                f"attempts_max is {self.attempts_max}; give 1 or more, the first attempt counts"
            )
        if not 0 <= self.backoff_first_s <= self.backoff_max_s:
            raise ValueError(
                f"backoff_first_s {self.backoff_first_s} and backoff_max_s {self.backoff_max_s}:"
                " give seconds, 0 <= first <= max"
            )

    def wait_s(self, error: RoutingError, *, attempts: int, remaining_s: float) -> float | None:
        """Return the seconds to wait before the next attempt; None: there is none.

        attempts: how often it was sent. remaining_s: until the call's deadline.
        """
        is_limited = self.attempts_max == 1 or not was_refused_unread(error)
        if (is_limited and attempts >= self.attempts_max) or not was_unanswered(error):
            return None
        wait_s = self.backoff_s(attempts)
        if error.retry_after is not None:
            wait_s += error.retry_after.total_seconds()
        return wait_s if wait_s < remaining_s else None

    def backoff_s(self, attempts: int) -> float:
        """Return the seconds to wait after this many attempts (1 or more), at random."""
        doublings = min(attempts - 1, DOUBLINGS_MAX)
        ceiling_s = min(self.backoff_first_s * 2**doublings, self.backoff_max_s)
        import random  # noqa: PLC0415 - only failures need it

        return random.uniform(0, ceiling_s)  # noqa: S311 - spreads callers, guards nothing


RETRY_DEFAULT: Final = RetryPolicy()


def was_unanswered(error: RoutingError) -> bool:
    """Tell whether the call was not decided: UNAVAILABLE, or refused unread."""
    return isinstance(error, Unavailable) or was_refused_unread(error)


def was_refused_unread(error: RoutingError) -> bool:
    """Tell whether an overloaded server refused the call before it read it.

    An Overloaded with a reason is an answer: the server asks for fewer calls, and the caller
    decides when to repeat.
    """
    return isinstance(error, Overloaded) and not error.reason


class RetryThrottle:
    """Stops a client's repeats while most of its calls fail. Safe in threads."""

    __slots__ = ("_lock", "_tokens")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tokens = TOKENS_MAX

    def succeeded(self) -> None:
        """Count a call that succeeded."""
        # Read without the lock: it is almost always full, and a stale value does no harm.
        if self._tokens < TOKENS_MAX:
            with self._lock:
                self._tokens = min(TOKENS_MAX, self._tokens + TOKENS_PER_SUCCESS)

    def may_retry(self) -> bool:
        """Count an unanswered attempt, and tell whether another may follow."""
        with self._lock:
            self._tokens = max(0.0, self._tokens - 1)
            return self._tokens > TOKENS_MAX / 2
