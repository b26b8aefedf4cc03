"""Notes and parts of answers over several replicas: watchers of any of them read along."""

import pytest

from agent_routing.v1 import routing_service_pb2
from tests.rpc.live_service import Chat, serving
from tests.rpc.test_inbox import complete
from tests.rpc.test_keep_turn import OFFICE, next_item, said, steps
from tests.rpc.test_live_answers import LIVE, watching, write

pb = routing_service_pb2


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


async def listening(replica, item, watcher):
    """Wait until another replica listens: what is sent before that is lost."""
    while not watcher.notes:
        await said(replica, item, note="are you there?")


async def test_watchers_of_another_replica_read_along(replicas):
    """Long and short parts, notes and steps, with any characters, in order."""
    one, two = replicas
    chat = one.chat()
    item = await next_item(one, "front", chat)
    there = Chat(two, chat.session_id)
    text = "añ€\N{GRINNING FACE}'\"\\" * 500
    include = (*LIVE, pb.WATCH_INCLUDE_STEPS)
    async with watching(two, there, include) as watcher, watching(one, chat) as here:
        await listening(one, item, watcher)
        kept = await write(one, item, "Hello. ", text)
        assert {answer.relay for answer in kept} == {pb.RELAY_ALL}
        await said(one, item, steps=steps("search"))
        whole = "Hello. " + text
        for each in (watcher, here):
            await each.until(lambda w: w.deltas and w.deltas[-1].end == len(whole.encode()))
            assert each.text == whole
        await watcher.until(lambda w: any(e.HasField("steps_reported") for e in w.events))
        await complete(two, item, whole)


async def test_a_worker_may_change_the_replica_in_the_middle(replicas):
    """What the two send is one text, without the marker that lies across both."""
    one, two = replicas
    chat = await one.chat().with_agent("marks")
    item = await next_item(one, "marks", chat)
    async with watching(two, Chat(two, chat.session_id)) as watcher:
        await listening(one, item, watcher)
        first, second = "One moment. [HANDOFF_", "TO:vat] VAT helps."
        await write(one, item, first)
        await watcher.until(lambda w: w.deltas)
        await write(two, item, second, start=first)
        await watcher.until(lambda w: w.deltas[-1].end == len(first + second))
    assert watcher.text == "One moment.  VAT helps."


async def test_nothing_is_sent_twice(replicas):
    """A replica does not hear its own messages."""
    one, two = replicas
    chat = one.chat()
    item = await next_item(one, "front", chat)
    async with watching(one, chat) as here, watching(two, Chat(two, chat.session_id)) as there:
        await listening(one, item, there)
        await write(one, item, "a", "b", "c")
        for watcher in (here, there):
            await watcher.until(lambda w: len(w.deltas) >= 3)
            assert [delta.text for delta in watcher.deltas] == ["a", "b", "c"]
