"""Trace contexts in and out, and the spans of finished calls."""

import asyncio
import json
import sys

import pytest
from opentelemetry.sdk.trace.export import SpanExportResult

from routing_service.telemetry.call_record import CallRecord
from routing_service.telemetry.log_privacy import IdHashes
from routing_service.telemetry.tracing import (
    QUEUE_SPANS_MAX,
    ExporterUnavailable,
    FileExporter,
    Tracing,
    open_exporter,
)

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
SAMPLED = f"00-{TRACE}-{PARENT}-01"
NOT_SAMPLED = f"00-{TRACE}-{PARENT}-00"


class Kept:
    """An exporter that keeps spans, or fails."""

    def __init__(self, error=None):
        self.spans = []
        self.error = error
        self.is_shut_down = False

    def export(self, spans):
        if self.error:
            raise self.error
        self.spans += spans

    def shutdown(self):
        self.is_shut_down = True


class Refused:
    """An exporter whose collector fails: as OpenTelemetry's own, it raises nothing."""

    def export(self, spans):
        return SpanExportResult.FAILURE

    def shutdown(self):
        """See Exporter."""


class Quiet:
    """An observer that counts."""

    def __init__(self):
        self.finished_calls = 0

    def finished(self, record):
        self.finished_calls += 1

    def failed(self, record, error):
        return "id"


def tracing(exporter=None, *, new_percent=100, **more):
    """Return what traces calls."""
    return Tracing(exporter or Kept(), new_percent=new_percent, version="1.2.3", **more)


def begun(value=None, **options):
    """Return the record of a call that came with a traceparent."""
    record = CallRecord("Route")
    metadata = [("user-agent", "x"), ("x-bin", b"1")]
    tracing(**options).begin(record, metadata + ([("traceparent", value)] if value else []))
    return record


async def spans_of(*records, **options):
    """Let calls finish, stop, and return what was exported."""
    kept = Kept()
    traced = tracing(kept, **options)
    observer = traced.observing(Quiet())
    running = asyncio.create_task(traced.run())
    for record in records:
        observer.finished(record)
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running])
    assert kept.is_shut_down
    return kept.spans


def test_call_becomes_a_child_of_the_callers_span():
    """The same trace, a span id of its own."""
    record = begun(SAMPLED)
    version, trace_id, span_id, flags = record.traceparent.split("-")
    assert (version, trace_id, flags) == ("00", TRACE, "01")
    assert (record.trace_parent_id, len(span_id)) == (PARENT, 16)
    assert span_id != PARENT


def test_trace_that_nobody_samples_is_handed_on_as_it_came():
    """The next service may sample it; it has no span of ours."""
    record = begun(NOT_SAMPLED)
    assert (record.traceparent, record.trace_parent_id) == (NOT_SAMPLED, "")


@pytest.mark.parametrize(
    "broken",
    [
        "",
        "here",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}",
        f"00-{TRACE}-{PARENT}-01\n",
    ],
)
def test_context_that_is_none_begins_a_trace(broken):
    """The specification treats it as missing."""
    record = begun(broken)
    assert record.trace_parent_id == ""
    assert TRACE not in record.traceparent
    assert record.traceparent.endswith("-01")


def test_version_of_the_future_is_read_as_far_as_it_is_known():
    """What follows the flags is left alone."""
    record = begun(f"cc-{TRACE}-{PARENT}-01-what-the-future-brings")
    assert record.traceparent.startswith(f"00-{TRACE}-")


def test_share_of_new_traces_is_as_it_is_set():
    """None of them, or all; a caller's own decision is always followed."""
    assert begun(new_percent=0).traceparent == ""
    assert begun(new_percent=100).traceparent.endswith("-01")
    assert begun(SAMPLED, new_percent=0).trace_parent_id == PARENT


async def test_span_says_what_the_call_was_and_nothing_that_was_said():
    """Ids and values of closed sets; user ids are left out."""
    record = CallRecord(
        "Route",
        tenant="acme",
        session_id="chat-1",
        request_id="r",
        user_id="ana",
        actor="gateway",
        agent_id="vat",
        reason="sticky",
        traceparent=SAMPLED.replace(PARENT, "1" * 16),
        trace_parent_id=PARENT,
        duration_ms=12.5,
    )
    (span,) = await spans_of(record)
    assert span.name == "agent_routing.v1.RoutingService/Route"
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == PARENT
    assert span.end_time - span.start_time == 12_500_000
    assert dict(span.attributes) == {
        "rpc.system": "grpc",
        "rpc.service": "agent_routing.v1.RoutingService",
        "rpc.method": "Route",
        "rpc.grpc.status_code": "OK",
        "agent_routing.tenant": "acme",
        "agent_routing.session_id": "chat-1",
        "agent_routing.request_id": "r",
        "agent_routing.agent_id": "vat",
        "agent_routing.reason": "sticky",
    }
    assert span.resource.attributes["service.name"] == "agent-routing"
    assert span.status.is_unset


