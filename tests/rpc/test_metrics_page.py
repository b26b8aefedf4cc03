"""The metrics page of a running server, as Prometheus scrapes it."""

import asyncio
import re

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from agent_routing.v1 import routing_service_pb2
from routing_service.server.parts import Counts
from routing_service.server.server import RoutingServer
from routing_service.settings.listen_address import ListenFailed
from routing_service.settings.rules import SettingsInvalid
from routing_service.settings.settings import Settings
from routing_service.storage.memory_store import MemoryStore
from routing_service.telemetry.call_record import CallRecord
from routing_service.telemetry.metrics import LATENCY_BOUNDS_S, Metrics
from routing_service.telemetry.tracing import Tracing
from tests.rpc.identity_provider import AUDIENCE, ISSUER, good_set
from tests.rpc.live_service import ask, refusal, serving
from tests.rpc.registries import DESK

SAMPLE = re.compile(r"(?P<name>[a-z_]+)(?:\{(?P<labels>[^{}]*)\})? (?P<value>\S+)")


def in_order(labels):
    """Return labels sorted: their order means nothing."""
    return ",".join(sorted(labels.split(",")))


def read(page):
    """Return each sample's value by name and labels; assert that the format is Prometheus's."""
    found, kinds = {}, {}
    for line in page.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in kinds
            kinds[name] = kind
        elif not line.startswith("# HELP "):
            sample = SAMPLE.fullmatch(line)
            assert sample, line
            family = re.sub(r"_(bucket|sum|count)$", "", sample["name"])
            assert family in kinds or sample["name"] in kinds, line
            key = f"{sample['name']}{{{in_order(sample['labels'] or '')}}}"
            assert key not in found, line
            found[key] = float(sample["value"])
    assert page.endswith("\n")
    return found


