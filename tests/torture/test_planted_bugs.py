"""Planted bugs, each of which the suite must find.

A test that cannot fail proves nothing. planted_bugs.py plants one bug after the other in a separate
process and runs the fastest test that should find it there; each must be found by a test that ran
and failed.
"""

import os
import subprocess
import sys

import pytest

from tests.torture.planted_bugs import BUGS, ROOT

QUICK = [name for name, bug in BUGS.items() if bug.is_quick]
OTHERS = [name for name, bug in BUGS.items() if not bug.is_quick]

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="bugs are planted in forks")


def hunted(names):
    """Hunt for bugs from a fresh process; return its output."""
    return subprocess.run(
        [sys.executable, "-m", "tests.torture.planted_bugs", *names, "--table"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@needs_fork
@pytest.mark.timeout(600)
def test_quick_bugs_are_all_found():
    """Bugs whose test takes less than a second."""
    ended = hunted(QUICK)
    print(ended.stdout)  # noqa: T201 - the table is what the run is for
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count(" found ") == len(QUICK)


@needs_fork
@pytest.mark.torture
@pytest.mark.timeout(900)
def test_slow_bugs_are_all_found():
    """The rest: their tests start server processes."""
    ended = hunted(OTHERS)
    print(ended.stdout)  # noqa: T201 - the table is what the run is for
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count(" found ") + ended.stdout.count(" skipped ") == len(OTHERS)


def test_list_of_bugs_is_long_enough_to_mean_something():
    """Each bug's name and text describe it, and its test exists."""
    assert len(BUGS) >= 25
    for bug in BUGS.values():
        path, _, name = bug.test.partition("::")
        text = (ROOT / path).read_text("utf-8")
        assert f"def {name.partition('[')[0]}(" in text, bug.test
        assert bug.what.endswith(".")


def test_test_that_finds_nothing_is_told(tmp_path):
    """Without a bug the test passes, and that is a miss: the hunt cannot succeed by accident."""
    ended = hunted(["nothing_wrong"])
    assert ended.returncode == 1
    assert "MISSED" in ended.stdout
