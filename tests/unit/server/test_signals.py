"""Signals are taken while a server runs, and left to others before and afterwards."""

import asyncio
import os
import signal
import threading
import time

from routing_service.server.signals import Signals

NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def present():
    """Return which code takes each signal, and which signals are blocked."""
    return [signal.getsignal(number) for number in NUMBERS], signal.pthread_sigmask(
        signal.SIG_BLOCK, ()
    )


def test_what_took_signals_before_takes_them_afterwards():
    """A program that runs a server in its own process ends by Ctrl-C after it, and its children."""
    before = present()
    with Signals(["SIGHUP", "NONE_SUCH"]):
        assert present() != before
    assert present() == before
    assert "signals" not in {thread.name for thread in threading.enumerate()}


def test_a_signal_that_came_before_the_loop_reaches_it():
    """Such as a stop while the modules of a server are still imported."""
    stopping, taken = threading.Event(), []

    async def until_two():
        signals.deliver_to(taken.append)
        os.kill(os.getpid(), signal.SIGHUP)
        async with asyncio.timeout(30):
            while len(taken) < 2:  # noqa: ASYNC110 - the list tells nobody
                await asyncio.sleep(0.01)

    with Signals(["SIGHUP"], stopping=stopping.set) as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        # Not one long wait: a thread of the test runner may get the signal, and this one has to run
        # then.
        ends_s = time.monotonic() + 30
        while not stopping.is_set() and time.monotonic() < ends_s:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)  # The same again changes nothing.
        asyncio.run(until_two())
    assert taken == [signal.SIGTERM, signal.SIGHUP]
