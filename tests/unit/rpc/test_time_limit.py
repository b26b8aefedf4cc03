"""One time limit for many calls: each call has the full time, and no more."""

import asyncio

import pytest

from routing_service.rpc.time_limit import TimeLimit

LONG_S = 60
SHORT_S = 0.01
WAIT_S = 30


async def for_ever():
    """Wait until cancelled."""
    await asyncio.Event().wait()


async def test_call_that_is_done_in_time_is_answered():
    """The task is left as it was before."""
    assert await TimeLimit(LONG_S).run(asyncio.sleep(0, "done")) == "done"
    assert asyncio.current_task().cancelling() == 0


async def test_each_call_that_takes_longer_is_ended():
    """Calls are ended whenever they started, singly and several at once."""
    limit = TimeLimit(SHORT_S)
    for _ in range(2):
        calls = [asyncio.create_task(limit.run(for_ever())) for _ in range(3)]
        done, _ = await asyncio.wait(calls, timeout=WAIT_S)
        assert len(done) == 3
        for call in calls:
            with pytest.raises(TimeoutError):
                call.result()
            assert call.cancelling() == 0


async def test_later_call_has_its_own_time():
    """It is not ended together with a call that started earlier."""
    limit = TimeLimit(SHORT_S)

    async def first_then_second():
        with pytest.raises(TimeoutError):
            await limit.run(for_ever())
        return await limit.run(asyncio.sleep(0, "second"))

    assert await asyncio.wait_for(first_then_second(), WAIT_S) == "second"


async def test_cancelled_call_is_cancelled_and_not_late():
    """A call whose caller disconnects is cancelled, not timed out."""
    limit = TimeLimit(LONG_S)
    call = asyncio.create_task(limit.run(for_ever()))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert limit._began_s == {}


async def test_call_that_is_late_and_cancelled_is_cancelled():
    """A cancellation from outside still ends the task."""
    limit = TimeLimit(SHORT_S)
    call = asyncio.create_task(limit.run(for_ever()))
    await asyncio.sleep(0)
    end_overdue = limit._end_overdue
    limit._timer.cancel()
    limit.seconds = 0
    end_overdue()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_call_that_ends_although_it_is_late_is_answered():
    """The call had finished, so its late cancellation is taken back."""
    limit = TimeLimit(SHORT_S)

    async def stubborn():
        try:
            await for_ever()
        except asyncio.CancelledError:
            return "done"

    assert await asyncio.wait_for(limit.run(stubborn()), WAIT_S) == "done"
    assert asyncio.current_task().cancelling() == 0


async def test_inner_errors_pass():
    """A call's own error is raised unchanged."""

    async def failing():
        raise ValueError("no")

    limit = TimeLimit(LONG_S)
    with pytest.raises(ValueError, match="no"):
        await limit.run(failing())
    assert limit._began_s == {}
