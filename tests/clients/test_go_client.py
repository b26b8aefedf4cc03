"""The Go client: its code is current and in form, and its tests pass, the vectors among them."""

import subprocess
import sys

import pytest

from routing_service import __version__
from tests import toolchains

GO_CLIENT = toolchains.ROOT / "clients" / "go"


def run(command, **environment):
    """Run a command in the client's folder, and return what it said. Fails with all of it."""
    go = toolchains.require("go")
    done = subprocess.run(
        [str(each) for each in command],
        check=False,
        cwd=GO_CLIENT,
        env=go.environ(PYTHON=sys.executable, **environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-10_000:]
    return done.stdout


def test_its_version_is_the_services():
    """All are released together."""
    assert f'Version = "{__version__}"' in (GO_CLIENT / "options.go").read_text("utf-8")


def test_its_files_are_formatted():
    """As gofmt has them, generated ones too."""
    assert run([toolchains.require("go").programs["gofmt"], "-l", "."]) == ""


@pytest.mark.timeout(600)
def test_its_generated_code_is_what_the_contract_generates():
    """A field that the contract has and the client lacks would be noticed by its users first."""
    run([sys.executable, toolchains.ROOT / "scripts" / "make_stubs.py", "--check", "go"])


@pytest.mark.timeout(600)
def test_its_own_tests_pass():
    """With the race detector, and all that go vet finds. -count=1: the server may have changed."""
    go = toolchains.require("go").programs["go"]
    said = run([go, "test", "-race", "-vet=all", "-count=1", "-v", "./..."])
    played = [line for line in said.splitlines() if "--- PASS: TestVectors/" in line]
    assert len(played) >= 60, said[-3_000:]
