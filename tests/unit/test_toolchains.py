"""Tests of other languages are skipped by name if a toolchain is missing; on CI they fail."""

import pytest

from tests import toolchains


@pytest.fixture(autouse=True)
def _asked_anew():
    """What one test finds is not what the next one finds."""
    toolchains.find.cache_clear()
    yield
    toolchains.find.cache_clear()


@pytest.fixture
def old_go(tmp_path, monkeypatch):
    """A machine whose only toolchain is a Go of 2022."""
    program = tmp_path / "go"
    program.write_text("#!/bin/sh\necho go version go1.19.8 linux/amd64\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(toolchains, "OWN_GO", tmp_path / "none")
    monkeypatch.setattr(toolchains, "SYSTEM_GO", tmp_path / "none")


def test_what_is_too_old_is_skipped_by_name(old_go, monkeypatch):
    """A developer reads in the closing lines what to install."""
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"toolchain go: go 1\.19\.8 is too old"):
        toolchains.require("go")


def test_on_ci_a_missing_toolchain_fails(old_go, monkeypatch):
    """A skip there would hide an untested client."""
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match=r"scripts/toolchains\.sh node installs it"):
        toolchains.require("node")


def test_a_newer_go_of_our_own_is_taken_before_an_old_one(old_go, tmp_path, monkeypatch):
    """Debian 12's comes first on the path, and is of no use."""
    own = tmp_path / "own"
    own.mkdir()
    (own / "go").write_text("#!/bin/sh\necho go version go1.99.1 linux/amd64\n")
    (own / "go").chmod(0o755)
    monkeypatch.setattr(toolchains, "OWN_GO", own)
    found = toolchains.require("go")
    assert found.version_text == "1.99.1"
    assert found.programs["go"] == own / "go"
    assert found.environ()["PATH"].startswith(str(own))


def test_missing_toolchains_are_listed(old_go, capsys):
    """scripts/toolchains.sh reads this."""
    assert toolchains.main(["go", "node"]) == 1
    wanted = ".".join(map(str, toolchains.GO_OLDEST))
    assert capsys.readouterr().out.splitlines() == [
        f"go: MISSING, go 1.19.8 is too old: {wanted} or newer is needed",
        "node: MISSING, node is not installed",
    ]
