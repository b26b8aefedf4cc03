"""Waiting approvals over several replicas: each lists and watches those of all."""

import pytest

from tests.rpc.live_service import Chat, serving
from tests.rpc.signed_in import serving_signed_in, signed
from tests.rpc.test_approval_lists import sessions, watching
from tests.rpc.test_approval_rules import DESK, decision, desk, paused_by, paused_signed_in


@pytest.fixture
def folders(tmp_path):
    """A folder for each of two servers."""
    found = [tmp_path / name for name in ("one", "two")]
    for folder in found:
        folder.mkdir()
    return found


async def test_a_watch_sees_what_another_replica_asked_and_decided(shared_store, folders):
    """Within a look at the index; the list of the other replica has it at once."""
    async with (
        serving(folders[0], DESK, store=shared_store.url) as one,
        serving(folders[1], DESK, store=shared_store.url) as two,
        watching(two.call) as watcher,
    ):
        assert await watcher.begin() == []
        chat = one.chat()
        paused = await paused_by(chat)
        assert await sessions(two.call) == [chat.session_id]
        kind, waiting = await watcher.next()
        assert (kind, waiting.session_id) == ("waiting", chat.session_id)
        assert waiting.approval == (await Chat(two, chat.session_id).status()).pending_approval
        await one.call("ResumeTask", decision(chat.session_id, paused))
        kind, ended = await watcher.next()
        assert (kind, ended.request_id) == ("ended", paused.request_id)
        assert await sessions(two.call) == []


async def test_a_watch_sees_votes_of_another_replica(shared_store, folders):
    """They change no entry of the index, so they are looked for by themselves."""
    rule = desk("{needs: 2}")
    async with (
        serving_signed_in(folders[0], rule, store=shared_store.url) as one,
        serving_signed_in(folders[1], rule, store=shared_store.url) as two,
    ):
        two.server._parts.approvals._votes_s = 0.1
        paused = await paused_signed_in(one, "s")
        async with watching(signed(two, "approve", user="cai")) as watcher:
            assert await watcher.begin() == ["s"]
            await signed(one, "approve", user="bea")("ResumeTask", decision("s", paused))
            kind, waiting = await watcher.next()
            assert (kind, waiting.approval.decisions) == ("waiting", 1)
