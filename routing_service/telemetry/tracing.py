"""OpenTelemetry spans of calls: the callers' trace context, the spans and their export.

Its rule: a call pays for a few ids and a place in a queue. Spans are made later from the records of
finished calls, and are dropped rather than waited for. The SDK is an extra (otel), imported only if
a setting asks for it.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
import structlog

from routing_service.telemetry.call_record import CallObserver, CallRecord
from routing_service.telemetry.log_privacy import IdHashes
from routing_service.telemetry.otlp import (
    LAST_EXPORT_S,
    ExporterUnavailable,
    in_daemon_thread,
    is_refused,
    process_resource,
    require_opentelemetry,
)
from routing_service.telemetry.trace_context import TRACEPARENT, read_traceparent

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

QUEUE_SPANS_MAX: Final = 10_000
"""Spans waiting to be sent, about 10 MB. More are dropped and counted: an unreachable collector
must cost neither calls nor memory."""

EXPORT_SPANS_MAX: Final = 512
"""Spans in one request to the collector: the default of OpenTelemetry's own batches."""

EXPORT_INTERVAL_S: Final = 1.0

_SAMPLED: Final = 1

_FAILED: Final = frozenset({"INTERNAL", "UNKNOWN", "DATA_LOSS", "UNAVAILABLE", "DEADLINE_EXCEEDED"})
"""Codes that mean a failure of the server; the others are the caller's. Source: OpenTelemetry's
conventions for gRPC spans."""

_ADMIN: Final = frozenset(
    {
        "ListSessions",
        "GetSessionAt",
        "ListInbox",
        "ListEvents",
        "WatchEvents",
        "GetRoutingStats",
        "GetServerStatus",
        "VerifyAudit",
        "EraseUser",
        "ExportUser",
        "ReloadAgents",
        "GetRegistry",
        "StartReplay",
        "WatchReplay",
        "CancelReplay",
        "SetStickiness",
        "GetStickiness",
        "PurgeSessions",
    }
)

_ATTRIBUTES: Final = (
    "tenant",
    "session_id",
    "task_id",
    "request_id",
    "agent_id",
    "previous_agent_id",
    "reason",
    "command",
    "initiator",
    "outcome",
    "outcome_status",
    "topic_outcome",
    "revision",
    "replayed",
    "supervisor_bypassed",
    "error_reason",
)
"""Fields of a record that become attributes if they are set. No text of users and no user ids: the
readers of a collector are other people."""

_log = structlog.get_logger(__name__)


class Exporter(Protocol):
    """The exporter of spans. Called in a worker thread."""

    def export(self, spans: Sequence[ReadableSpan]) -> object:
        """Send spans."""
        ...

    def shutdown(self) -> None:
        """Close connections and files."""
        ...


