#!/usr/bin/env python3
"""Keep a release for the tests of later ones: what it stores and answers, and its wheels.

    .venv/bin/python scripts/keep_release.py dist                      a release in dist/
    .venv/bin/python scripts/keep_release.py dist --key release.pub    also check its signatures

Verifies the release, which has to be of this checkout's commit: the golden set is what this code
stores. Writes, below tests/compatibility,

    golden/X.Y.Z      stored bytes, calls and their answers (as scripts/add_golden.py X.Y.Z)
    releases/X.Y.Z    the client's and the service's wheel, and SHA256SUMS

Neither is ever changed afterwards. Commit both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts import release, sbom, signatures  # noqa: E402 - from a script, the root is not on the path
from scripts.client_packages import version  # noqa: E402 - as above
from tests.compatibility import golden_set  # noqa: E402 - as above

RELEASES: Final = ROOT / "tests" / "compatibility" / "releases"
DISTRIBUTIONS: Final = ("agent_routing_client", "agent_routing_service")
"""Those whose wheels later releases are tested with: with both, a server and a client run."""


def main() -> int:
    """Keep the release that is given."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dist", type=Path, help="the folder of the release")
    parser.add_argument("--key", type=Path, help="the public key of the release's signatures")
    arguments = parser.parse_args()
    try:
        for folder in keep(arguments.dist, arguments.key):
            print(folder.relative_to(ROOT))
    except (release.ReleaseError, sbom.SbomError, signatures.SignatureError) as error:
        print(f"keep_release: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as failed:
        print(f"keep_release: {' '.join(map(str, failed.cmd))} failed", file=sys.stderr)
        return 1
    return 0


def keep(dist: Path, key: Path | None) -> tuple[Path, Path]:
    """Write both folders and return them. Raises ReleaseError if there is anything already."""
    golden, kept = golden_set.FOLDER / version(), RELEASES / version()
    for folder in (golden, kept):
        if folder.exists():
            raise release.ReleaseError(f"{folder.relative_to(ROOT)} is there, and is never changed")
    release.verify(dist, key)
    statement = json.loads((dist / release.PROVENANCE).read_text(encoding="utf-8"))
    built, here = release.commit_of(statement), release.clean_commit()
    if built != here:
        raise release.ReleaseError(f"check out {built}: the release is of that commit, not {here}")
    with tempfile.TemporaryDirectory() as work:
        asyncio.run(golden_set.make_set(golden, Path(work)))
    kept.mkdir(parents=True)
    names = [f"{name}-{version()}-py3-none-any.whl" for name in DISTRIBUTIONS]
    for name in names:
        shutil.copyfile(dist / name, kept / name)
    sums = "".join(f"{release.digest_of(kept / name)}  {name}\n" for name in names)
    (kept / release.SUMS).write_text(sums, encoding="utf-8")
    return golden, kept


if __name__ == "__main__":
    sys.exit(main())
