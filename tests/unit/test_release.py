"""scripts/release.py: what is no release is refused, and a changed file is found."""

import base64
import io
import json
import shutil
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from routing_service import __version__
from scripts import package_names, release, sbom, signatures

ROOT = Path(__file__).parents[2]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def dist(tmp_path):
    """A release of two files, with its lists."""
    folder = tmp_path / "dist"
    (folder / "go").mkdir(parents=True)
    (folder / "a.whl").write_bytes(b"a")
    (folder / "go" / "v1.zip").write_bytes(b"b")
    release.write_lists(folder, COMMIT)
    return folder


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """A private key and its public one, made by openssl."""
    folder = tmp_path_factory.mktemp("keys")
    private, public = folder / "release.pem", folder / "release.pub"
    openssl(
        "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", str(private)
    )
    openssl("pkey", "-in", str(private), "-pubout", "-out", str(public))
    return private, public


@pytest.fixture
def signed(signed_once, tmp_path):
    """A signed release that a test may change."""
    return shutil.copytree(signed_once, tmp_path / "dist")


@pytest.fixture(scope="module")
def signed_once(tmp_path_factory, keys):
    """A release of the wheels' names, with a bill of materials and signatures."""
    folder = tmp_path_factory.mktemp("release")
    wheels = []
    for name in ("service", "client", "topics"):
        wheels.append(folder / f"agent_routing_{name}-{__version__}-py3-none-any.whl")
        wheels[-1].write_bytes(name.encode())
    bom = sbom.of_wheels(wheels, __version__, 1_790_000_000)
    sbom.write(bom, folder / "wheels.cdx.json")
    release.write_lists(folder, COMMIT)
    for path in release.signed_files(folder):
        signatures.sign(path, keys[0])
    return folder


