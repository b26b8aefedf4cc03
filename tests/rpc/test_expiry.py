"""Timeouts take effect when they are due, without a call, and watchers are notified."""

import asyncio
from contextlib import AsyncExitStack

import pytest
from google.protobuf import timestamp_pb2

from routing_service.core import events as ev
from routing_service.server.bounds import Bounds
from routing_service.sessions.expiry_sweeper import ExpirySweeper
from tests.rpc.live_service import Clock, ask, outcome_status, serving, task_status, went
from tests.rpc.registries import DESK
from tests.rpc.test_watch_session import kinds, next_change, watching

MINUTE_S = 60
WAIT_S = 30


IMPATIENT = Bounds(sweep_interval_s=0.02)
"""A server that sweeps often; the clock runs in these tests."""


@pytest.fixture
async def service(tmp_path):
    """A help desk whose agents differ in one thing each, with the sweeper on."""
    async with serving(tmp_path, DESK, expiry_sweep=True, bounds=IMPATIENT) as running:
        yield running


async def until(condition):
    """Poll until a condition is true."""
    async with asyncio.timeout(WAIT_S):
        # It happens in the server or the store, so the test can only poll.
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def in_seconds(service, seconds):
    """Return a time in the future."""
    made = timestamp_pb2.Timestamp()
    made.FromMicroseconds(service.clock.now_us + seconds * 1_000_000)
    return made


async def test_watcher_hears_of_an_agent_that_was_idle_for_too_long(service):
    """The next message says why it goes to the front desk."""
    chat = await service.chat().with_agent("idles")
    async with watching(chat) as call:
        service.clock.advance(20 * MINUTE_S)
        change = await next_change(call)
    assert kinds(change) == ["stickiness_expired"]
    assert change.events[0].stickiness_expired.idle_duration.seconds == 20 * MINUTE_S
    status = await chat.status()
    assert (status.active_agent.agent_id, status.revision) == ("", change.revision)
    assert went((await chat.say("still there?")).dispatch) == ("front", "EXPIRED")
    routed = await chat.say("hello")
    assert went(routed.dispatch) == ("front", "NO_ACTIVE_AGENT")


async def test_watcher_hears_of_a_lock_that_ran_out(service):
    """A follow-up agent leaves when its lock times out; a sticky agent stays."""
    leaving = await service.chat().with_agent("asks_only", **ask(timeout_s=90))
    sticking = await service.chat().with_agent("sales", **ask(timeout_s=90))
    async with watching(leaving) as left, watching(sticking) as stayed:
        service.clock.advance(90)
        assert kinds(await next_change(left)) == ["lock_released", "agent_cleared"]
        assert kinds(await next_change(stayed)) == ["lock_released"]
    assert (await sticking.status()).active_agent.agent_id == "sales"
    assert went((await leaving.say("late")).dispatch) == ("front", "EXPIRED")
    assert went((await sticking.say("late")).dispatch) == ("sales", "STICKY")


async def test_watcher_hears_of_a_turn_that_nobody_answered(service):
    """The frontend may stop its typing indicator."""
    chat = service.chat()
    routed = await chat.say("anybody?")
    async with watching(chat) as call:
        service.clock.advance(10 * MINUTE_S)
        change = await next_change(call)
    assert kinds(change) == ["turn_abandoned"]
    assert change.events[0].turn_abandoned.request_id == routed.dispatch.request_id
    assert not (await chat.status()).open_requests
    late = await chat.answer(routed.dispatch, "sorry, I was away")
    assert outcome_status(late) == "STORED_ONLY"
    assert [turn.agent_text for turn in await chat.turns()] == ["sorry, I was away"]


async def test_watcher_hears_of_a_task_whose_time_is_over(service):
    """The task's row shows it as well."""
    chat = service.chat()
    routed = await chat.say("by noon please", task_expire_time=in_seconds(service, 300))
    await chat.answer(routed.dispatch, "yes")
    async with watching(chat) as call:
        service.clock.advance(300)
        assert kinds(await next_change(call)) == ["task_cancelled"]
    (task,) = await chat.tasks()
    assert task_status(task.status) == "CANCELLED"


