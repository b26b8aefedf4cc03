"""The Python worker and ask(), against a real server: functions, retries, crashes, stops."""

import asyncio
import signal
import sys
import time
from contextlib import asynccontextmanager

import pytest

import agent_routing
from agent_routing import outcomes
from agent_routing.outcomes import Answer
from agent_routing.worker import Worker
from tests.rpc.live_service import fresh_id, serving
from tests.rpc.test_inbox import OFFICE


@pytest.fixture
async def office(tmp_path):
    """An office whose front desk and VAT agent have workers."""
    async with serving(tmp_path, OFFICE) as running:
        yield running


@pytest.fixture
async def client(office):
    """An asyncio client of the office."""
    async with agent_routing.AsyncClient(office.server.address) as made:
        yield made


@asynccontextmanager
async def serving_turns(worker):
    """Run a worker for the duration of a block, and let it end by itself."""
    task = asyncio.ensure_future(worker.serve())
    await asyncio.sleep(0)
    try:
        yield worker
    finally:
        worker.stop()
        await asyncio.wait_for(task, 20)


def front_and_vat(address, **settings):
    """Return a worker of two agents: the front desk hands over, VAT asks and answers."""
    worker = Worker(address, **settings)

    @worker.agent("front")
    async def front(turn):
        return Answer("one moment", outcomes.handoff("vat", reason=turn.text))

    @worker.agent("vat")
    def vat(turn):  # In a thread.
        if not turn.dispatch.locked:
            return outcomes.follow_up("Monthly or quarterly?")
        return f"{turn.text} it is, after {len(turn.history)} turns"

    return worker


async def test_a_conversation_through_workers(office, client):
    """ask() gives the answers of the whole chain; the lock and the history are the service's."""
    async with serving_turns(front_and_vat(office.server.address)):
        asked = await client.ask("How do I pay VAT?", session_id="chat-1", user_id="ana")
        assert asked.text == "one moment\n\nMonthly or quarterly?"
        assert asked.agent_id == "vat"
        assert [turn.agent_id for turn in asked.turns] == ["front", "vat"]
        answered = await client.ask("quarterly", session_id="chat-1", user_id="ana")
        assert answered.text == "quarterly it is, after 1 turns"
        replied = await client.ask("/status", session_id="chat-1", user_id="ana")
        assert "VAT" in replied.text
        assert replied.agent_id == ""


async def test_the_blocking_client_asks_too(office):
    """It is generated from the asyncio one."""

    def ask():
        with agent_routing.Client(office.server.address) as blocking:
            return blocking.ask("How do I pay VAT?", session_id="chat-2", user_id="ana").text

    async with serving_turns(front_and_vat(office.server.address)):
        assert await asyncio.to_thread(ask) == "one moment\n\nMonthly or quarterly?"


async def test_ask_again_with_the_same_request_waits_for_the_same_turn(office, client):
    """A caller that gave up, or was restarted, gets the answer; the message is not sent twice."""
    request_id = fresh_id()
    given = {"session_id": "chat-3", "user_id": "ana", "request_id": request_id}
    with pytest.raises(TimeoutError, match=request_id):
        await client.ask("hello", wait=0.3, **given)
    async with serving_turns(front_and_vat(office.server.address)):
        asked = await client.ask("hello", **given)
        assert asked.text == "one moment\n\nMonthly or quarterly?"
        assert (await client.ask("hello", **given)).text == asked.text
    turns = [turn async for turn in client.list_turns("chat-3", user_id="ana")]
    assert len(turns) == 2


async def test_ask_names_an_agent_without_an_inbox(office, client):
    """Its turn is the caller's to carry."""
    chat = await office.chat().with_agent("carried")
    with pytest.raises(ValueError, match=r'agent "carried" has no inbox'):
        await client.ask("hello", session_id=chat.session_id, user_id="ana")


async def test_a_function_that_raises_is_tried_again(office, client):
    """After a pause; the last attempt ends the turn with a failure."""
    attempts = []
    worker = Worker(office.server.address, attempts=2)

    @worker.agent("front")
    async def front(turn):
        attempts.append(turn.attempt)
        if turn.text == "always" or turn.attempt == 1:
            raise ValueError(turn.text)
        return "better now"

    async with serving_turns(worker):
        asked = await client.ask("once", session_id="chat-4", user_id="ana")
        assert asked.text == "better now"
        assert attempts == [1, 2]
        asked = await client.ask("always", session_id="chat-5", user_id="ana")
        assert asked.text == ""
        assert asked.turns[0].outcome == 6  # A failure.
    assert attempts == [1, 2, 1, 2]


