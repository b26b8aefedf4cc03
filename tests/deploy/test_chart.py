"""The Helm chart, rendered by Helm's own engine: every setting is a value, the objects agree."""

import subprocess
import sys
from pathlib import Path

import helm_python as helm
import pytest
from ruamel.yaml import YAML

from routing_service.settings.settings import SETTINGS

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/helm"
REGISTRY = ROOT / "routing_service/examples/tax.yaml"

pytestmark = pytest.mark.timeout(200)


def merged(values, more):
    """Return values with more of them, section by section."""
    both = dict(values)
    for name, value in more.items():
        both[name] = merged(both.get(name, {}), value) if isinstance(value, dict) else value
    return both


def given(**values):
    """Return values with a registry."""
    return merged({"registry": {"text": REGISTRY.read_text("utf-8")}}, values)


def rendered(**values):
    """Return the objects of a release, by kind and the end of their name."""
    files = helm.Chart.load(str(CHART)).render(given(**values), name="chat", namespace="chat")
    objects = [each for text in files.values() for each in YAML(typ="safe").load_all(text) if each]
    return {(each["kind"], each["metadata"]["name"].removeprefix("chat")): each for each in objects}


def variables(objects):
    """Return the server's environment."""
    (server,) = objects["Deployment", ""]["spec"]["template"]["spec"]["containers"]
    return {entry["name"]: entry.get("value") for entry in server["env"]}


def test_every_setting_is_a_value():
    """Made from the table of settings: scripts/make_chart.py --write."""
    made = subprocess.run(
        [sys.executable, "scripts/make_chart.py"], cwd=ROOT, capture_output=True, check=False
    )
    assert (made.returncode, made.stderr) == (0, b"")
    values = YAML(typ="safe").load((CHART / "values.yaml").read_text("utf-8"))
    assert {*values["settings"], "store"} == {*SETTINGS}


def test_chart_is_linted():
    """Strictly, with what has to be given. An icon is recommended; we have none."""
    found = helm.lint(str(CHART), given(), strict=True)
    assert found["errors"] == []
    assert [each["error"] for each in found["messages"]] == ["icon is recommended"]


def test_default_values_render_what_a_roll_out_needs():
    """The ports, selectors and names of one object are those of the others."""
    objects = rendered()
    assert set(objects) == {
        ("Deployment", ""),
        ("Service", ""),
        ("ConfigMap", "-registry"),
        ("PodDisruptionBudget", ""),
        ("NetworkPolicy", ""),
        ("Job", "-migrate"),
    }
    pod = objects["Deployment", ""]["spec"]["template"]
    (server,) = pod["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in server["ports"]}
    assert ports == {"grpc": 50051, "probes": 50053, "metrics": 9464}
    labels = pod["metadata"]["labels"]
    for kind, path in (
        ("Service", ("selector",)),
        ("PodDisruptionBudget", ("selector", "matchLabels")),
        ("NetworkPolicy", ("podSelector", "matchLabels")),
        ("Deployment", ("selector", "matchLabels")),
    ):
        wanted = objects[kind, ""]["spec"]
        for step in path:
            wanted = wanted[step]
        assert wanted == labels, kind
    migrating = objects["Job", "-migrate"]
    assert not labels.items() <= migrating["spec"]["template"]["metadata"]["labels"].items()
    assert migrating["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    (volume,) = pod["spec"]["volumes"]
    assert volume["configMap"]["name"] == "chat-registry"
    text = objects["ConfigMap", "-registry"]["data"]["agents.yaml"]
    assert text.strip() == REGISTRY.read_text("utf-8").strip()
    (mount,) = server["volumeMounts"]
    server_variables = variables(objects)
    assert server_variables["AGENT_ROUTING_AGENTS"] == f"{mount['mountPath']}/agents.yaml"
    drain_s = int(server_variables["AGENT_ROUTING_DRAIN_S"])
    assert pod["spec"]["terminationGracePeriodSeconds"] >= 5 + drain_s + 5
    # The server's own defaults are not repeated.
    names = {"LISTEN", "AGENTS", "PROBE_LISTEN", "METRICS_LISTEN", "LOG_FORMAT", "DRAIN_S", "STORE"}
    assert set(server_variables) == {f"AGENT_ROUTING_{name}" for name in names}


def test_values_take_effect():
    """Each option is on at least once, with numbers and switches as the server reads them."""
    objects = rendered(
        settings={
            "web_listen": "0.0.0.0:8080",
            "web_origins": "https://chat.test",
            "console_listen": "0.0.0.0:50080",
            "insecure": True,
            "cache_sessions_max": 10_000_000,
            "topic_detector_limit_s": 0.25,
            "reload": "manual",
        },
        autoscaling={"enabled": True},
        podMonitor={"enabled": True, "labels": {"release": "prometheus"}},
        migrations={"grantTo": "router", "secretName": "owner", "key": "migrate-url"},
    )
    server_variables = variables(objects)
    assert server_variables["AGENT_ROUTING_CACHE_SESSIONS_MAX"] == "10000000"
    assert server_variables["AGENT_ROUTING_TOPIC_DETECTOR_LIMIT_S"] == "0.25"
    assert server_variables["AGENT_ROUTING_INSECURE"] == "true"
    assert server_variables["AGENT_ROUTING_RELOAD"] == "manual"
    assert "replicas" not in objects["Deployment", ""]["spec"]
    assert objects["HorizontalPodAutoscaler", ""]["spec"]["scaleTargetRef"]["name"] == "chat"
    (port,) = objects["Service", "-web"]["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (8080, "web")
    (port,) = objects["Service", "-console"]["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (50080, "console")
    allowed = objects["NetworkPolicy", ""]["spec"]["ingress"]
    assert [rule["ports"][0]["port"] for rule in allowed] == [50051, 9464, 8080, 50080]
    monitor = objects["PodMonitor", ""]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert monitor["spec"]["podMetricsEndpoints"] == [{"port": "metrics", "interval": "15s"}]
    (job,) = objects["Job", "-migrate"]["spec"]["template"]["spec"]["containers"]
    assert job["args"] == ["migrate", "--grant-to", "router"]
    assert job["env"][0]["valueFrom"]["secretKeyRef"] == {"name": "owner", "key": "migrate-url"}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"settings": {"drian_s": 5}}, "'drian_s' not allowed"),
        ({"settings": {"log_level": "loud"}}, "/settings/log_level"),
        ({"registry": {"text": ""}}, "registry.text is empty"),
    ],
)
def test_mistakes_are_refused_before_anything_is_applied(values, said):
    """A server that does not start would be noticed later."""
    with pytest.raises(helm.HelmError) as refused:
        rendered(**values)
    assert said in str(refused.value)


def test_objects_are_valid(tmp_path):
    """By the schemas of Kubernetes, strictly; PodMonitor is of an operator, and not among them."""
    validator = Path(sys.executable).with_name("kubernetes-validate")
    if not validator.exists():
        pytest.skip("kubernetes-validate is not installed")
    objects = rendered(
        autoscaling={"enabled": True},
        settings={"web_listen": "0.0.0.0:8080", "console_listen": "0.0.0.0:50080"},
    )
    for number, each in enumerate(objects.values()):
        with (tmp_path / f"{number}.yaml").open("w", encoding="utf-8") as file:
            YAML(typ="safe").dump(each, file)
    ended = subprocess.run(
        [validator, "--strict", *sorted(tmp_path.glob("*.yaml"))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
