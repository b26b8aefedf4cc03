"""The chart by Helm itself: linted and rendered for several kinds of installation.

test_chart.py looks at what the objects say; here a second implementation renders the same ones, for
every setting and for Kubernetes from the chart's oldest version to the newest.
"""

import subprocess
import sys
from pathlib import Path

import helm_python
import pytest
from ruamel.yaml import YAML

from routing_service.settings.setting_forms import Choice, Seconds, Switch, WholeNumber
from routing_service.settings.settings import SETTINGS
from scripts.make_chart import GIVEN, IN_THE_SECRET
from tests import toolchains

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/helm"
REGISTRY = (ROOT / "routing_service/examples/tax.yaml").read_text("utf-8")

# The oldest that the chart names, and the newest. Helm as Go installs it would assume 1.20.
KUBERNETES = ("1.26.0", "1.37.0")

pytestmark = pytest.mark.timeout(300)


def another(setting):
    """Return a value of a setting that is not its default, in a type that YAML has."""
    match setting.form:
        case Switch():
            return not setting.default
        case Choice(words=words):
            return next(word for word in words if word != setting.default)
        case WholeNumber(minimum=minimum, maximum=maximum):
            return minimum if minimum != setting.default else maximum
        case Seconds(maximum_s=maximum_s):
            # No whole number where there is a choice.
            return maximum_s - 0.5 if maximum_s - 0.5 != setting.default else maximum_s
        case _:
            return "as-given"


# What the chart's objects read has a form of its own.
EVERY_SETTING = {
    name: another(setting) for name, setting in SETTINGS.items() if name not in IN_THE_SECRET
} | {
    "listen": "0.0.0.0:6001",
    "agents": "/srv/registry/house.yaml",
    "probe_listen": "0.0.0.0:6003",
    "metrics_listen": "0.0.0.0:6004",
    "web_listen": "0.0.0.0:6005",
    "console_listen": "0.0.0.0:6006",
}

INSTALLATIONS = {
    "as-it-comes": {},
    "autoscaled": {
        "autoscaling": {"enabled": True, "minReplicas": 2, "maxReplicas": 20, "cpuPercent": 60},
        "podMonitor": {"enabled": True, "interval": "30s", "labels": {"release": "prometheus"}},
        "disruptionBudget": {"maxUnavailable": "25%"},
    },
    "browsers": {
        "settings": {"web_listen": "0.0.0.0:8080", "web_origins": "https://chat.test"},
        "networkPolicy": {"web": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]},
    },
    "console": {
        "settings": {
            "console_listen": "0.0.0.0:50080",
            "console_oidc_client_id": "console",
            "sign_in": "oidc",
        },
        "networkPolicy": {"console": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]},
    },
    "one-pod": {
        "replicas": 1,
        "migrations": {"enabled": False},
        "disruptionBudget": {"enabled": False},
        "networkPolicy": {"enabled": False},
        "registry": {"text": "", "configMapName": "house"},
    },
    "with-certificates": {
        "image": {"repository": "registry.test/agent-routing", "tag": "1.2.3"},
        "imagePullSecrets": [{"name": "registry"}],
        "migrations": {"grantTo": "router", "secretName": "owner", "key": "url"},
        "nodeSelector": {"kubernetes.io/arch": "amd64"},
        "tolerations": [{"key": "chat", "operator": "Exists"}],
        "extraEnv": [{"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://collector:4317"}],
        "extraVolumes": [{"name": "tls", "secret": {"secretName": "tls"}}],
        "extraVolumeMounts": [{"name": "tls", "mountPath": "/tls", "readOnly": True}],
    },
    "every-setting": {"settings": EVERY_SETTING, "podMonitor": {"enabled": True}},
}


@pytest.fixture(params=INSTALLATIONS, scope="module")
def values(request):
    """The values of one kind of installation."""
    return {"registry": {"text": REGISTRY}} | INSTALLATIONS[request.param]


@pytest.fixture
def values_file(values, tmp_path):
    """The same as a file."""
    path = tmp_path / "values.yaml"
    with path.open("w", encoding="utf-8") as file:
        YAML(typ="safe").dump(values, file)
    return path