class Tracing:
    """Gives calls their spans and sends the sampled ones."""

    def __init__(
        self,
        exporter: Exporter,
        *,
        new_percent: int,
        version: str,
        hashes: IdHashes | None = None,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Prepare. new_percent: the share of calls without a trace that start one.

        A caller's trace is continued with the caller's sampling. hashes: of ids, as in the log.
        """
        self._exporter = exporter
        self._new_share = new_percent / 100
        self._hashes = hashes
        self._now_ns = now_ns
        self._make = _SpanMaker(version)
        self._waiting: list[tuple[CallRecord, int]] = []
        self._random = random.Random()  # noqa: S311 - sampling needs no secrecy
        self.dropped = 0

    def begin(self, record: CallRecord, metadata: Iterable[tuple[str, str | bytes]]) -> None:
        """See CallTracer.begin."""
        for key, value in metadata:
            if key == TRACEPARENT and isinstance(value, str):
                given = read_traceparent(value)
                if given is None:
                    break
                record.trace_id = given[1]
                if int(given[3], 16) & _SAMPLED:
                    record.trace_parent_id = given[2]
                    record.traceparent = f"00-{given[1]}-{os.urandom(8).hex()}-01"
                else:
                    record.traceparent = value  # Passed on; our span is not sampled.
                return
        if self._random.random() < self._new_share:
            record.trace_id = os.urandom(16).hex()
            record.traceparent = f"00-{record.trace_id}-{os.urandom(8).hex()}-01"

    def observing(self, observer: CallObserver) -> CallObserver:
        """Return an observer that sends spans and passes each call to the other observer."""
        return _Observed(observer, self)

    def take(self, record: CallRecord) -> None:
        """Queue a finished call."""
        if not record.traceparent.endswith("1"):
            return
        if len(self._waiting) >= QUEUE_SPANS_MAX:
            if not self.dropped:
                _log.warning("spans_dropped", waiting=len(self._waiting))
            self.dropped += 1
            return
        self._waiting.append((record, self._now_ns()))

    async def run(self) -> None:
        """Send spans until cancelled, then send the last ones."""
        try:
            while True:
                await asyncio.sleep(EXPORT_INTERVAL_S)
                await in_daemon_thread(self._send, "span export")
        finally:
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_EXPORT_S):
                    await in_daemon_thread(self._end, "span export")

    def _end(self) -> None:
        self._send()
        self._exporter.shutdown()

    def _send(self) -> None:
        waiting, self._waiting = self._waiting, []
        for place in range(0, len(waiting), EXPORT_SPANS_MAX):
            part = waiting[place : place + EXPORT_SPANS_MAX]
            error = self._failure(part)
            if error:
                # The other spans would fail too, each after its time-out.
                lost = len(waiting) - place
                self.dropped += lost
                _log.warning("spans_not_sent", spans=lost, error=error)
                return

    def _failure(self, part: Sequence[tuple[CallRecord, int]]) -> str:
        """Send spans; return what failed, "" = nothing."""
        try:
            sent = self._exporter.export(
                [self._make(self._hidden(record), at) for record, at in part]
            )
        except Exception as error:  # noqa: BLE001 - telemetry must end nothing
            return type(error).__name__
        return "collector" if is_refused(sent) else ""

    def _hidden(self, record: CallRecord) -> CallRecord:
        if self._hashes is None:
            return record
        return msgspec.structs.replace(record, session_id=self._hashes.hide(record.session_id))


class _Observed:
    """A CallObserver that also calls another."""

    def __init__(self, observer: CallObserver, tracing: Tracing) -> None:
        self._observer = observer
        self._tracing = tracing

    def finished(self, record: CallRecord) -> None:
        """See CallObserver.finished."""
        self._observer.finished(record)
        self._tracing.take(record)

    def failed(self, record: CallRecord, error: BaseException) -> str:
        """See CallObserver.failed."""
        return self._observer.failed(record, error)


class _SpanMaker:
    """Makes spans from records."""

    def __init__(self, version: str) -> None:
        from opentelemetry import trace  # noqa: PLC0415 - an extra
        from opentelemetry.sdk.trace import ReadableSpan  # noqa: PLC0415
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415

        self._trace = trace
        self._span = ReadableSpan
        self._resource = process_resource(version)
        self._scope = InstrumentationScope("routing_service", version)

    def __call__(self, record: CallRecord, end_ns: int) -> ReadableSpan:
        trace = self._trace
        _, trace_id, span_id, _ = record.traceparent.split("-")
        parent = None
        if record.trace_parent_id:
            parent = trace.SpanContext(
                int(trace_id, 16),
                int(record.trace_parent_id, 16),
                is_remote=True,
                trace_flags=trace.TraceFlags(_SAMPLED),
            )
        service = "AdminService" if record.method in _ADMIN else "RoutingService"
        attributes: dict[str, str | int | bool | Sequence[str]] = {
            "rpc.system": "grpc",
            "rpc.service": f"agent_routing.v1.{service}",
            "rpc.method": record.method,
            "rpc.grpc.status_code": record.code,
        }
        for name in _ATTRIBUTES:
            if value := getattr(record, name):
                attributes[f"agent_routing.{name}"] = value
        if record.refused_rules:
            attributes["agent_routing.refused_rules"] = record.refused_rules
        failed = record.code in _FAILED
        status = trace.StatusCode.ERROR if failed else trace.StatusCode.UNSET
        return self._span(
            name=f"agent_routing.v1.{service}/{record.method}",
            context=trace.SpanContext(
                int(trace_id, 16),
                int(span_id, 16),
                is_remote=False,
                trace_flags=trace.TraceFlags(_SAMPLED),
            ),
            parent=parent,
            resource=self._resource,
            attributes=attributes,
            kind=trace.SpanKind.SERVER,
            instrumentation_scope=self._scope,
            status=trace.Status(status, record.error_reason if failed else None),
            start_time=end_ns - int(record.duration_ms * 1e6),
            end_time=end_ns,
        )


class FileExporter:
    """Appends spans to a file, one JSON object a line, for tests and trials.

    Several processes may append to the same file: each group of spans is one write in append mode,
    which a local file system does not mix with another's.
    """

    def __init__(self, path: str) -> None:
        """Open the file. Raises ExporterUnavailable."""
        try:
            self._file = Path(path).open("ab", buffering=0)  # noqa: SIM115 - kept open
        except OSError as error:
            raise ExporterUnavailable(
                f'traces "file:{path}": {error.strerror}; check path and permissions'
            ) from error

    def export(self, spans: Sequence[ReadableSpan]) -> None:
        """Write spans."""
        lines = "".join(f"{span.to_json(indent=None)}\n" for span in spans)
        self._file.write(lines.encode())

    def shutdown(self) -> None:
        """Close the file."""
        self._file.close()


def open_exporter(where: str) -> Exporter:
    """Return the exporter. where: "otlp", or "file:PATH". Raises ExporterUnavailable."""
    require_opentelemetry("traces", where)
    if where.startswith("file:"):
        return FileExporter(where.removeprefix("file:"))
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import (  # noqa: PLC0415
        OTLPSpanExporter,
    )

    return OTLPSpanExporter()
