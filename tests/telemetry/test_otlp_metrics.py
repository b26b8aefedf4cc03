"""The figures of the metrics page at a collector: a real server, OpenTelemetry's own receiver."""

import asyncio
import math
import re

import grpc
import pytest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from routing_service.server.parts import Counts
from routing_service.telemetry.metrics import LATENCY_BOUNDS_S, Metrics
from routing_service.telemetry.otlp import ExporterUnavailable, process_resource
from routing_service.telemetry.otlp_metrics import open_metrics_export
from routing_service.telemetry.tracing import Tracing
from tests.rpc.live_service import serving
from tests.rpc.registries import DESK
from tests.rpc.test_metrics_page import Kept, fetch
from tests.telemetry.otlp_collector import labels_of, metrics_of, receiving, resource_of

CUMULATIVE, DELTA = 2, 1


@pytest.fixture
def collector(monkeypatch):
    """A receiver that this process's exporters reach, with five exports a second."""
    with receiving() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://{receiver.address}")
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "200")
        for name in ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"):
            monkeypatch.delenv(name, raising=False)
        process_resource.cache_clear()
        yield receiver
        process_resource.cache_clear()


def exporting(tmp_path, **more):
    """Run a server with the page, and with the export by the OTEL_… variables."""
    counts = Counts(Metrics(), export=open_metrics_export("1.2.3"))
    return serving(tmp_path, DESK, metrics_listen="127.0.0.1:0", counts=counts, **more)


def of_page(page):
    """Return the value of each sample of the page by name and labels, without clocks."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if not family.name.startswith("process_")
    }


def as_page(metrics):
    """Return what Prometheus makes of OTLP metrics, in the same form."""
    made = {}
    for name, metric in metrics.items():
        kind = metric.WhichOneof("data")
        for point in getattr(metric, kind).data_points:
            labels = labels_of(point)
            if kind != "histogram":
                shown = f"{name}_total" if kind == "sum" else name
                made[shown, tuple(sorted(labels.items()))] = point.as_double
                continue
            below = 0
            bounds = [*point.explicit_bounds, math.inf]
            for bound, count in zip(bounds, point.bucket_counts, strict=True):
                below += count
                le = {"le": "+Inf" if bound == math.inf else str(float(bound))}
                made[f"{name}_bucket", tuple(sorted((labels | le).items()))] = below
            made[f"{name}_count", tuple(sorted(labels.items()))] = point.count
            made[f"{name}_sum", tuple(sorted(labels.items()))] = point.sum
    return {key: value for key, value in made.items() if not key[0].startswith("process_")}


async def later(receiver, count=2):
    """Return the newest request after so many more have come, so that it has all that happened."""
    seen = len(receiver.requests)
    return (await asyncio.to_thread(receiver.wait_for, seen + count))[-1]


async def test_collector_gets_every_series_of_the_page(tmp_path, collector):
    """Names, labels, buckets and values: dashboards and alerts work with either."""
    async with exporting(tmp_path) as service:
        chat = await service.chat().with_agent("sales")
        await chat.say("three")
        newest = metrics_of(await later(collector))
        page = of_page((await fetch(service.server.metrics_address))[2])
    sent = as_page(newest)
    assert sent.keys() == page.keys()
    # These may move between the two readings; all others are still.
    moving = re.compile("agent_routing_(store_|sign_in_keys)")
    still = {key for key in page if not moving.match(key[0])}
    assert {key: sent[key] for key in still} == {key: page[key] for key in still}
    assert {key[0] for key in still} > {"agent_routing_calls_total", "agent_routing_ready"}
    calls = newest["agent_routing_calls"]
    assert calls.sum.is_monotonic
    assert calls.sum.aggregation_temporality == CUMULATIVE
    assert calls.description == "Calls that have ended, by method and gRPC status code."
    duration = newest["agent_routing_call_duration_seconds"]
    assert duration.unit == "s"
    assert duration.histogram.aggregation_temporality == CUMULATIVE
    (route,) = [p for p in duration.histogram.data_points if labels_of(p) == {"method": "Route"}]
    assert tuple(route.explicit_bounds) == LATENCY_BOUNDS_S
    assert (route.count, route.HasField("min"), route.HasField("max")) == (2, False, False)
    assert route.start_time_unix_nano < route.time_unix_nano
    assert newest["process_resident_memory_bytes"].unit == "By"
    assert newest["process_resident_memory_bytes"].gauge.data_points[0].as_double > 1e6


async def test_traced_calls_are_exemplars_with_trace_and_span(tmp_path, collector):
    """From a slow bucket to the span of a call."""
    tracing = Tracing(Kept(), new_percent=100, version="1.2.3")
    async with exporting(tmp_path, tracing=tracing) as service:
        await service.chat().say("hello")
        newest = metrics_of(await later(collector))
    points = newest["agent_routing_call_duration_seconds"].histogram.data_points
    (exemplar,) = [each for point in points for each in point.exemplars]
    assert (len(exemplar.trace_id), len(exemplar.span_id)) == (16, 8)
    assert any(exemplar.span_id)
    assert 0 < exemplar.as_double < 60


async def test_delta_sums_up_to_the_page_also_after_refused_exports(
    tmp_path, collector, monkeypatch
):
    """What a collector refused comes with the next export; nothing is counted twice."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta")
    async with exporting(tmp_path) as service:
        chat = await service.chat().with_agent("sales")
        await later(collector)
        collector.refusing = grpc.StatusCode.INVALID_ARGUMENT  # Not one that the exporter retries.
        await chat.say("one")
        await asyncio.sleep(1)
        await chat.say("two")
        collector.refusing = None
        await later(collector)
    total, before_ns = 0, 0
    for request in collector.requests:
        metrics = metrics_of(request)
        (served,) = metrics["process_cpu_seconds"].sum.data_points
        assert served.start_time_unix_nano >= before_ns
        before_ns = served.time_unix_nano
        if "agent_routing_calls" not in metrics:
            continue  # No call so far.
        calls = metrics["agent_routing_calls"].sum
        assert calls.aggregation_temporality == DELTA
        route = {"method": "Route", "code": "OK"}
        total += sum(each.as_double for each in calls.data_points if labels_of(each) == route)
    assert total == 3
    histograms = [
        point
        for request in collector.requests
        for point in metrics_of(request)[
            "agent_routing_call_duration_seconds"
        ].histogram.data_points
        if labels_of(point) == {"method": "Route"}
    ]
    assert sum(each.count for each in histograms) == 3
    assert all(sum(each.bucket_counts) == each.count for each in histograms)


