import asyncio
from collections import Counter

import grpc
import pytest
import structlog

from agent_routing.v1 import (
    admin_service_pb2,
    item_pb2,
    routing_service_pb2,
    routing_service_pb2_grpc,
)
from routing_service.examples import EXAMPLES
from routing_service.rpc.caller_limits import STREAM_KINDS, StreamKind
from routing_service.server.bounds import Bounds
from routing_service.server.channel_options import METADATA_BYTES_MAX, RECEIVE_BYTES_MAX
from routing_service.server.server import RoutingServer
from routing_service.settings.settings import Settings
from routing_service.storage.memory_store import MemoryStore
from routing_service.storage.store import SessionKey
from tests.rpc.live_service import fresh_id, read_refusal, refusal
from tests.rpc.registries import DESK
from tests.rpc.signed_in import outcome_of, serving_signed_in, signed
from tests.rpc.test_metrics_page import fetch
from tests.torture.in_process import InProcess


class HeldStore(MemoryStore):
    """A store whose appends never end."""

    async def append(self, _append):
        await asyncio.Event().wait()


@pytest.fixture
async def held(request):
    """Run a server that answers no message; the parameter has its settings."""

    async def opener(_url):
        return HeldStore()

    server = await RoutingServer.start(
        Settings(listen="127.0.0.1:0", agents=str(EXAMPLES["tax"].registry_path), **request.param),
        store_opener=opener,
    )
    async with grpc.aio.insecure_channel(server.address) as channel:
        yield routing_service_pb2_grpc.RoutingServiceStub(channel)
    await server.stop(0)


def message(session_id="chat-1", **fields):
    """Return a user's message."""
    return routing_service_pb2.RouteRequest(
        session_id=session_id, user_id="ana", **({"text": "hola"} | fields)
    )


async def test_a_burst_on_one_connection_is_served_whole(server):
    """HTTP/2 says how many calls a connection may have: a plain client lets the others wait."""
    calls = [server.stub.Route(message(f"chat-{n}"), timeout=30) for n in range(400)]
    assert len(await asyncio.gather(*calls)) == 400


async def test_too_many_calls_at_once_are_refused_before_they_cost_anything(start_server):
    """A refusal costs gRPC's core microseconds; a queue would cost every caller its deadline."""
    server = await start_server(pending_requests_max=1, metrics_listen="127.0.0.1:0")
    channels = [
        grpc.aio.insecure_channel(server.server.address, [("grpc.use_local_subchannel_pool", 1)])
        for _ in range(4)
    ]
    stubs = [routing_service_pb2_grpc.RoutingServiceStub(channel) for channel in channels]
    codes = Counter()

    async def call(number):
        try:
            await stubs[number % 4].Route(message(f"chat-{number}"), timeout=20)
        except grpc.aio.AioRpcError as error:
            codes[error.code().name] += 1
        else:
            codes["OK"] += 1

    with structlog.testing.capture_logs() as logs:
        await asyncio.gather(*(call(number) for number in range(300)))
        async with asyncio.timeout(10):
            while not any(line["event"] == "overloaded" for line in logs):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    for channel in channels:
        await channel.close()
    assert codes.keys() <= {"OK", "CANCELLED", "RESOURCE_EXHAUSTED", "UNAVAILABLE"}
    assert codes["OK"] > 0
    assert codes.total() - codes["OK"] > 0
    # The operator sees all of them, in the log and on the metrics page.
    refused = codes.total() - codes["OK"]
    lines = [line for line in logs if line["event"] == "overloaded"]
    assert sum(line["refused_unread"] for line in lines) == refused
    assert {line["log_level"] for line in lines} == {"warning"}
    _, _, page = await fetch(server.server.metrics_address)
    assert f"agent_routing_calls_refused_unread_total {refused}.0" in page
    # Refused calls had no effect, and the server works as before.
    assert len(server.observer.calls) == codes["OK"]
    assert (await server.stub.Route(message("chat-after"), timeout=20)).revision == 1


