"""Ctrl-C ends a command at any moment, also where Python can raise nothing."""

import subprocess
import sys

import pytest

LOST_IN = {
    "a destructor": """
class Dropped:
    def __del__(self):
        interrupt()
Dropped()
""",
    "the callback of a weak reference": """
import weakref
class Dropped: pass
dropped = Dropped()
kept = weakref.ref(dropped, lambda _: interrupt())
del dropped
""",
}
SCRIPT = """
import os, signal, time
from routing_service.cli.lost_interrupts import raise_lost_interrupts
def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(1000):
        pass
raise_lost_interrupts()
try:
    {lost}
    time.sleep(30)
except KeyboardInterrupt:
    print("ended")
"""


def run(script):
    """Run a script with no output but its own."""
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=25, check=False
    )


@pytest.mark.parametrize("place", LOST_IN)
def test_an_interrupt_that_python_drops_comes_again(place):
    """The wait after it ends at once, and no traceback is printed."""
    done = run(SCRIPT.format(lost=LOST_IN[place].replace("\n", "\n    ")))
    assert (done.stdout, done.stderr, done.returncode) == ("ended\n", "", 0)


def test_another_exception_of_a_destructor_is_reported_as_before():
    """It is a defect, which somebody must see."""
    script = SCRIPT.replace("time.sleep(30)", "pass").format(
        lost="type('Dropped', (), {'__del__': lambda self: 1 / 0})()"
    )
    assert "ZeroDivisionError" in run(script).stderr
