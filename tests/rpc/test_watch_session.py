"""Watching a session: each change once, in order, as soon as it happens."""

import asyncio
import random
import time
from contextlib import asynccontextmanager

import grpc
import pytest
from google.protobuf import duration_pb2

from agent_routing.v1 import routing_service_pb2 as pb
from routing_service.sessions.event_feed import RECENT_CHANGES_MAX
from tests.rpc.live_service import ask, finish, hand_to, refusal, serving

WAIT_S = 20


@pytest.fixture
async def service(tmp_path):
    """The tax example over SQLite."""
    async with serving(tmp_path, "tax") as running:
        yield running


@asynccontextmanager
async def watching(chat, **fields):
    """Watch a session; the first message, a heartbeat, has been read."""
    request = pb.WatchSessionRequest(session_id=chat.session_id, user_id=chat.user_id, **fields)
    call = chat.service.stub.WatchSession(request)
    first = await asyncio.wait_for(call.read(), WAIT_S)
    assert first.WhichOneof("kind") == "heartbeat"
    try:
        yield call
    finally:
        call.cancel()


async def next_change(call):
    """Read up to the next change."""
    while True:
        message = await asyncio.wait_for(call.read(), WAIT_S)
        if message.HasField("change"):
            return message.change


def kinds(change):
    """Return the kinds of a change's events."""
    return [event.WhichOneof("kind") for event in change.events]


async def test_watcher_hears_of_a_handoff_as_it_happens(service):
    """With session, event, time, agents, reason, and the target as a frontend shows it."""
    chat = service.chat()
    chat.profile = {"channel": "web"}
    routed = await chat.say("hello")
    async with watching(chat) as call:
        await chat.answer(routed.dispatch, **hand_to("vat", reason="a VAT question"))
        change = await next_change(call)
    assert (change.session_id, change.revision) == (chat.session_id, 2)
    assert kinds(change) == ["turn_completed", "agent_handoff"]
    event = change.events[1]
    handoff = event.agent_handoff.handoff
    assert (getattr(handoff, "from").agent_id, handoff.to.agent_id) == ("coordinator", "vat")
    assert handoff.reason == "a VAT question"
    assert (handoff.to.display_name, handoff.to.icon, handoff.to.color) == (
        "Especialista en IVA",
        "percent",
        "#138a5e",
    )
    assert event.active_agent.agent_id == "vat"
    assert event.event_id == "2.1"
    assert event.event_time.ToMicroseconds() == service.clock.now_us
    assert not change.events[0].HasField("active_agent")


async def test_watch_from_any_revision_sends_each_later_change_once(service):
    """A watcher that resumes at the last revision it saw misses nothing."""
    chat = await service.chat().with_agent("income_tax", **ask())
    routed = await chat.say("no")
    await chat.answer(routed.dispatch, "done", **finish())
    head = (await chat.status()).revision
    for after in range(head + 1):
        async with watching(chat, after_revision=after) as call:
            revisions = [(await next_change(call)).revision for _ in range(head - after)]
        assert revisions == list(range(after + 1, head + 1))


async def test_watch_tells_what_ended_a_lock_and_a_task(service):
    """Every event kind of a conversation has its message on the wire."""
    chat = await service.chat().with_agent("income_tax", **ask())
    await chat.say("/reset")
    async with watching(chat, after_revision=0) as call:
        seen = [kinds(await next_change(call)) for _ in range(4)]
    assert seen == [
        ["session_started", "task_created", "message_routed"],
        ["turn_completed", "agent_handoff"],
        ["turn_completed", "lock_engaged"],
        ["task_cancelled", "lock_released", "agent_cleared", "command_handled"],
    ]


