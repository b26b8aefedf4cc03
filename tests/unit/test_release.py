"""scripts/release.py: what is no release is refused, and a changed file is found."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from routing_service import __version__
from scripts import package_names, release

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


def verified(folder):
    """Run the command as a reader of the release would."""
    return subprocess.run(
        [sys.executable, "scripts/release.py", "--verify", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


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
