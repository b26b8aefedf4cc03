"""Counters and latencies of calls, in memory, and the table of the counters.

Its rule: label values are of closed lists (methods, reasons, commands, codes), never free text of
callers, so that the number of series is bounded. Counting takes no lock: it all happens on the
event loop.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from operator import attrgetter
from typing import Any, Final, NamedTuple

from routing_service.telemetry.call_record import CallRecord, counted_fields

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
disk; a call of more than 10 s has outlived the default deadline."""


MESSAGE_METHODS: Final = frozenset({"Route", "RouteStream"})
"""The calls that carry users' messages; a later dispatch of the same message saves nothing more."""


@dataclass(frozen=True, slots=True)
class CallCounter:
    """A counter of calls: a row of COUNTERS.

    name: without the prefix. meaning: the help text on the metrics page. labels: each label and the
    CallRecord field of its value; a field with several values counts for each of them. counts:
    whether a call is counted. Labels and condition read counted fields alone.
    """

    name: str
    meaning: str
    labels: Mapping[str, str]
    counts: Callable[[CallRecord], bool]

    def series(self, record: CallRecord) -> Iterator[tuple[str, ...]]:
        """Yield the label values of each series that a call adds to."""
        if self.counts(record):
            values = [getattr(record, name) for name in self.labels.values()]
            yield from product(*((v if isinstance(v, tuple) else (v,)) for v in values))


COUNTERS: Final = (
    CallCounter(
        "calls_total",
        "Calls that have ended, by method and gRPC status code.",
        {"method": "method", "code": "code"},
        lambda _: True,
    ),
    CallCounter(
        "errors_total",
        "Calls that were refused or failed, by method, status code and the contract's reason.",
        {"method": "method", "code": "code", "reason": "error_reason"},
        lambda call: call.code != "OK",
    ),
    CallCounter(
        "replays_total",
        "Repeats of a request that got the first answer, by method.",
        {"method": "method"},
        lambda call: call.replayed,
    ),
    # A repeat makes neither the decision nor the command again.
    CallCounter(
        "decisions_total",
        "Messages sent to an agent, by method and routing reason.",
        {"method": "method", "reason": "reason"},
        lambda call: call.dispatched and not call.replayed,
    ),
    CallCounter(
        "supervisor_calls_saved_total",
        "Messages of users that reached an agent without the supervisor.",
        {},
        lambda call: (
            call.dispatched
            and call.supervisor_bypassed
            and call.method in MESSAGE_METHODS
            and not call.replayed
        ),
    ),
    CallCounter(
        "commands_total",
        "Commands of users, by command.",
        {"command": "command"},
        lambda call: bool(call.command) and not call.replayed,
    ),
    CallCounter(
        "handoff_refusals_total",
        "Handoffs that a rule refused, by rule; one that several refused counts for each.",
        {"rule": "refused_rules"},
        lambda _: True,
    ),
    CallCounter(
        "outcomes_total",
        "Completed turns, by outcome and what it did.",
        {"outcome": "outcome", "status": "outcome_status"},
        lambda call: bool(call.outcome) and not call.replayed,
    ),
    CallCounter(
        "topic_judgements_total",
        "Messages that topic detection was asked about, by what it did with them.",
        {"outcome": "topic_outcome"},
        lambda call: bool(call.topic_outcome) and not call.replayed,
    ),
)


class CallExample(NamedTuple):
    """A traced call of a bucket: an exemplar. end_time_s: since 1970."""

    trace_id: str
    span_id: str
    duration_s: float
    end_time_s: float


@dataclass(frozen=True, slots=True)
class Latency:
    """How long the calls of one method took. examples: the latest traced call of each bucket."""

    bucket_counts: tuple[int, ...]
    """Calls by bucket of LATENCY_BOUNDS_S, each counted once; the last is for longer ones."""
    sum_s: float
    examples: tuple[CallExample | None, ...] = ()

    @property
    def count(self) -> int:
        """All calls of the method."""
        return sum(self.bucket_counts)


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """The counts at one moment, since the start of the process.

    counters: the calls by counter of COUNTERS and by label values, in the order of its labels. A
    counter without labels has its series from the start, with 0. latency: by method.
    """

    counters: Mapping[str, Mapping[tuple[str, ...], int]]
    latency: Mapping[str, Latency]


_COUNTED_FIELDS: Final = counted_fields()
_kind_of: Final[Callable[[CallRecord], tuple[Any, ...]]] = attrgetter(*_COUNTED_FIELDS)


@dataclass(slots=True)
class _Latencies:
    buckets: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS_S) + 1))
    sum_s: float = 0.0
    examples: list[CallExample | None] = field(
        default_factory=lambda: [None] * (len(LATENCY_BOUNDS_S) + 1)
    )


class Metrics:
    """Counts calls as they end. For the event loop's thread only.

    A call adds one to the count of its kind: the values of its counted fields. The counters are
    summed up from the kinds by snapshot(), every few seconds rather than with every call.
    """

    def __init__(self) -> None:
        self._kinds: dict[tuple[Any, ...], int] = {}
        self._latencies: dict[str, _Latencies] = {}

    def count_call(self, record: CallRecord) -> None:
        """Count one call that has ended."""
        kind = _kind_of(record)
        kinds = self._kinds
        kinds[kind] = kinds.get(kind, 0) + 1
        latencies = self._latencies.get(record.method)
        if latencies is None:
            latencies = self._latencies[record.method] = _Latencies()
        duration_s = record.duration_ms / 1000
        bucket = bisect_left(LATENCY_BOUNDS_S, duration_s)
        latencies.buckets[bucket] += 1
        latencies.sum_s += duration_s
        # Only a sampled trace can be found again.
        if record.traceparent and record.traceparent[-1] == "1":
            span_id = record.traceparent.split("-")[2]
            latencies.examples[bucket] = CallExample(
                record.trace_id, span_id, duration_s, time.time()
            )

    def snapshot(self) -> MetricsSnapshot:
        """Return the counts so far; later calls do not change it."""
        counters: dict[str, dict[tuple[str, ...], int]] = {
            counter.name: {} if counter.labels else {(): 0} for counter in COUNTERS
        }
        for kind, count in self._kinds.items():
            record = CallRecord(**dict(zip(_COUNTED_FIELDS, kind, strict=True)))
            for counter in COUNTERS:
                counts = counters[counter.name]
                for values in counter.series(record):
                    counts[values] = counts.get(values, 0) + count
        return MetricsSnapshot(
            counters,
            {
                method: Latency(
                    tuple(latencies.buckets), latencies.sum_s, tuple(latencies.examples)
                )
                for method, latencies in self._latencies.items()
            },
        )
