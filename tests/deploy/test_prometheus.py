"""Prometheus itself, with our configuration and alerts, scraping a server that runs."""

import asyncio
import json
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from routing_service.server.parts import Counts
from routing_service.telemetry.tracing import Tracing
from tests import toolchains
from tests.rpc.live_service import serving
from tests.rpc.registries import DESK

DEPLOY = Path(__file__).parents[2] / "deploy"
WAIT_S = 60

pytestmark = pytest.mark.timeout(200)


SHOWN = {
    *("Ready", "Registry", "Calls", "Duration, half of the calls", "Duration, 99 of 100 calls"),
    *("Decisions by reason", "Watches", "CPU", "Memory", "Stickiness", "Descriptors in use"),
}
"""The panels of the dashboard that have something to show after one message."""


def panel_queries():
    """Return each query of the dashboard with its panel's title, as Grafana would send it."""
    dashboard = json.loads((DEPLOY / "grafana/agent-routing.json").read_text("utf-8"))
    return [
        (
            panel["title"],
            target["expr"].replace("$instance", ".*").replace("$__rate_interval", "1m"),
        )
        for panel in dashboard["panels"]
        for target in panel["targets"]
    ]


class Kept:
    """An exporter that keeps nothing."""

    def export(self, spans):
        """See Exporter."""

    def shutdown(self):
        """See Exporter."""


def configured(folder, target):
    """Write the configuration that ships, for another target and every second; return its path."""
    yaml = YAML()
    config = yaml.load((DEPLOY / "prometheus/prometheus.yml").read_text("utf-8"))
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    (job,) = config["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["server:9464"]}]
    job["static_configs"] = [{"targets": [target]}]
    shutil.copy(DEPLOY / "prometheus/alerts.yaml", folder)
    path = folder / "prometheus.yml"
    with path.open("w", encoding="utf-8") as file:
        yaml.dump(config, file)
    return path


@contextmanager
def prometheus(folder, target):
    """Run Prometheus; yields a function that asks its API until the answer is as wanted."""
    program = toolchains.require("prometheus").programs["prometheus"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"

    def ask(path, wanted, **query):
        url = f"http://{address}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        until = time.monotonic() + WAIT_S
        while True:
            data = None
            try:
                with urllib.request.urlopen(url, timeout=5) as answer:
                    data = json.load(answer)["data"]
            except OSError:
                pass  # It is starting.
            if data is not None and wanted(data):
                return data
            assert time.monotonic() < until, data
            time.sleep(0.2)

    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(
            [
                program,
                f"--config.file={configured(folder, target)}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={address}",
                "--enable-feature=exemplar-storage",
            ],
            stdout=log,
            stderr=log,
        ) as process,
    ):
        try:
            yield ask
        finally:
            process.terminate()


async def test_prometheus_scrapes_the_server_and_evaluates_alerts_and_panels(tmp_path):
    """A page, a rule or a query that Prometheus cannot read would show in an incident."""
    assert {title for title, _ in panel_queries()} >= SHOWN
    tracing = Tracing(Kept(), new_percent=100, version="1.2.3")
    (tmp_path / "prometheus").mkdir()
    async with serving(
        tmp_path, DESK, metrics_listen="127.0.0.1:0", counts=Counts(), tracing=tracing
    ) as service:
        chat = await service.chat().with_agent("sales")
        await chat.say()

        def look():
            with prometheus(tmp_path / "prometheus", service.server.metrics_address) as ask:
                targets = ask(
                    "targets",
                    lambda data: any(each["health"] == "up" for each in data["activeTargets"]),
                )
                rules = ask(
                    "rules",
                    lambda data: all(
                        rule["health"] != "unknown"
                        for group in data["groups"]
                        for rule in group["rules"]
                    ),
                )
                calls = ask(
                    "query",
                    lambda data: data["result"],
                    query='agent_routing_calls_total{method="Route",code="OK"}',
                )
                exemplars = ask(
                    "query_exemplars",
                    bool,
                    query="agent_routing_call_duration_seconds_bucket",
                    start=time.time() - 600,
                    end=time.time() + 600,
                )
                for panel, query in panel_queries():
                    # Where it cannot read a query, it answers with an error until the wait ends.
                    ask(
                        "query",
                        lambda data, panel=panel: data["result"] or panel not in SHOWN,
                        query=query,
                    )
                return targets, rules, calls, exemplars

        targets, rules, calls, exemplars = await asyncio.to_thread(look)
    assert [each["lastError"] for each in targets["activeTargets"]] == [""]
    evaluated = [rule for group in rules["groups"] for rule in group["rules"]]
    written = YAML(typ="safe").load((DEPLOY / "prometheus/alerts.yaml").read_text("utf-8"))
    assert {rule["name"] for rule in evaluated} == {
        rule["alert"] for group in written["groups"] for rule in group["rules"]
    }
    assert {(rule["health"], rule["state"]) for rule in evaluated} == {("ok", "inactive")}
    assert calls["result"][0]["value"][1] == "2"
    found = [each for series in exemplars for each in series["exemplars"]]
    assert all(len(each["labels"]["trace_id"]) == 32 for each in found)
