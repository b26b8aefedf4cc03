"""Both clients over a stream: the calls look like others, and survive lost connections."""

import asyncio
import inspect
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import datetime

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2, status_pb2

import agent_routing
from agent_routing import errors
from agent_routing.aio_stream import AsyncRouteStream
from agent_routing.client_stream import RouteStream
from agent_routing.ids import new_uuid7
from agent_routing.streaming import IN_FLIGHT_MAX
from agent_routing.v1.routing_service_pb2 import (
    RouteResponse,
    RouteStreamRequest,
    RouteStreamResponse,
)
from routing_service.server.server import RoutingServer
from routing_service.settings.settings import Settings
from tests.rpc.live_service import serving
from tests.rpc.registries import DESK

WAIT_S = 40
THREADS = 2 * IN_FLIGHT_MAX


@pytest.fixture
async def desk(tmp_path):
    """A help desk: front routes, sales and support stick."""
    async with serving(tmp_path, DESK) as running:
        yield running


@asynccontextmanager
async def streaming(client):
    """A stream of a client of either kind; its route() is awaited."""
    stream = client.client.stream()
    if isinstance(stream, AsyncRouteStream):
        async with stream:
            yield stream
        return
    with ThreadPoolExecutor(THREADS) as threads:
        loop = asyncio.get_running_loop()

        class Awaited:
            """The blocking stream, each call in its own thread."""

            def route(self, *args, **fields):
                return loop.run_in_executor(threads, lambda: stream.route(*args, **fields))

            async def close(self):
                await loop.run_in_executor(None, stream.close)

        try:
            yield Awaited()
        finally:
            await loop.run_in_executor(None, stream.close)


class StreamService(grpc.GenericRpcHandler):
    """RouteStream only; each connection follows its own script, the last one repeats."""

    def __init__(self, *scripts):
        self.scripts = list(scripts)
        self.connections = []
        self.server = None
        self.changed = asyncio.Condition()

    async def __aenter__(self):
        self.server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        self.server.add_generic_rpc_handlers((self,))
        port = self.server.add_insecure_port("127.0.0.1:0")
        await self.server.start()
        self.target = f"127.0.0.1:{port}"
        return self

    async def __aexit__(self, *_):
        await self.server.stop(None)

    def service(self, _details):
        async def handle(requests, context):
            received = []
            self.connections.append(received)
            script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]

            async def kept():
                async for request in requests:
                    received.append(request.route)
                    async with self.changed:
                        self.changed.notify_all()
                    yield request.route

            await script(kept(), context)

        return grpc.stream_stream_rpc_method_handler(
            handle,
            request_deserializer=RouteStreamRequest.FromString,
            response_serializer=RouteStreamResponse.SerializeToString,
        )

    async def until(self, condition):
        """Wait until a condition on the received messages holds."""
        async with asyncio.timeout(WAIT_S), self.changed:
            await self.changed.wait_for(condition)


def answered(route):
    """The answer to a message."""
    given = RouteResponse(session_id=route.session_id, request_id=route.request_id, revision=1)
    return RouteStreamResponse(
        request_id=route.request_id, session_id=route.session_id, route=given
    )


def refused(route, code, reason):
    """The answer to a message that is refused."""
    status = status_pb2.Status(code=code.value[0], message="no")
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason=reason, domain="agent_routing"))
    return RouteStreamResponse(request_id=route.request_id, error=status)


async def echo(requests, context):
    """Answer everything."""
    async for route in requests:
        await context.write(answered(route))


def breaks_after(count, code=grpc.StatusCode.UNAVAILABLE, taken=0):
    """Take a number of messages, answer the first of them, and end with a status."""

    async def script(requests, context):
        number = 0
        async for route in requests:
            number += 1
            if number <= count:
                await context.write(answered(route))
            if number >= max(count, taken):
                break
        await context.abort(code, "gone")

    return script


async def silent(requests, _context):
    """Take everything and answer nothing."""
    async for _ in requests:
        pass