def helm(*words):
    """Run Helm, which looks for no cluster and no configuration."""
    program = toolchains.require("helm").programs["helm"]
    done = subprocess.run(
        [program, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "KUBECONFIG": "/dev/null"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def by_name(texts):
    """Return the objects of YAML documents, by kind and name."""
    read = YAML(typ="safe")
    objects = [each for text in texts for each in read.load_all(text) if each]
    return {(each["kind"], each["metadata"]["name"]): each for each in objects}


def test_helm_lints_every_installation(values_file):
    """Strictly: a warning is an error, but for the icon, which a service has no use for."""
    said = helm("lint", "--strict", str(CHART), "--values", str(values_file))
    assert [line for line in said.splitlines() if line.startswith("[")] == [
        "[INFO] Chart.yaml: icon is recommended"
    ]


@pytest.mark.parametrize("kubernetes", KUBERNETES)
def test_helm_renders_objects_that_kubernetes_takes(values, values_file, tmp_path, kubernetes):
    """The other engine renders the same."""
    rendered = helm(
        *("template", "chat", str(CHART), "--namespace", "chat"),
        *("--values", str(values_file), "--kube-version", kubernetes),
    )
    objects = by_name([rendered])
    other = helm_python.Chart.load(str(CHART)).render(values, name="chat", namespace="chat")
    assert objects == by_name(other.values())
    folder = tmp_path / "objects"
    folder.mkdir()
    for (kind, name), each in objects.items():
        # A resource of Prometheus's operator, which Kubernetes does not know.
        if kind != "PodMonitor":
            with (folder / f"{kind}-{name}.yaml").open("w", encoding="utf-8") as file:
                YAML(typ="safe").dump(each, file)
    validator = Path(sys.executable).with_name("kubernetes-validate")
    done = subprocess.run(
        [validator, "--strict", "-k", kubernetes, *sorted(folder.iterdir())],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_setting_reaches_the_server(tmp_path):
    """As text that the server reads as the value that was given."""
    path = tmp_path / "values.yaml"
    with path.open("w", encoding="utf-8") as file:
        YAML(typ="safe").dump(
            {"registry": {"text": REGISTRY}} | INSTALLATIONS["every-setting"], file
        )
    words = ("template", "chat", str(CHART), "--kube-version", KUBERNETES[-1])
    objects = by_name([helm(*words, "--values", str(path))])
    pod = objects["Deployment", "chat"]["spec"]["template"]
    (server,) = pod["spec"]["containers"]
    given = {entry["name"]: entry.get("value") for entry in server["env"]}
    assert given.keys() == {f"AGENT_ROUTING_{name.upper()}" for name in SETTINGS}
    for name, value in EVERY_SETTING.items():
        text = given[f"AGENT_ROUTING_{name.upper()}"]
        form = SETTINGS[name].form
        read = form.read(text) if isinstance(value, bool | int | float) else text
        assert read == value, name
    ports = {port["name"]: port["containerPort"] for port in server["ports"]}
    assert ports == {"grpc": 6001, "probes": 6003, "metrics": 6004, "web": 6005, "console": 6006}
    assert pod["metadata"]["annotations"]["prometheus.io/port"] == "6004"
    names = ("chat", "chat-web", "chat-console")
    services = [objects["Service", name]["spec"]["ports"][0] for name in names]
    assert [(each["port"], each["targetPort"]) for each in services] == [
        (6001, "grpc"),
        (6005, "web"),
        (6006, "console"),
    ]
    allowed = objects["NetworkPolicy", "chat"]["spec"]["ingress"]
    assert [rule["ports"][0]["port"] for rule in allowed] == [6001, 6004, 6005, 6006]
    (mount,) = server["volumeMounts"]
    assert mount["mountPath"] == "/srv/registry"
    assert [*objects["ConfigMap", "chat-registry"]["data"]] == ["house.yaml"]
    monitored = objects["PodMonitor", "chat"]["spec"]
    # The fields that the operator's definition of PodMonitor has.
    assert monitored.keys() == {"jobLabel", "selector", "podMetricsEndpoints"}
    assert monitored["podMetricsEndpoints"] == [{"port": "metrics", "interval": "15s"}]
    assert GIVEN.keys() <= EVERY_SETTING.keys()


def test_a_pod_monitor_needs_the_figures(tmp_path):
    """A monitor of a port that no pod has would find nothing, and say nothing."""
    program = toolchains.require("helm").programs["helm"]
    words = ["--kube-version", KUBERNETES[-1], "--set", "registry.configMapName=house"]
    words += ["--set", "podMonitor.enabled=true", "--set", "settings.metrics_listen="]
    done = subprocess.run(
        [program, "template", "chat", CHART, *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "podMonitor.enabled needs settings.metrics_listen" in done.stderr
