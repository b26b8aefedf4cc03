"""The metrics page of a process, as Prometheus or OpenMetrics text.

The counters of calls come from the table in telemetry/metrics.py; all other series are named here.
prometheus_client writes them down. Its rule: label values are of closed lists, never ids or text of
callers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    Exemplar,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from routing_service.sessions.inbox import InboxFigures
from routing_service.storage.write_figures import (
    GROUP_WRITES_BOUNDS,
    WRITE_SECONDS_BOUNDS,
    WriteFigures,
)
from routing_service.telemetry.metrics import (
    COUNTERS,
    LATENCY_BOUNDS_S,
    CallExample,
    MetricsSnapshot,
)

_PREFIX: Final = "agent_routing_"
_PROCESS: Final = ProcessCollector(registry=CollectorRegistry())
"""The figures of the process that every client of Prometheus exports. Only Linux has them."""


class TopicFigures(Protocol):
    """Figures of topic detection. bound and wishes: None where no message was judged by them."""

    @property
    def bound(self) -> float | None:
        """The sureness below which a message is unsure."""
        ...

    @property
    def ask_share(self) -> float | None:
        """The share of messages that may be unsure."""
        ...

    @property
    def right_wanted(self) -> float | None:
        """The share of messages that is to reach the right agent, if that is what is wanted."""
        ...

    @property
    def failures(self) -> Mapping[str, int]:
        """Messages without a verdict, by cause."""
        ...

    @property
    def is_ready(self) -> bool | None:
        """Whether messages are judged by all that the model can do; None: topics are off."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFigures:
    """The figures that Metrics does not count. Counts are those of this process.

    writes: None if the engine keeps no count. stuck: users who left an agent by a command soon
    after they got it. agents_switched_off: by the automatic off. sign_in_keys_age_s: seconds since
    an identity provider's keys were fetched; inf: never; None without a provider. stats_damaged:
    settings of the statistics.
    """

    is_ready: bool
    watches: int
    registry_version: str
    agents: int
    registry_reloads: int
    registry_reload_failures: int
    stickiness_enabled: bool
    stickiness_tenants_off: int
    sessions_expired: int
    expiry_failures: int
    stuck: int
    stats_damaged: int
    agents_switched_off: int
    log_lines_lost: int
    calls_refused_unread: int
    writes: WriteFigures | None
    topics: TopicFigures | None = None
    sign_in_keys_age_s: float | None = None
    inbox: InboxFigures | None = None


Samples = Iterable[tuple[Mapping[str, str], float]]


class Figures(Collector):
    """A collector of figures that were read at one moment."""

    def __init__(self, counted: MetricsSnapshot, server: ServerFigures, version: str) -> None:
        """Take the figures. version: the service's."""
        self._counted = counted
        self._server = server
        self._version = version

    def collect(self) -> Iterable[Metric]:
        """Yield every family of series."""
        yield from _of_calls(self._counted)
        yield from _of_server(self._server, self._version)
        yield from _of_topics(self._server.topics)
        yield from _of_inbox(self._server.inbox)
        yield from _of_store(self._server.writes)
        yield from _PROCESS.collect()


def metrics_page(figures: Figures, accept: str = "") -> tuple[str, str]:
    """Return the page and its content type.

    accept: the reader's Accept header; OpenMetrics, which has exemplars, is for readers that name
    it.
    """
    encode, content_type = choose_encoder(accept)
    return encode(figures).decode(), content_type


def _of_calls(counted: MetricsSnapshot) -> Iterator[Metric]:
    for counter in COUNTERS:
        series = counted.counters[counter.name].items()
        yield _counter(
            counter.name,
            counter.meaning,
            ((dict(zip(counter.labels, values, strict=True)), n) for values, n in series),
        )
    made = HistogramMetricFamily(
        f"{_PREFIX}call_duration_seconds", "How long calls took, by method.", labels=["method"]
    )
    for method, latency in counted.latency.items():
        buckets = _buckets(LATENCY_BOUNDS_S, latency.bucket_counts, latency.examples)
        made.add_metric([method], buckets, latency.sum_s)
    yield made


def _of_inbox(inbox: InboxFigures | None) -> Iterator[Metric]:
    if inbox is None:
        return
    yield _gauge("inbox_workers", "Workers that are connected to this process.", inbox.workers)
    yield _gauge(
        "inbox_depth",
        "Turns in the inboxes that this process watches, leased ones included; of a long inbox"
        " those that were looked at.",
        inbox.depth,
    )
    yield _gauge(
        "inbox_oldest_seconds",
        "Age of the oldest turn without a worker in the inboxes that this process watches.",
        inbox.oldest_s,
    )
    for name, meaning, count in (
        ("inbox_offers_total", "Turns that were sent to a worker.", inbox.offers),
        (
            "inbox_redeliveries_total",
            "Turns that were sent again, because a lease had lapsed.",
            inbox.redeliveries,
        ),
        (
            "inbox_leases_lost_total",
            "Leases that lapsed while their worker was connected.",
            inbox.leases_lost,
        ),
        (
            "inbox_abandoned_total",
            "Turns that were abandoned after as many leases as are allowed.",
            inbox.abandoned,
        ),
    ):
        yield _counter(name, meaning, [({}, count)])


