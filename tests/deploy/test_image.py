"""The image, built without Docker and run from its archive: what `make image` promises.

runc runs it as deploy/compose.yaml restricts it, with the user and variables that the archive has.
Where the kernel refuses runc, those tests are skipped with the refusal, and buildah's chroot alone
serves. With the variable IMAGE it is the image in that folder (dist/image), otherwise one is built.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import tarfile
import threading
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from agent_routing import Client, outcomes
from routing_service import __version__
from scripts import image, release, sbom, signatures
from tests import toolchains
from tests.deploy.containers import USER, Chroot, Runc

# From nothing: Debian's packages, then pip's.
pytestmark = pytest.mark.timeout(1800)

SITE_PACKAGES = "/opt/agent-routing/lib/python3.11/site-packages"

EXTRAS = """
import importlib, os
for name in ("connectrpc", "h11", "starlette", "uvicorn", "opentelemetry.sdk.trace",
             "opentelemetry.exporter.otlp.proto.grpc.trace_exporter", "psycopg", "psycopg_binary",
             "redis", "hiredis", "jwt", "cryptography.x509", "uvloop", "multidict._multidict"):
    importlib.import_module(name)
from botocore.session import Session
keys = {"aws_access_key_id": "x", "aws_secret_access_key": "y"}
for name in ("dynamodb", "sts"):
    Session().create_client(name, region_name="eu-west-1", **keys).close()
from agent_routing_topics.sentence_vectors.weight_files import load_encoder
vectors = load_encoder().encode(["hola", "hello"])
assert vectors[0] @ vectors[1] > 0.5, vectors
from babel import Locale
assert all(Locale.parse(name).plural_form(1) == "one" for name in ("en", "es", "pt"))
print(os.getuid(), os.getgid())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the archive and its bill of materials."""
    toolchains.require("image")
    if "IMAGE" in os.environ:
        return Path(os.environ["IMAGE"])
    output = tmp_path_factory.mktemp("image")
    image.build(output)
    return output


@pytest.fixture(scope="module")
def archive(folder):
    """The archive."""
    return folder / f"{image.name()}.oci.tar"


@pytest.fixture(scope="module")
def config(archive):
    """What the archive says about how to run it."""
    with tarfile.open(archive) as opened:

        def blob(digest):
            return json.load(opened.extractfile(f"blobs/{digest.replace(':', '/')}"))

        return blob(blob(image.manifest_digest(archive))["config"]["digest"])["config"]


@pytest.fixture(scope="module")
def buildah(tmp_path_factory):
    """A store for containers."""
    return image.Buildah(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def container(buildah, archive):
    """A container of the image, by which buildah finds its files."""
    with buildah.container(f"oci-archive:{archive}") as made:
        yield made


@pytest.fixture(scope="module")
def root(buildah, container):
    """The image's files."""
    return buildah.mounted(container)


@pytest.fixture(scope="module")
def runc(root, config, tmp_path_factory):
    """Runs containers as compose and Kubernetes do."""
    engine = Runc(root, config, tmp_path_factory.mktemp("runc"))
    refusal = engine.refusal()
    if refusal:
        pytest.skip(f"runc is refused here: {refusal}")
    return engine


@pytest.fixture(scope="module")
def chroot(buildah, container):
    """Runs the image's programs everywhere."""
    return Chroot(buildah, container)


@pytest.fixture(params=["runc", "chroot"])
def each_engine(request):
    """Each way to run the image's programs."""
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def engine(request):
    """runc, or what is left where the kernel refuses it."""
    try:
        return request.getfixturevalue("runc")
    except pytest.skip.Exception:
        return request.getfixturevalue("chroot")


def free_port():
    """Return a port that is free now."""
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return opened.getsockname()[1]


def page(address):
    """Return the status of a page, and its text."""
    with urllib.request.urlopen(f"http://{address}", timeout=30) as answered:
        return answered.status, answered.read().decode()


