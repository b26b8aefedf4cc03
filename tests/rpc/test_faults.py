"""What a caller sees when something around the service fails, and that the service recovers.

Some faults have their own files: a corrupted row (test_attacks), a second process on the file and
SIGTERM under load (test_server_lifecycle), a message stream that is not read
(test_answers_in_order), store servers that crash (tests/replicas). docs/proofs.md lists them all.
"""

import asyncio
import inspect
import sqlite3
from contextlib import closing, suppress

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from agent_routing.v1 import (
    admin_service_pb2,
    admin_service_pb2_grpc,
    routing_service_pb2,
)
from routing_service.server.bounds import DEFAULT_BOUNDS, Bounds
from routing_service.storage.memory_store import MemoryStore
from routing_service.storage.open_store import open_store
from routing_service.storage.sqlite.store import open_sqlite_store
from routing_service.storage.store import SessionKey, StoreUnavailable
from routing_service.storage.store_url import SqliteOptions
from tests.rpc.live_service import ask, finish, fresh_id, hand_to, refusal, serving, went
from tests.rpc.registries import DESK
from tests.torture.in_process import InProcess
from tests.torture.raw_http2 import Tally, connect, headers_of, message_of

PAGE_BYTES = 4096
STORE_AWAY = ("UNAVAILABLE", "STORE_UNAVAILABLE")


class Wrapped:
    """A wrapper around a store: each of its calls goes through ``around``."""

    def __init__(self, inner):
        self.inner = inner
        self.shared_writers = inner.shared_writers

    async def around(self, call):
        raise NotImplementedError

    def __getattr__(self, name):
        method = getattr(self.inner, name)
        if not inspect.iscoroutinefunction(method):
            return method

        async def wrapped(*arguments, **named):
            return await self.around(lambda: method(*arguments, **named))

        return wrapped

    async def close(self):
        await self.inner.close()


class AwayStore(Wrapped):
    """A store that a test can make unreachable or slow."""

    away = False
    slow_s = 0.0

    async def around(self, call):
        if self.away:
            raise StoreUnavailable("the store did not answer; try again")
        await asyncio.sleep(self.slow_s)
        return await call()


@pytest.fixture
async def store():
    """A store that can be unreachable or slow, over one in memory."""
    return AwayStore(await open_store("memory:"))


@pytest.fixture
async def desk(tmp_path, store, request):
    """Run a help desk over that store. A test may set limits as its indirect parameter."""
    bounds = getattr(request, "param", DEFAULT_BOUNDS)
    async with serving(tmp_path, DESK, shared=store, bounds=bounds) as running:
        yield running
        running.observer.failures.clear()  # This test causes those failures.


# --- the store ---


async def test_store_that_is_away_is_told_by_every_call_and_lost_by_none(desk, store):
    """UNAVAILABLE with a retry delay; afterwards each of the same request ids is applied once."""
    chat = await desk.chat().with_agent("sales")
    routed = await chat.say("one")
    ids = [fresh_id() for _ in range(3)]
    writing = (
        lambda: chat.say("two", request_id=ids[0]),
        lambda: chat.set_active("support", request_id=ids[1]),
        lambda: chat.clear(request_id=ids[2]),
        lambda: chat.answer(routed.dispatch, "so it is"),
    )
    reading = (chat.status, chat.turns, chat.tasks)
    admin = admin_service_pb2_grpc.AdminServiceStub(desk.channel)
    operators = (
        lambda: admin.ListSessions(admin_service_pb2.ListSessionsRequest()),
        lambda: admin.ListEvents(admin_service_pb2.ListEventsRequest(session_id=chat.session_id)),
        lambda: admin.EraseUser(admin_service_pb2.EraseUserRequest(user_id="ben")),
    )
    store.away = True
    for call in (*writing, *reading, *operators):
        if call in reading[1:]:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call()
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            continue
        refused = await refusal(call())
        assert tuple(refused) == STORE_AWAY
        assert refused.message == (
            "the store cannot be reached or is busy; repeat with the same request_id"
        )
        assert 0 < refused.retry_after_s <= 1
    store.away = False
    revision = (await chat.status()).revision
    for call in writing[:3]:
        await call()
        await call()
    assert (await chat.status()).revision == revision + 3
    assert [change.revision for change in await chat.changes()] == list(range(1, revision + 4))


