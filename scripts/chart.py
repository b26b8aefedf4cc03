#!/usr/bin/env python3
"""Package the Helm chart into dist/, as `helm install` takes it.

    .venv/bin/python scripts/chart.py

`helm package` writes the time of packaging; this archive has the commit's, so that bytes repeat.
"""

from __future__ import annotations

import gzip
import io
import re
import sys
import tarfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.image import built_at  # noqa: E402 - from a script, the root is not on the path

CHART: Final = ROOT / "deploy" / "helm"


def main() -> int:
    """Package it."""
    path = package(ROOT / "dist")
    print(f"{path.stat().st_size:>10,}  {path.relative_to(ROOT)}")
    return 0


def package(output: Path) -> Path:
    """Write NAME-VERSION.tgz of the chart into a folder."""
    output.mkdir(parents=True, exist_ok=True)
    text = (CHART / "Chart.yaml").read_text(encoding="utf-8")
    name, version = (
        re.findall(rf"^{field}: (.+)$", text, re.MULTILINE)[0] for field in ("name", "version")
    )
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w", format=tarfile.USTAR_FORMAT) as opened:
        # Chart.yaml first, which tools read without the rest.
        files = sorted(path for path in CHART.rglob("*") if path.is_file())
        for path in sorted(files, key=lambda path: path.name != "Chart.yaml"):
            entry = tarfile.TarInfo(f"{name}/{path.relative_to(CHART).as_posix()}")
            entry.size = path.stat().st_size
            entry.mtime = int(built_at())
            entry.mode = 0o644
            opened.addfile(entry, io.BytesIO(path.read_bytes()))
    packed = output / f"{name}-{version}.tgz"
    packed.write_bytes(gzip.compress(tar.getvalue(), mtime=0))
    return packed


if __name__ == "__main__":
    sys.exit(main())