async def test_time_outs_one_after_the_other_each_happen_once(service):
    """The service's own changes are not use of the session: idle time continues to count."""
    chat = await service.chat().with_agent("idles", **ask(timeout_s=90))
    for seconds, revision in ((90, 4), (20 * MINUTE_S - 90, 5)):
        service.clock.advance(seconds)

        async def has_come(wanted=revision):
            return (await chat.status()).revision == wanted

        await until(has_come)
    assert await chat.kinds(4) == ["LockReleased", "TimePassed"]
    assert await chat.kinds(5) == ["StickinessExpired", "TimePassed"]
    service.clock.advance(10 * 24 * 60 * MINUTE_S)
    other = service.chat()
    await other.say("a session that falls due now")
    service.clock.advance(10 * MINUTE_S)

    async def other_is_swept():
        return len(await other.changes()) == 2

    await until(other_is_swept)
    assert len(await chat.changes()) == 5


async def test_time_outs_that_passed_while_nothing_ran_take_effect_at_the_start(tmp_path):
    """For example after a night without the service."""
    clock = Clock()
    async with serving(tmp_path, DESK, clock=clock) as service:
        chat = await service.chat("over-night").with_agent("idles")
    clock.advance(10 * 60 * MINUTE_S)
    async with serving(tmp_path, DESK, clock=clock, expiry_sweep=True, bounds=IMPATIENT) as service:
        chat = service.chat("over-night")

        async def is_swept():
            return "StickinessExpired" in await chat.kinds()

        await until(is_swept)


async def test_switched_off_nothing_happens_before_the_next_call(tmp_path):
    """Timeouts then take effect at the next call, with the same result."""
    async with serving(tmp_path, DESK, expiry_sweep=False) as service:
        chat = await service.chat().with_agent("idles")
        service.clock.advance(20 * MINUTE_S)
        await asyncio.sleep(0.2)
        assert len(await chat.changes()) == 3
        assert went((await chat.say("still there?")).dispatch) == ("front", "EXPIRED")


@pytest.mark.parametrize("lease", ["one sweeps", "both sweep"])
async def test_each_time_out_happens_once_on_two_servers(
    tmp_path, postgres_database, monkeypatch, lease
):
    """Two servers share one PostgreSQL; it holds even if both sweep at the same time."""
    if lease == "both sweep":

        async def always(_sweeper, _now_us):
            return True

        monkeypatch.setattr(ExpirySweeper, "_may_sweep", always)
    clock, store = Clock(), postgres_database.store_url(tmp_path)
    async with AsyncExitStack() as opened:
        servers = [
            await opened.enter_async_context(
                serving(
                    tmp_path,
                    DESK,
                    store=store,
                    clock=clock,
                    expiry_sweep=True,
                    bounds=IMPATIENT,
                )
            )
            for _ in range(2)
        ]
        opened.callback(postgres_database.clear, tmp_path)
        chats = [servers[n % 2].chat(f"two-{n}") for n in range(24)]
        for number, chat in enumerate(chats):
            if number % 3 == 0:
                await chat.with_agent("idles")
            elif number % 3 == 1:
                await chat.with_agent("asks_only", **ask(timeout_s=20 * MINUTE_S))
            else:
                await chat.say("anybody?")
        watched = [
            await opened.enter_async_context(watching(servers[(n + 1) % 2].chat(f"two-{n}")))
            for n in range(6)
        ]
        clock.advance(20 * MINUTE_S)
        heard = [kinds(await next_change(call)) for call in watched]
        wanted = [["stickiness_expired"], ["lock_released", "agent_cleared"], ["turn_abandoned"]]
        assert heard == wanted * 2

        async def nothing_is_due():
            return not await servers[0].store.due_sessions(clock.now_us, 1)

        await until(nothing_is_due)
        for number, chat in enumerate(chats):
            events = await chat.events()
            assert sum(isinstance(event, ev.TimePassed) for event in events) == 1, number
            # Both servers see it, also if they cached the session.
            revisions = [(await s.chat(f"two-{number}").status()).revision for s in servers]
            assert revisions[0] == revisions[1] == len(await chat.changes())