async def test_last_figures_are_sent_when_the_server_stops(tmp_path, collector, monkeypatch):
    """Else a pod that ran for less than the interval would not exist for the collector."""
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "3600000")
    async with exporting(tmp_path) as service:
        await service.chat().say("hello")
        assert collector.requests == []
    (request,) = collector.requests
    (point,) = metrics_of(request)["agent_routing_calls"].sum.data_points
    assert (labels_of(point), point.as_double) == ({"method": "Route", "code": "OK"}, 1)


async def test_each_process_says_who_it_is_and_the_variables_win(tmp_path, collector, monkeypatch):
    """Counters of two replicas under one identity would overwrite each other."""
    async with exporting(tmp_path):
        ours = resource_of(await later(collector, 1))
    assert (ours["service.name"], ours["service.version"]) == ("agent-routing", "1.2.3")
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f-]{27}", ours["service.instance.id"])
    process_resource.cache_clear()
    monkeypatch.setenv(
        "OTEL_RESOURCE_ATTRIBUTES",
        "service.name=chat,service.instance.id=pod-7,deployment.environment.name=test",
    )
    async with exporting(tmp_path):
        given = resource_of(await later(collector, 1))
    assert given["service.name"] == "chat"
    assert given["service.instance.id"] == "pod-7"
    assert given["deployment.environment.name"] == "test"
    assert given["service.version"] == "1.2.3"


async def test_collector_that_is_away_costs_no_call_and_is_one_line(tmp_path, monkeypatch, capsys):
    """Calls are answered; when the collector comes back the counts are whole."""
    with receiving() as receiver:
        address = receiver.address
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://{address}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.3")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "100")
    counts = Counts(Metrics(), export=open_metrics_export("1.2.3"))
    async with serving(tmp_path, DESK, counts=counts) as service:
        chat = service.chat()
        async with asyncio.timeout(50):
            while counts.export.failures < 3:
                await chat.say("hello")
                await asyncio.sleep(0.1)
    assert counts.export.failures >= 3


async def test_figures_that_cannot_be_read_end_nothing(collector):
    """A bug in one figure costs exports, not the server's stop; later ones are sent."""
    export = open_metrics_export("1.2.3")
    good = GaugeMetricFamily("agent_routing_ready", "1 if the process can serve.", value=1)
    readings = iter([ZeroDivisionError, [good], ZeroDivisionError])

    def read():
        found = next(readings, [good])
        if found is ZeroDivisionError:
            raise found
        return found

    running = asyncio.create_task(export.run(read))
    await asyncio.to_thread(collector.wait_for, 1)
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()
    assert metrics_of(collector.requests[0]).keys() == {"agent_routing_ready"}


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("OTEL_METRIC_EXPORT_INTERVAL", "soon", "give milliseconds, 100 or more"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "5", "give milliseconds, 100 or more"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "inf", "give milliseconds, 100 or more"),
        (
            "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE",
            "sometimes",
            "give cumulative, delta or lowmemory",
        ),
    ],
)
def test_variable_that_cannot_be_followed_refuses_the_start(monkeypatch, name, value, remedy):
    """OpenTelemetry's own reader would fall back in silence, or spin."""
    monkeypatch.setenv(name, value)
    with pytest.raises(ExporterUnavailable, match=f'{name} is "{value}"; {remedy}'):
        open_metrics_export("1.2.3")