async def test_slow_store_costs_time_and_no_more(desk, store):
    """A long deadline is met and a short one expires; a repeat returns the result, applied once."""
    chat = desk.chat()
    await chat.say("one")
    store.slow_s = 0.2
    patient = chat.say("two")
    ids = [fresh_id() for _ in range(4)]
    for request_id in ids:
        request = routing_service_pb2.RouteRequest(
            session_id=chat.session_id, user_id="ana", text="three", request_id=request_id
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await desk.stub.Route(request, timeout=0.05)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert (await patient).dispatch.text == "two"
    # Another session does not wait for this one.
    assert (await desk.chat().say("hello")).revision == 1
    store.slow_s = 0
    for request_id in ids:
        first = await chat.say("three", request_id=request_id)
        assert await chat.say("three", request_id=request_id) == first
    said = [change.request_id for change in await chat.changes()]
    assert sorted(said[2:]) == sorted(ids)


async def on_sqlite(tmp_path, **options):
    """Open a store on a file, as a server would."""
    return await open_sqlite_store(tmp_path / "faulty.db", SqliteOptions(**options))


async def test_full_disk_is_told_and_ends_without_a_restart(tmp_path):
    """Reads work and nothing is half stored; when there is space again writes work, too."""
    inner = await on_sqlite(tmp_path, file_bytes_max=80 * PAGE_BYTES)
    async with serving(tmp_path, DESK, shared=inner) as desk:
        chat = desk.chat()
        told = None
        for number in range(400):
            try:
                await chat.say(f"{number} " + "x" * 4_000, history_turns=-1)
            except grpc.aio.AioRpcError:
                told = await refusal(chat.say("x" * 4_000))
                break
        assert told is not None
        assert tuple(told) == STORE_AWAY
        assert told.retry_after_s
        assert "disk" not in told.message, "what fails is the operator's affair"
        revision = (await chat.status()).revision
        assert revision == len(await chat.changes())
        health = health_pb2_grpc.HealthStub(desk.channel)
        alive = await health.Check(health_pb2.HealthCheckRequest(service=""))
        assert alive.status == health_pb2.HealthCheckResponse.SERVING
        connection = inner._engine._writer._connection
        await connection.run(lambda c: c.execute("PRAGMA max_page_count = 100000"))
        assert (await chat.say("again", history_turns=-1)).revision == revision + 1
        desk.observer.failures.clear()
    await inner.close()


async def test_locked_file_is_told_and_ends_without_a_restart(tmp_path):
    """A sqlite3 shell or a backup tool holds the lock; reads work meanwhile."""
    inner = await on_sqlite(tmp_path, busy_timeout_s=0)
    async with serving(tmp_path, DESK, shared=inner) as desk:
        chat = await desk.chat().with_agent("sales")
        revision = (await chat.status()).revision
        request_id = fresh_id()
        with closing(sqlite3.connect(tmp_path / "faulty.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            refused = await refusal(chat.say("hello", request_id=request_id))
            assert tuple(refused) == STORE_AWAY
            assert refused.retry_after_s
            assert (await chat.status()).revision == revision
            other.execute("ROLLBACK")
        assert (await chat.say("hello", request_id=request_id)).revision == revision + 1
        desk.observer.failures.clear()
    await inner.close()


# --- the clock ---


async def test_clock_that_goes_back_moves_no_time_back_and_frees_nobody_early(desk):
    """The clock goes back an hour: times of changes never decrease, and locks keep their length."""
    chat = await desk.chat().with_agent("sales", **ask(timeout_s=600))
    before = await chat.status()
    desk.clock.advance(-3_600)
    routed = await chat.say("still there?")
    assert went(routed.dispatch) == ("sales", "FOLLOW_UP_LOCK")
    await chat.answer(routed.dispatch, "yes?", **ask(timeout_s=600))
    status = await chat.status()
    assert status.update_time.ToNanoseconds() >= before.update_time.ToNanoseconds()
    times = [change.time_us for change in await chat.changes()]
    assert times == sorted(times)
    # The lock counts from the latest time in the session.
    desk.clock.advance(3_600 + 599)
    assert went((await chat.say("and now?")).dispatch) == ("sales", "FOLLOW_UP_LOCK")
    assert (await chat.answer((await chat.say("x")).dispatch, "done", **finish())).revision


# --- cancelled calls ---


class SteppingStore(Wrapped):
    """A store that yields before and after each call, as one over a network does."""

    async def around(self, call):
        for _ in range(2):
            await asyncio.sleep(0)
        made = await call()
        for _ in range(2):
            await asyncio.sleep(0)
        return made


ROUTING = "/agent_routing.v1.RoutingService/"
ADMIN = "/agent_routing.v1.AdminService/"


class Conversation:
    """A session in which every kind of call has work to do, without a network."""

    def __init__(self, server, session_id):
        self.server = server
        self.session_id = session_id
        self.routed = None
        self.paused = None

    async def begin(self):
        """Give sales a turn to answer, after a resumed turn that waited for approval."""
        rs = routing_service_pb2
        route = rs.RouteRequest(session_id=self.session_id, user_id="ana", text="hello")
        first = await self.send(ROUTING + "Route", route, rs.RouteResponse)
        await self.send(ROUTING + "SetActiveAgent", self.set_active("sales"))
        self.routed = await self.send(ROUTING + "Route", route, rs.RouteResponse)
        assert first.revision == 1
        return self

    async def send(self, path, request, response=None):
        """Call an RPC that must succeed."""
        answer = await self.server.send(path, request.SerializeToString())
        assert answer.code == "OK", answer
        return response.FromString(answer.bodies[0]) if response else answer

    def set_active(self, agent_id):
        return routing_service_pb2.SetActiveAgentRequest(
            session_id=self.session_id, user_id="ana", agent_id=agent_id, request_id=fresh_id()
        )

    def request(self, rpc):
        """Return a request of each kind, with an id if it takes one."""
        rs, ad = routing_service_pb2, admin_service_pb2
        session = {"session_id": self.session_id, "user_id": "ana"}
        return {
            "Route": rs.RouteRequest(**session, text="more", request_id=fresh_id()),
            "SetActiveAgent": self.set_active("support"),
            "ClearActiveAgent": rs.ClearActiveAgentRequest(**session, request_id=fresh_id()),
            "CompleteTurn": rs.CompleteTurnRequest(
                **session,
                request_id=self.routed.request_id,
                agent_id="sales",
                text="so it is",
                **hand_to("support"),
            ),
            "Status": rs.StatusRequest(**session),
            "ListTurns": rs.ListTurnsRequest(**session),
            "ListTasks": rs.ListTasksRequest(**session),
            "ListAgents": rs.ListAgentsRequest(**session),
            "ListSessions": ad.ListSessionsRequest(),
            "ListEvents": ad.ListEventsRequest(session_id=self.session_id),
            "GetRoutingStats": ad.GetRoutingStatsRequest(),
            "SetStickiness": ad.SetStickinessRequest(enabled=True),
        }[rpc]


WRITING = ("Route", "SetActiveAgent", "ClearActiveAgent", "CompleteTurn")
READING = ("Status", "ListTurns", "ListTasks", "ListAgents")
OPERATING = ("ListSessions", "ListEvents", "GetRoutingStats", "SetStickiness")
TICKS_MAX = 2_000


@pytest.mark.parametrize("rpc", [*WRITING, *READING, *OPERATING])
async def test_call_that_is_cancelled_anywhere_happens_whole_or_not_at_all(tmp_path, rpc):
    """Cancelled at each await in turn.

    Its repeat is answered, it is applied once, nothing leaks.
    """
    path = tmp_path / "agents.yaml"
    path.write_text(DESK, "utf-8")
    inner = MemoryStore()
    server = await InProcess.start(str(path), SteppingStore(inner))
    method = (ADMIN if rpc in OPERATING else ROUTING) + rpc
    cancelled = 0
    talk = await Conversation(server, "chat").begin()
    for ticks in range(TICKS_MAX):
        if rpc in WRITING and ticks:
            talk = await Conversation(server, f"chat-{ticks}").begin()
        data = talk.request(rpc).SerializeToString()
        before = asyncio.all_tasks()
        call = asyncio.ensure_future(server.send(method, data))
        for _ in range(ticks):
            await asyncio.sleep(0)
        has_ended = call.done()
        call.cancel()
        with suppress(asyncio.CancelledError):
            await call
        cancelled += not has_ended
        first = await server.send(method, data)
        again = await server.send(method, data)
        assert first.code == "OK", (ticks, first)
        if rpc in WRITING:
            assert again == first, ticks
            key = SessionKey("default", talk.session_id)
            changes = await inner.read_changes(key, limit=100)
            assert [change.revision for change in changes] == [1, 2, 3, 4], ticks
        async with asyncio.timeout(30):
            # Shielded tasks end on their own.
            while asyncio.all_tasks() - before:  # noqa: ASYNC110
                await asyncio.sleep(0)
        if has_ended:
            break
    else:
        pytest.fail("it never ends")
    assert cancelled > 0
    assert server.failures == []
    await server.stop()


# --- a client that does not read ---


@pytest.mark.parametrize("desk", [Bounds(write_s_max=0.3)], indirect=True)
async def test_watcher_who_reads_nothing_is_let_go_and_told_when_it_reads(desk):
    """It blocks no other call, buffers one message, and gets the reason when it reads again."""
    chat = await desk.chat().with_agent("sales")
    tally = Tally()
    deaf = await connect("127.0.0.1", desk.server.port, tally, window=0)
    watch = routing_service_pb2.WatchSessionRequest(
        session_id=chat.session_id, user_id="ana", after_revision=0
    )
    deaf.call(headers_of(ROUTING + "WatchSession", 60_000), message_of(watch.SerializeToString()))
    async with asyncio.timeout(30):
        while not [c for c in desk.observer.calls if c.error_reason == "WATCH_TOO_SLOW"]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert desk.server.watches == 0
    hearing = desk.stub.WatchSession(watch, timeout=60)
    revision = (await chat.say("hello")).revision
    heard = []
    async with asyncio.timeout(30):
        while not heard or heard[-1] < revision:
            message = await hearing.read()
            if message.HasField("change"):
                heard.append(message.change.revision)
    assert heard == list(range(1, revision + 1))
    hearing.cancel()
    assert not tally.statuses
    deaf.read_again()
    async with asyncio.timeout(30):
        while not tally.statuses:  # noqa: ASYNC110 - the server's affair
            await asyncio.sleep(0.01)
    assert tally.statuses == {grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]: 1}
    deaf.transport.close()


@pytest.mark.parametrize("desk", [Bounds(write_s_max=0.3)], indirect=True)
async def test_message_stream_that_is_not_read_is_told_when_it_is(desk):
    """Its messages were applied; the stream ends with a reason as soon as the client reads."""
    tally = Tally()
    deaf = await connect("127.0.0.1", desk.server.port, tally, window=0)
    route = routing_service_pb2.RouteRequest(
        session_id="unheard", user_id="ana", text="hello", request_id=fresh_id()
    )
    request = routing_service_pb2.RouteStreamRequest(route=route)
    deaf.call(headers_of(ROUTING + "RouteStream", 60_000), message_of(request.SerializeToString()))
    async with asyncio.timeout(30):
        while not [c for c in desk.observer.calls if c.error_reason == "OVERLOADED"]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert (await desk.chat("unheard").status()).revision == 1
    deaf.read_again()
    async with asyncio.timeout(30):
        while not tally.statuses:  # noqa: ASYNC110 - the server's affair
            await asyncio.sleep(0.01)
    assert tally.statuses == {grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]: 1}
    deaf.transport.close()


async def test_callers_who_take_no_answer_cost_nobody_else_anything(desk):
    """No answer of a hundred calls is read: all are applied, and other calls are answered."""
    tally = Tally()
    deaf = await connect("127.0.0.1", desk.server.port, tally, window=0)
    headers = headers_of(ROUTING + "Route", 60_000)
    for number in range(100):
        request = routing_service_pb2.RouteRequest(
            session_id=f"deaf-{number}", user_id="ana", text="x" * 10_000
        )
        deaf.call(headers, message_of(request.SerializeToString()))
    for _ in range(20):
        assert (await desk.chat().say("hello")).revision == 1
    async with asyncio.timeout(30):
        while len(desk.observer.calls) < 120:  # noqa: ASYNC110 - the server's affair
            await asyncio.sleep(0.01)
    deaf.transport.close()
    assert (await desk.chat("deaf-7").say("hello", request_id=fresh_id())).revision == 2
