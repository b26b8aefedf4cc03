"""Inboxes: turns that wait for workers, their leases, and what becomes of them."""

import asyncio
from contextlib import asynccontextmanager, suppress

import grpc
import pytest
from google.protobuf import duration_pb2

from agent_routing.v1 import dispatch_pb2, routing_service_pb2
from agent_routing.v1.session_event_pb2 import TURN_ABANDON_CAUSE_OVERTAKEN
from routing_service.ids import new_uuid7
from routing_service.sessions import inbox as inbox_module
from routing_service.storage.memory_store import MemoryStore
from routing_service.storage.queue_entries import QueueEntry
from routing_service.stored_data.session_copy import copy_session
from tests.rpc.live_service import OUTCOMES, hand_to, proceed, refusal, serving

pb = routing_service_pb2

OFFICE = """
api_version: agent_routing/v1
version: office-1
supervisor: front
double_text: allow
limits: {turn_timeout: 10m}
agents:
  - {id: front, name: Front desk, delivery: inbox}
  - {id: vat, name: VAT, delivery: inbox, aliases: [VAT desk]}
  - {id: carried, name: Carried by the caller}
  - {id: off, name: Off, delivery: inbox, enabled: false}
"""


@pytest.fixture
async def service(tmp_path):
    """An office whose front desk and VAT agent have workers."""
    async with serving(tmp_path, OFFICE) as running:
        yield running


class Worker:
    """A worker's stream, read message by message."""

    def __init__(self, stream, resume_token):
        self.resume_token = resume_token
        self._items = asyncio.Queue()
        # Cancelling a read would cancel the call.
        self._reading = asyncio.ensure_future(self._read(stream))

    async def _read(self, stream):
        with suppress(grpc.RpcError, asyncio.CancelledError):
            while (message := await stream.read()) is not grpc.aio.EOF:
                if message.HasField("item"):
                    self._items.put_nowait(message.item)

    async def next(self, timeout_s=20):
        """Return the next turn."""
        async with asyncio.timeout(timeout_s):
            return await self._items.get()

    async def has_none(self, seconds=0.3):
        """Say whether no turn comes for a while."""
        try:
            await self.next(seconds)
        except TimeoutError:
            return True
        return False


@asynccontextmanager
async def working(service, *agents, worker_id="w1", lease_s=30.0, **fields):
    """Open a worker's stream, and wait until the server has it."""
    lease = duration_pb2.Duration()
    lease.FromMilliseconds(int(lease_s * 1000))
    request = pb.WatchInboxRequest(agent_ids=agents, worker_id=worker_id, lease=lease, **fields)
    stream = service.stub.WatchInbox(request)
    first = await stream.read()
    assert first.heartbeat.resume_token
    try:
        yield Worker(stream, first.heartbeat.resume_token)
    finally:
        stream.cancel()


def complete(service, item, text="done", **fields):
    """Answer a turn as its worker."""
    if not OUTCOMES & fields.keys():
        fields |= proceed()
    request = pb.CompleteTurnRequest(
        session_id=item.session_id,
        request_id=item.dispatch.request_id,
        agent_id=item.dispatch.agent.agent_id,
        text=text,
        **({"lease_token": item.lease_token} | fields),
    )
    return service.call("CompleteTurn", request)


async def keep(service, item, *, extend_s=None, **fields):
    """Extend a lease or give it back; return the status."""
    given = {"release": True} if extend_s is None else {}
    if extend_s is not None:
        given["extend"] = duration_pb2.Duration(seconds=extend_s)
    request = pb.KeepTurnRequest(
        **{
            "session_id": item.session_id,
            "request_id": item.dispatch.request_id,
            "agent_id": item.dispatch.agent.agent_id,
            "lease_token": item.lease_token,
        }
        | given
        | fields
    )
    kept = await service.call("KeepTurn", request)
    return pb.KeepTurnStatus.Name(kept.status).removeprefix("KEEP_TURN_STATUS_"), kept


async def test_a_waiting_turn_reaches_a_worker_that_comes_later(service):
    """It is in the inbox from the commit that opened it until it is completed."""
    chat = service.chat()
    routed = await chat.say("what is VAT?")
    assert routed.dispatch.delivery == dispatch_pb2.DELIVERY_INBOX
    async with working(service, "front") as worker:
        item = await worker.next()
        assert item.session_id == chat.session_id
        assert item.user_id == "ana"
        assert item.dispatch.text == "what is VAT?"
        assert item.dispatch.request_id == routed.dispatch.request_id
        assert item.dispatch.agent.agent_id == "front"
        assert item.attempt == 1
        assert 0 < item.lease.ToSeconds() <= 30
        answered = await complete(service, item, "A tax.")
        assert answered.text == "A tax."
        assert await worker.has_none()
    assert await service.store.read_queue("default", "front", None, 10) == []


async def test_a_handoff_moves_the_turn_into_the_next_inbox(service):
    """The same message goes on; its history and handoff are with it."""
    chat = service.chat()
    async with working(service, "front", "vat") as worker:
        await chat.say("I need VAT")
        item = await worker.next()
        answered = await complete(service, item, "one moment", **hand_to("vat", reason="tax"))
        assert answered.next.delivery == dispatch_pb2.DELIVERY_INBOX
        item = await worker.next()
        assert item.dispatch.agent.agent_id == "vat"
        assert item.dispatch.text == "I need VAT"
        assert item.dispatch.handoff.reason == "tax"
        await complete(service, item, "Monthly.")
        await chat.say("and now?")
        item = await worker.next()
        assert item.dispatch.agent.agent_id == "vat"
        assert [turn.agent_text for turn in item.dispatch.history] == ["Monthly."]


async def test_agents_that_callers_carry_have_no_inbox(service):
    """Starting a worker never runs a turn that a frontend carries."""
    chat = await service.chat().with_agent("carried")
    routed = await chat.say("hello")
    assert routed.dispatch.agent.agent_id == "carried"
    assert routed.dispatch.delivery == dispatch_pb2.DELIVERY_UNSPECIFIED
    assert await service.store.read_queue("default", "carried", None, 10) == []
    async with working(service, "carried") as worker:
        assert await worker.has_none()


async def test_a_worker_gets_no_more_than_its_capacity(service):
    """The oldest first; the next one when one was completed."""
    chats = [service.chat() for _ in range(4)]
    for number, chat in enumerate(chats):
        await chat.say(f"message {number}")
        service.clock.advance(1)
    async with working(service, "front", capacity=2) as worker:
        first, second = await worker.next(), await worker.next()
        assert [first.session_id, second.session_id] == [chat.session_id for chat in chats[:2]]
        assert await worker.has_none()
        await complete(service, second)
        assert (await worker.next()).session_id == chats[2].session_id
        assert await worker.has_none()


async def test_turns_are_shared_among_workers(service):
    """Each turn is with one worker."""
    chats = [service.chat() for _ in range(6)]
    async with (
        working(service, "front", worker_id="a", capacity=3) as one,
        working(service, "front", worker_id="b", capacity=3) as other,
    ):
        for chat in chats:
            await chat.say()
        got = [await worker.next() for worker in (one, other) for _ in range(3)]
        assert sorted(item.session_id for item in got) == sorted(c.session_id for c in chats)
        assert len({item.lease_token for item in got}) == 6


async def test_a_worker_may_finish_a_turn_that_a_newer_message_has_overtaken(service):
    """Of one session there is one item for others: the live turn."""
    chat = service.chat()
    async with working(service, "front", capacity=5) as worker:
        await chat.say("first")
        first = await worker.next()
        await chat.say("second")
        second = await worker.next()
        assert second.dispatch.text == "second"
        status, kept = await keep(service, first, extend_s=30)
        assert (status, kept.cause) == ("KEPT", TURN_ABANDON_CAUSE_OVERTAKEN)
        late = await complete(service, first, "late")
        assert late.outcome_status == 2  # STORED_ONLY: the work is kept in the history.
        await complete(service, second)
        assert await worker.has_none()


async def test_a_lapsed_lease_is_offered_again_and_the_late_answer_is_refused(service):
    """Within the lease and a second; the first worker's answer then stores nothing."""
    chat = service.chat()
    async with working(service, "front", worker_id="slow", lease_s=1) as slow:
        await chat.say("hello")
        lost = await slow.next()
        async with working(service, "front", worker_id="fast") as fast:
            item = await fast.next(10)
            assert item.attempt == 2
            assert item.lease_token != lost.lease_token
            status, _ = await keep(service, lost, extend_s=30)
            assert status == "LEASE_LOST"
            async with chat.unchanged():
                refused = await refusal(complete(service, lost, "too late"))
            assert refused.code == "FAILED_PRECONDITION"
            assert refused.reason == "LEASE_LOST"
            assert refused.metadata["request_id"] == item.dispatch.request_id
            await complete(service, item, "answer")
    assert [turn.agent_text for turn in await chat.turns()] == ["answer"]


@pytest.mark.parametrize("restarted", [False, True], ids=["in-memory", "read-from-the-store"])
async def test_users_take_turns_however_many_conversations_one_has(tmp_path, restarted):
    """Behind 300 turns of one user, the next user's was number 301."""
    async with serving(tmp_path, OFFICE, user_turns_max=0) as service:
        for _ in range(30):
            await service.chat(user_id="eve").say("x" * 1000)
        for name in ("ana", "ben"):
            await service.chat(user_id=name).say("urgent")
        if not restarted:
            assert await _first_users(service, 6) == ["eve", "ana", "ben", "eve", "eve", "eve"]
    if restarted:
        async with serving(tmp_path, OFFICE) as service:
            assert await _first_users(service, 6) == ["eve", "ana", "ben", "eve", "eve", "eve"]


async def _first_users(service, count):
    """Answer turns one by one; return whose they were. Others come meanwhile and wait behind."""
    users = []
    async with working(service, "front") as worker:
        for _ in range(count):
            item = await worker.next()
            users.append(item.user_id)
            await complete(service, item)
    return users


async def test_a_user_who_comes_later_has_the_next_turn_but_one(service):
    """Its message is known without a read of the queue."""
    async with working(service, "front") as worker:
        for _ in range(20):
            await service.chat(user_id="eve").say()
        item = await worker.next()
        for _ in range(5):
            await complete(service, item)
            item = await worker.next()
        await service.chat(user_id="ana").say("urgent")
        users = []
        for _ in range(3):
            await complete(service, item)
            item = await worker.next()
            users.append(item.user_id)
    assert "ana" in users[:2]
    assert users.count("ana") == 1


async def test_a_turn_of_this_server_reaches_a_worker_without_a_read_of_the_queue(service):
    """Each Route and each answer cost a read."""
    reads = 0
    read_queue = service.store.read_queue

    async def counted(*args):
        nonlocal reads
        reads += 1
        return await read_queue(*args)

    async with working(service, "front") as worker:
        await service.chat().say()
        await complete(service, await worker.next())
        service.store.read_queue = counted
        begun_s = asyncio.get_running_loop().time()
        for _ in range(30):
            await service.chat().say()
            await complete(service, await worker.next())
        looks = (asyncio.get_running_loop().time() - begun_s) / inbox_module.POLL_S
        assert reads <= looks + 1
        del service.store.read_queue


async def test_open_turns_of_one_user_are_bounded_over_its_sessions(tmp_path):
    """One user filled an agent's inbox: 1,500 sessions with a turn each in two seconds."""
    async with serving(tmp_path, OFFICE, user_turns_max=3) as service:
        chats = [service.chat(user_id="eve") for _ in range(4)]
        routed = [await chat.say("one", request_id=new_uuid7()) for chat in chats[:3]]
        async with chats[3].unchanged():
            refused = await refusal(chats[3].say("one too many"))
        assert tuple(refused) == ("FAILED_PRECONDITION", "TURN_OPEN")
        assert refused.metadata == {
            "session_id": chats[3].session_id,
            "request_id": routed[0].dispatch.request_id,
            "agent_id": "front",
            "limit": "user_turns_max",
            "value": "3",
        }
        assert "user_turns_max" in refused.message
        # What adds none is not refused: a repeat, a message that replaces an open one, a choice.
        again = await chats[0].say("one", request_id=routed[0].dispatch.request_id)
        assert again == routed[0]
        await chats[1].say("instead of the one before")
        await chats[2].set_active("vat")
        # Other users, agents without an inbox, and users without a name do not count.
        await service.chat(user_id="ana").say("hello")
        for _ in range(5):
            await service.chat(user_id="").say("hello")
        async with working(service, "front") as worker:
            await complete(service, await worker.next())
        await chats[3].say("after an answer")


async def test_turns_that_end_elsewhere_count_no_longer(tmp_path):
    """What another replica completed is found out at the limit."""
    store = MemoryStore()
    async with (
        serving(tmp_path, OFFICE, shared=store, user_turns_max=2) as one,
        serving(tmp_path, OFFICE, shared=store, user_turns_max=2) as other,
    ):
        for _ in range(2):
            await one.chat(user_id="eve").say()
        async with working(other, "front", capacity=2) as worker:
            for _ in range(2):
                await complete(other, await worker.next())
        await one.chat(user_id="eve").say("more")


