"""Nothing is deleted on its own; PurgeSessions removes the named sessions only."""

import asyncio
from contextlib import AsyncExitStack

import grpc
import pytest
from google.protobuf import timestamp_pb2

from agent_routing.v1 import admin_service_pb2 as pb
from agent_routing.v1 import admin_service_pb2_grpc
from routing_service.server.bounds import Bounds
from routing_service.sessions.retention import SESSION_PURGED
from routing_service.storage.memory_store import MemoryStore
from tests.rpc.live_service import Clock, ask, finish, refusal, serving
from tests.rpc.registries import DESK
from tests.rpc.test_erasure import error_bytes
from tests.rpc.test_watch_session import watching

DAY_S = 24 * 3600
WAIT_S = 30


@pytest.fixture
async def service(tmp_path):
    """A help desk whose agents differ in one thing each."""
    async with serving(tmp_path, DESK) as running:
        yield running


def purge(service, before_us=None, **fields):
    """Remove sessions; before_us None = all sessions."""
    when = timestamp_pb2.Timestamp()
    when.FromMicroseconds(service.clock.now_us if before_us is None else before_us)
    request = pb.PurgeSessionsRequest(update_time_before=when, reason="too old", **fields)
    stub = admin_service_pb2_grpc.AdminServiceStub(service.channel)
    return stub.PurgeSessions(request, timeout=WAIT_S)


async def talked(service, name, **who):
    """Hold a conversation that has ended."""
    chat = service.chat(name, **who)
    routed = await chat.say(f"I am {name}")
    await chat.answer(routed.dispatch, "hello", **finish())
    return chat


async def is_there(chat):
    """Say whether the session exists."""
    try:
        return (await chat.status()).revision > 0
    except grpc.aio.AioRpcError as error:
        if b"UNKNOWN_SESSION" not in error_bytes(error):
            raise
        return False


async def test_after_a_year_nothing_is_gone_by_itself(tmp_path):
    """With the sweeper on and a restart in between: sessions, turns, tasks and answers."""
    bounds = Bounds(sweep_interval_s=0.01)
    clock = Clock()
    seen = {}
    async with serving(tmp_path, DESK, clock=clock, expiry_sweep=True, bounds=bounds) as service:
        for number in range(6):
            chat = await talked(service, f"year-{number}")
            seen[chat.session_id] = (await chat.turns(), await chat.tasks())
        await service.chat("year-idle").with_agent("idles")
        for _ in range(12):
            clock.advance(31 * DAY_S)
            await service.chat().say("somebody else, meanwhile")
    async with serving(tmp_path, DESK, clock=clock, expiry_sweep=True) as service:
        clock.advance(DAY_S)
        for session_id, (turns, tasks) in seen.items():
            chat = service.chat(session_id)
            assert (await chat.status()).revision == 2
            assert (await chat.turns(), await chat.tasks()) == (turns, tasks)
        assert len(await service.chat("year-idle").turns()) == 2
        # And then only what the call names.
        assert (await purge(service, before_us=clock.now_us - 300 * DAY_S * 10**6)).sessions_purged
        assert not any([await is_there(service.chat(session_id)) for session_id in seen])


async def test_purge_removes_what_it_names_and_nothing_else(service):
    """By time of the last change; other tenants' sessions and sessions with open turns stay."""
    old = [await talked(service, f"old-{number}") for number in range(3)]
    elsewhere = await talked(service, "old-0", tenant="other")
    waiting = service.chat("waits")
    paused = service.chat("paused")
    routed = await paused.say("pay it")
    handed = await paused.answer(routed.dispatch, handoff={"agent_id": "sales"})
    await paused.answer(handed.next, approval_needed={"prompt": "sure?"})
    used = await talked(service, "used")
    service.clock.advance(100 * DAY_S)
    await used.say("/status")
    limit_us = service.clock.now_us
    fresh = await talked(service, "fresh")
    await waiting.say("anybody?")
    service.clock.advance(60)

    answer = await purge(service, before_us=limit_us)

    assert (answer.sessions_purged, answer.more) == (3, False)
    assert [await is_there(chat) for chat in old] == [False] * 3
    for chat in (elsewhere, waiting, paused, used, fresh):
        assert await is_there(chat), chat.session_id
    # The open turn is now older than the limit as well, and stays; an abandoned one does not.
    answer = await purge(service)
    assert answer.sessions_purged == 2
    assert [await is_there(c) for c in (waiting, used, fresh)] == [True, False, False]
    service.clock.advance(11 * 60)
    assert (await purge(service)).sessions_purged == 1
    assert not await is_there(waiting)
    assert await is_there(paused)


async def test_trial_says_how_many_and_removes_none(service):
    """The trial returns the number that the real call removes."""
    chats = [await talked(service, f"trial-{number}") for number in range(3)]
    service.clock.advance(1)
    for count, more in ((2, True), (3, False), (0, False)):
        trial = await purge(service, sessions_max=count, validate_only=True)
        assert (trial.sessions_purged, trial.more) == (count or 3, more)
    assert all([await is_there(chat) for chat in chats])
    assert await purge(service) == trial


