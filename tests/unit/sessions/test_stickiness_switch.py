"""The switch: who said what last, and how soon a replica follows."""

import pytest

from routing_service.sessions.stickiness_switch import (
    ALL_TENANTS,
    FOLLOW_S,
    StickinessSwitch,
    Switched,
    is_same,
)
from routing_service.storage.memory_store import MemoryStore


class Monotonic:
    """A clock that a test moves."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


def switches(store, clock, *, start=True):
    """Make the switch of one replica."""
    return StickinessSwitch(store, lambda: start, clock)


async def said(switch, tenant, now_us, *, enabled):
    """Switch, and say whether that changed what counts."""
    new = Switched(enabled, now_us, "incident")
    before, _ = await switch.switch(tenant, new)
    return not is_same(before.switched, new)


async def test_registry_counts_until_somebody_switches():
    """The file has only the start value."""
    store = MemoryStore()
    for start in (True, False):
        switch = switches(store, Monotonic(), start=start)
        assert (await switch.now("acme")).enabled is start
    assert await said(switches(store, Monotonic()), "acme", 1, enabled=False)
    assert not (await switches(store, Monotonic(), start=True).now("acme")).enabled
    assert (await switches(store, Monotonic(), start=True).now("other")).enabled


async def test_other_replicas_follow_within_a_second():
    """They ask the store again after half of one."""
    store, clock = MemoryStore(), Monotonic()
    here, there = switches(store, clock), switches(store, clock)
    assert (await there.now("acme")).enabled
    await said(here, "acme", 1, enabled=False)
    assert not (await here.now("acme")).enabled
    assert (await there.now("acme")).enabled
    clock.now_s += FOLLOW_S
    assert not (await there.now("acme")).enabled


async def test_the_later_word_of_tenant_and_all_counts():
    """Off for all, then on for one; then off for all again."""
    switch = switches(MemoryStore(), Monotonic())
    await said(switch, ALL_TENANTS, 10, enabled=False)
    assert not (await switch.read("acme")).enabled
    await said(switch, "acme", 20, enabled=True)
    assert (await switch.read("acme")).enabled
    assert not (await switch.read("other")).enabled
    # The clock has gone back: a later switch still wins.
    await said(switch, "acme", 5, enabled=False)
    assert not (await switch.read("acme")).enabled


async def test_switching_to_what_it_is_changes_nothing():
    """And says so."""
    switch = switches(MemoryStore(), Monotonic())
    assert not await said(switch, "acme", 1, enabled=True)
    assert await said(switch, "acme", 1, enabled=False)
    assert not await said(switch, "acme", 2, enabled=False)


async def test_share_of_users_grows_and_keeps_its_users():
    """Who is in a tenth is also in a third; about as many users as the percentage says."""
    shares = {}
    for percent in (10, 33, 99):
        switch = switches(MemoryStore(), Monotonic())
        await switch.switch("acme", Switched(enabled=False, time_us=1, users_percent=percent))
        now = await switch.now("acme")
        shares[percent] = {n for n in range(2000) if not now.sticks(f"user-{n}", ())}
    assert shares[10] < shares[33] < shares[99]
    assert [round(len(share) / 20) for share in shares.values()] == pytest.approx(
        [10, 33, 99], abs=3
    )
