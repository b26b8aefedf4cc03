#!/usr/bin/env python3
"""Build a release into dist/ and check it, or verify one that is there.

    .venv/bin/python scripts/release.py                       build and check
    .venv/bin/python scripts/release.py --images              also what make image, make chart build
    .venv/bin/python scripts/release.py --verify DIST         compare each file with its hash
    .venv/bin/python scripts/release.py --verify DIST --rebuild   build again, compare the bytes

A release is what one commit builds: a tree with changes is refused, and so is a version without
notes in the changelog. DIST/SHA256SUMS has the hash of each file, and DIST/provenance.json is an
in-toto statement with SLSA's predicate: files, commit, version, builder. Neither is signed here.
Image and chart have digests of their own, and are not part of --rebuild.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.client_packages import version  # noqa: E402 - from a script, the root is not on the path
from scripts.package_names import NAMES, stand_ins  # noqa: E402 - as above

DIST: Final = ROOT / "dist"
SUMS: Final = "SHA256SUMS"
PROVENANCE: Final = "provenance.json"
# What builds the files, and at which versions.
MATERIALS: Final = (
    "requirements/constraints.txt",
    "clients/typescript/package-lock.json",
    "clients/go/go.sum",
    "clients/java/pom.xml",
    "scripts/make_stubs.py",
)
STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE: Final = "https://slsa.dev/provenance/v1"


class ReleaseError(Exception):
    """Why this is no release, with what to do."""


def main() -> int:
    """Build or verify."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", action="store_true", help="also make image and make chart")
    parser.add_argument("--verify", type=Path, metavar="DIST", help="compare a release's files")
    parser.add_argument("--rebuild", action="store_true", help="with --verify: build them again")
    arguments = parser.parse_args()
    if arguments.rebuild and not arguments.verify:
        parser.error("--rebuild goes with --verify DIST")
    try:
        if arguments.verify:
            verify(arguments.verify)
            if arguments.rebuild:
                rebuild(arguments.verify)
        else:
            release(with_images=arguments.images)
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as failed:
        print(f"release: {' '.join(map(str, failed.cmd))} failed", file=sys.stderr)
        return 1
    return 0


def release(*, with_images: bool) -> None:
    """Build everything from a clean commit, and write the hashes and the provenance."""
    commit = clean_commit()
    check_notes()
    run([sys.executable, "scripts/set_version.py", "--check"])
    run([sys.executable, "scripts/package_names.py", "--check"])
    build(commit)
    for target in image_targets() if with_images else ():
        run(["make", target])
    write_lists(DIST, commit)
    verify(DIST)
    for key, name in stand_ins().items():
        print(f"not publishable yet: {key} is the stand-in {name} (scripts/package_names.py)")


def build(commit: str) -> None:
    """Build all files into dist/. All archives have the commit's time, so that bytes repeat."""
    built_at = output(["git", "show", "--no-patch", "--format=%ct", commit])
    environment = {"SOURCE_DATE_EPOCH": built_at}
    run([sys.executable, "scripts/dist.py", "--build"], environment)
    languages = ["typescript", "go", "java"]
    run([sys.executable, "scripts/client_packages.py", "--release", *languages], environment)


def clean_commit() -> str:
    """Return the commit. Raises ReleaseError if the tree differs from it."""
    changed = output(["git", "status", "--porcelain", "--untracked-files=normal"])
    if changed:
        raise ReleaseError(f"the tree has changes; commit or remove them:\n{changed}")
    return output(["git", "rev-parse", "HEAD"])


def check_notes() -> None:
    """Raise ReleaseError unless the changelog has a section of this version, with a date."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    found = re.search(
        rf"^## \[{re.escape(version())}\] - \d{{4}}-\d\d-\d\d\n(.+?)(?=^## \[|\Z)",
        text,
        re.MULTILINE | re.DOTALL,
    )
    if not found or "\n- " not in found[1]:
        raise ReleaseError(f"CHANGELOG.md has no entries under ## [{version()}] - DATE")


def image_targets() -> list[str]:
    """Return those targets of the Makefile that build the image and the chart."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return [name for name in ("image", "chart") if re.search(rf"^{name}:", makefile, re.MULTILINE)]


def files_of(dist: Path) -> dict[str, str]:
    """Return the hash of each file of a release, by its path below dist."""
    found = (path for path in sorted(dist.rglob("*")) if path.is_file())
    return {
        path.relative_to(dist).as_posix(): digest_of(path)
        for path in found
        if path.name not in (SUMS, PROVENANCE)
    }


