"""The automatic off next to operators and other replicas; the conversations are in tests/rpc."""

import pytest

from routing_service.analytics.stored_forms import STUCK_WINDOW, VALUE_BYTES_MAX, decode, encode
from routing_service.analytics.stuck_windows import (
    AGENTS_MAX,
    WINDOW_PARTS,
    AgentWindow,
    StuckWindow,
    WindowDelta,
    user_bit,
)
from routing_service.core.registry import MINUTE_US, Agent, AgentKind, AutoOff, Registry
from routing_service.sessions.auto_off import AutoOffWatch
from routing_service.sessions.stickiness_switch import (
    ALL_TENANTS,
    STICKINESS_SWITCHED,
    StickinessSwitch,
    Switched,
)
from routing_service.storage.memory_store import MemoryStore

TENANT = "acme"
PART_US = 3 * MINUTE_US
NOW_US = 1_000_000 * PART_US + MINUTE_US
RULE = AutoOff(0.5, window_us=WINDOW_PARTS * PART_US, turns_min=5, users_min=5)
REGISTRY = Registry(
    version="1",
    home_agent_id="front",
    agents={
        "front": Agent("front", kind=AgentKind.SUPERVISOR),
        "sales": Agent("sales"),
        "support": Agent("support"),
    },
    auto_off=RULE,
)


def agent_window(users, stuck, name="user"):
    """Return the figures of an agent that some of its users left at once."""
    window = AgentWindow(turns=users)
    for number in range(users):
        window.activate(user_bit(f"{name}-{number}"))
    for number in range(users - stuck, users):
        window.leave_stuck(user_bit(f"{name}-{number}"))
    return window


