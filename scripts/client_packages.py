#!/usr/bin/env python3
"""Build what users of the other languages install, into dist/.

    .venv/bin/python scripts/client_packages.py [--release] [typescript] [go] [java]

    typescript   agent-routing-client-VERSION.tgz, by `npm pack`
    go           go/, a folder that Go takes as a module proxy (GOPROXY=file://...)
    java         maven/, a folder that Maven takes as a repository
    --release    with the sources and documentation of the Java client, which take a minute more

By default all whose toolchain is here; a language that is named must be there. The same sources
make the same bytes, so that a file can be compared with one that somebody else built.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts import typescript_client  # noqa: E402 - from a script, the root is not on the path
from scripts.package_names import NAMES  # noqa: E402 - as above
from tests import toolchains  # noqa: E402 - as above

DIST: Final = ROOT / "dist"
GO: Final = ROOT / "clients" / "go"
JAVA: Final = ROOT / "clients" / "java"
JAVA_LOCK: Final = ROOT / "build" / "java-client.lock"
# Go's tools accept any time; this one makes the same archive on every machine.
ZIP_TIME: Final = (1980, 1, 1, 0, 0, 0)
GO_TIME: Final = "1980-01-01T00:00:00Z"


def main() -> int:
    """Build what is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("languages", nargs="*", choices=[[], *BUILDERS])
    parser.add_argument("--release", action="store_true", help="all that a registry asks for")
    arguments = parser.parse_args()
    DIST.mkdir(exist_ok=True)
    for language in arguments.languages or BUILDERS:
        found = toolchains.find(NEEDS[language])
        if isinstance(found, toolchains.Missing):
            if arguments.languages:
                print(f"{language}: {found}", file=sys.stderr)
                return 1
            print(f"{language}: skipped, {found}; scripts/toolchains.sh {NEEDS[language]}")
            continue
        if language == "java":
            built = java(found, with_documentation=arguments.release)
        else:
            built = BUILDERS[language](found)
        for path in built:
            print(f"{path.stat().st_size:>10,}  {path.relative_to(ROOT)}")
    return 0


def version() -> str:
    """Return the version that all packages have."""
    text = (ROOT / "routing_service" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "(.+)"', text, re.MULTILINE)
    assert found
    return found[1]


def typescript(node: toolchains.Toolchain) -> Iterable[Path]:
    """Pack the npm package; its own script compiles it."""
    os.environ |= node.environment
    typescript_client.install()
    said = run(
        [str(node.programs["npm"]), "pack", "--json", "--pack-destination", str(DIST)],
        typescript_client.CLIENT,
        node,
    )
    answer = json.loads(said[re.search(r"^[\[{]", said, re.MULTILINE).start() :])  # type: ignore[union-attr]
    [packed] = answer if isinstance(answer, list) else answer.values()
    yield DIST / packed["filename"]


def go(_toolchain: toolchains.Toolchain) -> Iterable[Path]:
    """Lay the module out as a module proxy does. The examples are part of it."""
    module, release = NAMES["go"], f"v{version()}"
    folder = DIST / "go" / module / "@v"
    shutil.rmtree(DIST / "go", ignore_errors=True)
    folder.mkdir(parents=True)
    archive = folder / f"{release}.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as opened:
        for path in sorted(path for path in GO.rglob("*") if path.is_file()):
            name = f"{module}@{release}/{path.relative_to(GO).as_posix()}"
            entry = zipfile.ZipInfo(name, ZIP_TIME)
            entry.external_attr = 0o644 << 16
            opened.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    (folder / "list").write_text(f"{release}\n")
    (folder / f"{release}.info").write_text(json.dumps({"Version": release, "Time": GO_TIME}))
    shutil.copyfile(GO / "go.mod", folder / f"{release}.mod")
    yield archive


def java(toolchain: toolchains.Toolchain, *, with_documentation: bool = False) -> Iterable[Path]:
    """Generate the contract's code, package it, and lay it out as a Maven repository."""
    JAVA_LOCK.parent.mkdir(exist_ok=True)
    with JAVA_LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run([sys.executable, str(ROOT / "scripts" / "make_stubs.py"), "java"], ROOT, toolchain)
        words = [str(toolchain.programs["mvn"]), "-B", "-ntp", "-q"]
        words += ["-P", "release"] if with_documentation else []
        run([*words, "-Dmaven.test.skip=true", "package"], JAVA, toolchain)
        folder = DIST / "maven" / NAMES["maven-group"].replace(".", "/") / NAMES["maven-artifact"]
        folder /= version()
        shutil.rmtree(DIST / "maven", ignore_errors=True)
        folder.mkdir(parents=True)
        stem = f"{NAMES['maven-artifact']}-{version()}"
        for kind in ("", "-sources", "-javadoc") if with_documentation else ("",):
            name = f"{stem}{kind}.jar"
            shutil.copyfile(JAVA / "target" / name, folder / name)
        shutil.copyfile(JAVA / "pom.xml", folder / f"{stem}.pom")
    for path in sorted(folder.iterdir()):
        digest = hashlib.sha1(path.read_bytes(), usedforsecurity=False).hexdigest()
        path.with_name(f"{path.name}.sha1").write_text(digest)
        yield path


BUILDERS: Final[Mapping[str, Callable[[toolchains.Toolchain], Iterable[Path]]]] = {
    "typescript": typescript,
    "go": go,
    "java": java,
}
NEEDS: Final = {"typescript": "node", "go": "go", "java": "java"}


def run(words: list[str], folder: Path, toolchain: toolchains.Toolchain) -> str:
    """Run a command and return its output; its errors go to the terminal."""
    done = subprocess.run(
        words,
        cwd=folder,
        env=toolchain.environ(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        print(done.stdout, file=sys.stderr)
        done.check_returncode()
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