async def fetch(address, request=b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"):
    """Send a request and return status line, headers and body."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    answer = (await asyncio.wait_for(reader.read(), 20)).decode()
    writer.close()
    head, _, body = answer.partition("\r\n\r\n")
    status, *headers = head.split("\r\n")
    return status, dict(line.split(": ", 1) for line in headers), body


@pytest.fixture
async def measured(tmp_path):
    """A help desk on SQLite with its metrics page on a free port."""
    async with serving(tmp_path, DESK, metrics_listen="127.0.0.1:0", counts=Counts()) as running:
        yield running


async def test_figures_are_what_happened(measured):
    """A conversation for which every figure is known."""
    chat = await measured.chat().with_agent("sales", **ask())
    await chat.say("three")
    await refusal(chat.set_active("premium", initiator=3))
    await chat.say("/status")
    await measured.call("Status", routing_service_pb2.StatusRequest(session_id=chat.session_id))
    status, headers, page = await fetch(measured.server.metrics_address)
    assert status == "HTTP/1.1 200 OK"
    assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    found = read(page)

    def of(name, labels=""):
        return found[f"agent_routing_{name}{{{in_order(labels)}}}"]

    assert of("calls_total", 'method="Route",code="OK"') == 3
    assert of("decisions_total", 'method="Route",reason="follow_up_lock"') == 1
    assert of("decisions_total", 'method="CompleteTurn",reason="supervisor_handoff"') == 1
    assert of("supervisor_calls_saved_total") == 1
    assert of("handoff_refusals_total", 'rule="entitled"') == 1
    assert of("commands_total", 'command="status"') == 1
    assert of("outcomes_total", 'outcome="follow_up",status="applied"') == 1
    refused = 'method="SetActiveAgent",code="FAILED_PRECONDITION",reason="HANDOFF_REFUSED"'
    assert of("errors_total", refused) == 1
    assert of("call_duration_seconds_count", 'method="Route"') == 3
    assert of("call_duration_seconds_bucket", 'method="Route",le="+Inf"') == 3
    assert 0 < of("call_duration_seconds_sum", 'method="Route"') < 60
    assert of("ready") == 1
    assert of("registry_info", 'version="desk-1"') == 1
    assert of("registry_agents") == 22
    # Every change was written in a group; the probe at the start adds one.
    assert of("store_group_writes_sum") >= 6
    assert of("store_write_seconds_count") == of("store_group_writes_count") > 0
    assert found["process_cpu_seconds_total{}"] > 0


async def test_readers_of_openmetrics_get_the_traces_of_slow_calls(tmp_path):
    """From a bucket of the histogram to a call's trace: the exemplar has its id and its duration.

    The page is read by prometheus_client's own parser, which refuses what OpenMetrics forbids.
    """
    tracing = Tracing(Kept(), new_percent=100, version="1.2.3")
    async with serving(
        tmp_path, DESK, metrics_listen="127.0.0.1:0", counts=Counts(), tracing=tracing
    ) as running:
        await running.chat().say("hello")
        _, headers, page = await fetch(
            running.server.metrics_address,
            b"GET /metrics HTTP/1.1\r\nHost: x\r\n"
            b"Accept: application/openmetrics-text; version=1.0.0,text/plain;q=0.5\r\n\r\n",
        )
        _, plain_headers, plain = await fetch(running.server.metrics_address)
    assert headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    families = {each.name: each for each in text_string_to_metric_families(page)}
    buckets = [
        sample
        for sample in families["agent_routing_call_duration_seconds"].samples
        if sample.name.endswith("_bucket") and sample.labels["method"] == "Route"
    ]
    (exemplar,) = [sample.exemplar for sample in buckets if sample.exemplar]
    assert re.fullmatch("[0-9a-f]{32}", exemplar.labels["trace_id"])
    assert 0 < exemplar.value < 60
    # Both formats have the same series.
    assert plain_headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    names = {line.split(" ")[0] for line in plain.splitlines() if not line.startswith("#")}
    assert names <= {line.split(" ")[0] for line in page.splitlines()}


class Kept:
    """An exporter that keeps nothing."""

    def export(self, spans):
        """See Exporter."""

    def shutdown(self):
        """See Exporter."""


async def test_watchers_reloads_and_time_outs_are_told(measured):
    """Gauges, and counters of events outside of calls."""
    chat = await measured.chat().with_agent("sales")
    watch = measured.call(
        "WatchSession",
        routing_service_pb2.WatchSessionRequest(session_id=chat.session_id, user_id="ana"),
    )
    await watch.read()
    await measured.server.reload()
    found = read((await fetch(measured.server.metrics_address))[2])
    assert found["agent_routing_watches{}"] == 1
    assert found['agent_routing_registry_reloads_total{result="failed"}'] == 0
    assert found["agent_routing_expired_sessions_total{}"] == 0
    watch.cancel()


async def test_stuck_users_are_counted_as_the_log_is_folded(measured):
    """A user who leaves an agent by a command right after its handoff was with the wrong agent."""
    chat = await measured.chat().with_agent("sales")
    await chat.say("/supervisor")
    async with asyncio.timeout(50):
        while True:
            found = read((await fetch(measured.server.metrics_address))[2])
            if found["agent_routing_stuck_users_total{}"] == 1:
                break
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "404 Not Found"),
        (b"GET /metrics/../secret HTTP/1.1\r\n\r\n", "404 Not Found"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", "405 Method Not Allowed"),
        (b"\x16\x03\x01\r\n\r\n", "405 Method Not Allowed"),
        (b"GET /metrics?x=1 HTTP/1.0\r\n\r\n", "200 OK"),
    ],
)
async def test_only_the_page_is_served(measured, request_bytes, status):
    """Other paths are not found, and no request breaks the listener."""
    answered, _, _ = await fetch(measured.server.metrics_address, request_bytes)
    assert answered == f"HTTP/1.1 {status}"
    assert (await fetch(measured.server.metrics_address))[0] == "HTTP/1.1 200 OK"


async def test_head_has_no_body_and_too_much_is_cut_off(measured):
    """A request that never ends is closed."""
    _, headers, body = await fetch(
        measured.server.metrics_address, b"HEAD /metrics HTTP/1.1\r\n\r\n"
    )
    assert (int(headers["Content-Length"]) > 1000, body) == (True, "")
    answered, _, _ = await fetch(measured.server.metrics_address, b"GET /" + b"x" * 20_000)
    assert answered == ""


async def test_labels_are_words_of_closed_sets(measured):
    """Invented sessions, users or agents in calls create no new series."""
    before = read((await fetch(measured.server.metrics_address))[2]).keys()
    for number in range(20):
        chat = measured.chat(user_id=f"user-{number}")
        await chat.say(f"/agent nobody{number}")
        await refusal(chat.set_active(f"agent-{number}"))
    after = read((await fetch(measured.server.metrics_address))[2])
    assert not [key for key in after if re.search(r"user-|agent-\d|nobody|chat-", key)]
    assert len(after) < len(before) + 60


async def test_address_that_is_taken_is_told(measured, tmp_path):
    """Before the server reports that it serves."""
    agents = tmp_path / "other.yaml"
    agents.write_text(DESK, "utf-8")
    settings = Settings(
        listen="127.0.0.1:0",
        store="memory:",
        agents=str(agents),
        metrics_listen=measured.server.metrics_address,
    )
    with pytest.raises(ListenFailed):
        await RoutingServer.start(settings)
    with pytest.raises(SettingsInvalid, match="metrics_listen"):
        Settings(metrics_listen="here")


async def test_engine_without_figures_leaves_them_out(tmp_path):
    """The memory engine writes nothing to disk."""
    agents = tmp_path / "agents.yaml"
    agents.write_text(DESK, "utf-8")
    settings = Settings(
        listen="127.0.0.1:0", store="memory:", agents=str(agents), metrics_listen="127.0.0.1:0"
    )

    async def opener(_url):
        return MemoryStore()

    server = await RoutingServer.start(settings, store_opener=opener)
    try:
        page = (await fetch(server.metrics_address))[2]
        assert "store_write_seconds" not in page
        assert read(page)["agent_routing_ready{}"] == 1
    finally:
        await server.stop(0)


def test_buckets_are_cumulative_and_end_at_infinity():
    """Prometheus expects this; our histograms count each call once."""
    metrics = Metrics()
    for duration_s in (0.0004, 0.003, 99):
        metrics.count_call(CallRecord("Route", duration_ms=duration_s * 1000))
    buckets = metrics.snapshot().latency["Route"].bucket_counts
    assert (len(buckets), sum(buckets)) == (len(LATENCY_BOUNDS_S) + 1, 3)


@pytest.mark.parametrize("is_there", [True, False])
async def test_age_of_the_sign_in_keys_is_shown(tmp_path, is_there):
    """Old keys keep accepting revoked callers: an alert uses this figure."""
    keys = tmp_path / "keys.json"
    if is_there:
        keys.write_bytes(good_set())
    async with serving(
        tmp_path,
        DESK,
        metrics_listen="127.0.0.1:0",
        sign_in="oidc",
        oidc_issuer=ISSUER,
        oidc_audience=AUDIENCE,
        oidc_jwks=str(keys),
    ) as running:
        async with asyncio.timeout(20):
            while True:
                _, _, page = await fetch(running.server.metrics_address)
                age_s = read(page)["agent_routing_sign_in_keys_age_seconds{}"]
                if not is_there or age_s < float("inf"):
                    break
                await asyncio.sleep(0.02)
    assert (0 <= age_s < 20) if is_there else age_s == float("inf")
