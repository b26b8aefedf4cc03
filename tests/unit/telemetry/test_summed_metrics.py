"""The metrics of several processes as one page."""

from prometheus_client.openmetrics.parser import text_string_to_metric_families

from routing_service.telemetry.metrics import Metrics
from routing_service.telemetry.prometheus_text import Figures, ServerFigures, metrics_page
from routing_service.telemetry.summed_metrics import SummedPages

OPEN_METRICS = "application/openmetrics-text; version=1.0.0"


def page_of(**figures):
    """A process's page, as the process itself writes it."""
    given = {
        "is_ready": True,
        "watches": 0,
        "registry_version": "7",
        "agents": 5,
        "registry_reloads": 0,
        "registry_reload_failures": 0,
        "stickiness_enabled": True,
        "stickiness_tenants_off": 0,
        "sessions_expired": 0,
        "expiry_failures": 0,
        "stuck": 0,
        "stats_damaged": 0,
        "agents_switched_off": 0,
        "log_lines_lost": 0,
        "calls_refused_unread": 0,
        "writes": None,
    }
    server = ServerFigures(**(given | figures))
    return metrics_page(Figures(Metrics().snapshot(), server, "1.0"), OPEN_METRICS)[0]


def read(pages):
    """The samples without the prefix, by name and label values."""
    families = text_string_to_metric_families(pages.page(OPEN_METRICS)[0])
    return {
        (sample.name.removeprefix("agent_routing_"), *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


def test_counts_and_parts_are_summed_and_what_all_see_is_shown_once():
    """Watches are spread over the processes; the registry is the same in each."""
    pages = SummedPages()
    pages.processes = 2
    pages.read(1, page_of(sessions_expired=3, watches=2, registry_reloads=1))
    pages.read(2, page_of(sessions_expired=4, watches=5, registry_reloads=1))
    found = read(pages)
    assert found["expired_sessions_total",] == 7
    assert found["watches",] == 7
    assert found["registry_agents",] == 5
    assert found["registry_info", "7"] == 1
    assert found["registry_reloads_total", "ok"] == 2
    assert found["processes",] == 2


def test_a_page_says_ready_only_if_every_process_is():
    """An alert on it must find the one process that is not."""
    pages = SummedPages()
    pages.read(1, page_of(is_ready=True))
    pages.read(2, page_of(is_ready=False))
    assert read(pages)["ready",] == 0


def test_sums_never_go_down_when_a_process_ends():
    """A counter that falls looks like a restart, and rates jump."""
    pages = SummedPages()
    pages.read(1, page_of(sessions_expired=3, watches=2))
    pages.read(2, page_of(sessions_expired=4, watches=5))
    pages.end(1)
    assert read(pages)["expired_sessions_total",] == 7
    assert read(pages)["watches",] == 5
    pages.read(3, page_of(sessions_expired=1, watches=1))
    assert read(pages)["expired_sessions_total",] == 8
    pages.end(2)
    pages.end(3)
    assert read(pages)["expired_sessions_total",] == 8
    assert ("watches",) not in read(pages)


def test_readers_of_prometheus_text_get_it():
    """Not every reader knows OpenMetrics."""
    pages = SummedPages()
    pages.read(1, page_of(sessions_expired=3))
    text, content_type = pages.page("")
    assert content_type.startswith("text/plain")
    assert "agent_routing_expired_sessions_total 3.0" in text
