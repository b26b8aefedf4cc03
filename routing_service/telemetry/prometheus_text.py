"""The metrics page of a process, in Prometheus's text format 0.0.4.

The counters of calls come from the table in telemetry/metrics.py; all other series are named here.
Its rule: label values are of closed lists, never ids or text of callers.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from routing_service.storage.write_figures import (
    GROUP_WRITES_BOUNDS,
    WRITE_SECONDS_BOUNDS,
    WriteFigures,
)
from routing_service.telemetry.metrics import COUNTERS, LATENCY_BOUNDS_S, MetricsSnapshot

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_PREFIX: Final = "agent_routing_"
_STARTED_S: Final = time.time()


class TopicFigures(Protocol):
    """Figures of topic detection. bound, ask_share: None where no message was judged by them."""

    @property
    def bound(self) -> float | None:
        """The sureness below which a message is unsure."""
        ...

    @property
    def ask_share(self) -> float | None:
        """The share of messages that may be unsure."""
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
    writes: WriteFigures | None
    topics: TopicFigures | None = None
    sign_in_keys_age_s: float | None = None
    inbox: InboxCounts | None = None


@dataclass(frozen=True, slots=True)
class InboxCounts:
    """What the workers of this process did. depth and oldest_s are of the inboxes they watch."""

    workers: int
    offers: int
    redeliveries: int
    leases_lost: int
    abandoned: int
    depth: int
    oldest_s: float


Samples = Iterable[tuple[Mapping[str, str], float]]


def metrics_page(counted: MetricsSnapshot, server: ServerFigures, version: str) -> str:
    """Return the page. version: the service's."""
    return "".join(
        (
            *_of_calls(counted),
            *_of_server(server, version),
            *_of_topics(server.topics),
            *_of_inbox(server.inbox),
            *_of_store(server.writes),
            *_of_process(),
        )
    )


def _of_calls(counted: MetricsSnapshot) -> Iterator[str]:
    for counter in COUNTERS:
        series = counted.counters[counter.name].items()
        yield _family(
            counter.name,
            "counter",
            counter.meaning,
            ((dict(zip(counter.labels, values, strict=True)), n) for values, n in series),
        )
    yield _head("call_duration_seconds", "histogram", "How long calls took, by method.")
    for method, latency in counted.latency.items():
        yield _histogram(
            "call_duration_seconds",
            {"method": method},
            LATENCY_BOUNDS_S,
            latency.bucket_counts,
            latency.sum_s,
        )


def _of_inbox(inbox: InboxCounts | None) -> Iterator[str]:
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
        yield _family(name, "counter", meaning, [({}, count)])


