#!/usr/bin/env python3
"""Build a release into dist/ and check it, or verify one that is there.

    .venv/bin/python scripts/release.py                       build and check
    .venv/bin/python scripts/release.py --without-image       all but the image
    .venv/bin/python scripts/release.py --sign PRIVATE.pem    also sign the lists
    .venv/bin/python scripts/release.py --verify DIST         compare each file with its hash
    .venv/bin/python scripts/release.py --verify DIST --key PUBLIC.pem    also check the signatures
    .venv/bin/python scripts/release.py --verify DIST --rebuild   build again, compare the bytes

A release is what one commit builds: a tree with changes is refused, and so is a version without
notes in the changelog. DIST/SHA256SUMS has the hash of each file, and DIST/provenance.json is an
in-toto statement with SLSA's predicate: files, commit, version, builder. The files *.cdx.json are
bills of materials: CycloneDX, of the wheels and of the image. The image follows Debian's security
updates, so it is not part of --rebuild.
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

from scripts import chart, image, sbom, signatures  # noqa: E402 - the root is not on the path
from scripts.client_packages import version  # noqa: E402 - as above
from scripts.package_names import NAMES, stand_ins  # noqa: E402 - as above

DIST: Final = ROOT / "dist"
SUMS: Final = "SHA256SUMS"
PROVENANCE: Final = "provenance.json"
IMAGE_FOLDER: Final = "image"
# What builds the files, and at which versions.
MATERIALS: Final = (
    "scripts/requirements/constraints.txt",
    "deploy/Dockerfile",
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
    parser.add_argument("--without-image", action="store_true", help="build all but the image")
    parser.add_argument("--sign", type=Path, metavar="KEY", help="a private key on P-256, in PEM")
    parser.add_argument("--verify", type=Path, metavar="DIST", help="compare a release's files")
    parser.add_argument("--key", type=Path, help="with --verify: the public key of the signatures")
    parser.add_argument("--rebuild", action="store_true", help="with --verify: build them again")
    arguments = parser.parse_args()
    if (arguments.rebuild or arguments.key) and not arguments.verify:
        parser.error("--rebuild and --key go with --verify DIST")
    try:
        if arguments.verify:
            verify(arguments.verify, arguments.key)
            if arguments.rebuild:
                rebuild(arguments.verify)
        else:
            release(with_image=not arguments.without_image, key=arguments.sign)
    except (ReleaseError, image.ImageError, sbom.SbomError, signatures.SignatureError) as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as failed:
        print(f"release: {' '.join(map(str, failed.cmd))} failed", file=sys.stderr)
        return 1
    return 0


def release(*, with_image: bool, key: Path | None) -> None:
    """Build everything from a clean commit, and write the hashes and the provenance.

    key: the private key that signs the lists, or None.
    """
    commit = clean_commit()
    check_notes()
    run([sys.executable, "scripts/set_version.py", "--check"])
    run([sys.executable, "scripts/package_names.py", "--check"])
    build(commit)
    left_out = "as asked" if not with_image else image.missing()
    if left_out:
        print(f"image: left out, {left_out}")
    else:
        image.build(DIST / IMAGE_FOLDER)
    write_lists(DIST, commit)
    for path in signed_files(DIST) if key else ():
        signatures.sign(path, key)
    if not key:
        page = "docs/development/releasing.md"
        print(f"not signed: give a key, make release key=release.pem ({page})")
    verify(DIST, None)
    for package, name in stand_ins().items():
        print(f"not publishable yet: {package} is the stand-in {name} (scripts/package_names.py)")


def build(commit: str) -> None:
    """Build all files into dist/. All archives have the commit's time, so that bytes repeat."""
    built_at = output(["git", "show", "--no-patch", "--format=%ct", commit])
    environment = {"SOURCE_DATE_EPOCH": built_at}
    # What runs in this process reads it, too.
    os.environ |= environment
    # The lists of a release name every file that is there.
    shutil.rmtree(DIST, ignore_errors=True)
    run([sys.executable, "scripts/dist.py", "--build"], environment)
    languages = ["typescript", "go", "java"]
    run([sys.executable, "scripts/client_packages.py", "--release", *languages], environment)
    chart.package(DIST)
    bom = sbom.of_wheels(DIST.glob("*.whl"), version(), int(built_at))
    sbom.write(bom, DIST / f"agent-routing-{version()}-wheels{sbom.SUFFIX}")


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


def files_of(dist: Path) -> dict[str, str]:
    """Return the hash of each file of a release, by its path below dist."""
    found = (path for path in sorted(dist.rglob("*")) if path.is_file())
    lists = {SUMS, PROVENANCE}
    lists |= {
        f"{path.relative_to(dist).as_posix()}{signatures.SUFFIX}" for path in signed_files(dist)
    }
    files = {path.relative_to(dist).as_posix(): path for path in found}
    return {name: digest_of(path) for name, path in files.items() if name not in lists}


def signed_files(dist: Path) -> list[Path]:
    """Return what is signed: the lists, which have the hashes of all else, and the bills."""
    return [dist / SUMS, dist / PROVENANCE, *sorted(dist.rglob(f"*{sbom.SUFFIX}"))]


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


def verify(dist: Path, key: Path | None) -> None:
    """Raise ReleaseError for each file that is missing, new, or not what the lists say.

    key: the public key of the signatures, or None. Also raises SbomError and SignatureError.
    """
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
    for path in dist.rglob(f"*{sbom.SUFFIX}"):
        sbom.check_files(path, dist)
    if key:
        for path in signed_files(dist):
            signatures.verify(path, key)
        print(f"{len(signed_files(dist))} signatures are of {key}")
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
    expected = {
        name: digest
        for name, digest in files_of(dist).items()
        if not name.startswith(f"{IMAGE_FOLDER}/")
    }
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
