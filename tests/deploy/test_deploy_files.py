"""The deployment files: what they name exists, and related values agree."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from routing_service import __version__
from routing_service.registry.file import check_registry
from routing_service.settings.settings import SETTINGS

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
PORT = 50051
METRICS_PORT = 9464
PROBE_PORT = 50053
WEB_PORT = 8080
CONSOLE_PORT = 50080


def load(path):
    """Read a YAML file of one document."""
    return YAML(typ="safe").load(path.read_text("utf-8"))


def manifest(name):
    """Read a Kubernetes manifest."""
    return load(DEPLOY / "kubernetes" / f"{name}.yaml")


def container(name="deployment"):
    """Return a manifest's only container."""
    (only,) = manifest(name)["spec"]["template"]["spec"]["containers"]
    return only


def variables(name="deployment"):
    """Return a container's environment, by name."""
    return {entry["name"]: entry for entry in container(name)["env"]}


LINTERS = [
    ("hadolint", ["hadolint", DEPLOY / "Dockerfile"]),
    (
        "check-jsonschema",
        ["check-jsonschema", "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml"],
    ),
    (
        "kubernetes-validate",
        [
            *("kubernetes-validate", "--strict"),
            *(path for path in MANIFESTS if path.name != "kustomization.yaml"),
        ],
    ),
    ("kubectl", ["kubectl", "kustomize", DEPLOY / "kubernetes"]),
    (
        "yamllint",
        [
            *("yamllint", "--strict", "-d"),
            # Templates are no YAML before they are rendered: test_chart.py checks the objects.
            (
                "{extends: default, rules: {document-start: disable, line-length: {max: 140}},"
                " ignore: [templates/]}"
            ),
            DEPLOY,
        ],
    ),
]