def _of_server(server: ServerFigures, version: str) -> Iterator[str]:
    yield _family(
        "stuck_users_total",
        "counter",
        "Times that a user left an agent by a command within two turns. Each is counted by one"
        " process.",
        [({}, server.stuck)],
    )
    yield _gauge(
        "statistics_damaged",
        "Damaged settings of the statistics that this process has met; not 0: count them again.",
        server.stats_damaged,
    )
    yield _family(
        "build_info", "gauge", "Always 1; the release is a label.", [({"version": version}, 1)]
    )
    yield _gauge("ready", "Whether the server is ready for calls: 1 or 0.", server.is_ready)
    yield _gauge("watches", "Open watches of sessions and of the log.", server.watches)
    yield _family(
        "registry_info",
        "gauge",
        "Always 1; the version of the registry in force is a label.",
        [({"version": server.registry_version}, 1)],
    )
    yield _gauge("registry_agents", "Agents of the registry in force.", server.agents)
    yield _family(
        "registry_reloads_total",
        "counter",
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
    yield _family(
        "stickiness_auto_off_total",
        "counter",
        "Times that this process switched stickiness off for an agent whose stuck share jumped.",
        [({}, server.agents_switched_off)],
    )
    if server.sign_in_keys_age_s is not None:
        yield _gauge(
            "sign_in_keys_age_seconds",
            "Time since the provider's sign-in keys were last fetched; +Inf before the first time.",
            server.sign_in_keys_age_s,
        )
    yield _family(
        "expired_sessions_total",
        "counter",
        "Sessions in which an expired time-out was applied.",
        [({}, server.sessions_expired)],
    )
    yield _family(
        "expiry_failures_total",
        "counter",
        "Sweeps for expired time-outs that failed; the next sweep tries again.",
        [({}, server.expiry_failures)],
    )
    yield _family(
        "log_lines_lost_total",
        "counter",
        "Log lines that could not be written.",
        [({}, server.log_lines_lost)],
    )


def _of_topics(topics: TopicFigures | None) -> Iterator[str]:
    if topics is None:
        return
    yield _family(
        "topic_detector_failures_total",
        "counter",
        "Messages for which the topic detector gave no verdict, by cause; a fallback may have.",
        [({"cause": cause}, count) for cause, count in topics.failures.items()],
    )
    if topics.is_ready is not None:
        yield _gauge(
            "topics_ready",
            "1 if messages are judged by all that the topic model can do; 0: not yet.",
            int(topics.is_ready),
        )
    if topics.bound is None or topics.ask_share is None:
        return
    yield _gauge(
        "topic_ask_bound",
        "The bound in force: a message of which the detector is less sure counts as unsure.",
        topics.bound,
    )
    yield _gauge(
        "topic_ask_share",
        "The registry's ask_share, which the bound follows.",
        topics.ask_share,
    )


def _of_store(writes: WriteFigures | None) -> Iterator[str]:
    if writes is None:
        return
    yield _head(
        "store_write_seconds", "histogram", "How long the store took for a group of writes."
    )
    yield _histogram(
        "store_write_seconds", {}, WRITE_SECONDS_BOUNDS, writes.seconds_buckets, writes.seconds_sum
    )
    yield _head("store_group_writes", "histogram", "How many writes a group had.")
    yield _histogram(
        "store_group_writes", {}, GROUP_WRITES_BOUNDS, writes.group_writes_buckets, writes.writes
    )


def _of_process() -> Iterator[str]:
    """Yield the figures that Prometheus's own clients export, under the names they give them."""
    times = os.times()
    yield _family(
        "process_cpu_seconds_total",
        "counter",
        "CPU time of this process, in user and system mode.",
        [({}, times.user + times.system)],
        prefix="",
    )
    yield _family(
        "process_start_time_seconds",
        "gauge",
        "When this process started, in seconds since 1970.",
        [({}, _STARTED_S)],
        prefix="",
    )
    if (resident := _resident_bytes()) is not None:
        yield _family(
            "process_resident_memory_bytes",
            "gauge",
            "Memory of this process.",
            [({}, resident)],
            prefix="",
        )


def _resident_bytes() -> int | None:
    """Return the resident memory, or None on systems without Linux's /proc."""
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def _gauge(name: str, text: str, value: float) -> str:
    return _family(name, "gauge", text, [({}, value)])


def _family(name: str, kind: str, text: str, samples: Samples, *, prefix: str = _PREFIX) -> str:
    lines = [_head(name, kind, text, prefix=prefix)]
    lines += (_line(f"{prefix}{name}", labels, value) for labels, value in samples)
    return "".join(lines)


def _histogram(
    name: str,
    labels: Mapping[str, str],
    bounds: Sequence[float],
    buckets: Sequence[int],
    total: float,
) -> str:
    """Return the lines of one histogram. buckets: not cumulative, the last above all bounds."""
    lines = []
    below = 0
    for bound, count in zip((*map(_number, bounds), "+Inf"), buckets, strict=True):
        below += count
        lines.append(_line(f"{_PREFIX}{name}_bucket", {**labels, "le": bound}, below))
    lines.append(_line(f"{_PREFIX}{name}_sum", labels, total))
    lines.append(_line(f"{_PREFIX}{name}_count", labels, below))
    return "".join(lines)


def _head(name: str, kind: str, text: str, *, prefix: str = _PREFIX) -> str:
    return f"# HELP {prefix}{name} {text}\n# TYPE {prefix}{name} {kind}\n"


def _line(name: str, labels: Mapping[str, str], value: float) -> str:
    given = ",".join(f'{key}="{_escaped(word)}"' for key, word in labels.items())
    return f"{name}{{{given}}} {_number(value)}\n" if given else f"{name} {_number(value)}\n"


def _escaped(word: str) -> str:
    """Return a label's value, escaped: a registry's version may be any text."""
    return word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if value == math.inf:
        return "+Inf"
    return str(int(value)) if value == int(value) else repr(float(value))
