"""What a Route and a CompleteTurn cost, in steps of the interpreter rather than in seconds.

Seconds depend on what else a machine does; the number of bytecode instructions and of calls into C
does not. It was counted to find what to make smaller (docs/performance.md); a change that makes it
larger should know.
"""

import sys

import pytest

from benchmarks.interpreter_steps import count

COUNTED_FOR = (3, 11)
"""Each version of Python has its own instructions."""

ROUTE_MOST = 4_568
COMPLETE_MOST = 3_924
"""Instructions and calls into C: a fiftieth more than when the path was last timed, and 70 for the
audit's chain of hashes and 20 for its trace ids. The checksums of what is stored are 145 of a
Route's and 162 of a CompleteTurn's; the question whether any agent has an inbox is 14 and 21; the
questions whether a turn has a deadline, a delivery or steps of its own are 34 and 19."""


@pytest.mark.skipif(sys.version_info[:2] != COUNTED_FOR, reason="counted for another Python")
async def test_a_turn_takes_no_more_steps_than_it_did():
    """Of a session in its eleventh turn and later: its agent sticks, its history is ten turns."""
    routing, completing = await count()
    told = f"a Route takes {routing} steps, a CompleteTurn {completing}"
    assert routing <= ROUTE_MOST, told
    assert completing <= COMPLETE_MOST, told
    # Where it became much less, the bound is to follow.
    assert routing >= ROUTE_MOST * 0.8, told
    assert completing >= COMPLETE_MOST * 0.8, told