async def test_silent_watch_sends_heartbeats_with_the_revision(service):
    """Idle proxies close silent streams; the revision tells the watcher where it is."""
    chat = service.chat()
    await chat.say("hello")
    beat = duration_pb2.Duration(seconds=1)
    async with watching(chat, heartbeat_interval=beat) as call:
        start = time.monotonic()
        message = await asyncio.wait_for(call.read(), WAIT_S)
        assert message.heartbeat.revision == 1
        assert time.monotonic() - start >= 0.9


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"after_revision": 2}, "after_revision"),
        ({"after_revision": -1}, "after_revision"),
        ({"heartbeat_interval": duration_pb2.Duration(nanos=1)}, "heartbeat_interval"),
        ({"heartbeat_interval": duration_pb2.Duration(seconds=301)}, "heartbeat_interval"),
    ],
)
async def test_watch_with_a_bad_field_is_refused(service, fields, field):
    """A watch from a future revision would wait forever."""
    chat = service.chat()
    await chat.say("hello")
    request = pb.WatchSessionRequest(session_id=chat.session_id, user_id="ana", **fields)
    refused = await refusal(service.stub.WatchSession(request).read())
    assert (refused.code, refused.reason) == ("INVALID_ARGUMENT", "INVALID_FIELD")
    assert refused.metadata["field"] == field


async def test_watch_is_for_the_owner_and_for_known_sessions(service):
    """Another user's session is refused; an unknown one is not found."""
    chat = service.chat()
    await chat.say("hello")
    for request, expected in (
        (
            pb.WatchSessionRequest(session_id=chat.session_id, user_id="ben"),
            ("PERMISSION_DENIED", "OWNER_MISMATCH"),
        ),
        (pb.WatchSessionRequest(session_id="nobody"), ("NOT_FOUND", "UNKNOWN_SESSION")),
    ):
        refused = await refusal(service.stub.WatchSession(request).read())
        assert (refused.code, refused.reason) == expected


async def test_watch_ends_at_shutdown_with_the_revision_to_go_on_from(tmp_path):
    """A client that resumes there misses nothing; without the revision it would have to guess."""
    async with serving(tmp_path, "tax") as service:
        chat = service.chat()
        await chat.say("hello")
        request = pb.WatchSessionRequest(session_id=chat.session_id, user_id="ana")
        call = service.stub.WatchSession(request)
        await call.read()
        await asyncio.wait_for(service.server.stop(), WAIT_S)
        refused = await refusal(call.read())
        assert (refused.code, refused.reason) == ("UNAVAILABLE", "SHUTTING_DOWN")
        assert refused.metadata["revision"] == "1"


@pytest.mark.parametrize("seed", [1, 2])
async def test_watchers_that_come_and_go_miss_nothing(service, seed):
    """Several sessions change at once while watchers reconnect at random places."""
    chance = random.Random(seed)
    chat = service.chat()
    await chat.say("hello")
    changes = 2 * RECENT_CHANGES_MAX

    async def write():
        for _ in range(changes):
            await chat.say("/help")

    async def watch():
        seen = [0]
        while seen[-1] < changes + 1:
            async with watching(chat, after_revision=seen[-1]) as call:
                for _ in range(chance.randint(1, changes // 4)):
                    seen.append((await next_change(call)).revision)
                    if seen[-1] == changes + 1:
                        break
        return seen

    *watched, _ = await asyncio.gather(*(watch() for _ in range(4)), write())
    for seen in watched:
        assert seen == list(range(changes + 2))


async def test_live_watch_is_soon(service):
    """The documented limit from commit to watcher is 100 ms; the median is far below."""
    chat = service.chat()
    await chat.say("hello")
    delays = []
    async with watching(chat) as call:
        for _ in range(50):
            await chat.say("/help")
            committed = time.monotonic()
            await next_change(call)
            delays.append(time.monotonic() - committed)
    assert sorted(delays)[len(delays) // 2] < 0.1


async def test_watch_is_let_go_when_the_client_is(service):
    """A watcher that disconnects leaves nothing in memory."""
    chat = service.chat()
    await chat.say("hello")
    async with watching(chat):
        pass
    async with asyncio.timeout(WAIT_S):
        while service.server.watches:  # noqa: ASYNC110 - the server has no event for it
            await asyncio.sleep(0.01)


async def test_unknown_method_of_the_service_is_unimplemented(service):
    """An unknown method has its own error."""
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await service.raw("Nonsense", b"")
    assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED
