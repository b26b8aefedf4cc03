"""The connection guard on a real server: which connections it closes, and which it keeps.

The attacker connects from 127.0.0.2 and the others from 127.0.0.1, so the server sees two hosts.
"""

import asyncio
from contextlib import asynccontextmanager

import grpc
import pytest
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc

import agent_routing
from agent_routing.v1 import routing_service_pb2
from routing_service.rpc.health import READINESS
from routing_service.server import own_sockets
from routing_service.server.bounds import Bounds
from routing_service.server.connection_guard import TRUSTED_S, Watched
from routing_service.server.own_sockets import Descriptor
from tests.rpc.live_service import serving
from tests.rpc.registries import DESK
from tests.rpc.signed_in import serving_signed_in, signed
from tests.torture.raw_http2 import PREFACE, Tally, connect, headers_of, message_of

pytestmark = pytest.mark.skipif(not own_sockets.is_supported, reason="Linux only")

ATTACKER = ("127.0.0.2", 0)
ASK = routing_service_pb2.ListAgentsRequest(user_id="ana")
WITHIN_S = 20
"""What takes a second, on a machine that many share."""


@asynccontextmanager
async def idle_connections(address, count):
    """Open connections that only start HTTP/2; yield their readers."""
    host, _, port = address.rpartition(":")
    opened = []
    try:
        for _ in range(count):
            opened.append(await asyncio.open_connection(host, int(port), local_addr=ATTACKER))
            opened[-1][1].write(PREFACE)
        yield [reader for reader, _ in opened]
    finally:
        for _, writer in opened:
            writer.transport.abort()


async def is_closed(reader):
    """Say whether a connection is closed within half a second."""
    try:
        async with asyncio.timeout(0.5):
            while await reader.read(4_096):
                pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


async def closed_count(readers):
    """Count the closed connections."""
    return sum(await asyncio.gather(*(is_closed(reader) for reader in readers)))


async def until(asked, wanted):
    """Poll until the answer is the wanted one or time is up; return the last answer."""
    async with asyncio.timeout(WITHIN_S):
        while (answer := await asked()) != wanted:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.05)
    return answer


@asynccontextmanager
async def new_channel(server):
    """Open a new connection."""
    options = [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 200),
    ]
    async with grpc.aio.insecure_channel(server.server.address, options) as channel:
        yield channel


async def health_of(server, service=READINESS):
    """Check health on a new connection; retry until it is accepted."""
    async with new_channel(server) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=service)
        answer = await stub.Check(request, timeout=WITHIN_S, wait_for_ready=True)
        return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)


async def test_idle_connections_from_one_address_do_not_keep_others_out(start_server):
    """The attacker opens more connections than the server takes; others can still connect."""
    server = await start_server(connections_max=40, unsigned_silence_max_s=0)
    await server.stub.ListAgents(ASK, timeout=WITHIN_S)
    with structlog.testing.capture_logs() as logs:
        async with idle_connections(server.server.address, 60):
            assert await health_of(server) == "SERVING"
            # A connection that has made a call stays open.
            assert (await server.stub.ListAgents(ASK, timeout=WITHIN_S)).agents
    closed = [line for line in logs if line["event"] == "connections_closed"]
    assert {(line["peer"], line["reason"]) for line in closed} == {("127.0.0.2", "slots_short")}


async def test_one_address_has_a_share_and_loses_the_unsigned_first(tmp_path):
    """Above its share the host's oldest silent connection is closed, never a signed-in one."""
    async with serving_signed_in(
        tmp_path, DESK, connections_per_address_max=6, unsigned_silence_max_s=0
    ) as service:
        await signed(service, "route", user="ana")("ListAgents", ASK)
        async with idle_connections(service.server.address, 9) as readers:

            async def first_three_closed():
                return [await is_closed(reader) for reader in readers]

            wanted = [True] * 3 + [False] * 6
            assert await until(first_three_closed, wanted) == wanted
        await signed(service, "route", user="ana")("ListAgents", ASK)


async def test_silent_connections_without_a_signed_in_call_are_closed(tmp_path):
    """They are closed after a while; a signed-in connection may be silent or watch health."""
    async with serving_signed_in(tmp_path, DESK, unsigned_silence_max_s=1) as service:
        call = signed(service, "route", user="ana")
        await call("ListAgents", ASK)
        states = []
        service.channel.get_state(try_to_connect=False)
        async with (
            new_channel(service) as watching,
            idle_connections(service.server.address, 5) as readers,
        ):
            watch = health_pb2_grpc.HealthStub(watching).Watch(
                health_pb2.HealthCheckRequest(service=READINESS), timeout=60
            )
            await watch.read()
            assert await until(lambda: closed_count(readers), 5) == 5
            states = [service.channel.get_state(), watching.get_state()]
            assert not watch.done()
            watch.cancel()
        assert states == [grpc.ChannelConnectivity.READY] * 2


