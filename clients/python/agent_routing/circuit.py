"""The circuit breaker of a client: an outage makes the first messages wait, and no others.

Rule: it never makes a call fail. It only lets route() decide at once what it would decide after
waiting.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Final, Literal

FAILURES_MAX: Final = 3
"""Calls in a row without an answer, each with all its attempts, that open the circuit. One call
that fails may have met a restart."""

OPEN_S_FIRST: Final = 1.0
OPEN_S_MAX: Final = 8.0
"""How long an open circuit waits before the next probe, doubled after each that fails."""

PROBE_S: Final = 1.0
"""The time limit of a probe, which is a user's message."""

State = Literal["closed", "open", "half_open"]

_log: Final = logging.getLogger("agent_routing")


class Circuit:
    """Whether the service is worth waiting for. Safe in threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._open_s = 0.0
        self._probe_at_s = 0.0
        self._probe_ends_s = 0.0
        self._answered_s = -math.inf
        self._opened_total = 0
        self._skipped_total = 0

    @property
    def state(self) -> State:
        """closed: calls are sent. open: messages are decided here. half_open: one is a probe."""
        with self._lock:
            if not self._open_s:
                return "closed"
            return "half_open" if self._clock() < self._probe_ends_s else "open"

    @property
    def opened_total(self) -> int:
        """How often the circuit has opened."""
        return self._opened_total

    @property
    def skipped_total(self) -> int:
        """How many messages were decided at once, because the circuit was open."""
        return self._skipped_total

    def limit_s(self) -> float:
        """Return how long a message may wait for the service: infinity, a probe's time, or 0."""
        # Read without the lock: it is nearly always closed.
        if not self._open_s:
            return math.inf
        with self._lock:
            if not self._open_s:
                return math.inf
            now_s = self._clock()
            if now_s < max(self._probe_at_s, self._probe_ends_s):
                self._skipped_total += 1
                return 0.0
            self._probe_ends_s = now_s + PROBE_S
            return PROBE_S

    def answered_within(self, seconds: float) -> bool:
        """Tell whether the service has answered a call of this client in the last seconds."""
        return self._clock() - self._answered_s <= seconds

    def succeeded(self) -> None:
        """Count an answer of any kind: the service is there."""
        self._answered_s = self._clock()
        if not self._failures and not self._open_s:
            return
        with self._lock:
            was_open = bool(self._open_s)
            self._failures, self._open_s, self._probe_ends_s = 0, 0.0, 0.0
        if was_open:
            _log.info("circuit_closed skipped_total=%d", self._skipped_total)

    def failed(self) -> None:
        """Count a call without an answer."""
        with self._lock:
            self._failures += 1
            now_s = self._clock()
            if self._open_s:
                if now_s < self._probe_at_s:
                    return  # It was sent before the circuit opened.
                self._open_s = min(2 * self._open_s, OPEN_S_MAX)
            elif self._failures >= FAILURES_MAX:
                self._open_s = OPEN_S_FIRST
                self._opened_total += 1
            else:
                return
            self._probe_at_s, self._probe_ends_s = now_s + self._open_s, 0.0
            open_s = self._open_s
        _log.warning("circuit_open open_s=%.1f failures=%d", open_s, self._failures)