def test_route_on_a_stream_has_the_arguments_of_route():
    """A program that moves to a stream only changes the object."""
    for stream, client in (
        (RouteStream, agent_routing.Client),
        (AsyncRouteStream, agent_routing.AsyncClient),
    ):
        assert str(inspect.signature(stream.route)) == str(inspect.signature(client.route))


async def test_messages_of_many_sessions_share_one_stream(connect):
    """Each call gets its own answer, in any order."""
    async with StreamService(echo) as service, streaming(connect(service.target)) as stream:
        found = await asyncio.gather(
            *(stream.route(f"m{n}", session_id=f"chat-{n % 7}", user_id="ana") for n in range(60))
        )
        assert len({each.request_id for each in found}) == 60
        assert [each.session_id for each in found] == [f"chat-{n % 7}" for n in range(60)]
        assert [len(received) for received in service.connections] == [60]


async def test_stream_carries_a_conversation(connect, desk):
    """With the service itself: reasons, replies, commands, the same as for a call."""
    client = connect(desk.server.address)
    async with streaming(client) as stream:
        first = await stream.route("hello", session_id="chat-42", user_id="ana")
        assert (first.agent_id, first.reason, first.degraded) == ("front", "NO_ACTIVE_AGENT", False)
        await client.set_active_agent("chat-42", "sales", user_id="ana")
        second = await stream.route("and now?", session_id="chat-42", user_id="ana")
        assert (second.agent_id, second.reason) == ("sales", "STICKY")
        reply = await stream.route("/supervisor", session_id="chat-42", user_id="ana")
        assert (reply.agent_id, reply.response.reply.command) == (None, "/supervisor")
        alone = await stream.route("more", user_id="ben")
        assert alone.session_id
        assert alone.revision == 1


async def test_bad_message_raises_its_own_error_and_the_others_go_on(connect, desk):
    """The same classes as on a call."""
    async with streaming(connect(desk.server.address)) as stream:
        await stream.route("hello", session_id="chat-1", user_id="ana")
        with pytest.raises(errors.OwnerMismatch):
            await stream.route("hello", session_id="chat-1", user_id="ben")
        with pytest.raises(errors.InvalidField) as bad:
            await stream.route("", session_id="chat\n1", user_id="ana")
        assert {violation.name for violation in bad.value.violations} == {"session_id", "text"}
        with pytest.raises(ValueError, match="time zone"):
            await stream.route("hello", task_expire_time=datetime(2030, 1, 1))  # noqa: DTZ001
        assert (await stream.route("on", session_id="chat-1", user_id="ana")).revision == 2


async def test_broken_stream_is_resumed_with_what_was_not_answered(connect):
    """The same requests under the same ids, in the original order."""
    ids = [new_uuid7() for _ in range(10)]
    async with (
        StreamService(breaks_after(3, taken=10), breaks_after(2, taken=7), echo) as service,
        streaming(connect(service.target)) as stream,
    ):
        calls = []
        for number, request_id in enumerate(ids):
            message = {"session_id": "chat-42", "user_id": "ana", "request_id": request_id}
            calls.append(asyncio.ensure_future(stream.route(f"m{number}", **message)))
            # Threads would come in any order otherwise.
            await service.until(lambda: sum(map(len, service.connections)) > number)  # noqa: B023
        found = await asyncio.wait_for(asyncio.gather(*calls), WAIT_S)
        assert [each.request_id for each in found] == ids
        sent = [[route.request_id for route in got] for got in service.connections]
        assert sent == [ids, ids[3:], ids[5:]]
        first, second, _ = service.connections
        assert second == first[3:]


