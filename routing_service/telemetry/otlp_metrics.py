"""The figures of the metrics page, sent to an OpenTelemetry collector by OTLP over gRPC.

Its rule: the figures are read on the event loop, converted and sent in a thread, one export at a
time. Both ways out have the same collector (telemetry/prometheus_text.py), so they cannot disagree.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Protocol

import structlog
from prometheus_client.core import Metric as Family

from routing_service.telemetry.otlp import (
    LAST_EXPORT_S,
    ExporterUnavailable,
    in_daemon_thread,
    is_refused,
    milliseconds_from,
    process_resource,
    require_opentelemetry,
)

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import Metric, MetricsData

INTERVAL_MS_DEFAULT: Final = 60_000.0
"""Between two exports, as in every OpenTelemetry SDK (OTEL_METRIC_EXPORT_INTERVAL)."""

INTERVAL_MS_MIN: Final = 100.0
"""Reading the figures takes about a millisecond of the event loop."""

_TEMPORALITY: Final = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"
_UNITS: Final = {"_seconds": "s", "_bytes": "By"}
"""The unit by the end of a name, as UCUM writes it."""

_log = structlog.get_logger(__name__)

Labels = tuple[tuple[str, str], ...]


class Exporter(Protocol):
    """The exporter of figures. Called in a worker thread."""

    def export(self, metrics_data: MetricsData) -> object:
        """Send figures."""
        ...

    def shutdown(self) -> None:
        """Close connections."""
        ...


class MetricsExport:
    """Sends the figures of this process to a collector at every interval and once at the end."""

    def __init__(
        self,
        exporter: Exporter,
        *,
        version: str,
        interval_s: float,
        is_delta: bool = False,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Prepare. is_delta: counts are sent since the last export, not since the start."""
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415 - an extra

        self._exporter = exporter
        self._resource = process_resource(version)
        self._scope = InstrumentationScope("routing_service", version)
        self._interval_s = interval_s
        self._is_delta = is_delta
        self._now_ns = now_ns
        self._sent = _Sent(now_ns())
        self._one_at_a_time = threading.Lock()
        self.failures = 0

    async def run(self, read: Callable[[], Iterable[Family]]) -> None:
        """Send until cancelled, then send the last figures. read: called on the event loop."""
        try:
            while True:
                await asyncio.sleep(self._interval_s)
                await self._export(read, self._send)
        finally:
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_EXPORT_S):
                    await self._export(read, self._end)

    async def _export(
        self, read: Callable[[], Iterable[Family]], send: Callable[[list[Family]], None]
    ) -> None:
        try:
            figures = list(read())
        except Exception:  # noqa: BLE001 - telemetry must end nothing, such as the server's stop
            _log.exception("metrics_not_read")
            figures = []
        await in_daemon_thread(lambda: send(figures), "metrics export")

    def _end(self, figures: list[Family]) -> None:
        # An export that still hangs keeps the lock; run() waits no longer than LAST_EXPORT_S.
        self._send(figures)
        self._exporter.shutdown()

    def _send(self, figures: list[Family]) -> None:
        if not figures:
            return
        with self._one_at_a_time:
            now_ns = self._now_ns()
            try:
                sent = self._exporter.export(self._data(figures, now_ns))
            except Exception as error:  # noqa: BLE001 - telemetry must end nothing
                self._failed(type(error).__name__)
                return
            if is_refused(sent):
                self._failed("collector")
                return
            if self.failures:
                _log.info("metrics_sent_again", failures=self.failures)
            self.failures = 0
            if self._is_delta:
                self._sent = _Sent(now_ns, _counts_of(figures))

    def _failed(self, error: str) -> None:
        # One line of ours however long the collector is away; the exporter logs its own.
        if not self.failures:
            _log.warning("metrics_not_sent", error=error)
        self.failures += 1

    def _data(self, figures: list[Family], now_ns: int) -> MetricsData:
        from opentelemetry.sdk.metrics.export import (  # noqa: PLC0415 - an extra
            MetricsData,
            ResourceMetrics,
            ScopeMetrics,
        )

        made = [
            metric_of(family, self._sent, now_ns, is_delta=self._is_delta)
            for family in figures
            if family.samples  # A metric without points is not valid.
        ]
        scope = ScopeMetrics(scope=self._scope, metrics=made, schema_url="")
        return MetricsData([ResourceMetrics(self._resource, [scope], "")])


@dataclass(frozen=True, slots=True)
class _Sent:
    """What the collector has: counts by family and labels, and when they were read.

    After a failed export it stays, so the next export has the counts of both.
    """

    time_ns: int
    counts: Mapping[tuple[str, Labels], tuple[float, ...]] = field(default_factory=dict)


