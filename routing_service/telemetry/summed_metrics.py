"""The metrics pages of several server processes as one page.

Counters and histograms are summed. Those of a process that has ended stay in the sums, so that they
never go down; what it counted after the last page that was read of it is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client.core import CounterMetricFamily, Exemplar, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

_SUMMED_TYPES: Final = frozenset({"counter", "histogram"})

_LEAST: Final = frozenset(
    {
        "agent_routing_ready",
        "agent_routing_stickiness_enabled",
        "agent_routing_topics_ready",
        "process_start_time_seconds",
    }
)
"""Gauges of which the least value counts: all processes are ready, or the page says 0."""

_SUMMED: Final = frozenset(
    {
        "agent_routing_inbox_workers",
        "agent_routing_watches",
        "process_open_fds",
        "process_max_fds",
        "process_resident_memory_bytes",
        "process_virtual_memory_bytes",
    }
)
"""Gauges of which each process has a part. Of all others the greatest value counts: all processes
see the same registry, inboxes and settings."""

_Key = tuple[str, tuple[tuple[str, str], ...]]


class SummedPages(Collector):
    """Adds up pages of processes."""

    def __init__(self) -> None:
        """Have no process yet."""
        self._last: dict[int, list[Metric]] = {}
        self._ended: list[Metric] = []
        self.processes = 0
        self.restarts = 0

    def read(self, number: int, page: str) -> None:
        """Take a process's page, as OpenMetrics text. number: of the process."""
        self._last[number] = list(text_string_to_metric_families(page))  # type: ignore[no-untyped-call]

    def end(self, number: int) -> None:
        """Keep what a process that has ended counted, and forget the rest of it."""
        counted = [each for each in self._last.pop(number, []) if each.type in _SUMMED_TYPES]
        self._ended = list(_merged((self._ended, counted)))

    def collect(self) -> Iterable[Metric]:
        """Yield every family of series, of all processes together."""
        yield GaugeMetricFamily(
            "agent_routing_processes", "Server processes that serve.", self.processes
        )
        yield CounterMetricFamily(
            "agent_routing_process_restarts",
            "Server processes that ended without having been asked to, and were replaced.",
            self.restarts,
        )
        yield from _merged((self._ended, *self._last.values()))

    def page(self, accept: str) -> tuple[str, str]:
        """Return the page and its content type. accept: the reader's Accept header."""
        encode, content_type = choose_encoder(accept)
        return encode(self).decode(), content_type


def _merged(pages: Iterable[Iterable[Metric]]) -> Iterable[Metric]:
    """Yield each family once, with the samples of all pages."""
    families: dict[str, Metric] = {}
    samples: dict[str, dict[_Key, Sample]] = {}
    for page in pages:
        for family in page:
            if family.name not in families:
                families[family.name] = family
            merge = _rule(family)
            merged = samples.setdefault(family.name, {})
            for sample in family.samples:
                key = (sample.name, tuple(sorted(sample.labels.items())))
                before = merged.get(key)
                merged[key] = sample if before is None else _one(before, sample, merge)
    for name, family in families.items():
        made = Metric(family.name, family.documentation, family.type, family.unit)
        made.samples = list(samples[name].values())
        yield made


def _rule(family: Metric) -> Callable[[float, float], float]:
    """Return how the values of two processes become one."""
    if family.type in _SUMMED_TYPES or family.name in _SUMMED:
        return lambda first, second: first + second
    return min if family.name in _LEAST else max


def _one(first: Sample, second: Sample, merge: Callable[[float, float], float]) -> Sample:
    exemplar: Exemplar | None = first.exemplar or second.exemplar
    return first._replace(value=merge(first.value, second.value), exemplar=exemplar)
