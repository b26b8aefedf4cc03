#!/usr/bin/env python3
"""Build all distributions into dist/, and test them away from the source tree.

    scripts/dist.py            wheels and sdists, each tried in environments of its own
    scripts/dist.py --build    only build

Each of these environments gets what a user would get, and calls a server:

    client, oldest     the lowest versions that the client's bounds allow
    client, newest     the newest ones there are
    client, sdist      built from its source distribution
    service, oldest    the lowest versions of what the service names, with the wheel
    service, newest    the newest ones, with all extras
    service, sdist     built from its source distribution, at the versions of the tests

An environment costs some tens of seconds, most of it downloads.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

ROOT: Final = Path(__file__).parent.parent
DIST: Final = ROOT / "dist"
CLIENT: Final = ROOT / "clients" / "python"
TOPICS: Final = ROOT / "topics"
CONSTRAINTS: Final = ROOT / "scripts" / "requirements" / "constraints.txt"
HATCH: Final = (sys.executable, "-m", "hatchling", "build")
RUN_S_MAX: Final = 900

# What a user does first, in a program of a few lines: with the server's address.
TRIAL: Final = """
import sys
import agent_routing
from agent_routing import Client, errors, outcomes
import google.protobuf, grpc

with Client(sys.argv[1], fallback=None, timeout=30) as client:
    turn = client.route("hola", user_id="ana", channel="web")
    assert turn.agent_id == "coordinator", turn
    answer = client.complete_turn(
        turn.session_id, turn.request_id, turn.agent_id, outcomes.handoff("vat"), text="IVA"
    )
    assert answer.next.agent.agent_id == "vat", answer
    try:
        client.set_active_agent(turn.session_id, "payroll", user_id="ana")
    except errors.HandoffRefused as refused:
        assert refused.rules == ("entitled",), refused
    else:
        raise AssertionError("payroll was not refused")
    changes = client.watch_session(turn.session_id, user_id="ana", after_revision=0)
    assert next(changes).events[0].WhichOneof("kind") == "session_started"
    changes.close()
print("grpcio", grpc.__version__, "protobuf", google.protobuf.__version__, "client",
      agent_routing.__version__)
"""


@dataclass(frozen=True)
class Installation:
    """One environment: what goes into it, and at which versions."""

    name: str
    what: tuple[str, ...]
    constraints: tuple[str, ...] = ()
    at_tested_versions: bool = False
    has_server: bool = False


def main() -> int:
    """Build the distributions and, without --build, test them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--build", action="store_true", help="only build")
    arguments = parser.parse_args()
    built = build()
    if arguments.build:
        return 0
    with tempfile.TemporaryDirectory(prefix="dist-") as folder:
        scratch = Path(folder)
        server = scratch / "server"
        for installation in installations(built):
            bin_folder = install(installation, scratch / installation.name.replace(" ", "-"))
            if installation.has_server:
                server = bin_folder
                try_service(installation.name, bin_folder)
            try_client(installation.name, bin_folder, server, scratch)
    print("all of these work:")
    for path in sorted(DIST.iterdir()):
        print(f"{path.stat().st_size:>10,}  {path.name}")
    return 0


@dataclass(frozen=True)
class Built:
    """The files of the three distributions."""

    client_wheel: Path
    client_sdist: Path
    topics_wheel: Path
    topics_sdist: Path
    service_wheel: Path
    service_sdist: Path


def build() -> Built:
    """Build wheels and sdists; the wheel must be what its sdist builds, too."""
    # What else is there, such as the image, stays.
    for old in (*DIST.glob("agent_routing_*.whl"), *DIST.glob("agent_routing_*.tar.gz")):
        old.unlink()
    for project in (CLIENT, TOPICS, ROOT):
        run([*HATCH, "--directory", str(DIST)], cwd=project)

    def one(pattern: str) -> Path:
        (path,) = DIST.glob(pattern)
        return path

    built = Built(
        one("agent_routing_client-*.whl"),
        one("agent_routing_client-*.tar.gz"),
        one("agent_routing_topics-*.whl"),
        one("agent_routing_topics-*.tar.gz"),
        one("agent_routing_service-*.whl"),
        one("agent_routing_service-*.tar.gz"),
    )
    for wheel, package in (
        (built.client_wheel, "agent_routing"),
        (built.topics_wheel, "agent_routing_topics"),
        (built.service_wheel, "routing_service"),
    ):
        names = set(zipfile.ZipFile(wheel).namelist())
        assert f"{package}/py.typed" in names, f"{wheel.name} does not say that it is typed"
    for wheel, sdist in (
        (built.client_wheel, built.client_sdist),
        (built.topics_wheel, built.topics_sdist),
        (built.service_wheel, built.service_sdist),
    ):
        with tempfile.TemporaryDirectory() as folder:
            shutil.unpack_archive(sdist, folder, filter="data")
            (source,) = Path(folder).iterdir()
            run(
                [*HATCH, "--target", "wheel", "--directory", f"{folder}/again"],
                cwd=source,
            )
            (again,) = Path(folder, "again").iterdir()
            left = set(zipfile.ZipFile(wheel).namelist()) ^ set(zipfile.ZipFile(again).namelist())
            assert not left, f"{sdist.name} builds another wheel: {sorted(left)[:5]}"
    return built


