"""Removes from an installed environment what the service never reads at run time.

    python3 scripts/trim_image.py /opt/agent-routing

The image's build runs this, so it needs nothing but Python and strip. Each distribution's RECORD
follows, so that what is installed can still be verified.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

AWS_SERVICES: Final = frozenset({"dynamodb", "signin", "sso", "sso-oidc", "sts"})
"""The store, and the services from which botocore gets credentials. It describes 400 others."""

BUILD_SUFFIXES: Final = frozenset({".a", ".c", ".h", ".pxd", ".pyi", ".pyx"})
"""What compilers and type checkers read."""

MIB: Final = 1024 * 1024


def main() -> None:
    """Trim the environment that is given, and print the size of each part that became smaller."""
    (environment,) = map(Path, sys.argv[1:])
    (installed,) = environment.glob("lib/python3*/site-packages")
    before = sizes(installed)
    removed = set()
    for rule in RULES:
        for path in rule(installed):
            removed.add(path.relative_to(installed).as_posix())
            path.unlink()
    stripped = {path.relative_to(installed).as_posix() for path in libraries(installed)}
    subprocess.run(["strip", "--strip-unneeded", *libraries(installed)], check=True)
    for record in installed.glob("*.dist-info/RECORD"):
        update(record, removed, stripped)
    # The build's own folder, from which our wheels came.
    for path in installed.glob("*.dist-info/direct_url.json"):
        path.unlink()
    after = sizes(installed)
    report(before, after)


def aws_services(installed: Path) -> Iterator[Path]:
    """Yield the descriptions of AWS services that are not called."""
    for folder in (installed / "botocore" / "data").glob("*/"):
        if folder.name not in AWS_SERVICES:
            yield from files(folder)


def locales(installed: Path) -> Iterator[Path]:
    """Yield the locales of languages that no catalogue of texts has."""
    languages = {path.stem for path in (installed / "routing_service" / "texts").glob("*.ftl")}
    for path in (installed / "babel" / "locale-data").glob("*.dat"):
        if path.stem.partition("_")[0] not in languages | {"root"}:
            yield path


def tests(installed: Path) -> Iterator[Path]:
    """Yield the tests of other packages."""
    for folder in installed.rglob("tests/"):
        yield from files(folder)


def build_inputs(installed: Path) -> Iterator[Path]:
    """Yield headers, type stubs, and NumPy's compiler of Fortran."""
    yield from (path for path in files(installed) if path.suffix in BUILD_SUFFIXES)
    yield from files(installed / "numpy" / "f2py")


RULES: Final[tuple[Callable[[Path], Iterable[Path]], ...]] = (
    lambda installed: list(aws_services(installed)),
    lambda installed: list(locales(installed)),
    lambda installed: list(tests(installed)),
    lambda installed: set(build_inputs(installed)),
)


def libraries(installed: Path) -> list[Path]:
    """Return the extension modules. Libraries in *.libs were patched; strip would break them."""
    return [
        path
        for path in sorted(installed.rglob("*.so"))
        if not path.relative_to(installed).parts[0].endswith(".libs")
    ]


def update(record: Path, removed: set[str], stripped: set[str]) -> None:
    """Leave out the removed files of a distribution, and hash the stripped ones again."""
    rows = []
    for name, digest, size in csv.reader(io.StringIO(record.read_text("utf-8"))):
        if name in removed or name.endswith("direct_url.json"):
            continue
        if name in stripped:
            content = record.parent.parent.joinpath(name).read_bytes()
            hashed = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
            rows.append((name, f"sha256={hashed.decode()}", str(len(content))))
        else:
            rows.append((name, digest, size))
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    record.write_text(text.getvalue(), "utf-8")


def files(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder and of its folders."""
    return (path for path in folder.rglob("*") if path.is_file())


def sizes(installed: Path) -> dict[str, int]:
    """Return the bytes of each package's files."""
    return {
        part.name: sum(path.stat().st_size for path in files(part)) for part in installed.glob("*/")
    }


def report(before: dict[str, int], after: dict[str, int]) -> None:
    """Print the parts that became smaller by a megabyte or more, and the sum."""
    for name in sorted(before, key=lambda name: after[name] - before[name]):
        if before[name] - after[name] >= MIB:
            print(f"{name:32} {before[name] / MIB:6.1f} -> {after[name] / MIB:6.1f} MiB")
    total = [sum(each.values()) / MIB for each in (before, after)]
    print(f"{'all packages':32} {total[0]:6.1f} -> {total[1]:6.1f} MiB")


if __name__ == "__main__":
    main()
