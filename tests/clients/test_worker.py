"""The Python worker and ask(), against a real server: functions, retries, crashes, stops."""

import asyncio
import pickle
import signal
import socket
import sys
import time
from contextlib import asynccontextmanager
from types import SimpleNamespace

import grpc
import pytest

import agent_routing
from agent_routing import errors, outcomes
from agent_routing.asking import AnswerParts, Asked, Asking, NoAnswerYet, NoInbox
from agent_routing.outcomes import Answer
from agent_routing.route_result import RouteResult
from agent_routing.v1 import dispatch_pb2
from agent_routing.v1 import routing_service_pb2 as pb
from agent_routing.v1.turn_pb2 import Turn
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


async def test_ask_tells_the_user_that_the_task_was_parked(tmp_path):
    """The worker got the notice with its answer; who asked gets it in the user's language."""
    async with serving(tmp_path, OFFICE + "while_paused: park\n") as office:
        address = office.server.address
        worker = Worker(address)

        @worker.agent("front")
        async def front(turn):
            if turn.text == "hello":
                return "hello"
            return Answer("I have asked.", outcomes.approval_needed("Pay?"))

        def ask(text, **fields):
            with agent_routing.Client(address) as blocking:
                return blocking.ask(text, session_id="parks-1", user_id="ana", **fields)

        async with serving_turns(worker), agent_routing.AsyncClient(address) as client:
            given = {"session_id": "parks-1", "user_id": "ana", "request_id": fresh_id()}
            asked = await client.ask("pay", **given)
            assert asked.text == "I have asked."
            assert asked.notice.startswith("Front desk is waiting for an approval. Until then")
            assert (await client.ask("pay", **given)).notice == asked.notice
            parts = [part async for part in client.ask_parts("pay", **given)]
            assert parts[-1].asked.notice == asked.notice
            blocking = await asyncio.to_thread(ask, "pay too", locale="es")
            assert "espera una aprobación" in blocking.notice
            assert (await asyncio.to_thread(ask, "hello")).notice == ""
            assert (await asyncio.to_thread(ask, "/tasks")).notice == ""


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


async def test_an_extension_that_timed_out_is_repeated_at_once(office, client, monkeypatch):
    """After another pause of a third of the lease, the lease would be over."""
    began, ends_s, repeats_s, is_extended = [], [], [], asyncio.Event()
    keep_turn = agent_routing.AsyncClient.keep_turn

    async def slow_at_first(self, *arguments, extend=None, **fields):
        if extend and not ends_s:
            await asyncio.sleep(fields["timeout"])
            ends_s.append(time.monotonic())
            code = grpc.StatusCode.DEADLINE_EXCEEDED
            raise errors.DeadlineExceeded("the server was too slow", code=code)
        repeats_s.append(time.monotonic())
        kept = await keep_turn(self, *arguments, extend=extend, **fields)
        is_extended.set()
        return kept

    monkeypatch.setattr(agent_routing.AsyncClient, "keep_turn", slow_at_first)
    worker = Worker(office.server.address, lease=3)

    @worker.agent("front")
    async def front(turn):
        began.append(turn.attempt)
        await is_extended.wait()
        return "done"

    async with serving_turns(worker):
        asked = await client.ask("hello", session_id="chat-1", user_id="ana")
    assert (asked.text, asked.outcome, began) == ("done", "PROCEED", [1])
    assert repeats_s[0] - ends_s[0] < 0.9  # It was the whole second of another pause.


async def test_a_function_may_finish_a_turn_that_is_overtaken(office, client):
    """A newer message of the user takes the turn's place; the older answer is stored too."""
    worker = Worker(office.server.address, lease=1)
    goes_on = asyncio.Event()

    @worker.agent("front")
    async def front(turn):
        if turn.text == "first":
            await goes_on.wait()
        return f"re: {turn.text}"

    async with serving_turns(worker):
        await client.route("first", session_id="chat-6", user_id="ana")
        await asyncio.sleep(0.2)
        asked = await client.ask("second", session_id="chat-6", user_id="ana")
        assert asked.text == "re: second"
        await asyncio.sleep(1.5)  # Beyond its lease, which is extended.
        goes_on.set()
        texts = []
        async with asyncio.timeout(10):
            while "re: first" not in texts:
                await asyncio.sleep(0.1)
                turns = client.list_turns("chat-6", user_id="ana")
                texts = [turn.agent_text async for turn in turns]
        assert texts == ["re: first", "re: second"]


async def test_a_function_stops_when_the_user_leaves_its_turn(office, client):
    """Nobody waits for its answer any more; the work is cancelled."""
    cancelled = []
    worker = Worker(office.server.address, lease=1)

    @worker.agent("front")
    async def front(turn):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(turn.text)
            raise
        return "never"

    async with serving_turns(worker):
        await client.route("first", session_id="chat-7", user_id="ana")
        await asyncio.sleep(0.2)
        await client.route("/reset", session_id="chat-7", user_id="ana")
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