def installations(built: Built) -> list[Installation]:
    """Return the environments, one with a server first: the clients speak to it."""
    extras = f"{built.service_wheel}[{','.join(extras_of(ROOT))}]"
    return [
        Installation(
            "service newest",
            (extras, str(built.client_wheel), str(built.topics_wheel)),
            has_server=True,
        ),
        Installation("client oldest", (str(built.client_wheel),), lowest(CLIENT)),
        Installation("client newest", (str(built.client_wheel),)),
        Installation("client sdist", (str(built.client_sdist),), at_tested_versions=True),
        Installation(
            "service oldest",
            (str(built.service_wheel), str(built.client_wheel), str(built.topics_wheel)),
            (*lowest(ROOT), *lowest(TOPICS)),
            has_server=True,
        ),
        Installation(
            "service sdist",
            (str(built.service_sdist), str(built.client_sdist), str(built.topics_sdist)),
            at_tested_versions=True,
            has_server=True,
        ),
    ]


def project_of(folder: Path) -> dict[str, object]:
    """Return the project table of a pyproject.toml."""
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert isinstance(project, dict)
    return project


def extras_of(folder: Path) -> list[str]:
    """Return the names of a project's extras."""
    extras = project_of(folder).get("optional-dependencies", {})
    assert isinstance(extras, dict)
    return sorted(extras)


def lowest(folder: Path) -> tuple[str, ...]:
    """Return constraints to the lowest version of each dependency that has a bound."""
    named = project_of(folder)["dependencies"]
    assert isinstance(named, list)
    found = []
    for requirement in map(Requirement, named):
        bounds = [part.version for part in requirement.specifier if part.operator == ">="]
        if bounds:
            found.append(f"{requirement.name}=={bounds[0]}")
    return tuple(found)


def install(installation: Installation, environment: Path) -> Path:
    """Make an environment; return the folder of its commands."""
    print(f"== {installation.name}", flush=True)
    try:
        run([sys.executable, "-m", "venv", str(environment)])
    except subprocess.CalledProcessError:
        # Python without its venv module.
        run([sys.executable, "-m", "virtualenv", "--quiet", str(environment)])
    bin_folder = environment / "bin"
    words = [str(bin_folder / "python"), "-m", "pip", "install", "--quiet"]
    words += ["--disable-pip-version-check", *installation.what]
    if installation.constraints:
        path = environment / "lowest.txt"
        path.write_text("\n".join(installation.constraints), encoding="utf-8")
        words += ["--constraint", str(path)]
    if installation.at_tested_versions:
        words += ["--constraint", str(CONSTRAINTS)]
    run(words)
    return bin_folder


def try_service(name: str, bin_folder: Path) -> None:
    """Run what a newcomer runs: the version, and the check of every example."""
    shown = run([str(bin_folder / "agent-routing"), "--version"]).strip()
    examples = sorted(
        bin_folder.parent.glob("lib/python*/site-packages/routing_service/examples/*.yaml")
    )
    assert examples, f"{name}: the wheel has no examples"
    run([str(bin_folder / "agent-routing"), "check", *map(str, examples)])
    print(f"   {shown}, {len(examples)} examples pass its check")


def try_client(name: str, bin_folder: Path, server: Path, scratch: Path) -> None:
    """Serve the tax example from one environment, and speak to it from another."""
    (examples,) = server.parent.glob("lib/python*/site-packages/routing_service/examples")
    store = scratch / f"{name.replace(' ', '-')}.db"
    log = scratch / f"{name.replace(' ', '-')}.log"
    words = [str(server / "agent-routing"), "serve", "--listen", "127.0.0.1:0"]
    words += ["--store", f"sqlite:///{store}", "--agents", str(examples / "tax.yaml")]
    with log.open("wb") as errors:
        process = subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=scratch,
            env=environment_of(),
        )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().removeprefix("serving on ").strip()
        assert address, f"{name}: the server did not start\n{log.read_text()}"
        shown = run([str(bin_folder / "python"), "-c", TRIAL, address], cwd=scratch)
        print(f"   {shown.strip()}", flush=True)
    finally:
        process.terminate()
        process.communicate(timeout=60)


def run(words: list[str], cwd: Path | None = None) -> str:
    """Run a command to its end and return what it printed; fail loudly."""
    done = subprocess.run(
        words,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
        env=environment_of(),
    )
    if done.returncode:
        print(done.stdout)
        done.check_returncode()
    return done.stdout


def environment_of() -> dict[str, str]:
    """Return the environment without the variables by which Python would find the source tree."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


if __name__ == "__main__":
    sys.exit(main())
