"""The switch: who said what last, and how soon a replica follows."""

from routing_service.sessions.stickiness_switch import ALL_TENANTS, FOLLOW_S, StickinessSwitch
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


async def test_registry_counts_until_somebody_switches():
    """The file has only the start value."""
    store = MemoryStore()
    for start in (True, False):
        switch = switches(store, Monotonic(), start=start)
        assert await switch.is_enabled("acme") is start
    assert await switches(store, Monotonic()).switch("acme", enabled=False, now_us=1, reason="")
    assert not await switches(store, Monotonic(), start=True).is_enabled("acme")
    assert await switches(store, Monotonic(), start=True).is_enabled("other")


async def test_other_replicas_follow_within_a_second():
    """They ask the store again after half of one."""
    store, clock = MemoryStore(), Monotonic()
    here, there = switches(store, clock), switches(store, clock)
    assert await there.is_enabled("acme")
    await here.switch("acme", enabled=False, now_us=1, reason="incident")
    assert not await here.is_enabled("acme")
    assert await there.is_enabled("acme")
    clock.now_s += FOLLOW_S
    assert not await there.is_enabled("acme")


async def test_the_later_word_of_tenant_and_all_counts():
    """Off for all, then on for one; then off for all again."""
    switch = switches(MemoryStore(), Monotonic())
    await switch.switch(ALL_TENANTS, enabled=False, now_us=10, reason="")
    assert not await switch.read("acme")
    await switch.switch("acme", enabled=True, now_us=20, reason="")
    assert await switch.read("acme")
    assert not await switch.read("other")
    # The clock has gone back: a later switch still wins.
    await switch.switch("acme", enabled=False, now_us=5, reason="")
    assert not await switch.read("acme")


async def test_switching_to_what_it_is_changes_nothing():
    """And says so."""
    switch = switches(MemoryStore(), Monotonic())
    assert not await switch.switch("acme", enabled=True, now_us=1, reason="")
    assert await switch.switch("acme", enabled=False, now_us=1, reason="")
    assert not await switch.switch("acme", enabled=False, now_us=2, reason="")
