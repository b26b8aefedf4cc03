"""The Java client: it is generated, compiled and tested by Maven, the vectors among its tests."""

import re
import subprocess
import sys
import zipfile

import pytest

from tests import toolchains

JAVA_CLIENT = toolchains.ROOT / "clients" / "java"


def run(command, cwd=JAVA_CLIENT):
    """Run a command with the Java toolchain, and return what it said. Fails with all of it."""
    java = toolchains.require("java")
    done = subprocess.run(
        [str(each) for each in command],
        check=False,
        cwd=cwd,
        env=java.environ(PYTHON=sys.executable),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-10_000:]
    return done.stdout


def maven(*arguments):
    """Run Maven on the client, whose generated code is not checked in, so is made before."""
    program = toolchains.require("java").programs["mvn"]
    run([sys.executable, toolchains.ROOT / "scripts" / "make_stubs.py", "java"])
    return run([program, "-B", "-ntp", *arguments])


@pytest.mark.timeout(600)
def test_its_own_tests_pass():
    """Each scenario is a test of its own."""
    said = maven("test")
    played = re.search(r"Tests run: (\d+), .* in agentrouting\.VectorsTest", said)
    assert played is not None, said[-3_000:]
    assert int(played[1]) >= 60, played[0]
    assert "WARNING] COMPILATION" not in said


@pytest.mark.torture
@pytest.mark.timeout(1_200)
def test_it_is_packaged_as_repositories_want_it():
    """The jar, its sources and its documentation, each with the contract's code in it."""
    maven("-P", "release", "-DskipTests", "package")
    names = {}
    for kind in ("", "-sources", "-javadoc"):
        with zipfile.ZipFile(JAVA_CLIENT / f"target/agent-routing-client-0.1.0{kind}.jar") as jar:
            names[kind] = set(jar.namelist())
    assert {"agentrouting/RoutingClient.class", "agentrouting/v1/RouteRequest.class"} <= names[""]
    assert not any(name.startswith("chat/") for name in names[""])
    assert {
        "agentrouting/RoutingClient.java",
        "agentrouting/v1/RouteRequest.java",
    } <= names["-sources"]
    assert "agentrouting/RoutingClient.html" in names["-javadoc"]