def _of_server(server: ServerFigures, version: str) -> Iterator[Metric]:
    yield _counter(
        "stuck_users_total",
        "Times that a user left an agent by a command within two turns. Each is counted by one"
        " process.",
        [({}, server.stuck)],
    )
    yield _gauge(
        "statistics_damaged",
        "Damaged settings of the statistics that this process has met; not 0: count them again.",
        server.stats_damaged,
    )
    yield _gauge("build_info", "Always 1; the release is a label.", 1, {"version": version})
    yield _gauge("ready", "Whether the server is ready for calls: 1 or 0.", server.is_ready)
    yield _gauge("watches", "Open watches of sessions and of the log.", server.watches)
    yield _gauge(
        "registry_info",
        "Always 1; the version of the registry in force is a label.",
        1,
        {"version": server.registry_version},
    )
    yield _gauge("registry_agents", "Agents of the registry in force.", server.agents)
    yield _counter(
        "registry_reloads_total",
        "Reloads of the registry file, by result: put in force, or refused.",
        [
            ({"result": "ok"}, server.registry_reloads),
            ({"result": "failed"}, server.registry_reload_failures),
        ],
    )
    yield _gauge(
        "stickiness_enabled",
        "Whether stickiness is on for all tenants that this process knows, as switched: 1 or 0.",
        server.stickiness_enabled,
    )
    yield _gauge(
        "stickiness_tenants_off",
        "Tenants known to this process for which stickiness is off, in whole or in part.",
        server.stickiness_tenants_off,
    )
    yield _counter(
        "stickiness_auto_off_total",
        "Times that this process switched stickiness off for an agent whose stuck share jumped.",
        [({}, server.agents_switched_off)],
    )
    if server.sign_in_keys_age_s is not None:
        yield _gauge(
            "sign_in_keys_age_seconds",
            "Time since the provider's sign-in keys were last fetched; +Inf before the first time.",
            server.sign_in_keys_age_s,
        )
    yield _counter(
        "expired_sessions_total",
        "Sessions in which an expired time-out was applied.",
        [({}, server.sessions_expired)],
    )
    yield _counter(
        "expiry_failures_total",
        "Sweeps for expired time-outs that failed; the next sweep tries again.",
        [({}, server.expiry_failures)],
    )
    yield _counter(
        "log_lines_lost_total",
        "Log lines that could not be written.",
        [({}, server.log_lines_lost)],
    )
    yield _counter(
        "calls_refused_unread_total",
        "Calls refused for overload before they were read, or cancelled while they waited.",
        [({}, server.calls_refused_unread)],
    )


def _of_topics(topics: TopicFigures | None) -> Iterator[Metric]:
    if topics is None:
        return
    yield _counter(
        "topic_detector_failures_total",
        "Messages for which the topic detector gave no verdict, by cause; a fallback may have.",
        [({"cause": cause}, count) for cause, count in topics.failures.items()],
    )
    if topics.is_ready is not None:
        yield _gauge(
            "topics_ready",
            "1 if messages are judged by all that the topic model can do; 0: not yet.",
            int(topics.is_ready),
        )
    if topics.bound is None:
        return
    yield _gauge(
        "topic_ask_bound",
        "The bound in force: a message of which the detector is less sure counts as unsure.",
        topics.bound,
    )
    if topics.ask_share is not None:
        yield _gauge(
            "topic_ask_share",
            "The registry's ask_share, which the bound follows.",
            topics.ask_share,
        )
    if topics.right_wanted is not None:
        yield _gauge(
            "topic_right_wanted",
            "The registry's right_wanted, which the bound follows.",
            topics.right_wanted,
        )


def _of_store(writes: WriteFigures | None) -> Iterator[Metric]:
    if writes is None:
        return
    for name, text, bounds, counts, total in (
        (
            "store_write_seconds",
            "How long the store took for a group of writes.",
            WRITE_SECONDS_BOUNDS,
            writes.seconds_buckets,
            writes.seconds_sum,
        ),
        (
            "store_group_writes",
            "How many writes a group had.",
            GROUP_WRITES_BOUNDS,
            writes.group_writes_buckets,
            writes.writes,
        ),
    ):
        made = HistogramMetricFamily(f"{_PREFIX}{name}", text)
        made.add_metric([], _buckets(bounds, counts), total)
        yield made


def _gauge(name: str, text: str, value: float, labels: Mapping[str, str] | None = None) -> Metric:
    labels = labels or {}
    made = GaugeMetricFamily(f"{_PREFIX}{name}", text, labels=list(labels))
    made.add_metric(list(labels.values()), value)
    return made


def _counter(name: str, text: str, samples: Samples) -> Metric:
    """Return a counter. name: with its _total. Each sample has the same labels."""
    given = [(dict(labels), value) for labels, value in samples]
    made = CounterMetricFamily(f"{_PREFIX}{name}", text, labels=list(given[0][0]) if given else [])
    for labels, value in given:
        made.add_metric(list(labels.values()), value)
    return made


def _buckets(
    bounds: Sequence[float],
    counts: Sequence[int],
    examples: Sequence[CallExample | None] = (),
) -> list[tuple[str, float] | tuple[str, float, Exemplar]]:
    """Return cumulative buckets. counts: not cumulative, the last above all bounds."""
    names = [*map(floatToGoString, bounds), "+Inf"]
    made: list[tuple[str, float] | tuple[str, float, Exemplar]] = []
    for name, below, example in zip(
        names, accumulate(counts), examples or (None,) * len(names), strict=True
    ):
        if example is None:
            made.append((name, below))
        else:
            trace = {"trace_id": example.trace_id, "span_id": example.span_id}
            made.append((name, below, Exemplar(trace, example.duration_s, example.end_time_s)))
    return made
