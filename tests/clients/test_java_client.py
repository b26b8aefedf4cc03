"""The Java client: it is generated, compiled and tested by Maven, the vectors among its tests."""

import re
import zipfile

import pytest

from routing_service import __version__
from tests.clients import java_build


def test_its_version_is_the_services():
    """The clients are released with the service."""
    pom = (java_build.JAVA_CLIENT / "pom.xml").read_text("utf-8")
    assert f"<artifactId>agent-routing-client</artifactId>\n  <version>{__version__}<" in pom
    sources = java_build.JAVA_CLIENT / "src" / "main" / "java" / "agentrouting"
    assert f'VERSION = "{__version__}"' in (sources / "RoutingClient.java").read_text("utf-8")


@pytest.mark.timeout(600)
def test_its_own_tests_pass():
    """Each scenario is its own test."""
    with java_build.locked():
        said = java_build.maven("test")
    played = re.search(r"Tests run: (\d+), .* in agentrouting\.VectorsTest", said)
    assert played is not None, said[-3_000:]
    assert int(played[1]) >= 60, played[0]
    assert "WARNING] COMPILATION" not in said


@pytest.mark.torture
@pytest.mark.timeout(1_200)
def test_it_is_packaged_as_repositories_want_it():
    """The jar, its sources and its documentation, each with the contract's code in it."""
    names = {}
    with java_build.locked():
        java_build.maven("-P", "release", "-DskipTests", "package")
        for kind in ("", "-sources", "-javadoc"):
            jar = java_build.JAVA_CLIENT / f"target/agent-routing-client-{__version__}{kind}.jar"
            with zipfile.ZipFile(jar) as opened:
                names[kind] = set(opened.namelist())
    assert {"agentrouting/RoutingClient.class", "agentrouting/v1/RouteRequest.class"} <= names[""]
    assert not any(name.startswith("chat/") for name in names[""])
    assert {
        "agentrouting/RoutingClient.java",
        "agentrouting/v1/RouteRequest.java",
    } <= names["-sources"]
    # Below a folder of the module's name.
    assert "agentrouting/agentrouting/RoutingClient.html" in names["-javadoc"]


def test_no_class_has_the_name_of_a_message():
    """Users import both packages whole; a name in both would not compile."""
    sources = java_build.JAVA_CLIENT / "src" / "main" / "java" / "agentrouting"
    ours = {path.stem for path in sources.glob("*.java")} - {"package-info"}
    contract = "\n".join(
        path.read_text("utf-8") for path in java_build.toolchains.ROOT.glob("protos/**/*.proto")
    )
    messages = set(re.findall(r"^\s*(?:message|enum|service) (\w+)", contract, re.MULTILINE))
    assert {"Dispatch", "RouteReason"} <= messages
    assert ours & messages == set()
