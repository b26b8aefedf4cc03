"""The routing figures, folded by two concurrent readers on every engine."""

import asyncio

import pytest

from routing_service.analytics.keeper import StatsKeeper
from routing_service.analytics.report import read_report
from routing_service.analytics.stored_forms import HEAD
from routing_service.core.events import AgentHandedOff, MessageRouted, Profile, SessionStarted
from routing_service.core.vocabulary import HandoffMode, Initiator, RouteReason
from routing_service.storage.event_codec import encode_events
from routing_service.storage.store import StoreUnavailable

SESSIONS = 6
MESSAGES = 5


def spoken(place):
    """Return what a session's n-th change holds."""
    events = [SessionStarted(Profile(channel="web"))] if place == 0 else []
    reason = RouteReason.STICKY if place else RouteReason.NO_ACTIVE_AGENT
    events.append(MessageRouted("r", "t", "sales" if place else "front", reason))
    if place == 0:
        events.append(
            AgentHandedOff(
                "front",
                "sales",
                Initiator.SUPERVISOR,
                HandoffMode.TRANSFER,
                RouteReason.SUPERVISOR_HANDOFF,
                dispatches=True,
            )
        )
    return encode_events(events)


async def test_two_readers_at_once_count_every_change_once(store, make):
    """Changes are appended meanwhile, and one reader is restarted in the middle."""
    keepers = [StatsKeeper(store, lambda: "front", lambda: 0, holder=str(n)) for n in range(2)]

    async def talk(number):
        for place in range(MESSAGES):
            key = make.key(f"chat-{number}")
            await store.append(make.append(key, place, events=spoken(place)))

    async def count():
        for _ in range(8):
            await asyncio.gather(*(keeper.advance() for keeper in keepers))
        keepers[1] = StatsKeeper(store, lambda: "front", lambda: 0, holder="anew")

    await asyncio.gather(*(talk(number) for number in range(SESSIONS)), count())
    report = await read_report(
        store,
        keepers[1],
        tenant=make.key().tenant,
        start_us=None,
        end_us=None,
        channel="",
    )
    again = await read_report(
        store, keepers[0], tenant="*", start_us=None, end_us=None, channel="web"
    )
    for found in (report, again):
        counts = found.counts
        assert (counts.messages, found.sessions) == (SESSIONS * MESSAGES, SESSIONS)
        assert counts.saved == SESSIONS * (MESSAGES - 1)
        assert counts.agents["sales"].turns == SESSIONS * MESSAGES
        assert counts.agents["sales"].activations == SESSIONS
        assert counts.carried_out == SESSIONS


class NoFigures:
    """A store whose process ends after a step's head is written, before its figures are."""

    def __init__(self, store):
        self._store = store

    def __getattr__(self, name):
        return getattr(self._store, name)

    async def swap_setting(self, tenant, name, before, value):
        if name != HEAD:
            raise StoreUnavailable("the process ended here")
        return await self._store.swap_setting(tenant, name, before, value)


async def test_step_of_the_same_number_after_a_failover_is_added(store, make):
    """A reader that had added the lost step took the other one of its number for added."""
    one = StatsKeeper(store, lambda: "front", lambda: 0, holder="one")
    other = StatsKeeper(NoFigures(store), lambda: "front", lambda: 0, holder="other")
    await store.append(make.append(make.key("first"), 0, events=spoken(0)))
    await one.advance()
    tenants = (make.key().tenant, "*")
    kept = {tenant: await store.list_settings(tenant, "", 100) for tenant in tenants}
    await store.append(make.append(make.key("second"), 0, events=spoken(0)))
    await one.advance()
    for tenant, settings in kept.items():
        for name, value in settings:
            await store.put_setting(tenant, name, value)
    await store.append(make.append(make.key("third"), 0, events=spoken(0)))
    with pytest.raises(StoreUnavailable):
        await other.advance()
    for tenant in tenants:
        found = await read_report(store, one, tenant=tenant, start_us=None, end_us=None, channel="")
        assert (found.counts.messages, found.sessions) == (3, 3)
