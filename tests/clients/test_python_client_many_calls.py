"""Both Python clients with more calls and watches at once than a connection takes."""

import asyncio
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import grpc
import pytest

import agent_routing
from agent_routing import errors
from agent_routing.channel import PLACES_MAX
from agent_routing.v1 import routing_service_pb2 as pb
from tests.clients.conftest import SERVICE
from tests.rpc.live_service import serving
from tests.tax_without_topics import tax_without_topics

AT_ONCE = 400


@pytest.fixture
async def server(tmp_path):
    """A server with default limits."""
    async with serving(tmp_path, tax_without_topics(tmp_path).read_text("utf-8")) as running:
        yield running.server


async def routed(client, count, **fields):
    """Route messages of so many sessions at the same time; count the results."""

    def result_of(turn):
        return "degraded" if turn.degraded else "routed"

    if isinstance(client, agent_routing.Client):

        def one(number):
            try:
                return result_of(client.route("hello", session_id=f"chat-{number}", **fields))
            except errors.RoutingError as error:
                return type(error).__name__

        with ThreadPoolExecutor(count) as pool:
            loop = asyncio.get_running_loop()
            calls = [loop.run_in_executor(pool, one, number) for number in range(count)]
            return Counter(await asyncio.gather(*calls))

    async def call(number):
        try:
            return result_of(await client.route("hello", session_id=f"chat-{number}", **fields))
        except errors.RoutingError as error:
            return type(error).__name__

    return Counter(await asyncio.gather(*(call(number) for number in range(count))))


async def test_four_hundred_messages_at_once_are_all_routed(connect, server):
    """A gateway that reconnects, or a batch: the server is idle, so nothing is decided here."""
    client = connect(server.address, timeout=30).client
    assert await routed(client, AT_ONCE, user_id="ana") == {"routed": AT_ONCE}
    assert client.circuit.opened_total == 0


async def test_four_gateways_with_four_hundred_messages_each(server):
    """Together they are more than a server takes in: it refuses some, which are sent again."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    clients = [
        agent_routing.AsyncClient(server.address, timeout=30, options=options) for _ in range(4)
    ]
    counts = await asyncio.gather(*(routed(client, AT_ONCE, user_id="ana") for client in clients))
    for client in clients:
        await client.close()
    assert sum(counts, Counter()) == {"routed": 4 * AT_ONCE}
    assert not sum(client.circuit.opened_total for client in clients)


@asynccontextmanager
async def refusing(streams_max, answer_s):
    """Serve Route slowly with gRPC's own defaults, which refuse streams below their own bound."""
    seen = Counter()

    async def answer(request, _context):
        seen["answered"] += 1
        time.sleep(answer_s)  # noqa: ASYNC251 - keeps gRPC from freeing the calls that ended
        return pb.RouteResponse(session_id=request.session_id, request_id=request.request_id)

    handler = grpc.unary_unary_rpc_method_handler(
        answer,
        request_deserializer=pb.RouteRequest.FromString,
        response_serializer=pb.RouteResponse.SerializeToString,
    )
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start():
        server = grpc.aio.server(options=[("grpc.max_concurrent_streams", streams_max)])
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE.full_name, {"Route": handler}),)
        )
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        return server, port

    def on_loop(work):
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))

    server, port = await on_loop(start())
    try:
        yield f"127.0.0.1:{port}", seen
    finally:
        await on_loop(server.stop(None))
        loop.call_soon_threadsafe(loop.stop)
        await asyncio.to_thread(thread.join)
        loop.close()


async def test_refused_streams_cost_neither_repeats_nor_the_circuit(connect):
    """As of a server of an earlier release: it refuses more calls than the throttle has tokens."""
    async with refusing(streams_max=20, answer_s=0.001) as (target, seen):
        client = connect(target, timeout=30).client
        assert await routed(client, AT_ONCE, user_id="ana") == {"routed": AT_ONCE}
        assert seen["answered"] == AT_ONCE
        assert client.circuit.opened_total == 0
        assert client._settings.throttle._tokens == 100


async def test_a_call_that_waits_too_long_behind_others_is_not_decided_here(connect, service):
    """The service answers, only not this call: the caller gets an error that it can repeat."""
    one = asyncio.Semaphore(1)

    async def slowly(request, _context):
        async with one:
            await asyncio.sleep(0.02)
        return pb.RouteResponse(session_id=request.session_id, request_id=request.request_id)

    service.will("Route", slowly)
    client = connect(fallback=agent_routing.Fallback(supervisor_id="coordinator"), timeout=3)
    result = await routed(client.client, 3 * PLACES_MAX)
    assert set(result) == {"routed", "Overloaded"}, result
    assert client.client.circuit.state == "closed"


async def test_calls_that_wait_behind_others_in_an_outage_are_decided_at_once(connect, service):
    """The first ones show that the service is away; those behind them need not try it too."""
    service.will("Route", service.hangs())
    client = connect(fallback=agent_routing.Fallback(supervisor_id="coordinator"), timeout=1)
    begun_s = time.monotonic()
    assert await routed(client.client, 2 * PLACES_MAX) == {"degraded": 2 * PLACES_MAX}
    assert time.monotonic() - begun_s < 10
    assert len(service.requests("Route")) < PLACES_MAX + 10


@pytest.mark.parametrize("count", [250, pytest.param(1_000, marks=pytest.mark.long)])
async def test_watches_leave_other_calls_alone(server, count):
    """Each hundred have a connection of their own, so that a call has one without a watch."""
    async with agent_routing.AsyncClient(server.address, fallback=None) as client:
        first = await client.route("hello", user_id="ana")
        seen = Counter()

        async def watch(number):
            async for change in client.watch_session(
                first.session_id, user_id="ana", after_revision=0
            ):
                seen[change.revision] += 1

        watches = [asyncio.create_task(watch(number)) for number in range(count)]
        async with asyncio.timeout(60):
            while server.watches < count:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        begun_s = time.monotonic()
        await client.status(first.session_id, user_id="ana")
        took_s = time.monotonic() - begun_s
        for each in watches:
            each.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
        assert seen[1] == count
        assert took_s < 1
        streams = client._streams
        assert len(streams.all()) == -(-count // PLACES_MAX)


async def test_the_places_of_ended_watches_are_taken_again(server):
    """A program that watches a session at a time needs one connection for it."""
    with agent_routing.Client(server.address, fallback=None) as client:

        def watch_and_leave():
            first = client.route("hello", user_id="ana")
            for _change in client.watch_session(first.session_id, user_id="ana", after_revision=0):
                break

        for _ in range(PLACES_MAX + 5):
            await asyncio.to_thread(watch_and_leave)
        assert len(client._streams.all()) == 1
