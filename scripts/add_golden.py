"""Add what today's code stores and answers to tests/compatibility/golden, for later releases.

    .venv/bin/python scripts/add_golden.py 0.2.0     add a set under this name
    .venv/bin/python scripts/add_golden.py --check   say what no set has yet

An existing set is never changed, because users' stores hold data of that release. Add a set when a
release stores something new: a kind of event, a field, a schema version.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.compatibility.golden_set import FOLDER, make_set, missing_kinds  # noqa: E402 - see above


def main() -> int:
    """Add a set, or check what is missing. Returns the exit code."""
    if len(sys.argv) != 2:  # noqa: PLR2004 - the program and one word
        print(__doc__, file=sys.stderr)
        return 2
    name = sys.argv[1]
    if name == "--check":
        missing = missing_kinds()
        for kind in sorted(missing):
            print(f"no golden bytes of the event {kind}; add a set", file=sys.stderr)
        return 1 if missing else 0
    folder = FOLDER / name
    if folder.exists():
        print(f"{folder} is there, and is never changed; choose another name", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as work:
        asyncio.run(make_set(folder, Path(work)))
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