def openssl(*words):
    """Run openssl; skipped by name where it is missing."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("openssl is not installed")
    return subprocess.run([program, *words], capture_output=True, check=True)


def verified(folder, *words):
    """Run the command as a reader of the release would, in this process."""
    said, failed = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        redirect_stdout(said),
        redirect_stderr(failed),
    ):
        patch.setattr(sys, "argv", ["release.py", "--verify", str(folder), *words])
        code = release.main()
    return subprocess.CompletedProcess(words, code, said.getvalue(), failed.getvalue())


def test_a_release_as_it_was_built_is_verified(dist):
    """The command names the commit."""
    done = verified(dist)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"2 files are as commit {COMMIT} is said to have built them\n"


def test_the_hashes_are_in_the_form_of_sha256sum(dist):
    """So that a reader needs nothing of this project."""
    done = subprocess.run(
        ["sha256sum", "--check", "SHA256SUMS"],
        cwd=dist,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == ["a.whl: OK", "go/v1.zip: OK"]


def test_the_provenance_is_a_statement_of_slsa(dist):
    """The fields that verifiers of other projects read."""
    statement = json.loads((dist / "provenance.json").read_text("utf-8"))
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    assert [each["name"] for each in statement["subject"]] == ["a.whl", "go/v1.zip"]
    definition = statement["predicate"]["buildDefinition"]
    assert definition["externalParameters"] == {"version": __version__}
    commits = [
        each["digest"]["gitCommit"]
        for each in definition["resolvedDependencies"]
        if "gitCommit" in each["digest"]
    ]
    assert commits == [COMMIT]
    assert {"id"} <= statement["predicate"]["runDetails"]["builder"].keys()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda folder: (folder / "a.whl").write_bytes(b"c"), "a.whl: changed"),
        (lambda folder: (folder / "a.whl").unlink(), "a.whl: missing"),
        (lambda folder: (folder / "b.whl").write_bytes(b"b"), "b.whl: not part of the release"),
        (
            lambda folder: (folder / "SHA256SUMS").write_text("0  a.whl\n"),
            "SHA256SUMS and provenance.json differ",
        ),
        (lambda folder: (folder / "provenance.json").write_text("{}"), "that can be read"),
        (lambda folder: (folder / "SHA256SUMS").unlink(), "that can be read"),
    ],
)
def test_what_was_changed_is_named(dist, change, complaint):
    """Exit code 1, and each file that differs."""
    change(dist)
    done = verified(dist)
    assert done.returncode == 1
    assert complaint in done.stderr


@pytest.mark.parametrize(
    ("text", "is_good"),
    [
        (f"## [{__version__}] - 2026-01-01\n\n### Added\n\n- A thing.\n", True),
        (f"## [{__version__}]\n\n### Added\n\n- A thing.\n", False),
        (f"## [{__version__}] - 2026-01-01\n\n## [0.0.1] - 2025-01-01\n\n- Old.\n", False),
        ("## [Unreleased]\n\n- A thing.\n", False),
    ],
)
def test_a_version_without_notes_is_no_release(tmp_path, monkeypatch, text, is_good):
    """The changelog's section is the release's notes."""
    (tmp_path / "CHANGELOG.md").write_text(text, "utf-8")
    monkeypatch.setattr(release, "ROOT", tmp_path)
    monkeypatch.setattr(release, "version", lambda: __version__)
    if is_good:
        release.check_notes()
        return
    with pytest.raises(release.ReleaseError, match="has no entries"):
        release.check_notes()


def test_this_version_has_notes():
    """As the release will ask."""
    release.check_notes()


def test_a_tree_with_changes_is_no_release(tmp_path, monkeypatch):
    """Its commit would not be what was built."""
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    (tmp_path / "new.txt").write_text("x")
    monkeypatch.setattr(release, "ROOT", tmp_path)
    with pytest.raises(release.ReleaseError, match=r"new\.txt"):
        release.clean_commit()


def test_names_that_nobody_can_publish_are_said_to_be_stand_ins():
    """They have to change before a release is published."""
    assert package_names.stand_ins().keys() == {"go", "maven-group", "home"}


def test_signatures_are_verified_by_this_and_by_openssl(signed, keys, tmp_path):
    """A reader may trust another program more."""
    done = verified(signed, "--key", str(keys[1]))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"3 signatures are of {keys[1]}\n4 files are as commit")
    for path in release.signed_files(signed):
        raw = tmp_path / "raw"
        raw.write_bytes(base64.b64decode(path.with_name(f"{path.name}.sig").read_bytes()))
        said = openssl("dgst", "-sha256", "-verify", keys[1], "-signature", raw, path).stdout
        assert said == b"Verified OK\n"


def remade(folder):
    """Write the lists again, as one who changes a file would."""
    release.write_lists(folder, COMMIT)


def changed_bill(folder):
    """Name another version of a component, and write the lists again."""
    path = folder / "wheels.cdx.json"
    path.write_text(path.read_text("utf-8").replace("grpcio@", "grpcio-@"), "utf-8")
    remade(folder)


def unsigned(folder):
    """Remove a signature."""
    (folder / "wheels.cdx.json.sig").unlink()


def signed_by_no_one(folder):
    """Write what is not base64."""
    (folder / "SHA256SUMS.sig").write_text("ja")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (changed_bill, "SHA256SUMS.sig is not the signature of SHA256SUMS"),
        (unsigned, "wheels.cdx.json is not signed: wheels.cdx.json.sig is missing"),
        (signed_by_no_one, "SHA256SUMS.sig is not the signature of SHA256SUMS"),
    ],
)
def test_what_was_changed_after_signing_is_refused(signed, keys, change, complaint):
    """Also by one who writes the lists again."""
    change(signed)
    done = verified(signed, "--key", str(keys[1]))
    assert done.returncode == 1
    assert complaint in done.stderr


def test_another_key_is_refused(signed, tmp_path):
    """Anyone can sign."""
    other = tmp_path / "other.pem"
    openssl(
        "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", str(other)
    )
    openssl("pkey", "-in", str(other), "-pubout", "-out", str(tmp_path / "other.pub"))
    done = verified(signed, "--key", str(tmp_path / "other.pub"))
    assert done.returncode == 1
    assert "SHA256SUMS.sig is not the signature of SHA256SUMS" in done.stderr


def test_a_key_of_another_kind_is_refused(dist, tmp_path):
    """Before anything is signed with it."""
    key = tmp_path / "ed25519.pem"
    openssl("genpkey", "-algorithm", "ED25519", "-out", str(key))
    with pytest.raises(signatures.SignatureError, match="is not a key on P-256"):
        signatures.sign(dist / "SHA256SUMS", key)
    with pytest.raises(signatures.SignatureError, match="cannot be read as a private key"):
        signatures.sign(dist / "SHA256SUMS", tmp_path / "missing.pem")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda text: text.replace('"specVersion"', '"specification"'), "is not CycloneDX 1.6"),
        (lambda text: text.replace("agent-routing:file", "other:file"), "names no file"),
        (lambda text: text.replace('"agent_routing_client-', '"gone-'), "names gone-"),
        (
            lambda text: text.replace(text.split('"content": "')[1][:64], "0" * 64),
            "has another hash of",
        ),
    ],
)
def test_a_bill_that_is_not_of_these_files_is_refused(signed, change, complaint):
    """Without a key, too, and although the lists were written again."""
    path = signed / "wheels.cdx.json"
    path.write_text(change(path.read_text("utf-8")), "utf-8")
    remade(signed)
    done = verified(signed)
    assert done.returncode == 1
    assert complaint in done.stderr


def test_the_bill_has_what_the_wheels_need_at_the_tested_versions(signed):
    """With the extras, and who needs whom."""
    bom = json.loads((signed / "wheels.cdx.json").read_text("utf-8"))
    listed = {each["name"]: each["version"] for each in bom["components"]}
    constraints = dict(
        line.split("==")
        for line in (ROOT / "scripts/requirements/constraints.txt").read_text("utf-8").splitlines()
        if not line.startswith("#")
    )
    tested = {name.lower().replace("_", "-"): version for name, version in constraints.items()}
    tested = {name.replace(".", "-"): version for name, version in tested.items()}
    ours = {f"agent-routing-{name}": __version__ for name in ("service", "client", "topics")}
    assert {name: (tested | ours)[name] for name in listed} == listed
    assert {"grpcio", "psycopg", "hiredis", "aiobotocore", "pyjwt", "connectrpc"} <= listed.keys()
    assert {"pytest", "moto", "ruff"}.isdisjoint(listed)
    needs = {each["ref"]: each.get("dependsOn", []) for each in bom["dependencies"]}
    assert f"pkg:pypi/hiredis@{listed['hiredis']}" in needs[f"pkg:pypi/redis@{listed['redis']}"]
    assert all(each.get("licenses") for each in bom["components"])


def test_a_key_may_have_a_password(dist, tmp_path, monkeypatch):
    """From the environment: a command line is visible to others."""
    key = tmp_path / "release.pem"
    making = ("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-aes256")
    openssl(*making, "-pass", "pass:secret", "-out", str(key))
    with pytest.raises(signatures.SignatureError, match="RELEASE_KEY_PASSWORD is its password"):
        signatures.sign(dist / "SHA256SUMS", key)
    monkeypatch.setenv("RELEASE_KEY_PASSWORD", "secret")
    assert signatures.sign(dist / "SHA256SUMS", key).name == "SHA256SUMS.sig"
