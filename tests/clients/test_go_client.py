"""The Go client: its code is current and in form, and its tests pass, the vectors among them.

Here they run as any program does; with the race detector, for which all is compiled again, and
beside what go vet finds, in `make test-clients`.
"""

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


def its_tests(*how):
    """Run the client's own tests. -count=1: the server may have changed."""
    go = toolchains.require("go").programs["go"]
    said = run([go, "test", *how, "-count=1", "-v", "./..."])
    played = [line for line in said.splitlines() if "--- PASS: TestVectors/" in line]
    assert len(played) >= 60, said[-3_000:]


@pytest.mark.timeout(600)
def test_its_own_tests_pass():
    """Each scenario is a test of its own."""
    its_tests("-vet=off")


@pytest.mark.clients
@pytest.mark.timeout(900)
def test_its_own_tests_pass_under_the_race_detector():
    """A client is used by many goroutines at once. With all that go vet finds."""
    its_tests("-race", "-vet=all")


@pytest.mark.clients
@pytest.mark.timeout(600)
def test_its_generated_code_is_what_the_contract_generates():
    """A field that the contract has and the client lacks would be noticed by its users first."""
    run([sys.executable, toolchains.ROOT / "scripts" / "make_stubs.py", "--check", "go"])