async def test_a_request_above_the_limit_is_refused_and_one_below_is_not(server):
    """The limit applies to the whole message; single fields have lower limits."""
    data = b"\x00" * (RECEIVE_BYTES_MAX + 1)
    item = item_pb2.Item(content_type="image/png", data=data)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await server.stub.Route(message(items=[item]), timeout=20)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    item = item_pb2.Item(content_type="image/png", data=data[: RECEIVE_BYTES_MAX - 1024])
    error = None
    try:
        await server.stub.Route(message(items=[item]), timeout=20)
    except grpc.aio.AioRpcError as refused:
        # The field's own limit, with the contract's message.
        error = read_refusal(refused)
    assert error is None or error.reason in {"INVALID_FIELD", "TOO_LARGE"}


async def test_an_error_with_many_details_reaches_a_client_with_default_limits(server):
    """HTTP/2 drops a trailer that is too large, and the caller would get another error."""
    bad = [item_pb2.Item(content_type="?" * 200, uri="?" * 200) for _ in range(16)]
    refused = await refusal(
        server.stub.Route(
            routing_service_pb2.RouteRequest(
                session_id="?" * 300,
                user_id="\n" * 300,
                task_id="?" * 300,
                request_id="?" * 300,
                locale="?" * 300,
                channel="?" * 300,
                items=bad,
            ),
            timeout=20,
        )
    )
    assert refused.code == "INVALID_ARGUMENT"
    assert 3000 < refused.details_bytes <= 4096
    assert "session_id" in refused.violations


async def test_metadata_as_large_as_a_sign_in_token_passes_and_not_much_more(server):
    """Tokens with many groups exceed gRPC's default of 8 KiB."""
    ask = routing_service_pb2.ListAgentsRequest(user_id="ana")
    token = (("authorization", "x" * (METADATA_BYTES_MAX - 2048)),)
    # gRPC's default refuses some of those above half the limit at random.
    for _ in range(30):
        assert (await server.stub.ListAgents(ask, metadata=token, timeout=20)).agents
    token = (("authorization", "x" * (METADATA_BYTES_MAX + 2048)),)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await server.stub.ListAgents(ask, metadata=token, timeout=20)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    ("held", "timeout_s"),
    [
        ({"deadline_default_s": 0.2}, None),
        ({"deadline_max_s": 0.2}, None),
        ({"deadline_max_s": 0.2}, 20),
    ],
    indirect=["held"],
)
async def test_no_call_holds_its_session_for_ever(held, timeout_s):
    """A missing or long deadline is replaced by the server's, so that the next call can run."""
    refused = await refusal(held.Route(message(), timeout=timeout_s))
    assert (refused.code, refused.reason) == ("DEADLINE_EXCEEDED", "DEADLINE")
    assert "0.2 s" in refused.message