async def test_an_answer_is_read_as_it_is_written(office, client):
    """A generator's parts, notes and steps; the last part has what ask() returns."""
    worker = Worker(office.server.address)

    @worker.agent("front")
    async def front(turn):
        await turn.note("one moment")
        await turn.step("search", input="VAT", output="3 pages")
        for word in ("Pay ", "VAT ", "monthly"):
            yield word
            await asyncio.sleep(0.3)
        yield outcomes.follow_up(" or quarterly?")

    async with serving_turns(worker):
        parts = [
            part async for part in client.ask_parts("How?", session_id="parts-1", user_id="ana")
        ]
    *shown, last = parts
    whole = "Pay VAT monthly or quarterly?"
    assert [part.text for part in shown if part.is_note] == ["one moment"]
    text = ""
    for part in shown:
        if not part.is_note:
            text = part.text if part.replaces else text + part.text
    assert text == whole
    assert last.asked.text == whole
    assert last.asked.turns[0].outcome == 2  # A follow-up.
    assert [step.name for step in last.asked.turns[0].steps] == ["search"]
    assert last.asked.turns[0].steps[0].attempt == 1


async def test_parts_of_a_chain_come_for_each_agent(office):
    """The blocking client has them too, and agents that send no parts come as one."""

    def ask():
        with agent_routing.Client(office.server.address) as blocking:
            parts = blocking.ask_parts("How do I pay VAT?", session_id="parts-2", user_id="ana")
            return [(part.agent_id, part.text) for part in parts]

    async with serving_turns(front_and_vat(office.server.address)):
        assert await asyncio.to_thread(ask) == [
            ("front", "one moment"),
            ("vat", "Monthly or quarterly?"),
            ("vat", ""),
        ]


async def test_steps_survive_a_crash_and_are_not_doubled(office, client):
    """What the first attempt reported stays; what was not sent comes with the answer."""
    worker = Worker(office.server.address, attempts=2)

    @worker.agent("front")
    async def front(turn):
        await turn.step(f"try {turn.attempt}")
        await asyncio.sleep(0.5)
        if turn.attempt == 1:
            raise ValueError("the first one fails")
        await turn.step("second", kind="model")
        return "done"

    async with serving_turns(worker):
        asked = await client.ask("go", session_id="steps-1", user_id="ana")
    assert [(step.name, step.attempt) for step in asked.turns[0].steps] == [
        ("try 1", 1),
        ("try 2", 2),
        ("second", 0),
    ]


async def test_ask_reaches_agents_without_an_inbox(office, client):
    """The whole turn goes through inboxes, because the caller asked for that."""
    await office.chat("deliver-1").with_agent("carried")
    worker = Worker(office.server.address)

    @worker.agent("carried")
    async def carried(turn):
        return f"carried by a worker: {turn.text}"

    async with serving_turns(worker):
        asked = await client.ask("hello", session_id="deliver-1", user_id="ana")
    assert asked.text == "carried by a worker: hello"


def test_parts_are_put_together_as_the_contract_says():
    """Repeats are dropped, a gap waits for the whole, a new attempt begins again."""
    parts = AnswerParts()
    parts.know((Turn(request_id="r1", agent_id="a"),))

    def delta(begin, text, *, attempt=1, request_id="r1"):
        end = begin + len(text)
        parts.take(
            pb.WatchSessionResponse(
                delta=pb.TurnDelta(
                    request_id=request_id,
                    agent_id="a",
                    attempt=attempt,
                    begin=begin,
                    end=end,
                    text=text,
                )
            )
        )
        return [(part.text, part.replaces) for part in parts.ready()]

    assert delta(0, "abc") == [("abc", False)]
    assert delta(0, "abc") == []
    assert delta(4, "e") == []
    assert delta(3, "d") == [("d", False)]
    assert delta(0, "of another message", request_id="r2") == []
    assert delta(0, "xy", attempt=2) == [("xy", True)]
    assert delta(4, "late", attempt=1) == []
    answered = Turn(request_id="r1", agent_id="a", agent_text="xyz")
    asked = answered_with(answered)
    assert [(part.text, part.replaces) for part in parts.rest(asked)] == [("z", False), ("", False)]
    other = answered_with(Turn(request_id="r1", agent_id="a", agent_text="else"))
    assert parts.rest(other)[0].replaces


def answered_with(turn):
    """Return what ask() returns for one turn."""
    route = SimpleNamespace(session_id="s", request_id=turn.request_id, reply_text="")
    return Asked(route, (turn,))


def test_a_late_answer_is_shown_unless_the_turn_was_given_up():
    """The user left the agent: what it still says is in the history, and is no answer."""
    late = Turn(request_id="r1", agent_id="a", agent_text="late", outcome="TURN_OUTCOME_PROCEED")
    for cause, shown in (
        ("OVERTAKEN", ("PROCEED", "", "late")),
        ("TIMEOUT", ("PROCEED", "", "late")),
        ("COMMAND", ("ABANDONED", "COMMAND", "")),
        ("CANCELLED", ("ABANDONED", "CANCELLED", "")),
    ):
        late.abandon_cause = f"ABANDON_CAUSE_{cause}"
        asked = answered_with(late)
        assert (asked.outcome, asked.cause, asked.text) == shown


