"""Which toolchains of other languages are on this machine, for the tests that need them.

Owns what counts as new enough and where each program is looked for. The rule: a test asks with
`require("go")` and is skipped by a name that says what is missing, so that a developer without Go
still has a green run; where CI is set it fails instead, since there a skip would hide a client that
nobody tested. scripts/toolchains.sh installs what is missing, and asks here what that is:
`python -m tests.toolchains go java` prints a line for each and exits with 1 if any is missing.
"""

import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# Where scripts/toolchains.sh puts a Go that is newer than the distribution's.
OWN_GO = ROOT / "build" / "toolchains" / "go" / "bin"
# Where it puts a Node.js that is newer than the distribution's.
OWN_NODE = ROOT / "build" / "toolchains" / "node" / "bin"
# Where it puts what it builds with Go.
OWN_PROGRAMS = ROOT / "build" / "toolchains" / "bin"
# Where its makers say to unpack it; not on everybody's path.
SYSTEM_GO = Path("/usr/local/go/bin")

# One package at a time: the tests run beside each other already. What is built runs for seconds, so
# optimising it costs more than it saves, and nobody debugs it: from nothing, a client takes 41 s of
# a core instead of 59. All builds have the same flags, and so share what they compile.
GO_FLAGS = "-p=1 -buildvcs=false '-gcflags=all=-N -l -dwarf=false' '-ldflags=-s -w'"
# The same for JVMs: Maven compiles the client in 13 s of a core instead of 31.
JAVA_QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")

# A program that only prints its version answers at once; a cold JVM on a busy machine takes longer.
PROBE_TIMEOUT_S = 60


class Missing(Exception):
    """A toolchain is not there, or too old; the message says which, and what to do."""


@dataclass(frozen=True, slots=True)
class Toolchain:
    """What a test needs to start a toolchain.

    programs: by plain name ("go", "mvn"), the path to start. version: the main program's, as
    numbers. environment: variables that its programs need beside those of this process, PATH
    among them.
    """

    name: str
    version: tuple[int, ...]
    programs: Mapping[str, Path]
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def version_text(self) -> str:
        """The version as people write it: "1.25.8"."""
        return ".".join(map(str, self.version))

    def environ(self, **more: str) -> dict[str, str]:
        """Return the whole environment to start one of its programs in."""
        return {**os.environ, **self.environment, **more}


def _program(name: str, *elsewhere: Path) -> Path:
    """Return where a program is: on the path, else in one of the folders given."""
    found = shutil.which(name)
    if found is None:
        found = next((str(at / name) for at in elsewhere if os.access(at / name, os.X_OK)), None)
    if found is None:
        raise Missing(f"{name} is not installed")
    return Path(found)


def _version(program: Path, *arguments: str, **environment: str) -> tuple[int, ...]:
    """Return the first version number that a program prints."""
    command = [str(program), *arguments]
    try:
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            env=os.environ | environment,
        )
    except (OSError, subprocess.TimeoutExpired) as broken:
        raise Missing(f"{program} does not run: {broken}") from broken
    # javac and mvn decorate their output, and older ones print the version to stderr.
    found = re.search(r"(?<![\d.])(\d+)\.(\d+)(?:\.(\d+))?", done.stdout + done.stderr)
    if done.returncode or found is None:
        raise Missing(f"{' '.join(command)} exits with {done.returncode} and says no version")
    return tuple(int(part) for part in found.groups() if part is not None)


