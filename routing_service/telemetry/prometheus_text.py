"""All figures of a process as Prometheus reads them, in its text format 0.0.4.

Owns the names, the help texts and the format. It must not know where figures come from, or who
reads the page. Its rule: every series of docs/telemetry.md is here and nowhere else, and labels are
words of closed sets: no ids, nothing that a caller said.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from routing_service.storage.write_figures import (
    GROUP_WRITES_BOUNDS,
    WRITE_SECONDS_BOUNDS,
    WriteFigures,
)
from routing_service.telemetry.metrics import LATENCY_BOUNDS_S, MetricsSnapshot

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_PREFIX: Final = "agent_routing_"
_STARTED_S: Final = time.time()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFigures:
    """What is counted or stands elsewhere than in Metrics. Counts are those of this process.

    writes: None where the engine keeps no count. stuck: users who left an agent by a command soon
    after they got it.
    """

    is_ready: bool
    watches: int
    registry_version: str
    agents: int
    registry_reloads: int
    registry_reload_failures: int
    stickiness_enabled: bool
    sessions_expired: int
    expiry_failures: int
    stuck: int
    log_lines_lost: int
    writes: WriteFigures | None


Samples = Iterable[tuple[Mapping[str, str], float]]


def metrics_page(counted: MetricsSnapshot, server: ServerFigures, version: str) -> str:
    """Return the page. version: of the service."""
    return "".join(
        (
            *_of_calls(counted),
            *_of_routing(counted, server),
            *_of_server(server, version),
            *_of_store(server.writes),
            *_of_process(),
        )
    )


def _of_calls(counted: MetricsSnapshot) -> Iterator[str]:
    yield _family(
        "calls_total",
        "counter",
        "Calls that have ended, by method and gRPC status code.",
        (({"method": method, "code": code}, n) for (method, code), n in counted.calls.items()),
    )
    yield _family(
        "errors_total",
        "counter",
        "Calls that were refused or failed, by method, status code and the contract's reason.",
        (
            ({"method": method, "code": code, "reason": reason}, n)
            for (method, code, reason), n in counted.errors.items()
        ),
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
    yield _family(
        "replays_total",
        "counter",
        "Repeats of a request that got the first answer, by method.",
        (({"method": method}, n) for method, n in counted.replays.items()),
    )


def _of_routing(counted: MetricsSnapshot, server: ServerFigures) -> Iterator[str]:
    yield _family(
        "decisions_total",
        "counter",
        "Messages sent to an agent, by method and routing reason.",
        (({"method": m, "reason": reason}, n) for (m, reason), n in counted.decisions.items()),
    )
    yield _family(
        "supervisor_calls_saved_total",
        "counter",
        "Messages of users that reached an agent without the supervisor.",
        [({}, counted.supervisor_bypassed)],
    )
    yield _family(
        "commands_total",
        "counter",
        "Commands of users, by command.",
        (({"command": command}, n) for command, n in counted.commands.items()),
    )
    yield _family(
        "handoff_refusals_total",
        "counter",
        "Handoffs that a rule refused, by rule; one that several refused counts for each.",
        (({"rule": rule}, n) for rule, n in counted.refused_rules.items()),
    )
    yield _family(
        "outcomes_total",
        "counter",
        "Completed turns, by outcome and what it did.",
        (({"outcome": o, "status": status}, n) for (o, status), n in counted.outcomes.items()),
    )
    yield _family(
        "topic_judgements_total",
        "counter",
        "Messages that topic detection was asked about, by what it did with them.",
        (({"outcome": outcome}, n) for outcome, n in counted.topics.items()),
    )
    yield _family(
        "stuck_users_total",
        "counter",
        "Times that a user left an agent by a command within two turns, as this process counted"
        " them; each is counted by one process.",
        [({}, server.stuck)],
    )


def _of_server(server: ServerFigures, version: str) -> Iterator[str]:
    yield _family(
        "build_info", "gauge", "Always 1; the release is a label.", [({"version": version}, 1)]
    )
    yield _gauge("ready", "Whether calls should come here: 1 or 0.", server.is_ready)
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
        "Whether agents stick, as the registry file has it: 1 or 0.",
        server.stickiness_enabled,
    )
    yield _family(
        "expired_sessions_total",
        "counter",
        "Sessions in which a time-out was put into effect when it fell due.",
        [({}, server.sessions_expired)],
    )
    yield _family(
        "expiry_failures_total",
        "counter",
        "Rounds of time-outs that failed; what they left is tried again.",
        [({}, server.expiry_failures)],
    )
    yield _family(
        "log_lines_lost_total",
        "counter",
        "Log lines that could not be written.",
        [({}, server.log_lines_lost)],
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
    """Yield what Prometheus's own clients call by these names, without our prefix."""
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
    """Return how much memory the process has; None where the system does not say it like Linux."""
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
    """Return the lines of one histogram. buckets: each for itself, the last above all bounds."""
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
    """Return a label's value: an operator's registry version may be any word."""
    return word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
