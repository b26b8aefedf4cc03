"""`make release` in a fresh clone: what a release has, and that its check refuses a changed one."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from routing_service import __version__
from scripts.package_names import NAMES
from tests import toolchains

ROOT = Path(__file__).parents[2]

# The Java client's documentation and npm's packages take most of it.
pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """A private key and its public one, made for this test."""
    folder = tmp_path_factory.mktemp("keys")
    private, public = folder / "release.pem", folder / "release.pub"
    making = ["genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]
    subprocess.run(["openssl", *making, "-out", private], check=True, capture_output=True)
    subprocess.run(["openssl", "pkey", "-in", private, "-pubout", "-out", public], check=True)
    return private, public


@pytest.fixture(scope="module")
def clone(tmp_path_factory, keys):
    """A clone of the last commit, in which a release was built; without the image."""
    for name in ("go", "java", "node"):
        toolchains.require(name)
    folder = tmp_path_factory.mktemp("clone") / "agent-routing"
    subprocess.run(["git", "clone", "--quiet", ROOT, folder], check=True)
    # As before this version was kept for later ones.
    for kept in ("golden", "releases"):
        git(
            folder,
            "rm",
            "-r",
            "-q",
            "--ignore-unmatch",
            f"tests/compatibility/{kept}/{__version__}",
        )
    git(folder, "commit", "-q", "--allow-empty", "--message", "as before the release was kept")
    done = script(folder, "--without-image", "--sign", str(keys[0]))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "image: left out, as asked" in done.stdout
    return folder


def git(folder, *words):
    """Run git in a checkout, as a user of its own; return what it prints."""
    user = ("-c", "user.name=test", "-c", "user.email=test@example.com")
    return subprocess.run(
        ["git", *user, *words], cwd=folder, capture_output=True, text=True, check=True
    ).stdout


def script(folder, *words, name="release"):
    """Run scripts/release.py of a checkout, or another of its scripts."""
    return subprocess.run(
        [sys.executable, f"scripts/{name}.py", *words],
        cwd=folder,
        # Java's documentation takes most of the time: 58 s of processor time instead of 87.
        env=os.environ
        | {"PYTHONPATH": str(folder), "JAVA_TOOL_OPTIONS": " ".join(toolchains.JAVA_QUICK)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_release_has_every_artefact_and_can_be_verified(clone, keys):
    """By its own check, and the lists by sha256sum."""
    dist = clone / "dist"
    found = {path.relative_to(dist).as_posix() for path in dist.rglob("*") if path.is_file()}
    assert {
        f"agent_routing_service-{__version__}-py3-none-any.whl",
        f"agent_routing_service-{__version__}.tar.gz",
        f"agent_routing_client-{__version__}-py3-none-any.whl",
        f"agent-routing-client-{__version__}.tgz",
        f"agent-routing-{__version__}.tgz",
        f"agent-routing-{__version__}-wheels.cdx.json",
        f"agent-routing-{__version__}-wheels.cdx.json.sig",
        f"go/{NAMES['go']}/@v/v{__version__}.zip",
        "SHA256SUMS",
        "SHA256SUMS.sig",
        "provenance.json",
        "provenance.json.sig",
    } <= found
    done = script(clone, "--verify", "dist", "--key", str(keys[1]))
    assert done.returncode == 0, done.stderr
    sums = ["sha256sum", "--check", "--quiet", "SHA256SUMS"]
    assert subprocess.run(sums, cwd=dist, check=False).returncode == 0


def test_the_chart_of_a_release_is_the_one_in_the_tree(clone):
    """Helm reads the archive as it reads the folder."""
    helm = toolchains.require("helm").programs["helm"]
    archive = clone / "dist" / f"agent-routing-{__version__}.tgz"
    registry = f"registry.text={ROOT / 'routing_service/examples/tax.yaml'}"
    words = ["--set-file", registry, "--kube-version", "1.37.0"]
    rendered = [
        subprocess.run(
            [helm, "template", "chat", chart, *words], capture_output=True, text=True, check=True
        ).stdout
        for chart in (archive, clone / "deploy/helm")
    ]
    assert rendered[0] == rendered[1]
    assert "kind: Deployment" in rendered[0]
    with tarfile.open(archive) as opened:
        assert opened.getnames()[0] == "agent-routing/Chart.yaml"


def test_a_changed_bill_of_materials_is_refused(clone, keys, tmp_path):
    """The hashes find it, and the signature does where the hashes were written again."""
    dist = shutil.copytree(clone / "dist", tmp_path / "dist")
    path = dist / f"agent-routing-{__version__}-wheels.cdx.json"
    bom = json.loads(path.read_text("utf-8"))
    bom["components"].pop()
    path.write_text(json.dumps(bom), "utf-8")
    done = script(clone, "--verify", str(dist), "--key", str(keys[1]))
    assert done.returncode == 1
    assert f"{path.name}: changed" in done.stderr


def test_a_release_is_kept_for_the_tests_of_later_ones(clone, keys):
    """Its golden set and its wheels, once; the tests of earlier releases read both."""
    before = clone / "tests/compatibility"
    golden, kept = (before / name / __version__ for name in ("golden", "releases"))
    words = ["dist", "--key", str(keys[1])]
    done = script(clone, *words, name="keep_release")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == [
        f"tests/compatibility/golden/{__version__}",
        f"tests/compatibility/releases/{__version__}",
    ]
    names = {path.name for path in (before / "golden/0.1.0").iterdir()}
    assert {path.name for path in golden.iterdir()} == names
    for folder in (golden, kept):
        sums = ["sha256sum", "--check", "--quiet", "--strict", "SHA256SUMS"]
        assert subprocess.run(sums, cwd=folder, check=False).returncode == 0
    assert {path.name for path in kept.glob("*.whl")} == {
        f"agent_routing_{name}-{__version__}-py3-none-any.whl" for name in ("client", "service")
    }
    changed = git(clone, "status", "--porcelain").split()
    assert set(changed) == {"??", *(f"{path.relative_to(clone)}/" for path in (golden, kept))}
    again = script(clone, *words, name="keep_release")
    assert again.returncode == 1
    assert (
        f"tests/compatibility/golden/{__version__} is there, and is never changed" in again.stderr
    )
