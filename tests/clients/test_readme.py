"""README.md shows what is really seen: its commands and its program run as they stand there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
STOP_S_MAX = 20


@pytest.fixture
def served(tmp_path: Path):
    """Run the tax example as `make run` does, on a store and a port of its own."""
    command = [str(Path(sys.executable).parent / "agent-routing"), "serve"]
    command += ["--listen", "127.0.0.1:0"]
    command += ["--store", f"sqlite:///{tmp_path}/routing.db"]
    command += ["--agents", "routing_service/examples/tax.yaml"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            line = process.stdout.readline()
            assert line.startswith("serving on "), (tmp_path / "log").read_text()
            yield line.removeprefix("serving on ").strip()
        finally:
            process.terminate()
            process.communicate(timeout=STOP_S_MAX)


def test_readme_shows_what_is_seen(served: str):
    """A newcomer types what the README says; a difference here is one that they would meet."""
    done = subprocess.run(
        [sys.executable, "scripts/readme_sessions.py", "--check", served],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout
