"""What the service counts, in memory.

Owns the counters and the latency histogram. It must not know how they are published. Its rule:
series have names from closed sets (methods, reasons, commands, codes), never from callers, so that
their number is bounded. Counting takes no lock, since all of it happens on the event loop.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from routing_service.telemetry.call_record import CallRecord

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


_KIND_OF: Final = attrgetter(
    "method",
    "code",
    "error_reason",
    "replayed",
    "reason",
    "supervisor_bypassed",
    "topic_outcome",
    "command",
    "outcome",
    "outcome_status",
    "refused_rules",
)
"""All of a call that series are made of, in the order of _Kind."""

_Kind = tuple[str, str, str, bool, str, bool, str, str, str, str, tuple[str, ...]]


@dataclass(slots=True)
class _Latencies:
    buckets: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS_S) + 1))
    sum_s: float = 0.0


class Metrics:
    """Counts calls as they end. For the event loop's thread only.

    Each call is counted once, by its kind; what each series counts is summed up when it is asked
    for, every few seconds rather than with every call.
    """

    def __init__(self) -> None:
        self._kinds: dict[_Kind, int] = {}
        self._latencies: dict[str, _Latencies] = {}

    def count_call(self, record: CallRecord) -> None:
        """Count one call that has ended."""
        kind = _KIND_OF(record)
        kinds = self._kinds
        kinds[kind] = kinds.get(kind, 0) + 1
        latencies = self._latencies.get(record.method)
        if latencies is None:
            latencies = self._latencies[record.method] = _Latencies()
        duration_s = record.duration_ms / 1000
        latencies.buckets[bisect_left(LATENCY_BOUNDS_S, duration_s)] += 1
        latencies.sum_s += duration_s

    def snapshot(self) -> MetricsSnapshot:
        """Return what was counted so far; later calls do not change it."""
        calls: Counter[tuple[str, str]] = Counter()
        decisions: Counter[tuple[str, str]] = Counter()
        commands: Counter[str] = Counter()
        errors: Counter[tuple[str, str, str]] = Counter()
        refused_rules: Counter[str] = Counter()
        outcomes: Counter[tuple[str, str]] = Counter()
        supervisor_bypassed = 0
        replays: Counter[str] = Counter()
        topics: Counter[str] = Counter()
        for kind, count in self._kinds.items():
            method, code, error, replayed, reason, bypassed, topic, command, *ended, rules = kind
            outcome, outcome_status = ended
            calls[method, code] += count
            if code != "OK":
                errors[method, code, error] += count
            for rule in rules:
                refused_rules[rule] += count
            if replayed:
                # Neither the decision nor the command was made again.
                replays[method] += count
                continue
            if reason:
                decisions[method, reason] += count
            if reason and bypassed and method in MESSAGE_METHODS:
                supervisor_bypassed += count
            if topic:
                topics[topic] += count
            if command:
                commands[command] += count
            if outcome:
                outcomes[outcome, outcome_status] += count
        return MetricsSnapshot(
            calls=calls,
            decisions=decisions,
            commands=commands,
            errors=errors,
            refused_rules=refused_rules,
            outcomes=outcomes,
            supervisor_bypassed=supervisor_bypassed,
            replays=replays,
            topics=topics,
            latency={
                method: Latency(tuple(latencies.buckets), latencies.sum_s)
                for method, latencies in self._latencies.items()
            },
        )
