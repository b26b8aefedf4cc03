"""double_text: queue: finished work is never thrown away because the user wrote again."""

import asyncio

import pytest

import agent_routing
from agent_routing.v1 import dispatch_pb2, routing_service_pb2
from agent_routing.worker import Worker
from tests.clients.test_worker import serving_turns
from tests.rpc.live_service import outcome_status, proceed, refusal, serving
from tests.rpc.test_inbox import complete, keep, working

pb = routing_service_pb2

OFFICE = """
api_version: agent_routing/v1
version: office-1
supervisor: front
double_text: queue
limits: {turn_timeout: 10m}
agents:
  - {id: front, name: Front desk, delivery: inbox}
  - {id: carried, name: Carried by the caller}
"""


@pytest.fixture
async def service(tmp_path):
    """An office in which messages wait."""
    async with serving(tmp_path, OFFICE) as running:
        yield running


async def until(chat, kind, count=1):
    """Wait until so many events of a kind are stored."""
    for _ in range(1_000):
        if (await chat.kinds()).count(kind) >= count:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(await chat.kinds())


async def test_the_next_message_waits_for_the_answer(service):
    """In order, each with its own answer; nothing of the first is only stored."""
    chat = service.chat()
    async with working(service, "front", lease_s=600) as worker:
        first = await chat.say("first")
        assert not first.queued
        item = await worker.next()
        second, third = await chat.say("second"), await chat.say("third")
        for waiting in (second, third):
            assert waiting.queued
            assert not waiting.HasField("dispatch")
        status = await chat.status()
        assert list(status.queued_request_ids) == [second.request_id, third.request_id]
        assert len(status.open_requests) == 1
        status, _ = await keep(service, item, extend_s=60)
        assert status == "KEPT"
        assert outcome_status(await complete(service, item, "one")) == "APPLIED"
        for text, answer in (("second", "two"), ("third", "three")):
            item = await worker.next()
            assert item.dispatch.text == text
            assert outcome_status(await complete(service, item, answer)) == "APPLIED"
        assert await worker.has_none()
    turns = await chat.turns()
    assert [(turn.user_text, turn.agent_text) for turn in turns] == [
        ("first", "one"),
        ("second", "two"),
        ("third", "three"),
    ]
    assert [turn.request_id for turn in turns] == [
        first.request_id,
        second.request_id,
        third.request_id,
    ]
    assert not (await chat.status()).queued_request_ids


async def test_work_longer_than_the_timeout_counts_though_the_user_wrote_again(service):
    """The worker extends, the user writes, and the answer is applied after 16 minutes."""
    chat = service.chat()
    async with working(service, "front", lease_s=600) as worker:
        await chat.say("a long one")
        item = await worker.next()
        service.clock.advance(7 * 60)
        await keep(service, item, extend_s=600)
        assert (await chat.say("are you there?")).queued
        service.clock.advance(9 * 60)
        await keep(service, item, extend_s=600)
        assert outcome_status(await complete(service, item, "here it is")) == "APPLIED"
        item = await worker.next()
        assert item.dispatch.text == "are you there?"
        await complete(service, item, "yes")


async def test_workers_and_askers_do_not_notice(service):
    """Two messages at once are two answers, in order."""
    worker = Worker(service.server.address)
    seen = []

    @worker.agent("front")
    async def front(turn):
        seen.append(turn.text)
        await asyncio.sleep(0.5)
        return f"answer to {turn.text}"

    async with agent_routing.AsyncClient(service.server.address) as client, serving_turns(worker):
        given = {"session_id": "both", "user_id": "ana"}
        first = asyncio.ensure_future(client.ask("one", **given))
        while not seen:  # noqa: ASYNC110 - the worker has it
            await asyncio.sleep(0.02)
        second = await client.ask("two", **given)
        assert (await first).text == "answer to one"
        assert second.text == "answer to two"
    assert seen == ["one", "two"]


