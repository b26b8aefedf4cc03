"""`agent-routing` with faults on purpose: the same program, started through this module.

Owns which faults are installed before the command runs. These variables are read once:

TORTURE_JOURNAL      a file: every write and sync of SQLite is noted there (disk_journal.py)
    TORTURE_FAILPOINTS   points and what happens there (failpoints.py)
    TORTURE_BUG          a mistake that somebody might make (planted_bugs.py)

The service itself has no hook for any of this, so no release contains it. Without the variables
this is the command as installed.

python -m tests.torture.spoilt_server serve --listen … --store … --agents …
"""

from __future__ import annotations

import os
from pathlib import Path

from routing_service.cli import main
from tests.torture import disk_journal, failpoints, planted_bugs


def spoil() -> None:
    """Put in place what the environment asks for."""
    if journal := os.environ.get("TORTURE_JOURNAL"):
        disk_journal.record(Path(journal))
    if points := os.environ.get("TORTURE_FAILPOINTS"):
        failpoints.install(failpoints.parse(points))
    if bug := os.environ.get("TORTURE_BUG"):
        planted_bugs.plant(bug)


if __name__ == "__main__":
    spoil()
    main()
