"""What the service counts, in memory.

Owns the counters and the latency histogram. It must not know how they are published. Its rule:
series have names from closed sets (methods, reasons, commands, codes), never from callers, so that
their number is bounded. Counting takes no lock, since all of it happens on the event loop.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from routing_service.rpc.call_record import CallRecord

LATENCY_BOUNDS_S: Final = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
)
"""Upper bounds of the latency buckets, included. A lone durable call takes 1 to 2 ms on a local
disk; above 10 s a call has outlived the default deadline."""


MESSAGE_METHODS: Final = frozenset({"Route", "RouteStream"})
"""They bring messages of users; what follows within a message saves nothing more."""


@dataclass(frozen=True, slots=True)
class Latency:
    """How long the calls of one method took."""

    bucket_counts: tuple[int, ...]
    """Calls by bucket of LATENCY_BOUNDS_S, each counted once; one more for what took longer."""
    sum_s: float

    @property
    def count(self) -> int:
        """All calls of the method."""
        return sum(self.bucket_counts)


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """The counts at one moment, since the start of the process."""

    calls: Mapping[tuple[str, str], int]
    """By (method, status code)."""
    decisions: Mapping[tuple[str, str], int]
    """Calls that were answered, by (method, routing reason)."""
    commands: Mapping[str, int]
    """By slash command."""
    errors: Mapping[tuple[str, str, str], int]
    """By (method, status code, error reason)."""
    refused_rules: Mapping[str, int]
    """Handoffs that a rule refused, by rule; one that several refused counts for each."""
    outcomes: Mapping[tuple[str, str], int]
    """Completed turns, by (outcome, outcome status)."""
    supervisor_bypassed: int
    """Messages of users that cost no call of the supervisor."""
    replays: Mapping[str, int]
    """Repeats that got the first answer, by method."""
    topics: Mapping[str, int]
    """Messages that topic detection was asked about, by what it did with them."""
    latency: Mapping[str, Latency]
    """By method."""


class Metrics:
    """Counts calls as they end. For the event loop's thread only."""

    def __init__(self) -> None:
        self._calls: Counter[tuple[str, str]] = Counter()
        self._decisions: Counter[tuple[str, str]] = Counter()
        self._commands: Counter[str] = Counter()
        self._errors: Counter[tuple[str, str, str]] = Counter()
        self._refused_rules: Counter[str] = Counter()
        self._outcomes: Counter[tuple[str, str]] = Counter()
        self._supervisor_bypassed = 0
        self._replays: Counter[str] = Counter()
        self._topics: Counter[str] = Counter()
        self._buckets: dict[str, list[int]] = {}
        self._sums_s: defaultdict[str, float] = defaultdict(float)

    def count_call(self, record: CallRecord) -> None:
        """Count one call that has ended."""
        method = record.method
        self._calls[method, record.code] += 1
        if record.code != "OK":
            self._errors[method, record.code, record.error_reason] += 1
        for rule in record.refused_rules:
            self._refused_rules[rule] += 1
        if record.replayed:
            # Neither the decision nor the command was made again.
            self._replays[method] += 1
        else:
            if record.reason:
                self._decisions[method, record.reason] += 1
                if method in MESSAGE_METHODS:
                    self._supervisor_bypassed += record.supervisor_bypassed
            if record.topic_outcome:
                self._topics[record.topic_outcome] += 1
            if record.command:
                self._commands[record.command] += 1
            if record.outcome:
                self._outcomes[record.outcome, record.outcome_status] += 1
        buckets = self._buckets.get(method)
        if buckets is None:
            buckets = self._buckets[method] = [0] * (len(LATENCY_BOUNDS_S) + 1)
        duration_s = record.duration_ms / 1000
        buckets[bisect_left(LATENCY_BOUNDS_S, duration_s)] += 1
        self._sums_s[method] += duration_s

    def snapshot(self) -> MetricsSnapshot:
        """Return what was counted so far; later calls do not change it."""
        return MetricsSnapshot(
            calls=dict(self._calls),
            decisions=dict(self._decisions),
            commands=dict(self._commands),
            errors=dict(self._errors),
            refused_rules=dict(self._refused_rules),
            outcomes=dict(self._outcomes),
            supervisor_bypassed=self._supervisor_bypassed,
            replays=dict(self._replays),
            topics=dict(self._topics),
            latency={
                method: Latency(tuple(buckets), self._sums_s[method])
                for method, buckets in self._buckets.items()
            },
        )
