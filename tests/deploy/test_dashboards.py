"""Dashboard, alerts and docs use only series and labels that the service has."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from routing_service.sessions.inbox import InboxFigures
from routing_service.storage.write_figures import WriteFigures
from routing_service.telemetry.call_record import CallRecord
from routing_service.telemetry.metrics import CallCounter, Metrics
from routing_service.telemetry.prometheus_text import Figures, ServerFigures, metrics_page
from routing_service.topics.detection import TopicFigures
from scripts.make_dashboard import MADE_FROM_ID, up_to_date

ROOT = Path(__file__).parents[2]
ALERTS = YAML(typ="safe").load((ROOT / "deploy/prometheus/alerts.yaml").read_text("utf-8"))
DASHBOARD = json.loads((ROOT / "deploy/grafana/agent-routing.json").read_text("utf-8"))
DOCS = (ROOT / "docs/telemetry.md").read_text("utf-8")
SERIES = re.compile(r"\b((?:agent_routing|process)_[a-z_]+)(?:\{([^}]*)\})?")
# Labels that Prometheus adds to every series.
SCRAPED_LABELS = {"instance", "job"}


def page():
    """Return a page on which every series has a sample."""
    metrics = Metrics()
    metrics.count_call(
        CallRecord(
            "Route",
            reason="sticky",
            dispatched=True,
            command="status",
            outcome="proceed",
            outcome_status="applied",
            refused_rules=("entitled",),
            supervisor_bypassed=True,
            topic_outcome="suggested",
        )
    )
    metrics.count_call(CallRecord("Route", replayed=True))
    metrics.count_call(CallRecord("Route", code="INTERNAL", error_reason="INTERNAL"))
    figures = ServerFigures(
        is_ready=True,
        watches=1,
        registry_version='a "quoted" word',
        agents=2,
        registry_reloads=1,
        registry_reload_failures=0,
        stickiness_enabled=True,
        stickiness_tenants_off=0,
        agents_switched_off=0,
        sessions_expired=0,
        expiry_failures=0,
        stuck=0,
        stats_damaged=0,
        log_lines_lost=0,
        calls_refused_unread=0,
        writes=WriteFigures(),
        topics=TopicFigures(
            bound=0.1, ask_share=0.2, right_wanted=0.95, failures={"late": 1}, is_ready=True
        ),
        sign_in_keys_age_s=12.5,
        inbox=InboxFigures(
            workers=1, offers=2, redeliveries=1, leases_lost=1, abandoned=0, depth=3, oldest_s=0.5
        ),
    )
    return metrics_page(Figures(metrics.snapshot(), figures, "1.2.3"))[0]


def known():
    """Return the labels of each series, and of each histogram's parts."""
    found = {}
    for line in page().splitlines():
        if not line.startswith("#"):
            name, _, rest = line.partition(" ") if "{" not in line else line.partition("{")
            found[name] = set(re.findall(r'(?:^|,)([a-z_]+)="', rest))
    return found


def families():
    """Return the names that have a type."""
    return {line.split()[2] for line in page().splitlines() if line.startswith("# TYPE ")}


def expressions():
    """Return every query of the alerts and the dashboard, with its name."""
    for group in ALERTS["groups"]:
        for rule in group["rules"]:
            yield f"alert {rule['alert']}", rule["expr"]
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield f"panel {panel['title']}", target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield f"variable {variable['name']}", variable["query"]["query"]


@pytest.mark.parametrize(("name", "query"), list(expressions()), ids=lambda value: str(value)[:50])
def test_query_asks_for_what_there_is(name, query):
    """After a rename an alert would never fire."""
    found = SERIES.findall(query)
    assert found, name
    for series, selected in found:
        assert series in known(), f"{name}: {series}"
        labels = set(re.findall(r"([a-z_]+)\s*(?:=~|!~|!=|=)", selected))
        assert labels <= known()[series] | SCRAPED_LABELS, f"{name}: {labels}"
    grouped = {
        label.strip() for by in re.findall(r"\bby \(([^)]*)\)", query) for label in by.split(",")
    }
    offered = set().union(*(known()[series] for series, _ in found))
    assert grouped <= offered | SCRAPED_LABELS, f"{name}: {grouped}"


def test_every_series_is_in_the_docs_and_no_other():
    """Operators search this table."""
    rows = re.findall(r"^\| `([a-z_]+)` \| (\w+) \| ([^|]*)\|", DOCS, re.MULTILINE)
    assert {name for name, _, _ in rows} == families()
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", page(), re.MULTILINE))
    for name, kind, labels in rows:
        assert kinds[name] == kind
        sample = f"{name}_count" if kind == "histogram" else name
        assert set(filter(None, labels.strip().split(", "))) == known()[sample], name


def test_every_figure_of_routing_is_on_the_dashboard():
    """Every counted figure is shown."""
    shown = {series for _, query in expressions() for series, _ in SERIES.findall(query)}
    shown = {re.sub(r"_(bucket|sum|count)$", "", series) for series in shown}
    left_out = families() - shown
    assert left_out == {
        "agent_routing_build_info",
        "agent_routing_registry_agents",
        "process_start_time_seconds",
        "process_virtual_memory_bytes",
    }


def test_counters_without_a_panel_get_one():
    """scripts/make_dashboard.py makes it; the panels that are written by hand stay as they are."""
    made = subprocess.run(
        [sys.executable, "scripts/make_dashboard.py"], cwd=ROOT, check=False, capture_output=True
    )
    assert (made.returncode, made.stderr) == (0, b"")
    first, second, third = (
        CallCounter(f"{name}_total", f"Calls by {name}.", labels, bool)
        for name, labels in (
            ("moons", {"moon": "moon"}),
            ("bare", {}),
            ("tides", {"sea": "sea", "moon": "moon"}),
        )
    )
    dashboard = up_to_date(DASHBOARD, [first, second, third])
    by_hand, new = dashboard["panels"][:-3], dashboard["panels"][-3:]
    assert by_hand == [panel for panel in DASHBOARD["panels"] if panel["id"] < MADE_FROM_ID]
    assert [panel["title"] for panel in new] == ["Moons", "Bare", "Tides"]
    rate = '(rate(agent_routing_{}_total{{instance=~"$instance"}}[$__rate_interval]))'
    assert [panel["targets"][0]["expr"] for panel in new] == [
        "sum by (moon) " + rate.format("moons"),
        "sum" + rate.format("bare"),
        "sum by (sea, moon) " + rate.format("tides"),
    ]
    bottom = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in by_hand)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in new]
    assert places == [(0, bottom), (12, bottom), (0, bottom + 8)]
    assert up_to_date(dashboard) == DASHBOARD


def test_alerts_say_what_to_look_at():
    """The alert must be usable at night without further knowledge."""
    for group in ALERTS["groups"]:
        for rule in group["rules"]:
            assert rule["labels"]["severity"] in ("critical", "warning")
            assert rule["annotations"]["summary"]
            assert len(rule["annotations"]["description"]) > 40


def test_dashboard_panels_do_not_overlap():
    """Each cell of the grid has at most one panel, and every panel has its own id."""
    taken = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)


def test_label_values_are_escaped():
    """A registry's version may be any text."""
    assert 'agent_routing_registry_info{version="a \\"quoted\\" word"} 1' in page()
