"""The tax example without topics, for tests of a server's limits, load and start.

A verdict of topics costs more than the rest of a message, and such tests are of the rest.
"""

import shutil
from pathlib import Path

from routing_service.examples import EXAMPLES


def tax_without_topics(folder: Path) -> Path:
    """Write the registry into a folder, with its examples; return its path."""
    source = EXAMPLES["tax"].registry_path
    kept = folder / "tax"
    kept.mkdir(exist_ok=True)
    shutil.copy(source.with_name("tax.examples.yml"), kept)
    lines = source.read_text(encoding="utf-8").splitlines(keepends=True)
    rest = [line for line in lines if not line.startswith("topics:")]
    assert len(rest) == len(lines) - 1
    path = kept / source.name
    path.write_text("".join(rest), encoding="utf-8")
    return path