def digest_of(path: Path) -> str:
    """Return a file's SHA-256, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_lists(dist: Path, commit: str) -> None:
    """Write SHA256SUMS and the provenance of what is in a folder."""
    files = files_of(dist)
    sums = "".join(f"{digest}  {name}\n" for name, digest in files.items())
    (dist / SUMS).write_text(sums, encoding="utf-8")
    statement = json.dumps(provenance(files, commit), indent=2) + "\n"
    (dist / PROVENANCE).write_text(statement, encoding="utf-8")


def provenance(files: Mapping[str, str], commit: str) -> dict[str, Any]:
    """Return the statement: https://slsa.dev/spec/v1.0/provenance."""
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in files.items()],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "buildDefinition": {
                "buildType": f"{NAMES['home']}/scripts/release.py",
                "externalParameters": {"version": version()},
                "internalParameters": {
                    "python": platform.python_version(),
                    "platform": f"{platform.system()}-{platform.machine()}",
                },
                "resolvedDependencies": [
                    {"uri": f"git+{NAMES['home']}", "digest": {"gitCommit": commit}},
                    *(
                        {"name": name, "digest": {"sha256": digest_of(ROOT / name)}}
                        for name in MATERIALS
                    ),
                ],
            },
            "runDetails": {"builder": {"id": f"{NAMES['home']}/make-release"}},
        },
    }


def verify(dist: Path) -> None:
    """Raise ReleaseError for each file that is missing, new, or not what both lists say."""
    try:
        sums = (dist / SUMS).read_text(encoding="utf-8")
        statement = json.loads((dist / PROVENANCE).read_text(encoding="utf-8"))
        listed = dict(reversed(line.split("  ", 1)) for line in sums.splitlines())
        stated = {each["name"]: each["digest"]["sha256"] for each in statement["subject"]}
        commit = commit_of(statement)
    except (OSError, ValueError, KeyError, TypeError, StopIteration) as error:
        raise ReleaseError(f"{dist} has no {SUMS} and {PROVENANCE} that can be read") from error
    found = files_of(dist)
    problems = [
        f"{name}: {SUMS} and {PROVENANCE} differ"
        for name in sorted(listed.keys() | stated.keys())
        if listed.get(name) != stated.get(name)
    ]
    problems += differences(listed, found)
    if problems:
        raise ReleaseError("\n".join(problems))
    print(f"{len(found)} files are as commit {commit} is said to have built them")


def differences(expected: Mapping[str, str], found: Mapping[str, str]) -> Iterator[str]:
    """Yield what differs between two sets of files."""
    for name in sorted(expected.keys() | found.keys()):
        if name not in found:
            yield f"{name}: missing"
        elif name not in expected:
            yield f"{name}: not part of the release"
        elif expected[name] != found[name]:
            yield f"{name}: changed"


def commit_of(statement: Mapping[str, Any]) -> str:
    """Return the commit that a statement names."""
    resolved = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    return str(next(each["digest"]["gitCommit"] for each in resolved if "uri" in each))


def rebuild(dist: Path) -> None:
    """Build the commit again, in this checkout, and compare each file's bytes."""
    dist = dist.resolve()
    statement = json.loads((dist / PROVENANCE).read_text(encoding="utf-8"))
    commit = commit_of(statement)
    if clean_commit() != commit:
        raise ReleaseError(f"check out {commit} first: the release is of that commit")
    expected = files_of(dist)
    with aside(dist):
        build(commit)
        problems = list(differences(expected, files_of(DIST)))
    if problems:
        raise ReleaseError("the same commit builds other files here:\n" + "\n".join(problems))
    print(f"{len(expected)} files are built again byte for byte")


@contextmanager
def aside(dist: Path) -> Iterator[None]:
    """Keep a release that lies where the build writes."""
    if dist != DIST:
        yield
        return
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:
        kept = Path(folder, "dist")
        shutil.move(DIST, kept)
        try:
            yield
        finally:
            shutil.rmtree(DIST, ignore_errors=True)
            shutil.move(kept, DIST)


def output(words: list[str]) -> str:
    """Run a command in the checkout and return what it prints."""
    done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip()


def run(words: list[str], environment: Mapping[str, str] | None = None) -> None:
    """Run a command in the checkout; its output goes to the terminal."""
    print(f"== {' '.join(words[1:])}", flush=True)
    subprocess.run(words, cwd=ROOT, env={**os.environ, **(environment or {})}, check=True)


if __name__ == "__main__":
    sys.exit(main())