@pytest.mark.parametrize(("tool", "command"), LINTERS, ids=[tool for tool, _ in LINTERS])
def test_linter_has_nothing_to_say(tool, command):
    """On machines that have the linters; nothing else here needs them."""
    beside = Path(sys.executable).with_name(tool)
    program = str(beside) if beside.exists() else shutil.which(tool)
    if program is None:
        pytest.skip(f"{tool} is not installed")
    # kubectl must not look for a cluster: rendering does not need one.
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "KUBECONFIG": "/dev/null"}
    ended = subprocess.run(
        [program, *map(str, command[1:])],
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
        env=environment,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_image_is_made_of_files_that_are_there_and_let_through():
    """Otherwise a renamed file would only fail the next build."""
    dockerfile = (DEPLOY / "Dockerfile").read_text("utf-8")
    let_through = {
        line[1:].rstrip("/")
        for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines()
        if line.startswith("!")
    }
    sources = [
        source.rstrip("/")
        for words in re.findall(r"^COPY (?!--from)(.+)$", dockerfile, re.MULTILINE)
        for source in words.split()[:-1]
    ]
    assert set(sources) == let_through
    for source in sources:
        assert (ROOT / source).exists(), source
    extras = re.search(r"\.\[(.*)\]", dockerfile)[1].split(",")
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    for extra in extras:
        assert re.search(rf"^{extra} = \[", project, re.MULTILINE), extra


def test_image_runs_as_a_user_without_rights():
    """By number, as Kubernetes checks it; the same number in every manifest."""
    dockerfile = (DEPLOY / "Dockerfile").read_text("utf-8")
    user = int(re.search(r"^USER (\d+):\d+$", dockerfile, re.MULTILINE)[1])
    assert user > 0
    for name in ("deployment", "migrate"):
        pod = manifest(name)["spec"]["template"]["spec"]["securityContext"]
        assert (pod["runAsNonRoot"], pod["runAsUser"]) == (True, user)
        own = container(name)["securityContext"]
        assert own["readOnlyRootFilesystem"]
        assert not own["allowPrivilegeEscalation"]
        assert own["capabilities"] == {"drop": ["ALL"]}


def test_every_variable_is_a_setting():
    """The server would refuse a misspelt one at its start, in production."""
    known = {f"AGENT_ROUTING_{name.upper()}" for name in SETTINGS}
    given = set(variables()) | set(variables("migrate"))
    services = load(DEPLOY / "compose.yaml")["services"]
    given |= set(services["server"]["environment"]) | set(services["migrate"]["environment"])
    dockerfile = (DEPLOY / "Dockerfile").read_text("utf-8")
    given |= set(re.findall(r"(AGENT_ROUTING_[A-Z_]+)=", dockerfile))
    assert given <= known


def test_pod_has_the_time_to_drain():
    """An earlier kill would cut calls in flight that could have finished."""
    pod = manifest("deployment")["spec"]["template"]["spec"]
    sleep, seconds = container()["lifecycle"]["preStop"]["exec"]["command"]
    assert sleep == "sleep"
    drain_s = int(variables()["AGENT_ROUTING_DRAIN_S"]["value"])
    assert pod["terminationGracePeriodSeconds"] >= int(seconds) + drain_s + 5
    server = load(DEPLOY / "compose.yaml")["services"]["server"]
    grace_s = int(server["stop_grace_period"].removesuffix("s"))
    assert grace_s >= int(server["environment"]["AGENT_ROUTING_DRAIN_S"]) + 5


def test_probes_ask_what_they_are_for():
    """Liveness must not depend on the store; readiness must."""
    probes = container()
    paths = {
        name: probes[name]["httpGet"]["path"]
        for name in ("startupProbe", "readinessProbe", "livenessProbe")
    }
    assert paths == {
        "startupProbe": "/livez",
        "readinessProbe": "/readyz",
        "livenessProbe": "/livez",
    }
    assert {probes[name]["httpGet"]["port"] for name in paths} == {"probes"}


def test_health_checks_ask_the_listener_of_the_probes():
    """The calls' port may be full although the server is healthy."""
    dockerfile = (DEPLOY / "Dockerfile").read_text("utf-8")
    assert f"AGENT_ROUTING_PROBE_LISTEN=0.0.0.0:{PROBE_PORT}" in dockerfile
    assert f'"health", "--live", "--probe", "127.0.0.1:{PROBE_PORT}"' in dockerfile
    server = load(DEPLOY / "compose.yaml")["services"]["server"]
    listen = server["environment"]["AGENT_ROUTING_PROBE_LISTEN"]
    assert server["healthcheck"]["test"][-2:] == ["--probe", listen]
    assert variables()["AGENT_ROUTING_PROBE_LISTEN"]["value"] == f"0.0.0.0:{PROBE_PORT}"
    unit = (DEPLOY / "systemd" / "agent-routing.service").read_text("utf-8")
    assert f"--probe-listen 127.0.0.1:{PROBE_PORT}" in unit


def test_ports_and_addresses_agree():
    """From the image to the Service."""
    exposed = f"EXPOSE {PORT} {WEB_PORT} {CONSOLE_PORT}\n"
    assert exposed in (DEPLOY / "Dockerfile").read_text("utf-8")
    assert variables()["AGENT_ROUTING_LISTEN"]["value"] == f"0.0.0.0:{PORT}"
    assert {p["name"]: p["containerPort"] for p in container()["ports"]} == {
        "grpc": PORT,
        "metrics": METRICS_PORT,
        "probes": PROBE_PORT,
    }
    (port,) = manifest("service")["spec"]["ports"]
    assert (port["targetPort"], port["port"]) == ("grpc", PORT)
    services = load(DEPLOY / "compose.yaml")["services"]
    listens = services["server"]["environment"]["AGENT_ROUTING_CONSOLE_LISTEN"]
    assert listens == f"${{CONSOLE_LISTEN-0.0.0.0:{CONSOLE_PORT}}}"
    published = {name: each.get("ports", []) for name, each in services.items()}
    assert published == {
        "postgres": [],
        "migrate": [],
        "server": [f"127.0.0.1:{port}:{port}" for port in (PORT, WEB_PORT, CONSOLE_PORT)],
        "prometheus": ["127.0.0.1:9090:9090"],
        "grafana": ["127.0.0.1:3000:3000"],
    }


def test_image_is_built_with_the_files_that_the_package_names():
    """Without its readme or a licence the build ends with an error."""
    let_through = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for name in (project["readme"], *project["license-files"]):
        assert f"!{name}" in let_through or f"!{name.split('/')[0]}/" in let_through, name


def test_image_has_every_extra():
    """A setting that the image cannot serve would fail in production alone."""
    dockerfile = (DEPLOY / "Dockerfile").read_text("utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert re.search(r'"\.\[(.*)\]"', dockerfile)[1] == "all"
    extras = project["optional-dependencies"]
    (every,) = extras["all"]
    # embeddings is another name of topics.
    assert (
        every == f"agent-routing-service[{','.join(sorted(extras.keys() - {'all', 'embeddings'}))}]"
    )


def test_figures_of_compose_reach_prometheus_and_grafana():
    """The names of one file are those of the others."""
    services = load(DEPLOY / "compose.yaml")["services"]
    port = services["server"]["environment"]["AGENT_ROUTING_METRICS_LISTEN"].rpartition(":")[2]
    (job,) = load(DEPLOY / "prometheus/prometheus.yml")["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"server:{port}"]}]
    # The alerts and the dashboard choose this job.
    assert job["job_name"] == "agent-routing"
    provisioned = DEPLOY / "grafana/provisioning"
    (source,) = load(provisioned / "datasources/prometheus.yaml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = load(provisioned / "dashboards/agent-routing.yaml")["providers"]
    mounts = [each.split(":")[:2] for each in services["grafana"]["volumes"]]
    for given, place in mounts[:-1]:
        assert (DEPLOY / given).exists()
        assert place.startswith((provider["options"]["path"], "/etc/grafana/provisioning"))


def test_figures_are_read_by_those_who_may_and_calls_made_by_the_others():
    """A missing rule blocks a port's callers; a wide one admits all."""
    assert variables()["AGENT_ROUTING_METRICS_LISTEN"]["value"] == f"0.0.0.0:{METRICS_PORT}"
    annotations = manifest("deployment")["spec"]["template"]["metadata"]["annotations"]
    assert annotations == {"prometheus.io/scrape": "true", "prometheus.io/port": str(METRICS_PORT)}
    let_in = {
        rule["from"][0]["namespaceSelector"]["matchLabels"].popitem(): rule["ports"]
        for rule in manifest("network-policy")["spec"]["ingress"]
    }
    assert let_in == {
        ("agent-routing/client", "true"): [{"port": PORT, "protocol": "TCP"}],
        ("agent-routing/metrics", "true"): [{"port": METRICS_PORT, "protocol": "TCP"}],
    }


def test_service_gives_every_replica():
    """Headless: with a single address, all calls of a connection would go to one replica."""
    assert manifest("service")["spec"]["clusterIP"] == "None"


def test_selectors_choose_the_servers_and_not_the_migration():
    """A budget or a policy without matching pods has no effect."""
    labels = manifest("deployment")["spec"]["template"]["metadata"]["labels"]
    others = manifest("migrate")["spec"]["template"]["metadata"]["labels"]
    for name, path in (
        ("deployment", ("selector", "matchLabels")),
        ("service", ("selector",)),
        ("disruption", ("selector", "matchLabels")),
        ("network-policy", ("podSelector", "matchLabels")),
    ):
        wanted = manifest(name)["spec"]
        for step in path:
            wanted = wanted[step]
        assert wanted.items() <= labels.items(), name
        assert not wanted.items() <= others.items(), name


def test_secret_and_registry_are_the_ones_that_are_asked_for():
    """By name and key."""
    secret = manifest("secret.example")
    for name in ("deployment", "migrate"):
        asked = variables(name)["AGENT_ROUTING_STORE"]["valueFrom"]["secretKeyRef"]
        assert asked["name"] == secret["metadata"]["name"]
        assert asked["key"] in secret["stringData"]
    registry = manifest("registry")
    (volume,) = manifest("deployment")["spec"]["template"]["spec"]["volumes"]
    assert volume["configMap"]["name"] == registry["metadata"]["name"]
    (mount,) = container()["volumeMounts"]
    # A folder: a file mounted alone never updates.
    assert "subPath" not in mount
    file = Path(variables()["AGENT_ROUTING_AGENTS"]["value"])
    assert str(file.parent) == mount["mountPath"]
    checked = check_registry(registry["data"][file.name], "registry.yaml")
    assert list(checked.registry.agents) == ["coordinator", "billing"]


def test_everything_is_applied_and_nothing_twice():
    """The Secret and the Job are applied by the operator."""
    applied = set(manifest("kustomization")["resources"])
    apart = {"kustomization.yaml", "secret.example.yaml", "migrate.yaml"}
    assert applied | apart == {path.name for path in MANIFESTS}
    assert not applied & apart
    namespaces = {
        load(path)["metadata"].get("namespace", "agent-routing")
        for path in MANIFESTS
        if path.name != "kustomization.yaml"
    }
    assert namespaces == {"agent-routing"}


def test_images_are_of_this_release():
    """The migration and the servers must have the same release."""
    images = {container(name)["image"] for name in ("deployment", "migrate")}
    assert images == {f"agent-routing:{__version__}"}