async def test_an_answer_counts_though_its_lease_has_lapsed(service, monkeypatch):
    """As long as no other worker has the turn."""
    chat = service.chat()
    async with working(service, "front", lease_s=1) as worker:
        await chat.say("hello")
        item = await worker.next()
    await asyncio.sleep(1.2)
    answered = await complete(service, item, "late, and in time")
    assert answered.text == "late, and in time"


async def test_a_lease_can_be_extended(service):
    """It then runs for as long as was asked for."""
    chat = service.chat()
    async with working(service, "front", lease_s=1, worker_id="keeps") as worker:
        await chat.say("hello")
        item = await worker.next()
        status, kept = await keep(service, item, extend_s=60)
        assert status == "KEPT"
        assert 50 < kept.lease.ToSeconds() <= 60
        async with working(service, "front", worker_id="waits") as other:
            assert await other.has_none(2)


async def test_a_turn_that_is_given_back_is_offered_at_once(service):
    """A stopping worker's lease counts as no attempt."""
    chat = service.chat()
    async with (
        working(service, "front", worker_id="stops") as stops,
        working(service, "vat", worker_id="other") as _,
    ):
        await chat.say("hello")
        item = await stops.next()
        async with working(service, "front", worker_id="takes") as takes:
            status, kept = await keep(service, item)
            assert status == "KEPT"
            assert not kept.HasField("lease")
            again = await asyncio.wait_for(_either(stops, takes), 5)
            assert again.attempt == 1
            status, _ = await keep(service, item)
            assert status == "LEASE_LOST"


async def _either(*workers):
    """Return the first turn that one of some workers gets."""
    tasks = [asyncio.ensure_future(worker.next()) for worker in workers]
    done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
    return done.pop().result()


async def test_a_worker_that_comes_back_gets_its_turns_again(service):
    """At once, with the same leases, and the attempt unchanged."""
    chat = service.chat()
    async with working(service, "front", lease_s=60) as worker:
        await chat.say("hello")
        item = await worker.next()
        token = worker.resume_token
    async with working(service, "front", lease_s=60, resume_token=token) as worker:
        again = await worker.next(5)
        assert worker.resume_token == token
        assert (again.lease_token, again.attempt) == (item.lease_token, 1)
        await complete(service, again)


async def test_a_turn_that_no_worker_answers_is_abandoned(service, monkeypatch):
    """After five leases: it may be what makes workers crash. Watchers see it."""
    monkeypatch.setattr(inbox_module, "ATTEMPTS_MAX", 1)
    chat = service.chat()
    async with working(service, "front", lease_s=1) as worker:
        await chat.say("hello")
        item = await worker.next()
        async with asyncio.timeout(20):
            while "TurnAbandoned" not in await chat.kinds():  # noqa: ASYNC110 - a lease's end
                await asyncio.sleep(0.1)
        status, _ = await keep(service, item, extend_s=30)
        assert status == "REQUEST_NOT_OPEN"
        assert await worker.has_none()
    assert not (await chat.status()).open_requests


async def test_items_of_a_disabled_agent_wait(service):
    """They are kept, and offered when the agent is enabled again."""
    entry = QueueEntry("off", 1, "chat-off", new_uuid7())
    await service.store.mend_queue("default", (entry,), ())
    async with working(service, "off") as worker:
        assert await worker.has_none(1)
    assert len(await service.store.read_queue("default", "off", None, 10)) == 1


async def test_an_entry_without_its_turn_is_dropped(service):
    """An entry is a hint; the session's state is the truth."""
    entry = QueueEntry("front", 1, "never-there", new_uuid7())
    await service.store.mend_queue("default", (entry,), ())
    async with working(service, "front") as worker:
        assert await worker.has_none(1)
    assert await service.store.read_queue("default", "front", None, 10) == []


async def test_a_lost_entry_is_put_back_when_the_session_is_read(service):
    """Such as what an older release wrote, or a restored backup has not."""
    chat = service.chat()
    await chat.say("hello")
    (item,) = await service.store.read_queue("default", "front", None, 10)
    await service.store.mend_queue("default", (), (item.entry,))
    await chat.status()
    async with working(service, "front") as worker:
        assert (await worker.next()).session_id == chat.session_id