async def test_a_repeat_of_a_message_that_waits_gets_the_same_answer(service):
    """It is stored, so it is not queued twice."""
    chat = service.chat()
    await chat.say("first")
    waiting = await chat.say("second")
    again = await chat.say("second", request_id=waiting.request_id)
    assert again == waiting
    assert len((await chat.status()).queued_request_ids) == 1
    dry = await chat.say("third", validate_only=True)
    assert dry.queued
    assert len((await chat.status()).queued_request_ids) == 1


async def test_so_many_messages_wait(service):
    """Then the next one is refused, and can be sent after an answer."""
    chat = service.chat()
    await chat.say("first")
    for number in range(8):
        assert (await chat.say(f"message {number}")).queued
    async with chat.unchanged():
        refused = await refusal(chat.say("one more"))
        assert tuple(refused) == ("FAILED_PRECONDITION", "TURN_OPEN")


async def test_commands_run_at_once(service):
    """/status answers, /reset forgets what waits, and the next message starts over."""
    chat = service.chat()
    await chat.say("first")
    await chat.say("second")
    status = await chat.say("/status")
    assert status.reply.text
    assert not status.queued
    await chat.say("/reset")
    assert not (await chat.status()).queued_request_ids
    assert "MessageDequeued" in await chat.kinds()
    assert (await chat.say("afresh")).HasField("dispatch")


async def test_what_waits_goes_on_when_the_turn_is_given_up(service):
    """By its timeout, or by /supervisor, which ends the work: the sweeper sends it on."""
    handler = service.server._parts.handler
    timed, cleared = service.chat(), service.chat()
    for chat in (timed, cleared):
        await chat.say("first")
        await chat.say("second")
    await cleared.say("/supervisor")
    await until(cleared, "MessageRouted", 2)
    service.clock.advance(11 * 60)
    keys = await service.store.due_sessions(service.clock.now_us, 10)
    assert timed.key in keys
    await handler.expire(timed.key)
    kinds = await timed.kinds()
    assert kinds[-4:] == ["TurnAbandoned", "MessageDequeued", "MessageRouted", "TimePassed"]
    assert [d.text for d in (await timed.status()).open_requests] == ["second"]


async def test_a_restart_sends_on_what_waits(tmp_path):
    """If the process ended in between: the session is due, so any replica does it."""
    async with serving(tmp_path, OFFICE) as service:
        chat = service.chat()
        service.server._parts.handler._next._expire = None  # As if the process ended.
        async with working(service, "front", lease_s=600) as worker:
            await chat.say("first")
            item = await worker.next()
            await chat.say("second")
            await complete(service, item, "one")
        assert (await chat.kinds()).count("MessageRouted") == 1
        clock = service.clock
    async with serving(tmp_path, OFFICE, clock=clock, expiry_sweep=True) as service:
        chat.service = service
        await until(chat, "MessageRouted", 2)
        async with working(service, "front", lease_s=600) as worker:
            assert (await worker.next()).dispatch.text == "second"


async def test_turns_that_a_caller_carries_are_overtaken_as_before(service):
    """Queueing is for workers: a caller knows itself what it does."""
    chat = await service.chat().with_agent("carried")
    first, second = await chat.say("first"), await chat.say("second")
    assert not second.queued
    assert outcome_status(await chat.answer(first.dispatch, "late")) == "STORED_ONLY"
    assert outcome_status(await chat.answer(second.dispatch, "in time")) == "APPLIED"


async def test_a_message_for_inboxes_stays_one_while_it_waits(service):
    """deliver: INBOX holds for the whole turn that follows."""
    chat = await service.chat().with_agent("carried")
    async with working(service, "carried", lease_s=600) as worker:
        inbox = {"deliver": dispatch_pb2.DELIVERY_INBOX}
        await chat.say("first", **inbox)
        item = await worker.next()
        assert (await chat.say("second", **inbox)).queued
        await complete(service, item, "one", **proceed())
        item = await worker.next()
        assert item.dispatch.text == "second"
        assert item.dispatch.delivery == dispatch_pb2.DELIVERY_INBOX