def _new_enough(name: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    if found < wanted:
        have, need = (".".join(map(str, version)) for version in (found, wanted))
        raise Missing(f"{name} {have} is too old: {need} or newer is needed")


def _path_with(*folders: Path) -> str:
    return os.pathsep.join([*dict.fromkeys(map(str, folders)), os.environ.get("PATH", "")])


def _go() -> Toolchain:
    """Go of the version that clients/go/go.mod names, at least."""
    installed = [] if shutil.which("go") is None else [Path(str(shutil.which("go"))).parent]
    refused: Missing | None = None
    # The distribution's Go may come first on the path and be too old; the own one is then taken.
    for folder in (*installed, OWN_GO, SYSTEM_GO):
        if not os.access(folder / "go", os.X_OK):
            continue
        try:
            # "local": what is installed, not what it might download in its place.
            version = _version(folder / "go", "version", GOTOOLCHAIN="local")
            _new_enough("go", version, GO_OLDEST)
        except Missing as missing:
            refused = refused or missing
            continue
        programs = {"go": folder / "go", "gofmt": folder / "gofmt"}
        flags = {"GOFLAGS": GO_FLAGS, "GOTOOLCHAIN": "local"}
        environment = {"PATH": _path_with(folder)} | flags
        return Toolchain("go", version, programs, environment)
    raise refused or Missing("go is not installed")


def _java() -> Toolchain:
    home = os.environ.get("JAVA_HOME")
    folders = [Path(home) / "bin"] if home else []
    javac = next((at / "javac" for at in folders if (at / "javac").is_file()), None)
    javac = javac or _program("javac")
    version = _version(javac, "-version")
    _new_enough("javac", version, JAVA_OLDEST)
    maven = _program("mvn")
    java = javac.resolve().parent / "java"
    # Maven asks JAVA_HOME first: it must be the JDK that was looked at here.
    environment = {"JAVA_HOME": str(java.parent.parent), "PATH": _path_with(java.parent)}
    environment["MAVEN_OPTS"] = " ".join(JAVA_QUICK)
    _new_enough("mvn", _version(maven, "-version", **environment), MAVEN_OLDEST)
    programs = {"java": java, "javac": javac, "mvn": maven}
    return Toolchain("java", version, programs, environment)


def _node() -> Toolchain:
    """Node.js of the version that clients/typescript/package.json names, at least."""
    own = OWN_NODE / "node"
    node = own if os.access(own, os.X_OK) else _program("node")
    version = _version(node, "--version")
    _new_enough("node", version, NODE_OLDEST)
    programs = {"node": node, "npm": _program("npm"), "npx": _program("npx")}
    # npm, and what it starts, find Node.js on the path.
    return Toolchain("node", version, programs, {"PATH": _path_with(node.parent)})


def _chromium() -> Toolchain:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        found = shutil.which(name)
        if found is not None:
            # As root, as in most containers, its sandbox cannot be set up.
            version = _version(Path(found), "--version", "--no-sandbox")
            _new_enough(name, version, CHROMIUM_OLDEST)
            return Toolchain("chromium", version, {"chromium": Path(found)})
    raise Missing("chromium is not installed")


def _prometheus() -> Toolchain:
    program = _program("prometheus")
    version = _version(program, "--version")
    _new_enough("prometheus", version, PROMETHEUS_OLDEST)
    return Toolchain("prometheus", version, {"prometheus": program})


def _haproxy() -> Toolchain:
    # Debian's is where only root's path leads.
    program = _program("haproxy", Path("/usr/sbin"))
    version = _version(program, "-v")
    _new_enough("haproxy", version, HAPROXY_OLDEST)
    return Toolchain("haproxy", version, {"haproxy": program})


def _image() -> Toolchain:
    """What scripts/image.py runs."""
    buildah = _program("buildah")
    version = _version(buildah, "--version")
    _new_enough("buildah", version, BUILDAH_OLDEST)
    programs = {name: _program(name) for name in ("mmdebstrap", "runc")}
    return Toolchain("image", version, {"buildah": buildah, **programs})


def _go_program(name: str, oldest: tuple[int, ...], *arguments: str) -> Toolchain:
    """A program that scripts/toolchains.sh builds from the Go module proxy."""
    program = _program(name, OWN_PROGRAMS)
    version = _version(program, *arguments)
    _new_enough(name, version, oldest)
    return Toolchain(name, version, {name: program})


GO_OLDEST = (1, 24)  # As clients/go/go.mod says, whose grpc-go asks for it.
JAVA_OLDEST = (17,)
MAVEN_OLDEST = (3, 8)  # Debian 12's.
NODE_OLDEST = (20, 19)  # What Vite asks for; the client itself runs on every 20.
CHROMIUM_OLDEST = (120,)
BUILDAH_OLDEST = (1, 28)  # Debian 12's.
HELM_OLDEST = (3, 14)  # Older ones do not know --kube-version 1.30's objects.
ACTIONLINT_OLDEST = (1, 7)
HAPROXY_OLDEST = (2, 6)  # Debian 12's; http-after-response and jwt_payload_query are older.
PROMETHEUS_OLDEST = (2, 42)  # Debian 12's; exemplars came with 2.26.

PROBES: Mapping[str, Callable[[], Toolchain]] = {
    "go": _go,
    "java": _java,
    "node": _node,
    "chromium": _chromium,
    "prometheus": _prometheus,
    "haproxy": _haproxy,
    "image": _image,
    "helm": lambda: _go_program("helm", HELM_OLDEST, "version", "--short"),
    "actionlint": lambda: _go_program("actionlint", ACTIONLINT_OLDEST, "-version"),
}


@functools.cache
def find(name: str) -> Toolchain | Missing:
    """Return a toolchain, or what is missing of it. Asked of the machine once a process."""
    try:
        return PROBES[name]()
    except Missing as missing:
        return missing


def require(name: str) -> Toolchain:
    """Return a toolchain by its name in PROBES.

    Where it is missing or too old the test is skipped; where the variable CI is set it fails.
    """
    found = find(name)
    if isinstance(found, Toolchain):
        return found
    message = f"toolchain {name}: {found}; scripts/toolchains.sh {name} installs it"
    if os.environ.get("CI"):
        pytest.fail(message, pytrace=False)
    pytest.skip(message)


def main(names: list[str]) -> int:
    """Print what is found of each toolchain; 1 if any is missing."""
    missing = 0
    for name in names or PROBES:
        found = find(name)
        if isinstance(found, Toolchain):
            said = f"{name}: {found.version_text}, {next(iter(found.programs.values()))}"
        else:
            said = f"{name}: MISSING, {found}"
            missing = 1
        sys.stdout.write(f"{said}\n")
    return missing


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