async def store_with(*parts_ago, agent_id="sales", tenant=TENANT):
    """Return a store whose window has six stuck users in each of these parts."""
    store = MemoryStore()
    window = StuckWindow()
    parts = {NOW_US // PART_US - ago: {agent_id: agent_window(6, 6)} for ago in parts_ago}
    window.add(WindowDelta(tenant, PART_US, parts), NOW_US)
    await store.put_setting(tenant, STUCK_WINDOW, encode(window))
    return store


def replica(store):
    """Return the watch and the switch of one replica."""
    switch = StickinessSwitch(store, lambda: True)
    return AutoOffWatch(store, switch, lambda: REGISTRY, lambda: NOW_US), switch


async def switches(store, tenant=TENANT):
    """Return the audit's records of switches."""
    entries, _ = await store.read_audit(tenant, None, b"", 100)
    return [entry for entry in entries if entry.kind == STICKINESS_SWITCHED]


async def test_two_replicas_that_look_switch_once():
    """Both may hold the lease for a moment; there is one switch, with one record."""
    store = await store_with(0)
    (one, switch), (other, _) = replica(store), replica(store)
    await one.look([TENANT])
    await other.look([TENANT])
    assert (await switch.read(TENANT)).switched.agent_ids == ("sales",)
    assert len(await switches(store)) == 1
    assert (one.agents_switched_off, other.agents_switched_off) == (1, 0)


async def test_what_was_before_an_operators_on_is_no_evidence():
    """The window still has it, and the agent was never off alone."""
    store = await store_with(0, 1)
    watch, switch = replica(store)
    await switch.switch(TENANT, Switched(enabled=True, time_us=NOW_US))
    await watch.look([TENANT])
    assert (await switch.read(TENANT)).enabled
    assert await switches(store) == []


async def test_evidence_after_an_operators_on_counts():
    """The same agent in a part that began later."""
    store = await store_with(0)
    watch, switch = replica(store)
    await switch.switch(TENANT, Switched(enabled=True, time_us=NOW_US - 2 * PART_US))
    await watch.look([TENANT])
    assert (await switch.read(TENANT)).switched.agent_ids == ("sales",)


@pytest.mark.parametrize("tenant", [TENANT, ALL_TENANTS])
async def test_operator_who_switches_meanwhile_wins(tenant):
    """Between the look and the switch: the automatic one is not stored."""
    store = await store_with(0)
    _, switch = replica(store)
    seen = (await switch.read(TENANT)).switched
    await switch.switch(tenant, Switched(enabled=True, time_us=NOW_US))
    new = Switched(enabled=False, time_us=NOW_US + 1, agent_ids=("sales",))
    _, stored = await switch.switch(TENANT, new, only_after=seen)
    assert stored is None
    assert (await switch.read(TENANT)).enabled


async def test_switch_that_is_off_for_all_stays():
    """There is nothing to switch off."""
    store = await store_with(0)
    watch, switch = replica(store)
    _, off = await switch.switch(TENANT, Switched(enabled=False, time_us=1))
    await watch.look([TENANT])
    assert (await switch.read(TENANT)).switched == off


async def test_agent_an_operator_has_switched_off_is_not_switched_again():
    """After the operator's on it has to be seen below the bound, like any other that was off."""
    store = await store_with(0)
    watch, switch = replica(store)
    off = Switched(enabled=False, time_us=1, agent_ids=("sales",))
    await switch.switch(TENANT, off)
    await watch.look([TENANT])
    raw = await store.get_setting(TENANT, STUCK_WINDOW)
    assert decode(StuckWindow, raw, STUCK_WINDOW).alarmed == ["sales"]
    await switch.switch(TENANT, Switched(enabled=True, time_us=2))
    later, _ = replica(store)
    await later.look([TENANT])
    assert (await switch.read(TENANT)).enabled


@pytest.mark.parametrize("agent_id", ["front", "left_the_registry"])
async def test_only_registered_specialists_are_switched_off(agent_id):
    """The home agent gets the messages anyway; another one has none any more."""
    store = await store_with(0, agent_id=agent_id)
    watch, switch = replica(store)
    await watch.look([TENANT])
    assert (await switch.read(TENANT)).enabled


def test_window_slides_by_its_parts():
    """A part that is older than the window is forgotten, and so is one far in the future."""
    last = NOW_US // PART_US
    window = StuckWindow()
    parts = {number: {"sales": agent_window(2, 1)} for number in (last - 4, last, last + 1)}
    far = {number: {"sales": agent_window(9, 9)} for number in (last - 5, last + 2)}
    window.add(WindowDelta(TENANT, PART_US, parts | far), NOW_US)
    assert sorted(window.parts) == [last - 4, last, last + 1]
    found = window.since(0, NOW_US)["sales"]
    assert (found.activations, found.stuck, found.users_min) == (4, 2, 2)
    later = window.since(0, NOW_US + PART_US)["sales"]
    assert (later.activations, later.stuck) == (4, 2)


def test_window_of_another_length_begins_again():
    """The registry has changed it: parts of different lengths cannot be added."""
    window = StuckWindow()
    for part_us in (PART_US, MINUTE_US):
        parts = {NOW_US // part_us: {"sales": agent_window(2, 1)}}
        window.add(WindowDelta(TENANT, part_us, parts), NOW_US)
    assert list(window.parts) == [NOW_US // MINUTE_US]


def test_full_window_fits_a_setting():
    """As many agents as are watched, in every part, each with many other users."""
    window = StuckWindow()
    last = NOW_US // PART_US
    names = [f"{number:03}{'x' * 61}" for number in range(AGENTS_MAX + 9)]
    # Sketches that are half full do not compress.
    parts = {
        part: {name: agent_window(500, 350, f"{part}-{name}") for name in names}
        for part in range(last - WINDOW_PARTS + 1, last + 2)
    }
    window.add(WindowDelta(TENANT, PART_US, parts), NOW_US)
    assert {len(part) for part in window.parts.values()} == {AGENTS_MAX}
    assert len(window.parts) == WINDOW_PARTS + 1
    assert len(encode(window)) < VALUE_BYTES_MAX
