"""The Go client: its code is current and formatted, and its tests pass, including the vectors.

Here they run normally. `make test-clients` also runs them with the race detector, which compiles
everything again, and runs go vet.
"""

import subprocess
import sys

import pytest

from routing_service import __version__
from tests import toolchains

GO_CLIENT = toolchains.ROOT / "clients" / "go"


def run(command, **environment):
    """Run a command in the client's folder, and return its output. Fails with the output."""
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
    """The clients are released with the service."""
    assert f'Version = "{__version__}"' in (GO_CLIENT / "options.go").read_text("utf-8")


def test_its_files_are_formatted():
    """With gofmt, generated files too."""
    assert run([toolchains.require("go").programs["gofmt"], "-l", "."]) == ""


def its_tests(*how):
    """Run the client's own tests. -count=1: the server may have changed."""
    go = toolchains.require("go").programs["go"]
    said = run([go, "test", *how, "-count=1", "-v", "./..."])
    played = [line for line in said.splitlines() if "--- PASS: TestVectors/" in line]
    assert len(played) >= 60, said[-3_000:]


@pytest.mark.timeout(600)
def test_its_own_tests_pass():
    """Each scenario is its own test."""
    its_tests("-vet=off")


@pytest.mark.clients
@pytest.mark.timeout(900)
def test_its_own_tests_pass_under_the_race_detector():
    """Many goroutines use a client at the same time. Also runs go vet."""
    its_tests("-race", "-vet=all")


@pytest.mark.clients
@pytest.mark.timeout(600)
def test_its_generated_code_is_what_the_contract_generates():
    """Otherwise users would be the first to notice a field that the client does not have."""
    run([sys.executable, toolchains.ROOT / "scripts" / "make_stubs.py", "--check", "go"])
