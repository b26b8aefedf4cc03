"""Threads in which detectors run: a failing or hanging call does not block the next one."""

from __future__ import annotations

import asyncio
import threading

import pytest

from routing_service.topics import detector_pool
from routing_service.topics.detector_pool import DetectorThreads, ThreadsBusy, TooLate

LIMIT_S = 60.0


class Panic(BaseException):
    """An extension's error that is not an Exception."""


def raises(error: BaseException):
    """Work that raises an error."""

    def work() -> None:
        raise error

    return work


@pytest.mark.parametrize("error", [SystemExit(3), Panic("index"), asyncio.CancelledError()])
async def test_error_that_would_end_a_thread_is_handed_on(error):
    """More errors than threads and slots, and calls are still served."""
    threads = DetectorThreads()
    for _ in range(detector_pool.THREADS_MAX + detector_pool.WAITING_MAX + 1):
        with pytest.raises(RuntimeError) as raised:
            await threads.call(raises(error), LIMIT_S)
        assert str(raised.value) == repr(error)
        assert raised.value.__cause__ is error
    assert await threads.call(lambda: "served", LIMIT_S) == "served"
    threads.close()


async def test_errors_of_a_call_are_told_from_its_limit():
    """A detector's own timeout error is passed on; only the limit raises TooLate."""
    threads = DetectorThreads()
    own = TimeoutError("the model's server")
    with pytest.raises(TimeoutError) as raised:
        await threads.call(raises(own), LIMIT_S)
    assert raised.value is own
    ended = StopIteration("no more")
    with pytest.raises(RuntimeError) as stopped:
        await threads.call(raises(ended), LIMIT_S)
    assert stopped.value.__cause__ is ended
    may_go_on = threading.Event()
    with pytest.raises(TooLate, match=r"longer than 0\.01 s"):
        await threads.call(lambda: may_go_on.wait(LIMIT_S), 0.01)
    may_go_on.set()
    threads.close()


async def test_thread_that_cannot_be_started_takes_no_place(monkeypatch):
    """The system may refuse threads for a while; then it is tried again."""
    threads = DetectorThreads()

    def refuses(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuses)
        for _ in range(detector_pool.THREADS_MAX + detector_pool.WAITING_MAX + 1):
            with pytest.raises(RuntimeError, match="can't start"):
                await threads.call(lambda: None, LIMIT_S)
    assert await threads.call(lambda: 1, LIMIT_S) == 1
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuses)
        both = [threads.call(lambda given=given: given, LIMIT_S) for given in (1, 2)]
        assert await asyncio.gather(*both) == [1, 2]
    threads.close()


async def test_closed_threads_end_and_one_that_hangs_is_not_waited_for():
    """A hanging thread ends with its call, and no new calls are accepted."""
    threads = DetectorThreads()
    hangs, has_begun = threading.Event(), threading.Event()
    hanging: list[threading.Thread] = []

    def hang() -> None:
        hanging.append(threading.current_thread())
        has_begun.set()
        hangs.wait(LIMIT_S)

    late = asyncio.create_task(threads.call(hang, LIMIT_S))
    assert await asyncio.to_thread(has_begun.wait, LIMIT_S)
    idle = await threads.call(threading.current_thread, LIMIT_S)
    threads.close()
    threads.close()
    await asyncio.to_thread(idle.join, LIMIT_S)
    assert not idle.is_alive()
    with pytest.raises(ThreadsBusy):
        await threads.call(lambda: None, LIMIT_S)
    assert hanging[0].is_alive()
    hangs.set()
    await late
    await asyncio.to_thread(hanging[0].join, LIMIT_S)
    assert not hanging[0].is_alive()