async def test_a_long_function_keeps_its_lease(office, client):
    """The worker extends it, so that no other worker gets the turn."""
    runs = []
    worker = Worker(office.server.address, lease=1)

    @worker.agent("front")
    async def front(turn):
        runs.append(turn.attempt)
        await asyncio.sleep(4)
        return "done"

    async with serving_turns(worker):
        asked = await client.ask("take your time", session_id="chat-6", user_id="ana")
    assert (asked.text, runs) == ("done", [1])


async def test_a_function_stops_when_its_turn_is_overtaken(office, client):
    """A newer message of the user takes the turn's place; the old work is cancelled."""
    cancelled = []
    worker = Worker(office.server.address, lease=1)

    @worker.agent("front")
    async def front(turn):
        if turn.text == "second":
            return "second"
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(turn.text)
            raise
        return "never"

    async with serving_turns(worker):
        await client.route("first", session_id="chat-7", user_id="ana")
        await asyncio.sleep(0.2)
        asked = await client.ask("second", session_id="chat-7", user_id="ana")
        assert asked.text == "second"
        async with asyncio.timeout(10):
            while not cancelled:  # noqa: ASYNC110 - the keeper's interval
                await asyncio.sleep(0.1)
    assert cancelled == ["first"]


async def test_a_stopping_worker_gives_its_turns_back(office, client):
    """Another one gets them at once, as the same attempt."""
    begun = asyncio.Event()
    slow = Worker(office.server.address, stop_timeout=0.1, worker_id="slow")

    @slow.agent("front")
    async def front(_turn):
        begun.set()
        await asyncio.sleep(60)

    async with serving_turns(slow):
        await client.route("hello", session_id="chat-8", user_id="ana")
        await begun.wait()
    attempts = []
    quick = Worker(office.server.address, worker_id="quick")

    @quick.agent("front")
    async def take(turn):
        attempts.append(turn.attempt)
        return "taken over"

    begun_s = time.monotonic()
    async with serving_turns(quick):
        async with asyncio.timeout(10):
            while not attempts:  # noqa: ASYNC110 - the function's own report
                await asyncio.sleep(0.02)
        assert time.monotonic() - begun_s < 10
    assert attempts == [1]


CRASHING = """
import os, signal
from agent_routing.worker import Worker
worker = Worker({address!r}, lease=1)

@worker.agent("front")
async def front(turn):
    print("begun", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

worker.run()
"""


async def test_a_crash_in_the_middle_is_delivered_again(office, client):
    """To another worker, once the lease has lapsed; the message is answered once."""
    await client.route("hello", session_id="chat-9", user_id="ana")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CRASHING.format(address=office.server.address)
    )
    assert await process.wait() == -signal.SIGKILL
    attempts = []
    worker = Worker(office.server.address)

    @worker.agent("front")
    async def front(turn):
        attempts.append(turn.attempt)
        return "again"

    async with serving_turns(worker):
        async with asyncio.timeout(20):
            while not attempts:  # noqa: ASYNC110 - a lease's end
                await asyncio.sleep(0.05)
    assert attempts == [2]
    turns = [turn async for turn in client.list_turns("chat-9", user_id="ana")]
    assert [turn.agent_text for turn in turns] == ["again"]


async def test_a_worker_outlives_its_server(office, client, tmp_path):
    """It connects again, for as long as it takes, and its answer counts."""
    worker = front_and_vat("127.0.0.1:1")
    task = asyncio.ensure_future(worker.serve())
    await asyncio.sleep(1)
    assert not task.done()
    worker.stop()
    await asyncio.wait_for(task, 10)


async def test_a_worker_without_functions_says_so(office):
    """It would wait for ever."""
    with pytest.raises(ValueError, match="no functions"):
        await Worker(office.server.address).serve()


async def test_an_agent_has_one_function(office):
    """The second registration is a mistake."""
    worker = front_and_vat(office.server.address)
    with pytest.raises(ValueError, match='"vat" has a function already'):
        worker.agent("vat")
