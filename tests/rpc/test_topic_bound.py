"""The bound of unsure messages on a real server: from the first message on, and over restarts."""

from __future__ import annotations

import pytest

from routing_service.storage.open_store import open_store
from routing_service.storage.store import StoreUnavailable
from routing_service.topics import detection
from routing_service.topics.kept_counts import SETTING, KeptCounts
from tests.rpc.live_service import serving, went
from tests.rpc.test_topic_unsure import registry
from tests.scripted_topics import ScriptedModel

HALF_SURE = "#payroll=0.75 and what about Ana"
"""Its lead is 0.5, which is above any bound that most of the messages are sure for."""


async def bound_after(service, count: int) -> float:
    """Send so many messages whose sureness is 0.5; return the bound in force."""
    bound = 0.0
    for _ in range(count):
        chat = await service.chat().with_agent("vat")
        routed = await chat.say(HALF_SURE, explain_topic=True)
        bound = routed.topic_trace.bound
    return bound


async def test_bound_goes_on_after_a_restart(tmp_path):
    """It was that of an empty server after every restart, and asked too little for days."""
    async with serving(tmp_path, registry(), model=ScriptedModel()) as first:
        begun = await bound_after(first, 1)
        followed = await bound_after(first, 80)
    assert followed > begun + 0.1
    async with serving(tmp_path, registry(), model=ScriptedModel()) as second:
        assert await bound_after(second, 1) == pytest.approx(followed, abs=0.02)


async def test_bound_is_each_tenants_own(tmp_path):
    """What is sure for one tenant's users says nothing of another's."""
    async with serving(tmp_path, registry(), model=ScriptedModel()) as service:
        begun = await bound_after(service, 1)
        await bound_after(service, 40)
        counts = service.server._parts.topics._counts
        assert {tenant for tenant, _ in counts._held} == {service.chat().key.tenant}
        assert begun < await bound_after(service, 1)


async def test_replicas_add_their_counts(tmp_path):
    """Two processes that write at the same time lose nothing of either."""
    store = await open_store(f"sqlite:///{tmp_path / 'routing.db'}")
    try:
        one, other = KeptCounts(store), KeptCounts(store)
        for counts in (one, other):
            await counts.read("t", f"{SETTING}x")
            for _ in range(10):
                counts.note("t", f"{SETTING}x", 0.5, 0.7)
        await one.flush()
        await other.flush()
        await other.flush()  # Nothing new: nothing is added twice.
        assert (await KeptCounts(store).read("t", f"{SETTING}x")).total == pytest.approx(20)
    finally:
        await store.close()


async def test_counts_that_cannot_be_read_cost_no_message(tmp_path, monkeypatch):
    """The bound is then that of a server without a past."""
    async with serving(tmp_path, registry(), model=ScriptedModel()) as service:

        async def fails(*_: object) -> bytes:
            raise StoreUnavailable("gone")

        kept = detection.KeptCounts(service.store)
        monkeypatch.setattr(service.server._parts.topics, "_counts", kept)
        monkeypatch.setattr(service.store, "get_setting", fails)
        routed = await (service.chat()).say("#payroll=0.51 hm")
        assert went(routed.dispatch) == ("front", "TOPIC_UNSURE")
        monkeypatch.undo()


async def test_right_wanted_asks_until_so_many_are_expected_to_be_right(tmp_path):
    """Verdicts from 0.8 to 1 are right in nine of ten: for 95 % less than half are asked about."""
    text = registry("right_wanted: 0.95")
    async with serving(tmp_path, text, model=ScriptedModel()) as service:
        asked = 0
        for number in range(400):
            chat = service.chat()
            probability = 0.8 + (number * 37 % 100) / 500
            reply = await chat.say(f"#payroll={probability} {number}")
            asked += number >= 200 and went(reply.dispatch)[1] == "TOPIC_UNSURE"
        assert 0.2 <= asked / 200 <= 0.5
        (figures,) = [service.server._parts.topics.figures]
        assert (figures.right_wanted, figures.ask_share) == (0.95, None)


async def test_two_wishes_are_refused(tmp_path):
    """They would contradict each other; the error names both."""
    with pytest.raises(Exception, match="ask_share and right_wanted"):
        async with serving(tmp_path, registry("ask_share: 0.1, right_wanted: 0.9")):
            pass