@pytest.mark.parametrize("held", [{}], indirect=True)
async def test_a_callers_own_deadline_counts_where_it_is_shorter(held):
    """The caller knows how long its user waits."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await held.Route(message(), timeout=0.2)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


class SlowStore(MemoryStore):
    """A store whose appends take a set time."""

    append_s = 0.05

    async def append(self, append):
        await asyncio.sleep(self.append_s)
        await super().append(append)


async def test_a_call_that_cannot_be_done_in_its_time_is_not_begun():
    """The answer would come too late; once calls are fast again, all are accepted again."""
    store = SlowStore()
    server = await InProcess.start(str(EXAMPLES["tax"].registry_path), store)
    path = "/agent_routing.v1.RoutingService/Route"

    async def call(name, remaining_s):
        return await server.send(path, message(name).SerializeToString(), remaining_s=remaining_s)

    for _ in range(3):
        assert (await call("chat", 20)).code == "OK"
    refused = await call("chat-none", 0.01)
    assert refused.code == "DEADLINE_EXCEEDED"
    assert "Route was not started: 0.010 s are left, and it takes about 0.0" in refused.message
    assert refused.details
    assert await store.load(SessionKey("default", "chat-none")) is None
    # Each method has its own estimate.
    ask = routing_service_pb2.StatusRequest(session_id="chat").SerializeToString()
    path_of_status = "/agent_routing.v1.RoutingService/Status"
    assert (await server.send(path_of_status, ask, remaining_s=0.01)).code == "OK"
    store.append_s = 0
    for attempt in range(100):
        if (await call(f"chat-{attempt}", 0.02)).code == "OK":
            break
    else:
        pytest.fail("it refuses for ever")
    await server.stop()


# --- one caller among others ---


async def test_a_caller_who_calls_too_often_is_told_when_to_come_back(start_server):
    """The refusal has its own reason and an exact delay, and a log line names the caller."""
    server = await start_server(caller_calls_per_s=5)
    calls = [server.stub.Route(message(f"chat-{n}"), timeout=20) for n in range(40)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    failed = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    # A burst of two seconds' worth, and the calls allowed during the time it took.
    assert 10 <= len(outcomes) - len(failed) < 40
    refused = read_refusal(failed[-1])
    assert tuple(refused) == ("RESOURCE_EXHAUSTED", "OVERLOADED")
    assert refused.metadata == {"limit": "caller_calls_per_s", "value": "5"}
    assert 0 < refused.retry_after_s <= 0.2
    kept_out = [call for call in server.observer.calls if call.code == "RESOURCE_EXHAUSTED"]
    assert len(kept_out) == len(failed)
    assert {call.peer.rpartition(":")[0] for call in kept_out} == {"ipv4:127.0.0.1"}
    # Reads count too, and a refused call has no effect.
    ask = routing_service_pb2.ListAgentsRequest(user_id="ana")
    codes = Counter()
    for _ in range(20):
        try:
            await server.stub.ListAgents(ask, timeout=20)
        except grpc.aio.AioRpcError as error:
            codes[read_refusal(error).reason] += 1
    assert codes["OVERLOADED"]
    rows, _ = await server.store.list_sessions("default", b"", 100)
    assert len(rows) == len(outcomes) - len(failed)


async def test_whoever_signed_in_has_a_share_of_their_own(tmp_path):
    """Users behind one gateway, or with one name in two tenants, have separate limits."""
    async with serving_signed_in(tmp_path, DESK, caller_calls_per_s=3) as service:
        ask = routing_service_pb2.ListAgentsRequest()
        flooding = signed(service, "route", user="ana")
        codes = Counter()
        for _ in range(30):
            error = await outcome_of(flooding("ListAgents", ask))
            codes[error and read_refusal(error).reason] += 1
        assert codes["OVERLOADED"] > 5
        for claims in ({"user": "ben"}, {"user": "ana", "tenant": "other"}):
            other = signed(service, "route", **claims)
            assert [await outcome_of(other("ListAgents", ask)) for _ in range(3)] == [None] * 3
        refused = [call for call in service.observer.calls if call.code == "RESOURCE_EXHAUSTED"]
        assert {call.actor for call in refused} == {"ana"}


async def test_a_message_of_a_stream_counts_as_a_call(start_server):
    """Messages of a stream count against the limit, and do not end the stream."""
    server = await start_server(caller_calls_per_s=5)
    requests = [
        routing_service_pb2.RouteStreamRequest(route=message(f"chat-{n}", request_id=fresh_id()))
        for n in range(40)
    ]
    answers = [answer async for answer in server.stub.RouteStream(aiter_of(requests), timeout=30)]
    assert len(answers) == 40
    refused = [answer for answer in answers if answer.HasField("error")]
    assert 0 < len(refused) <= 30
    assert {answer.error.code for answer in refused} == {
        grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
    }


async def aiter_of(values):
    """Yield values one by one."""
    for value in values:
        yield value


async def test_streams_of_one_caller_are_bounded(start_server):
    """Each holds memory until its client ends it; one that ends makes room."""
    server = await start_server(caller_streams_max=3)
    await server.stub.Route(message("watched"), timeout=20)
    ask = routing_service_pb2.WatchSessionRequest(session_id="watched", user_id="ana")
    watches = [server.stub.WatchSession(ask, timeout=60) for _ in range(3)]
    for watch in watches:
        await watch.read()
    refused = await refusal(server.stub.WatchSession(ask, timeout=20).read())
    assert tuple(refused) == ("RESOURCE_EXHAUSTED", "OVERLOADED")
    assert refused.metadata == {"limit": "caller_streams_max", "value": "3"}
    assert refused.retry_after_s
    stream = server.stub.RouteStream(aiter_of([]), timeout=20)
    assert (await refusal(stream.read())).metadata["limit"] == "caller_streams_max"
    watches[0].cancel()

    async def watch_again():
        async with asyncio.timeout(30):
            while True:
                watch = server.stub.WatchSession(ask, timeout=60)
                try:
                    return await watch.read()
                except grpc.aio.AioRpcError:
                    await asyncio.sleep(0.01)

    assert (await watch_again()).HasField("heartbeat")
    # Calls that are not streams still work.
    assert (await server.stub.Route(message("watched"), timeout=20)).revision == 2


FEW = {method: StreamKind(kind.limit, kind.text, 8) for method, kind in STREAM_KINDS.items()}
OPENED = [
    ("WatchSession", "route", routing_service_pb2.WatchSessionRequest(session_id="watched")),
    (
        "WatchInbox",
        "agent",
        routing_service_pb2.WatchInboxRequest(agent_ids=["sales"], worker_id="w"),
    ),
    ("WatchApprovals", "approve", routing_service_pb2.WatchApprovalsRequest()),
    ("WatchEvents", "admin", admin_service_pb2.WatchEventsRequest()),
    ("RouteStream", "route", None),
]


async def unending():
    """Yield a message that is answered with an error, and then wait."""
    yield routing_service_pb2.RouteStreamRequest()
    await asyncio.Event().wait()


@pytest.mark.parametrize(("method", "scope", "ask"), OPENED, ids=[row[0] for row in OPENED])
async def test_one_credential_leaves_streams_to_others_and_one_tenant_to_other_tenants(
    tmp_path, method, scope, ask
):
    """An approver's token took the watches of all banks; a runtime those of all workers."""
    settings = {"bounds": Bounds(stream_kinds=FEW), "caller_streams_max": 0}
    async with serving_signed_in(tmp_path, DESK, store="memory:", **settings) as service:
        streams = []

        async def opened(tenant, user):
            """Open a stream that stays open; return its refusal, which comes before a message."""
            caller = signed(service, scope, user=user, tenant=tenant, agents=("*",))
            streams.append(caller(method, unending() if ask is None else ask))
            try:
                await streams[-1].read()
            except grpc.aio.AioRpcError as error:
                return read_refusal(error)
            return None

        for tenant in ("x", "bank"):
            await signed(service, "route", user="ana", tenant=tenant)("Route", message("watched"))
        # A session is watched by its own user alone.
        assert [await opened("x", "ana") for _ in range(2)] == [None, None]
        refused = await opened("x", "ana")
        assert tuple(refused) == ("RESOURCE_EXHAUSTED", "OVERLOADED")
        assert refused.metadata == {"limit": FEW[method].limit, "share": "caller", "value": "2"}
        assert refused.retry_after_s
        if method != "WatchSession":
            assert [await opened("x", f"eve-{n}") for n in range(4)] == [None] * 4
            assert (await opened("x", "mallory")).metadata["share"] == "tenant"
        assert await opened("bank", "ana") is None
        streams[0].cancel()
        async with asyncio.timeout(20):
            while await opened("x", "ana"):
                pass


async def test_connections_are_bounded_and_one_that_ends_makes_room(start_server):
    """Each connection uses a descriptor, and the store needs descriptors too."""
    server = await start_server(connections_max=4)
    await server.stub.Route(message("chat"), timeout=20)  # The fixture's own is the first.
    ask = routing_service_pb2.ListAgentsRequest(user_id="ana")

    def connect():
        options = [("grpc.use_local_subchannel_pool", 1)]
        return grpc.aio.insecure_channel(server.server.address, options)

    channels = [connect() for _ in range(4)]
    codes = Counter()
    for channel in channels:
        try:
            await routing_service_pb2_grpc.RoutingServiceStub(channel).ListAgents(ask, timeout=20)
        except grpc.aio.AioRpcError as error:
            codes[error.code().name] += 1
    assert codes == {"UNAVAILABLE": 1}
    for channel in channels:
        await channel.close()
    async with connect() as channel:
        stub = routing_service_pb2_grpc.RoutingServiceStub(channel)
        answer = await stub.ListAgents(ask, timeout=20, wait_for_ready=True)
    assert answer.agents