@contextmanager
def served(engine, *words):
    """Serve from a container; yields the address, then stops the server and looks how it ended."""
    process = subprocess.Popen(
        engine.command("agent-routing", "serve", "--insecure", *words),
        env=engine.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    log = []
    reader = threading.Thread(target=lambda: log.extend(process.stderr), daemon=True)
    reader.start()
    try:
        first = process.stdout.readline()
        assert first.startswith("serving on "), first + "".join(log)
        yield first.removeprefix("serving on ").strip()
    finally:
        engine.stop(process)
        assert process.wait(60) == 0, "".join(log)
        process.stdout.close()
        reader.join(10)
        process.stderr.close()


def test_the_server_answers_as_a_user_without_rights(each_engine):
    """Health, probes, a Route and a handoff, the console, figures; the store is that user's."""
    probes, console, web, metrics = (f"127.0.0.1:{free_port()}" for _ in range(4))
    words = ["--listen", "127.0.0.1:0", "--probe-listen", probes, "--console-listen", console]
    words += ["--web-listen", web, "--metrics-listen", metrics]
    words += ["--example", "tax"]
    with served(each_engine, *words) as address:
        with grpc.insecure_channel(address) as channel:
            asked = health_pb2.HealthCheckRequest(service="agent_routing.v1.RoutingService")
            answer = health_pb2_grpc.HealthStub(channel).Check(asked, timeout=30)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        # The first is the Dockerfile's health check.
        assert each_engine.inside("agent-routing", "health", "--live", "--probe", probes)
        assert each_engine.inside("agent-routing", "health", "--probe", probes)
        with Client(address, fallback=None, timeout=30) as client:
            turn = client.route("hola", user_id="ana", channel="web")
            assert turn.agent_id == "coordinator"
            answer = client.complete_turn(
                *(turn.session_id, turn.request_id, turn.agent_id),
                outcomes.handoff("vat"),
                text="IVA",
            )
            assert answer.next.agent.agent_id == "vat"
        assert page(console)[0] == 200
        status, text = page(f"{metrics}/metrics")
        assert status == 200
        assert "agent_routing" in text
        with socket.create_connection(("127.0.0.1", int(web.rpartition(":")[2])), 30):
            pass
        owner = each_engine.inside("stat", "--format", "%u:%g %a", "/data/routing.db")
        assert owner == f"{USER}:{USER} 600"


def test_nothing_but_data_can_be_written(runc):
    """As compose and the manifests promise: read-only root, no capabilities, no new privileges."""
    said = runc.say(
        "sh",
        "-c",
        "id -u; for at in / /tmp /opt/agent-routing /etc /data; do"
        " if (: >$at/written) 2>/dev/null; then echo $at; fi; done;"
        " grep -E '^(CapEff|CapBnd|NoNewPrivs)' /proc/self/status",
    )
    user, written, *status = said.splitlines()
    assert (user, written) == (str(USER), "/data")
    assert {line.partition(":")[0]: int(line.partition(":")[2], 16) for line in status} == {
        "CapEff": 0,
        "CapBnd": 0,
        "NoNewPrivs": 1,
    }


def test_every_extra_is_there_and_works(engine):
    """Also after trimming: stripped libraries load, and the AWS services that are called exist."""
    said = engine.say("/opt/agent-routing/bin/python", "-c", EXTRAS)
    assert said == f"{USER} {USER}"
    assert __version__ in engine.say("agent-routing", "--version")


def test_a_refused_runc_is_reported_and_a_chroot_does_the_same(
    buildah, container, tmp_path, monkeypatch, capfd
):
    """A runc that the kernel refuses: the refusal is printed, and the next command works."""
    refused = tmp_path / "runc"
    refused.write_text("#!/bin/sh\necho 'clone: operation not permitted' >&2\nexit 1\n")
    refused.chmod(0o755)
    changed = buildah.environment | {"BUILDAH_ISOLATION": "oci", "BUILDAH_RUNTIME": str(refused)}
    monkeypatch.setattr(buildah, "environment", changed)
    refusal = buildah.choose_isolation(container)
    assert "clone: operation not permitted" in refusal
    printed = capfd.readouterr().out
    assert f"runc is refused here, so the same steps run in a chroot: {refusal}" in printed
    assert buildah.run("run", container, "--", "id", "-u", quiet=True) == str(USER)


def test_a_release_lists_signs_and_checks_the_image(folder, tmp_path):
    """A changed archive or bill of materials is refused, also if the list was written again."""
    private, public = tmp_path / "release.pem", tmp_path / "release.pub"
    making = ["genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]
    subprocess.run(["openssl", *making, "-out", private], check=True, capture_output=True)
    subprocess.run(["openssl", "pkey", "-in", private, "-pubout", "-out", public], check=True)
    dist = tmp_path / "dist"
    packed = dist / release.IMAGE_FOLDER
    shutil.copytree(folder, packed)
    release.write_lists(dist, "0123456789abcdef0123456789abcdef01234567")
    signed = release.signed_files(dist)
    assert packed / f"{image.name()}{sbom.SUFFIX}" in signed
    for path in signed:
        signatures.sign(path, private)
    release.verify(dist, public)
    with (packed / f"{image.name()}.oci.tar").open("ab") as file:
        file.write(b"more")
    with pytest.raises(release.ReleaseError, match=r"oci\.tar: changed"):
        release.verify(dist, public)
    release.write_lists(dist, "0123456789abcdef0123456789abcdef01234567")
    with pytest.raises(sbom.SbomError, match="has another hash of image/"):
        release.verify(dist, public)


def test_tools_of_the_build_are_not_in_the_image(root):
    """What can install or compile would help an intruder."""
    packages = root / SITE_PACKAGES.lstrip("/")
    for name in ("pip", "setuptools", "grpc_tools", "numpy/f2py", "hatchling"):
        assert not any((packages / name).rglob("*.py")), name
    for name in ("apt-get", "gcc", "cc", "strip", "ld", "pip", "perl5.36"):
        assert not (root / "usr/bin" / name).exists(), name
    assert image.size(root) < 400 * image.MIB
    environment = packages.parents[2] / "bin"
    assert not any(path.name.startswith("pip") for path in environment.iterdir())


def test_records_are_those_of_the_trimmed_files(root):
    """What is installed can be verified, file by file."""
    packages = root / SITE_PACKAGES.lstrip("/")
    found = sbom.installed(packages)
    assert "agent-routing-service" in found
    for each in found.values():
        for path in each.files or []:
            if path.suffix == ".pyc" or path.hash is None:
                continue
            location = path.locate()
            assert location.is_file(), f"{each.name}: {path}"
            assert location.stat().st_size == path.size, f"{each.name}: {path}"


def test_the_archive_says_how_to_run_it(config):
    """As Docker, podman and Kubernetes read it."""
    assert config["User"] == f"{USER}:{USER}"
    assert config["Entrypoint"] == ["agent-routing"]
    assert config["Cmd"] == ["serve"]
    assert config["StopSignal"] == "SIGTERM"
    assert set(config["ExposedPorts"]) == {"50051/tcp", "8080/tcp", "50080/tcp"}
    assert "AGENT_ROUTING_STORE=sqlite:////data/routing.db" in config["Env"]


def test_the_bill_of_materials_is_what_the_image_says_of_itself(engine, folder):
    """Compared with the list of dpkg, and of Python's metadata, in the image."""
    path = folder / f"{image.name()}{sbom.SUFFIX}"
    sbom.check_schema(path)
    bom = json.loads(path.read_text("utf-8"))
    listed = {
        (each["purl"].partition(":")[2].split("/")[0], each["name"], each["version"])
        for each in bom["components"]
    }
    debian = engine.say("dpkg-query", "--show", "--showformat", "${Package} ${Version}\n")
    script = "import importlib.metadata as m\nfor d in m.distributions(): print(d.name, d.version)"
    python = engine.say("/opt/agent-routing/bin/python", "-Ic", script)
    wanted = {("deb", *line.split()) for line in debian.splitlines()}
    wanted |= {
        ("pypi", re.sub(r"[-_.]+", "-", name).lower(), version)
        for name, version in map(str.split, python.splitlines())
    }
    assert listed == wanted
    digest = image.manifest_digest(folder / f"{image.name()}.oci.tar")
    assert digest.replace(":", "%3A") in bom["metadata"]["component"]["purl"].replace(":", "%3A")
    # Libraries within wheels, which no list of packages has.
    inner = {each["name"] for part in bom["components"] for each in part.get("components", [])}
    assert {"keyutils-libs", "openssl"} <= inner