async def test_messages_are_applied_once_over_restarts(connect, tmp_path):
    """The service restarts under a stream; nothing is lost, nothing happens twice."""
    agents = tmp_path / "desk.yaml"
    await asyncio.to_thread(agents.write_text, DESK, encoding="utf-8")

    async def start(port):
        return await RoutingServer.start(
            Settings(
                listen=f"127.0.0.1:{port}",
                store=f"sqlite:///{tmp_path / 'streamed.db'}",
                agents=str(agents),
            )
        )

    patience = agent_routing.RetryPolicy(attempts_max=1000, backoff_first_s=0.05, backoff_max_s=0.1)
    server = await start(0)
    try:
        client = connect(server.address, retry=patience, timeout=WAIT_S, fallback=None)
        async with streaming(client) as stream:

            async def talk(session_id):
                for number in range(12):
                    await stream.route(f"m{number}", session_id=session_id, user_id="ana")

            talking = [asyncio.create_task(talk(f"chat-{n}")) for n in range(6)]
            for _ in range(2):
                await asyncio.sleep(0.05)
                await server.stop(0)
                server = await start(server.port)
            await asyncio.wait_for(asyncio.gather(*talking), WAIT_S)
        for number in range(6):
            turns = await client.list_turns(f"chat-{number}", user_id="ana")
            assert [turn.user_text for turn in turns] == [f"m{n}" for n in range(12)]
    finally:
        await server.stop(0)


async def test_stream_that_stays_away_is_told_after_four_attempts(connect):
    """As on any call, with the number of attempts."""
    async with (
        StreamService(breaks_after(0, taken=1)) as service,
        streaming(connect(service.target)) as stream,
    ):
        with pytest.raises(errors.Unavailable, match="RouteStream") as raised:
            await stream.route("hello", session_id="chat-42", user_id="ana")
        assert raised.value.attempts == 4
        assert raised.value.request_id == service.connections[0][0].request_id
        assert len(service.connections) == 4


async def test_refused_stream_is_told_at_once_and_tried_again_by_the_next_message(connect):
    """A server without streams, or one that does not know the caller, would refuse each time."""
    refuses = breaks_after(0, grpc.StatusCode.UNIMPLEMENTED, taken=1)
    async with (
        StreamService(refuses, echo) as service,
        streaming(connect(service.target)) as stream,
    ):
        with pytest.raises(errors.RoutingError) as raised:
            await stream.route("hello", session_id="chat-42", user_id="ana")
        assert raised.value.code is grpc.StatusCode.UNIMPLEMENTED
        assert raised.value.attempts == 1
        again = await stream.route("hello", session_id="chat-42", user_id="ana")
        assert again.revision == 1


async def test_message_that_the_store_did_not_take_is_sent_again(connect):
    """On the same stream, after the others."""

    async def script(requests, context):
        number = 0
        async for route in requests:
            number += 1
            if number == 1:
                code = grpc.StatusCode.UNAVAILABLE
                await context.write(refused(route, code, "STORE_UNAVAILABLE"))
            else:
                await context.write(answered(route))

    async with StreamService(script) as service, streaming(connect(service.target)) as stream:
        info = agent_routing.CallInfo()
        found = await stream.route("hello", session_id="chat-42", user_id="ana", info=info)
        assert (found.revision, info.attempts) == (1, 2)
        (received,) = service.connections
        assert received[0] == received[1]


async def test_message_without_an_answer_ends_at_its_deadline(connect):
    """The others of the stream do not wait for it."""
    async with StreamService(silent) as service, streaming(connect(service.target)) as stream:
        with pytest.raises(errors.DeadlineExceeded) as raised:
            await stream.route("hello", session_id="chat-42", user_id="ana", timeout=0.2)
        assert raised.value.request_id == service.connections[0][0].request_id
        # Its place is free again.
        with pytest.raises(errors.DeadlineExceeded):
            await stream.route("hello", session_id="chat-42", user_id="ana", timeout=0.1)