async def test_what_a_stream_was_not_sent_is_free_again(service):
    """A worker that leaves gives back what it never saw."""
    chats = [service.chat() for _ in range(3)]
    for chat in chats:
        await chat.say()
    async with working(service, "front", capacity=3) as worker:
        seen = await worker.next()
    async with working(service, "front", worker_id="w2", capacity=3) as worker:
        got = set()
        while not await worker.has_none(1):
            got.add("more")
    items = await service.store.read_queue("default", "front", None, 10)
    assert seen.session_id in {item.entry.session_id for item in items}
    assert all(item.attempt <= 2 for item in items)


async def test_a_purge_takes_the_entries_along(service):
    """No worker gets a turn of a session that is gone."""
    chat = service.chat()
    await chat.say()
    head = await service.store.head_revision(chat.key)
    handler = service.server._parts.handler
    assert await handler.delete(chat.key, head)
    assert await service.store.read_queue("default", "front", None, 10) == []


async def test_a_copy_of_the_store_has_the_entries(service):
    """Without their leases: a worker of the new store begins with its own."""
    waiting, answered = service.chat(), service.chat()
    await waiting.say("hello")
    routed = await answered.say("hello")
    await answered.answer(routed.dispatch, "done")
    async with working(service, "front") as worker:
        await worker.next()
        copied = MemoryStore()
        for chat in (waiting, answered):
            await copy_session(service.store, copied, chat.key)
        (item,) = await copied.read_queue("default", "front", None, 10)
        assert item.entry.session_id == waiting.session_id
        assert item.is_free


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"agent_ids": []}, "agent_ids"),
        ({"agent_ids": ["a b"]}, "agent_ids[0]"),
        ({"worker_id": ""}, "worker_id"),
        ({"capacity": 1001}, "capacity"),
        ({"capacity": -1}, "capacity"),
        ({"resume_token": "guess"}, "resume_token"),
        ({"lease": duration_pb2.Duration(seconds=3601)}, "lease"),
        ({"lease": duration_pb2.Duration()}, "lease"),
        ({"heartbeat_interval": duration_pb2.Duration(seconds=601)}, "heartbeat_interval"),
        ({"history_turns": 101}, "history_turns"),
    ],
)
async def test_bad_fields_of_a_watch_are_named(service, fields, field):
    """Every bad field, before anything is offered."""
    request = pb.WatchInboxRequest(**{"agent_ids": ["front"], "worker_id": "w1"} | fields)

    async def read():
        return await service.stub.WatchInbox(request).read()

    refused = await refusal(read())
    assert refused.code == "INVALID_ARGUMENT"
    assert list(refused.violations) == [field]


async def test_keeping_a_turn_needs_an_act(service):
    """Neither extend nor release is INVALID_FIELD."""
    chat = service.chat()
    await chat.say()
    request = pb.KeepTurnRequest(
        session_id=chat.session_id, request_id=new_uuid7(), agent_id="front"
    )
    refused = await refusal(service.call("KeepTurn", request))
    assert refused.reason == "INVALID_FIELD"


async def test_a_turn_that_a_caller_carries_needs_no_lease(service):
    """KeepTurn then says whether the turn is still open, and extends nothing."""
    chat = await service.chat().with_agent("carried")
    routed = await chat.say("hello")
    request = pb.KeepTurnRequest(
        session_id=chat.session_id,
        request_id=routed.dispatch.request_id,
        agent_id="carried",
        extend=duration_pb2.Duration(seconds=30),
    )
    kept = await service.call("KeepTurn", request)
    assert kept.status == pb.KEEP_TURN_STATUS_KEPT
    assert not kept.HasField("lease")
    await chat.answer(routed.dispatch, "done")
    kept = await service.call("KeepTurn", request)
    assert kept.status == pb.KEEP_TURN_STATUS_REQUEST_NOT_OPEN


async def test_a_worker_of_two_agents_keeps_the_turns_of_each(service):
    """The inbox of one agent says nothing about the turns of another."""
    await service.chat().say("what is VAT?")
    async with working(service, "front", "vat", lease_s=1.0) as worker:
        first = await worker.next()
        again = await worker.next()
        assert (first.attempt, again.attempt) == (1, 2)
        assert again.lease_token != first.lease_token
        assert (await keep(service, again, extend_s=30))[0] == "KEPT"
        assert await worker.has_none(2)
