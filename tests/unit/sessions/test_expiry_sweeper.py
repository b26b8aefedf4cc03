"""Sweeping: bounded, by one replica at a time, and never stopped by one session or one failure."""

import asyncio

import pytest

from routing_service.sessions.calls import Expiry
from routing_service.sessions.expiry_sweeper import (
    LEASE_S,
    POSTPONE_S,
    SWEEP_AT_ONCE,
    SWEEP_SESSIONS_MAX,
    ExpirySweeper,
)
from routing_service.storage.memory_store import MemoryStore
from routing_service.storage.store import (
    Append,
    Change,
    SessionKey,
    StoreCorrupt,
    StoreUnavailable,
)

SECOND_US = 1_000_000
START_US = 1_000 * SECOND_US


class SharedStore(MemoryStore):
    """A store that other replicas write to as well."""

    @property
    def shared_writers(self):
        return True


class Sessions:
    """A store with sessions that are due, and what was asked of each."""

    def __init__(self, store=None):
        self.store = store or SharedStore()
        self.now_us = START_US
        self.asked = []
        self.at_once = self.at_once_max = 0
        self.stuck = set()
        self.corrupt = set()
        self.failing = 0

    def clock(self):
        return self.now_us

    async def add(self, count, due_us=START_US):
        for number in range(count):
            key = SessionKey("acme", f"chat-{number:04}")
            await self.append(key, 0, due_us + number)

    async def append(self, key, base, due_us):
        change = Change(base + 1, START_US, "", "", "", b"", b"events", b"")
        await self.store.append(Append(key, base, change, b"state", "ana", (), due_us))

    async def expire(self, key):
        self.asked.append(key.session_id)
        self.at_once += 1
        self.at_once_max = max(self.at_once_max, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        if self.failing:
            self.failing -= 1
            raise StoreUnavailable("away")
        if key.session_id in self.corrupt:
            raise StoreCorrupt("cannot be read")
        if key.session_id in self.stuck:
            return Expiry(changed=False)
        await self.append(key, await self.store.head_revision(key), None)
        return Expiry(changed=True)

    def sweeper(self, **bounds):
        return ExpirySweeper(self.store, self.expire, self.clock, **bounds)


@pytest.fixture
def sessions():
    """None yet, in a store that others write to."""
    return Sessions()


async def test_rounds_are_bounded_and_go_by_due_time(sessions):
    """However many fell due at once, as after a night in which nothing ran."""
    count = SWEEP_SESSIONS_MAX + 30
    await sessions.add(count)
    sessions.now_us += SECOND_US
    sweeper = sessions.sweeper()
    assert [await sweeper.sweep() for _ in range(3)] == [SWEEP_SESSIONS_MAX, 30, 0]
    assert sessions.asked == [f"chat-{number:04}" for number in range(count)]
    assert sessions.at_once_max <= SWEEP_AT_ONCE


async def test_nothing_is_swept_before_it_is_due(sessions):
    """A minute later it is."""
    await sessions.add(1, START_US + 60 * SECOND_US)
    sweeper = sessions.sweeper()
    assert await sweeper.sweep() == 0
    sessions.now_us += 60 * SECOND_US
    assert await sweeper.sweep() == 1
    assert sessions.asked == ["chat-0000"]


async def test_one_replica_sweeps_until_its_lease_ends(sessions):
    """One that died is followed by another; one that stops makes room at once."""
    await sessions.add(3)
    first, second, third = sessions.sweeper(), sessions.sweeper(), sessions.sweeper()
    assert await first.sweep() == 1
    sessions.now_us += SECOND_US
    assert await second.sweep() == 0
    assert await first.sweep() == 2
    await sessions.append(SessionKey("acme", "later"), 0, sessions.now_us)
    assert await second.sweep() == 0
    sessions.now_us += int(LEASE_S * SECOND_US)
    assert await second.sweep() == 1

    running = asyncio.create_task(second.run())
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running])
    await sessions.append(SessionKey("acme", "last"), 0, sessions.now_us)
    assert await third.sweep() == 1


async def test_lease_is_renewed_while_there_is_work(sessions):
    """The other one keeps out of it for as long as the first is at it."""
    first, second = sessions.sweeper(), sessions.sweeper()
    for number in range(20):
        await sessions.append(SessionKey("acme", f"n-{number}"), 0, sessions.now_us)
        assert await first.sweep() == 1
        assert await second.sweep() == 0
        sessions.now_us += int(LEASE_S * SECOND_US / 3)


async def test_idle_service_writes_nothing(sessions, monkeypatch):
    """No lease without due sessions, and none at all if no other process can write."""
    taken = []
    acquire = MemoryStore.acquire_lease

    async def counted(store, *given):
        taken.append(given)
        return await acquire(store, *given)

    monkeypatch.setattr(MemoryStore, "acquire_lease", counted)
    sweeper = sessions.sweeper()
    await sweeper.sweep()
    assert taken == []
    alone = Sessions(MemoryStore())
    await alone.add(1)
    assert await alone.sweeper().sweep() == 1
    assert taken == []


async def test_session_with_nothing_to_do_does_not_hide_the_others(sessions):
    """It is due by its row, but the registry has changed since; it is asked once a minute."""
    await sessions.add(SWEEP_SESSIONS_MAX + 50)
    sessions.stuck = {f"chat-{number:04}" for number in range(SWEEP_SESSIONS_MAX)}
    sessions.now_us += SECOND_US
    sweeper = sessions.sweeper()
    assert [await sweeper.sweep() for _ in range(3)] == [0, 50, 0]
    assert len(sessions.asked) == SWEEP_SESSIONS_MAX + 50
    sessions.stuck = set()
    sessions.now_us += int(POSTPONE_S * SECOND_US)
    assert await sweeper.sweep() == SWEEP_SESSIONS_MAX


async def test_session_that_cannot_be_read_does_not_stop_the_others(sessions):
    """Its callers get the error; the sweeper logs it."""
    await sessions.add(5)
    sessions.corrupt = {"chat-0001"}
    sessions.now_us += SECOND_US
    sweeper = sessions.sweeper()
    assert await sweeper.sweep() == 4
    assert await sweeper.sweep() == 0
    assert sessions.asked.count("chat-0001") == 1


async def test_store_that_was_away_is_tried_again(sessions):
    """The task runs as long as the server does, even if a round fails."""
    await sessions.add(3)
    sessions.now_us += SECOND_US
    sessions.failing = 5
    running = asyncio.create_task(sessions.sweeper(interval_s=0.001).run())
    async with asyncio.timeout(30):
        # The task that is waited for has its own pauses.
        while await sessions.store.due_sessions(sessions.now_us, 1):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert not running.done()
    running.cancel()
    await asyncio.wait([running])


async def test_sweeper_ends_with_its_store(sessions):
    """A closed store is not logged as a failure for ever."""
    await sessions.store.close()
    await asyncio.wait_for(sessions.sweeper().run(), 30)