async def test_those_that_changed_longest_ago_go_first(service):
    """Each call removes a limited number; calls are repeated until none are left."""
    names = [f"order-{number}" for number in (3, 0, 4, 1, 2)]
    for name in names:
        await talked(service, name)
        service.clock.advance(60)
    gone = []
    for _ in range(3):
        answer = await purge(service, sessions_max=2)
        now = [name for name in names if not await is_there(service.chat(name))]
        before = [name for step in gone for name in step]
        gone.append([name for name in now if name not in before])
        assert answer.sessions_purged == len(gone[-1])
        assert answer.more == (len(now) < len(names))
    assert gone == [names[0:2], names[2:4], names[4:]]


async def test_all_tenants_are_purged_where_all_are_named(service):
    """The oldest go first over all tenants."""
    chats = [
        await talked(service, f"t-{n}", tenant=("", "other", "third")[n % 3]) for n in range(6)
    ]
    service.clock.advance(1)
    assert (await purge(service, tenant="other")).sessions_purged == 2
    assert (await purge(service, tenant="*")).sessions_purged == 4
    assert not any([await is_there(chat) for chat in chats])


async def test_time_that_has_not_come_is_refused(service):
    """A mistyped time must not remove sessions that are in use."""
    refused = await refusal(purge(service, before_us=service.clock.now_us + 1))
    assert refused.metadata["field"] == "update_time_before"


async def test_purged_id_begins_a_new_session(service):
    """For any user, who sees nothing of the old session; the old session's watchers are ended."""
    chat = await service.chat("again").with_agent("sales", **ask())
    routed = await chat.say("my secret")
    await chat.answer(routed.dispatch, "kept", **finish())
    service.clock.advance(1)
    async with watching(chat, after_revision=0) as watcher:
        while (await asyncio.wait_for(watcher.read(), WAIT_S)).change.revision != 5:
            pass
        assert (await purge(service)).sessions_purged == 1
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await asyncio.wait_for(watcher.read(), WAIT_S)
        assert b"UNKNOWN_SESSION" in error_bytes(ended.value)
    other = service.chat("again", user_id="ben")
    new = await other.say("hello")
    assert (new.revision, new.dispatch.agent.agent_id) == (1, "front")
    assert not new.dispatch.history
    assert len(await other.turns()) == 1
    async with watching(other, after_revision=0) as watcher:
        change = (await asyncio.wait_for(watcher.read(), WAIT_S)).change
        assert change.events[0].session_started.owner == "ben"


async def test_audit_of_a_purged_session_says_when_and_why(service):
    """For refusals it keeps only that there were some."""
    chat = await talked(service, "audited")
    await refusal(chat.set_active("journal", reason="because"))
    service.clock.advance(1)
    await purge(service)
    refused, purged = await chat.audit()
    assert (refused.kind, refused.user_id, refused.data) == ("handoff_refused", "", b"")
    assert (purged.kind, purged.revision) == (SESSION_PURGED, 2)
    assert b"too old" in purged.data


class SharedStore(MemoryStore):
    """A store that other servers write to as well; it stays open when one of them stops."""

    @property
    def shared_writers(self):
        return True

    async def close(self):
        """Stay open for the others."""


async def test_another_server_does_not_take_a_new_session_for_the_purged_one(tmp_path):
    """Although the new session is at the same revision as the one in its cache."""
    clock, store, bounds = Clock(), SharedStore(), Bounds(hot_trust_s=-1.0)
    async with AsyncExitStack() as opened:
        first, second = [
            await opened.enter_async_context(
                serving(tmp_path, DESK, shared=store, clock=clock, bounds=bounds)
            )
            for _ in range(2)
        ]
        await first.chat("same").with_agent("sales")
        assert (await second.chat("same").status()).active_agent.agent_id == "sales"
        clock.advance(1)
        assert (await purge(first)).sessions_purged == 1
        await first.chat("same", user_id="ben").with_agent("support")
        ben = second.chat("same", user_id="ben")
        status = await ben.status()
        assert (status.owner, status.active_agent.agent_id) == ("ben", "support")
        assert (await ben.say("more")).dispatch.agent.agent_id == "support"


async def test_message_that_comes_meanwhile_keeps_its_session(service):
    """The session is kept or purged and begun again; no answered message is lost."""
    chats = [await talked(service, f"busy-{number:02}") for number in range(20)]
    service.clock.advance(1)
    answer, *routed = await asyncio.gather(
        purge(service), *(chat.say("still here") for chat in chats)
    )
    begun_anew = 0
    for chat, response in zip(chats, routed, strict=True):
        changes = await chat.changes()
        assert [change.revision for change in changes] == list(range(1, len(changes) + 1))
        assert response.revision == len(changes)
        assert response.revision in (1, 3)
        begun_anew += response.revision == 1
    assert begun_anew == answer.sessions_purged


async def test_purge_that_ends_early_is_gone_on_with(service):
    """Each session is purged completely or not at all; a repeat purges the rest."""
    chats = [await talked(service, f"early-{number:03}") for number in range(40)]
    service.clock.advance(1)
    call = purge(service)
    async with asyncio.timeout(WAIT_S):
        while await is_there(chats[0]):
            pass
    call.cancel()
    await asyncio.wait([asyncio.ensure_future(told(call))])
    left = [chat for chat in chats if await is_there(chat)]
    for chat in left:
        assert len(await chat.turns()) == 1
    assert (await purge(service)).sessions_purged <= len(left)
    assert not any([await is_there(chat) for chat in chats])


async def told(call):
    """Wait for a call's end, with an answer or an error."""
    try:
        await call
    except (grpc.aio.AioRpcError, asyncio.CancelledError):
        return