def metric_of(family: Family, sent: _Sent, now_ns: int, *, is_delta: bool) -> Metric:
    """Return a family of the metrics page as OpenTelemetry's SDK has it.

    Names are those of the page, counters without _total: collectors that write Prometheus's format
    add it.
    """
    from opentelemetry.sdk.metrics.export import (  # noqa: PLC0415 - an extra
        AggregationTemporality,
        Gauge,
        Histogram,
        HistogramDataPoint,
        Metric,
        NumberDataPoint,
        Sum,
    )

    temporality = AggregationTemporality.DELTA if is_delta else AggregationTemporality.CUMULATIVE
    data: Gauge | Histogram | Sum
    if family.type == "histogram":
        bounds, rows = _histogram_rows(family)
        data = Histogram(
            [
                HistogramDataPoint(
                    dict(labels),
                    sent.time_ns,
                    now_ns,
                    count=int(sum(buckets)),
                    sum=total,
                    bucket_counts=[int(each) for each in buckets],
                    explicit_bounds=bounds,
                    # Not counted; None leaves the optional fields of the message out.
                    min=None,  # type: ignore[arg-type]
                    max=None,  # type: ignore[arg-type]
                    exemplars=list(_exemplars(family, labels, sent.time_ns if is_delta else 0)),
                )
                for labels, (total, *buckets) in _less(family.name, rows, sent)
            ],
            temporality,
        )
    elif family.type == "counter":
        rows = {_labels(each.labels): (float(each.value),) for each in family.samples}
        data = Sum(
            [
                NumberDataPoint(dict(labels), sent.time_ns, now_ns, value)
                for labels, (value,) in _less(family.name, rows, sent)
            ],
            temporality,
            is_monotonic=True,
        )
    else:
        # A gauge has no start: the exporter leaves it out.
        data = Gauge(
            [
                NumberDataPoint(dict(each.labels), 0, now_ns, float(each.value))
                for each in family.samples
            ]
        )
    return Metric(family.name, family.documentation, _unit(family.name), data)


def _unit(name: str) -> str:
    return next((unit for end, unit in _UNITS.items() if name.endswith(end)), "")


def _labels(labels: Mapping[str, str]) -> Labels:
    return tuple(sorted((name, value) for name, value in labels.items() if name != "le"))


def _histogram_rows(family: Family) -> tuple[list[float], dict[Labels, tuple[float, ...]]]:
    """Return a histogram's bounds, and by labels its sum and each bucket's own count."""
    cumulative: dict[Labels, dict[float, float]] = {}
    sums: dict[Labels, float] = {}
    for sample in family.samples:
        labels = _labels(sample.labels)
        if sample.name.endswith("_bucket"):
            cumulative.setdefault(labels, {})[float(sample.labels["le"])] = sample.value
        elif sample.name.endswith("_sum"):
            sums[labels] = sample.value
    rows: dict[Labels, tuple[float, ...]] = {}
    bounds: list[float] = []
    for labels, buckets in cumulative.items():
        bounds = sorted(bound for bound in buckets if bound != float("inf"))
        below = [0.0, *(buckets[bound] for bound in sorted(buckets))]
        rows[labels] = (sums[labels], *(b - a for a, b in pairwise(below)))
    return bounds, rows


def _counts_of(figures: Iterable[Family]) -> dict[tuple[str, Labels], tuple[float, ...]]:
    """Return every count by family and labels."""
    made: dict[tuple[str, Labels], tuple[float, ...]] = {}
    for family in figures:
        if family.type == "histogram":
            rows = _histogram_rows(family)[1]
            made |= {(family.name, labels): row for labels, row in rows.items()}
        elif family.type == "counter":
            made |= {
                (family.name, _labels(each.labels)): (float(each.value),) for each in family.samples
            }
    return made


def _less(
    name: str, rows: Mapping[Labels, tuple[float, ...]], sent: _Sent
) -> Iterator[tuple[Labels, tuple[float, ...]]]:
    """Yield rows without what the collector already has: nothing, if counts are cumulative."""
    for labels, row in rows.items():
        before = sent.counts.get((name, labels))
        if before is None:
            yield labels, row
        else:
            yield labels, tuple(now - then for now, then in zip(row, before, strict=True))


def _exemplars(family: Family, labels: Labels, after_ns: int) -> Iterator[Any]:
    """Yield the traced calls of a histogram's buckets that ended after a time."""
    from opentelemetry.sdk.metrics import Exemplar  # noqa: PLC0415 - an extra

    for sample in family.samples:
        example = sample.exemplar
        if example is None or _labels(sample.labels) != labels:
            continue
        time_ns = int(float(example.timestamp or 0) * 1e9)
        if time_ns > after_ns:
            yield Exemplar(
                {},
                example.value,
                time_ns,
                span_id=int(example.labels["span_id"], 16),
                trace_id=int(example.labels["trace_id"], 16),
            )


def open_metrics_export(version: str) -> MetricsExport:
    """Return what sends figures, by the OTEL_… variables. Raises ExporterUnavailable."""
    require_opentelemetry("metrics", "otlp")
    interval_ms = milliseconds_from(
        "OTEL_METRIC_EXPORT_INTERVAL", INTERVAL_MS_DEFAULT, least_ms=INTERVAL_MS_MIN
    )
    preferred = os.environ.get(_TEMPORALITY, "").strip().lower() or "cumulative"
    if preferred not in ("cumulative", "delta", "lowmemory"):
        raise ExporterUnavailable(
            f'{_TEMPORALITY} is "{preferred}"; give cumulative, delta or lowmemory'
        )
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import (  # noqa: PLC0415
        OTLPMetricExporter,
    )

    # lowmemory means: cumulative where the counts are kept anyway, as all of ours are.
    return MetricsExport(
        OTLPMetricExporter(),
        version=version,
        interval_s=interval_ms / 1000,
        is_delta=preferred == "delta",
    )