async def test_silent_connections_to_the_web_listener_are_closed(start_server):
    """Keep-alive without a call does not hold a place there either."""
    server = await start_server(web_listen="127.0.0.1:0", unsigned_silence_max_s=1)
    url = server.server.web_url
    port = int(url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /livez HTTP/1.1\r\nHost: test\r\n\r\n")
    assert (await reader.readuntil(b"ok\n")).startswith(b"HTTP/1.1 200")
    assert await until(lambda: is_closed(reader), True)  # noqa: FBT003 - what is wanted
    writer.transport.abort()
    assert await fetch(url.removeprefix("http://"), "/livez") == (200, "ok\n")


async def fetch(address, path):
    """Fetch a page; return status and body."""
    host, _, port = address.rpartition(":")
    async with asyncio.timeout(WITHIN_S):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body.decode()


# --- rapid reset ---

HEADERS = headers_of("/agent_routing.v1.RoutingService/ListAgents", 10_000)
MESSAGE = message_of(ASK.SerializeToString())


@asynccontextmanager
async def flooding(server, tally):
    """Reset calls on one connection from the other address until the block ends."""
    host, _, port = server.server.address.rpartition(":")
    connection = await connect(host, int(port), tally, local_addr=ATTACKER)

    async def flood():
        while not connection.is_lost:
            if connection.has_room:
                connection.call_and_reset(HEADERS, MESSAGE, 50)
            await asyncio.sleep(0.01)

    running = asyncio.create_task(flood())
    try:
        yield connection
    finally:
        running.cancel()
        connection.transport.abort()


async def test_a_connection_that_resets_more_than_it_lets_finish_is_not_read(start_server):
    """At 5,000 resets a second it is no longer read, later it is reset; others notice nothing."""
    server = await start_server(bounds=Bounds(deaf_s=1))
    # Calls that are refused in its first quarter of a second are repeated.
    async with agent_routing.AsyncClient(server.server.address, timeout=WITHIN_S) as client:
        with structlog.testing.capture_logs() as logs:
            async with flooding(server, Tally()) as connection, asyncio.timeout(WITHIN_S):
                while not connection.is_lost:
                    await client.list_agents(user_id="ana")
                    await asyncio.sleep(0.02)
    closed = [line for line in logs if line["event"] == "connections_closed"]
    assert {(line["peer"], line["reason"]) for line in closed} == {("127.0.0.2", "resets")}
    assert not [line for line in logs if line["event"] == "host_refused"]


async def test_a_connection_that_was_good_before_is_stopped_all_the_same(start_server):
    """It is trusted only while it sends about as much as it did when its calls finished."""
    server = await start_server(bounds=Bounds(deaf_s=0.5))
    host, _, port = server.server.address.rpartition(":")
    tally = Tally()

    def again(connection):
        if tally.ok < 400 and connection.has_room:
            connection.call(HEADERS, MESSAGE)

    async with asyncio.timeout(WITHIN_S):
        connection = await connect(host, int(port), tally, again, local_addr=ATTACKER)
        for _ in range(4):
            again(connection)
        while connection.open or tally.ok < 400:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        while not connection.is_lost:
            if connection.has_room:
                connection.call_and_reset(HEADERS, MESSAGE, 50)
            await asyncio.sleep(0.01)


def test_trust_ends_with_time_and_with_more_traffic():
    """Bytes count for the time in which they came."""
    each = Watched(Descriptor(9, 1, 50051, ("127.0.0.2", 4000)), 0.0, "127.0.0.2")
    each.received_bytes = 10_000
    assert not each.is_trusted(10.0, 0.25)
    each.trust(10.0, 0.25)
    assert each.is_trusted(10.5, 0.25)
    assert not each.is_trusted(10.0 + TRUSTED_S, 0.25)
    each.received_bytes = 20_001
    assert not each.is_trusted(10.5, 0.25)
    assert each.is_trusted(10.5, 0.5)


async def test_a_host_that_floods_again_and_again_is_refused_for_a_while(start_server):
    """The kernel drops its SYNs; other hosts can connect, and it can again later."""
    server = await start_server(bounds=Bounds(strikes_max=0))
    host, _, port = server.server.address.rpartition(":")

    async def can_connect():
        try:
            async with asyncio.timeout(0.3):
                _, writer = await asyncio.open_connection(host, int(port), local_addr=ATTACKER)
        except TimeoutError:
            return False
        writer.transport.abort()
        return True

    async with flooding(server, Tally()):
        assert await until(can_connect, False) is False  # noqa: FBT003 - what is wanted
        assert await health_of(server) == "SERVING"
    assert await until(can_connect, True) is True  # noqa: FBT003 - the same


async def test_calls_that_are_cancelled_now_and_then_close_nothing(start_server):
    """A page that is closed cancels all of a connection's hundred calls at once."""
    server = await start_server(resets_per_s_max=200)
    host, _, port = server.server.address.rpartition(":")
    tally = Tally()
    connection = await connect(host, int(port), tally, local_addr=ATTACKER)
    for _ in range(3):
        connection.call_and_reset(HEADERS, MESSAGE, 50)
        await asyncio.sleep(0.6)
    stream = connection.call(HEADERS, MESSAGE)
    async with asyncio.timeout(WITHIN_S):
        while stream in connection.open:  # noqa: ASYNC110 - the connection has no event for it
            await asyncio.sleep(0.01)
    assert tally.ok == 1
    connection.transport.abort()


# --- probes ---


async def test_probes_are_answered_where_every_place_is_taken(tmp_path):
    """Liveness and readiness have their own listener with its own limit."""
    async with serving(
        tmp_path,
        "tax",
        probe_listen="127.0.0.1:0",
        connections_max=1,
        unsigned_silence_max_s=0,
        connections_per_address_max=0,
    ) as server:
        await server.stub.ListAgents(ASK, timeout=WITHIN_S)
        address = server.server.probe_address
        async with idle_connections(address, 40):
            for path in ("/livez", "/readyz"):
                assert await fetch(address, path) == (200, "ok\n")
            assert (await fetch(address, "/metrics"))[0] == 404
            # The store probe does this when writes fail.
            server.server._parts.health.set_ready(is_ready=False)
            assert await fetch(address, "/livez") == (200, "ok\n")
            assert await fetch(address, "/readyz") == (503, "not ready\n")