async def test_only_so_many_messages_are_on_the_way(connect):
    """The service would not read more; an answer frees the place for the next one."""
    release = asyncio.Event()

    async def script(requests, context):
        held = []
        async for route in requests:
            held.append(route)
            if len(held) < IN_FLIGHT_MAX and not release.is_set():
                continue
            await release.wait()
            for each in held:
                await context.write(answered(each))
            held = []

    async with (
        StreamService(script) as service,
        streaming(connect(service.target, timeout=WAIT_S)) as stream,
    ):
        calls = [
            asyncio.ensure_future(stream.route(f"m{n}", session_id=f"chat-{n}", user_id="ana"))
            for n in range(IN_FLIGHT_MAX + 20)
        ]
        await service.until(lambda: sum(map(len, service.connections)) >= IN_FLIGHT_MAX)
        await asyncio.sleep(0.2)
        assert len(service.connections[0]) == IN_FLIGHT_MAX
        release.set()
        await asyncio.wait_for(asyncio.gather(*calls), WAIT_S)
        assert len(service.connections[0]) == IN_FLIGHT_MAX + 20


async def test_request_id_that_is_on_the_way_waits_for_its_answer(connect, desk):
    """Both callers get an answer, and it happened once."""
    request_id = new_uuid7()
    message = {"session_id": "chat-42", "user_id": "ana", "request_id": request_id}
    async with streaming(connect(desk.server.address)) as stream:
        found = await asyncio.gather(*(stream.route("hello", **message) for _ in range(5)))
        assert len({each.response.SerializeToString() for each in found}) == 1
    assert len(await desk.chat("chat-42").changes()) == 1


async def test_closing_tells_those_who_wait(connect):
    """A closed stream takes no more messages, and its client still works."""
    async with StreamService(silent) as service:
        client = connect(service.target, timeout=WAIT_S)
        async with streaming(client) as stream:
            waiting = asyncio.ensure_future(stream.route("hello", session_id="c", user_id="ana"))
            await service.until(lambda: sum(map(len, service.connections)) == 1)
            await stream.close()
            with pytest.raises(RuntimeError, match="closed"):
                await waiting
            with pytest.raises(RuntimeError, match="closed"):
                await stream.route("hello", session_id="c", user_id="ana")
            await stream.close()


async def test_closing_the_client_ends_its_streams(connect):
    """Waiting callers get an error at once, not at the deadline."""
    async with StreamService(silent) as service:
        client = connect(service.target, timeout=WAIT_S)
        async with streaming(client) as stream:
            waiting = asyncio.ensure_future(stream.route("hello", session_id="c", user_id="ana"))
            await service.until(lambda: sum(map(len, service.connections)) == 1)
            await client.close()
            with pytest.raises(RuntimeError, match="closed"):
                await asyncio.wait_for(waiting, WAIT_S / 2)
            with pytest.raises(RuntimeError, match="closed"):
                await stream.route("hello", session_id="c", user_id="ana")


async def test_stream_falls_back_as_a_call_does(connect, desk):
    """The agent learnt on the stream is used while the service is away."""
    client = connect(desk.server.address)
    await client.set_active_agent("chat-42", "sales", user_id="ana")
    async with streaming(client) as stream:
        await stream.route("hello", session_id="chat-42", user_id="ana")
        await desk.server.stop(0)
        away = await stream.route("and now?", session_id="chat-42", user_id="ana")
        assert (away.degraded, away.agent_id) == (True, "sales")
        assert isinstance(away.error, errors.Unavailable)


async def test_caller_that_gives_up_leaves_the_stream_well():
    """A cancelled task withdraws its own message, and no other."""
    released = asyncio.Event()

    async def script(requests, context):
        async for route in requests:
            await released.wait()
            await context.write(answered(route))

    async with StreamService(script) as service:
        client = agent_routing.AsyncClient(service.target)
        async with client, client.stream() as stream:
            calls = [
                asyncio.create_task(stream.route("m", session_id=f"chat-{n}", user_id="ana"))
                for n in range(8)
            ]
            await service.until(lambda: bool(sum(map(len, service.connections))))
            for call in calls[::2]:
                call.cancel()
            released.set()
            results = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), WAIT_S)
    cancelled = Counter(isinstance(each, asyncio.CancelledError) for each in results)
    assert cancelled == {True: 4, False: 4}
    assert [each.session_id for each in results[1::2]] == [f"chat-{n}" for n in range(1, 8, 2)]