def test_a_turn_without_an_end_that_is_not_open_ran_out_of_time():
    """It may not be stored as abandoned yet. An older service stores no cause."""
    asked = answered_with(Turn(request_id="r1", agent_id="a"))
    assert (asked.outcome, asked.cause) == ("ABANDONED", "TIMEOUT")
    asked = answered_with(Turn(request_id="r1", agent_id="a", outcome="TURN_OUTCOME_ABANDONED"))
    assert (asked.outcome, asked.cause) == ("ABANDONED", "")


def asking(open_request, revision):
    """Return a message that was routed at revision 5, and what Status says of it."""
    routed = pb.RouteResponse(session_id="s", request_id="r1", revision=5)
    routed.dispatch.delivery = dispatch_pb2.DELIVERY_INBOX
    message = Asking(RouteResult(routed), "ana", (1.0, time.monotonic()), replayed=False)
    state = pb.StatusResponse(session_id="s", revision=revision, open_requests=open_request)
    return message, state


def test_a_message_that_came_to_an_agent_without_an_inbox_has_to_be_carried():
    """A service of release 0.2 does so in a store of format 1: no worker would answer it."""
    carried = dispatch_pb2.Dispatch(request_id="r1")
    carried.agent.agent_id = "carried"
    message, state = asking([carried], 6)
    with pytest.raises(NoInbox, match='"carried" has no inbox') as raised:
        message.look(state, [Turn(request_id="r1", agent_id="carried")])
    again = pickle.loads(pickle.dumps(raised.value))
    assert (again.request_id, again.agent_id, str(again)) == ("r1", "carried", str(raised.value))


def test_a_replica_that_is_behind_decides_nothing():
    """It does not know the message yet, so that no turn is open there."""
    message, state = asking([], 4)
    message.look(state, [])
    assert not message.is_done()
    with pytest.raises(NoAnswerYet) as raised:
        message.begin_watch_s()
    again = pickle.loads(pickle.dumps(raised.value))
    assert (again.request_id, str(again)) == ("r1", str(raised.value))


async def test_an_old_message_has_its_answer(office, client):
    """It is asked for again when it is no longer in the newest page of the history."""

    async def say(number):
        turn = await client.route(f"{number}", session_id="old-1", user_id="ana")
        answer = {"text": f"to {number}"}
        await client.complete_turn("old-1", turn.request_id, "front", outcomes.proceed(), **answer)
        return turn.request_id

    request_id = fresh_id()
    given = {"session_id": "old-1", "user_id": "ana", "request_id": request_id}
    await client.route("first", deliver="INBOX", **given)
    await client.complete_turn("old-1", request_id, "front", outcomes.proceed(), text="here")
    for number in range(101):
        await say(number)
    asked = await client.ask("first", **given, wait=5)
    assert (asked.text, asked.replayed) == ("here", True)


async def test_a_function_gives_its_answer_and_learns_that_it_was_refused(office, client):
    """It then gives another one; what it reported in between is there once."""
    worker = Worker(office.server.address)
    learnt = []

    @worker.agent("front")
    async def front(turn):
        await turn.step("look")
        with pytest.raises(errors.UnknownAgent):
            await turn.complete(Answer("", outcomes.handoff("nobody-here")))
        await turn.step("look again")
        answered = await turn.complete(Answer("here I am", outcomes.proceed()))
        learnt.append(answered.text)
        with pytest.raises(RuntimeError, match="answered already"):
            await turn.complete(Answer("twice", outcomes.proceed()))

    async with serving_turns(worker):
        asked = await client.ask("go", session_id="complete-1", user_id="ana")
    assert learnt == [asked.text] == ["here I am"]
    assert [step.name for step in asked.turns[0].steps] == ["look", "look again"]


async def test_steps_that_do_not_fit_into_an_answer_do_not_cost_it(office, client):
    """Those that were reported are kept; of the rest the first ones go with the answer."""
    worker = Worker(office.server.address, attempts=1)

    @worker.agent("front")
    async def front(turn):
        for number in range(20):
            await turn.step(f"step {number}", output="x" * 4_000)
        return "done"

    async with serving_turns(worker):
        asked = await client.ask("go", session_id="fitting-1", user_id="ana")
    assert asked.text == "done"
    names = [step.name for step in asked.turns[0].steps]
    assert names == [f"step {number}" for number in range(len(names))]
    assert len(names) > 10


async def test_a_worker_says_once_that_the_service_is_away_and_when_it_is_back(tmp_path, caplog):
    """With a wrong port it was silent for ever."""

    async def logged(event):
        async with asyncio.timeout(60):
            while event not in caplog.text:  # noqa: ASYNC110 - the log is no event
                await asyncio.sleep(0.05)

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    async with serving_turns(front_and_vat(address)):
        await logged(f"service_away target={address}, trying on: ")
        async with serving(tmp_path, OFFICE, listen=address):
            await logged(f"service_back target={address}")
    assert caplog.text.count("service_away") == 1
