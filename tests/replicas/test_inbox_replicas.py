"""Inboxes over several replicas: any of them offers any turn, under one lease at a time."""

import pytest

from tests.rpc.live_service import Chat, refusal, serving
from tests.rpc.test_inbox import OFFICE, complete, keep, working


@pytest.fixture
async def replicas(shared_store, tmp_path):
    """Two servers on one store."""
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    async with (
        serving(folders[0], OFFICE, store=shared_store.url) as one,
        serving(folders[1], OFFICE, store=shared_store.url) as two,
    ):
        yield one, two


async def test_a_turn_of_one_replica_reaches_a_worker_of_another(replicas):
    """And a turn that is answered on one frees its worker on the other."""
    one, two = replicas
    async with working(two, "front") as worker:
        for text in ("first", "second"):
            chat = one.chat()
            await chat.say(text)
            item = await worker.next()
            assert item.dispatch.text == text
            await complete(one, item, f"answer to {text}")
            there = Chat(two, chat.session_id)
            assert [turn.agent_text for turn in await there.turns()] == [f"answer to {text}"]


async def test_a_lapsed_lease_is_taken_over_on_another_replica(replicas):
    """The late answer is refused on every replica."""
    one, two = replicas
    chat = one.chat()
    async with working(one, "front", worker_id="slow", lease_s=1) as slow:
        await chat.say("hello")
        lost = await slow.next()
    async with working(two, "front", worker_id="fast", lease_s=60) as fast:
        item = await fast.next()
        assert item.attempt == 2
        for replica in replicas:
            refused = await refusal(complete(replica, lost, "too late"))
            assert refused.reason == "LEASE_LOST"
        status, _ = await keep(one, item, extend_s=60)
        assert status == "KEPT"
        await complete(one, item, "in time")
    assert [turn.agent_text for turn in await chat.turns()] == ["in time"]


async def test_a_worker_resumes_on_another_replica(replicas):
    """With its lease, and at once."""
    one, two = replicas
    chat = one.chat()
    async with working(one, "front", lease_s=60) as worker:
        await chat.say("hello")
        item = await worker.next()
        token = worker.resume_token
    async with working(two, "front", lease_s=60, resume_token=token) as worker:
        again = await worker.next()
        assert (again.lease_token, again.attempt) == (item.lease_token, 1)
        await complete(two, again)


async def test_two_replicas_never_offer_one_turn_twice(replicas):
    """Each waiting turn has one lease, by either replica."""
    one, two = replicas
    chats = [one.chat() for _ in range(12)]
    for chat in chats:
        await chat.say()
    async with (
        working(one, "front", worker_id="a", capacity=6, lease_s=60) as a,
        working(two, "front", worker_id="b", capacity=6, lease_s=60) as b,
    ):
        got = [await worker.next() for worker in (a, b) for _ in range(6)]
    assert sorted(item.session_id for item in got) == sorted(chat.session_id for chat in chats)
    assert {item.attempt for item in got} == {1}