@pytest.mark.parametrize(
    ("code", "failed"), [("UNAVAILABLE", True), ("INTERNAL", True), ("NOT_FOUND", False)]
)
async def test_only_failures_of_the_server_are_errors(code, failed):
    """Operators do not look for callers' mistakes."""
    record = CallRecord("ListEvents", code=code, error_reason="X", traceparent=SAMPLED)
    (span,) = await spans_of(record)
    assert (span.status.status_code.name == "ERROR") is failed
    assert span.attributes["rpc.service"] == "agent_routing.v1.AdminService"


async def test_ids_are_hashed_as_in_the_log():
    """Otherwise the collector would show what the log hides."""
    hashes = IdHashes(b"k" * 32)
    (span,) = await spans_of(
        CallRecord("Route", session_id="chat-1", traceparent=SAMPLED), hashes=hashes
    )
    assert span.attributes["agent_routing.session_id"] == hashes.hide("chat-1") != "chat-1"


async def test_calls_that_are_not_sampled_have_no_span():
    """They are still counted."""
    assert await spans_of(CallRecord("Route", traceparent=NOT_SAMPLED), CallRecord("Status")) == []


async def test_collector_that_fails_costs_spans_and_nothing_else():
    """Later spans are sent again; excess ones are dropped and counted."""
    kept = Kept(ConnectionError("away"))
    traced = tracing(kept)
    quiet = Quiet()
    observer = traced.observing(quiet)
    running = asyncio.create_task(traced.run())
    for _ in range(QUEUE_SPANS_MAX + 5):
        observer.finished(CallRecord("Route", traceparent=SAMPLED))
    assert traced.dropped == 5
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running])
    assert traced.dropped == QUEUE_SPANS_MAX + 5
    assert quiet.finished_calls == QUEUE_SPANS_MAX + 5


async def test_spans_that_a_collector_refused_are_counted_as_lost():
    """OpenTelemetry's exporter says so by its result, which an earlier version ignored."""
    traced = tracing(Refused())
    running = asyncio.create_task(traced.run())
    traced.observing(Quiet()).finished(CallRecord("Route", traceparent=SAMPLED))
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running])
    assert traced.dropped == 1


async def test_spans_go_to_a_file_line_by_line(tmp_path):
    """For trials without a collector."""
    path = tmp_path / "spans.jsonl"
    exporter = open_exporter(f"file:{path}")
    assert isinstance(exporter, FileExporter)
    spans = await spans_of(*[CallRecord("Route", traceparent=SAMPLED)] * 2)
    exporter.export(spans)
    exporter.shutdown()
    read = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert [span["context"]["trace_id"] for span in read] == [f"0x{TRACE}"] * 2
    with pytest.raises(ExporterUnavailable, match="check path"):
        open_exporter(f"file:{tmp_path}/no/such/folder/x")


async def test_writers_of_one_file_do_not_break_each_others_lines(tmp_path):
    """As the processes of `serve --processes`: a group of spans is longer than a file's buffer."""
    path = tmp_path / "spans.jsonl"
    first, second = (FileExporter(str(path)) for _ in range(2))
    spans = await spans_of(*[CallRecord("Route", traceparent=SAMPLED)] * 100)
    rounds = [[exporter] * 30 for exporter in (first, second)]
    await asyncio.gather(
        *(
            asyncio.to_thread(lambda exporters: [each.export(spans) for each in exporters], each)
            for each in rounds
        )
    )
    first.shutdown()
    second.shutdown()
    read = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert len(read) == 2 * 30 * 100


def test_missing_extra_is_told_with_the_remedy(monkeypatch):
    """The server does not start without a configured feature."""
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk", None)
    with pytest.raises(ExporterUnavailable, match=r"agent-routing-service\[otel\]"):
        open_exporter("otlp")


def test_spans_go_to_a_collector():
    """By OpenTelemetry's own exporter and variables."""
    exporter = open_exporter("otlp")
    assert type(exporter).__name__ == "OTLPSpanExporter"
    exporter.shutdown()
