"""Unanswered calls are sent again, as the same request, within one deadline."""

import asyncio
import time
from datetime import timedelta

import grpc
import grpc.aio
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

import agent_routing
from agent_routing import channel, errors, outcomes
from agent_routing.retry import TOKENS_MAX, RetryThrottle
from agent_routing.v1 import routing_service_pb2, routing_service_pb2_grpc

REQUEST_ID = "0198a6c0-6d02-7c3b-8f64-77d0c1a9be05"
ANSWER = routing_service_pb2.RouteResponse(session_id="chat-42", revision=1)


def store_away(service, after_s=None):
    """A step that reports that the store is away, and when to repeat."""
    details = [ErrorInfo(reason="STORE_UNAVAILABLE", domain="agent_routing")]
    if after_s is not None:
        details.append(
            RetryInfo(retry_delay=Duration(seconds=int(after_s), nanos=round(after_s % 1 * 1e9)))
        )
    return service.fails(grpc.StatusCode.UNAVAILABLE, "the store did not answer", *details)


async def test_a_repeat_is_the_same_request(service, connect):
    """The first attempt may have been executed: only the same ids make the repeat harmless."""
    away = service.fails(grpc.StatusCode.UNAVAILABLE, "away")
    service.will("Route", away, store_away(service), away, ANSWER)
    info = agent_routing.CallInfo()
    result = await connect().route("hello", info=info)
    requests = service.requests("Route")
    assert len(requests) == 4
    assert all(request == requests[0] for request in requests)
    assert requests[0].request_id
    assert not requests[0].session_id, "the service makes it from the request_id"
    assert (result.degraded, result.revision, info.attempts) == (False, 1, 4)


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.set_active_agent("chat-42", "billing"),
        lambda client: client.clear_active_agent("chat-42"),
        lambda client: client.complete_turn("chat-42", REQUEST_ID, "a", outcomes.proceed()),
        lambda client: client.resume_task(REQUEST_ID, REQUEST_ID, "APPROVE"),
        lambda client: client.status("chat-42"),
        lambda client: client.list_agents(),
        lambda client: client.list_turns("chat-42"),
        lambda client: client.list_tasks("chat-42"),
    ],
    ids=[
        "set_active_agent",
        "clear_active_agent",
        "complete_turn",
        "resume_task",
        "status",
        "list_agents",
        "list_turns",
        "list_tasks",
    ],
)
async def test_every_call_is_repeated_alike(service, connect, call):
    """All are safe to repeat: reads by nature, the others by their request id."""
    for method in ("SetActiveAgent", "ClearActiveAgent", "CompleteTurn", "ResumeTask", "Status"):
        service.will(method, store_away(service), service.default(method))
    for method in ("ListAgents", "ListTurns", "ListTasks"):
        service.will(method, store_away(service), service.default(method))
    await call(connect())
    first, second = (each.request for each in service.received)
    assert first == second


async def test_the_last_failure_is_raised_after_four_attempts(service, connect):
    """The caller must learn about an outage soon."""
    service.will("Status", store_away(service))
    with pytest.raises(errors.StoreUnavailable, match="the store did not answer") as raised:
        await connect().status("chat-42")
    assert raised.value.attempts == len(service.received) == 4


@pytest.mark.parametrize(
    "code",
    [
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.DATA_LOSS,
    ],
)
async def test_an_answer_is_never_asked_for_again(service, connect, code):
    """The same refusal would come again."""
    service.will("Status", service.fails(code, "no"))
    with pytest.raises(errors.RoutingError):
        await connect().status("chat-42")
    assert len(service.received) == 1


async def test_the_service_says_how_long_to_wait(service, connect):
    """A store that fails over needs its time; an earlier repeat would fail."""
    service.will("Status", store_away(service, after_s=0.3), service.default("Status"))
    began = time.monotonic()
    await connect().status("chat-42")
    assert time.monotonic() - began >= 0.3


async def test_a_wait_that_outlasts_the_deadline_is_not_begun(service, connect):
    """The user would wait for nothing."""
    service.will("Status", store_away(service, after_s=20))
    began = time.monotonic()
    with pytest.raises(errors.StoreUnavailable) as raised:
        await connect().status("chat-42", timeout=15)
    # Neither the wait nor the deadline.
    assert time.monotonic() - began < 10
    assert raised.value.retry_after == timedelta(seconds=20)
    assert len(service.received) == 1


async def test_one_deadline_holds_over_all_attempts(service, connect):
    """The second attempt has what the first one left."""
    service.will("Status", store_away(service, after_s=1), service.hangs())
    began = time.monotonic()
    with pytest.raises(errors.DeadlineExceeded, match="within 2 s, after 2 attempts"):
        await connect().status("chat-42", timeout=timedelta(seconds=2))
    # With a deadline for each attempt it would be 3 s.
    assert 1.9 < time.monotonic() - began < 3
    first, second = (each.remaining_s for each in service.received)
    # On the wire a deadline is rounded up.
    assert 1.1 < first <= 2.1
    assert second < 1.1


async def test_every_call_has_a_deadline(service, connect):
    """Without one, a call on a dead connection would hang for ever."""
    await connect().status("chat-42")
    await connect(timeout=2).status("chat-42")
    await connect(timeout=2).status("chat-42", timeout=30)
    remaining = [each.remaining_s for each in service.received]
    for seconds, limit in zip(remaining, (5, 2, 30), strict=True):
        assert limit - 1 < seconds <= limit + 0.1


async def test_nobody_there_is_told_with_the_target_and_what_to_do(service, connect):
    """The most common mistake: the service does not run, or runs at another address."""
    service.stop()
    target = f"127.0.0.1:{service.port}"
    with pytest.raises(errors.Unavailable) as raised:
        await connect().status("chat-42")
    message = raised.value.message
    assert (
        f'Status: "{target}" cannot be reached, after 4 attempts; is it running there?' in message
    )
    assert raised.value.reason == ""


async def test_a_service_that_restarts_is_found_again(service, connect):
    """The channel reconnects within the attempts of one call."""
    client = connect(retry=agent_routing.RetryPolicy(attempts_max=10, backoff_first_s=0.2))
    await client.status("chat-42")
    service.stop()
    info = agent_routing.CallInfo()
    waiting = asyncio.create_task(client.status("chat-43", timeout=20, info=info))
    async with asyncio.timeout(10):
        while info.attempts < 2:  # noqa: ASYNC110 - a call reports its attempts nowhere else
            await asyncio.sleep(0.01)
    service.start()
    await waiting
    assert service.requests("Status")[-1].session_id == "chat-43"


async def test_a_service_that_restarts_is_found_sooner_than_by_grpc_alone(service, connect):
    """A user is waiting: gRPC's own first pause of a second is longer than many restarts."""
    target = f"127.0.0.1:{service.port}"
    client = connect(retry=agent_routing.RetryPolicy(attempts_max=1))

    async def found(call, error, missed=None):
        """Return when a call is answered again. missed: an event to set when one is not."""
        while True:
            try:
                await call()
            except error:
                if missed is not None:
                    missed.set()
                await asyncio.sleep(0.02)
            else:
                return time.monotonic()

    async with grpc.aio.insecure_channel(target) as bare:
        stub = routing_service_pb2_grpc.RoutingServiceStub(bare)
        request = routing_service_pb2.StatusRequest()
        ways = (
            (lambda: client.status("chat-42"), errors.Unavailable),
            (lambda: stub.Status(request, timeout=5), grpc.RpcError),
        )
        await asyncio.gather(*(found(*way) for way in ways))
        service.stop()
        missed = [asyncio.Event() for _ in ways]
        finding = [
            asyncio.create_task(found(*way, event)) for way, event in zip(ways, missed, strict=True)
        ]
        async with asyncio.timeout(10):
            await asyncio.gather(*(event.wait() for event in missed))
        service.start()
        ours, theirs = await asyncio.gather(*finding)
    assert ours < theirs


async def test_calls_that_an_overloaded_server_refuses_unread_are_repeated(connect):
    """They are refused before Python sees them, arrive as CANCELLED, and never began."""
    busy = asyncio.Semaphore(1)
    handled = 0

    async def slow(_request, _context):
        nonlocal handled
        handled += 1
        async with busy:
            time.sleep(0.02)  # noqa: ASYNC251 - the server is to be slow at taking calls in
        return b""

    class Slow(grpc.GenericRpcHandler):
        def service(self, _details):
            return grpc.unary_unary_rpc_method_handler(slow)

    server = grpc.aio.server(
        options=[
            ("grpc.server.max_pending_requests", 1),
            ("grpc.server.max_pending_requests_hard_limit", 2),
        ]
    )
    server.add_generic_rpc_handlers((Slow(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        bare = await refused_unread(f"127.0.0.1:{port}")
        assert bare > 0, "the server was to refuse some"
        client = connect(
            f"127.0.0.1:{port}",
            retry=agent_routing.RetryPolicy(attempts_max=50, backoff_first_s=0.05),
        )
        handled = 0
        infos = [agent_routing.CallInfo() for _ in range(20)]
        await asyncio.gather(*(client.status("s", info=info, timeout=20) for info in infos))
        assert handled == 20, "each call was carried out once"
        assert sum(info.attempts for info in infos) > 20
        impatient = connect(f"127.0.0.1:{port}", retry=agent_routing.RetryPolicy(attempts_max=1))
        outcomes_ = await asyncio.gather(
            *(impatient.status("s", timeout=20) for _ in range(30)), return_exceptions=True
        )
        refusals = [each for each in outcomes_ if isinstance(each, Exception)]
        assert refusals
        assert {type(each) for each in refusals} == {errors.Overloaded}
        assert "more calls than it can answer" in refusals[0].message
    finally:
        await server.stop(None)


async def refused_unread(target):
    """Return how many of many simultaneous calls a server refuses, with gRPC only."""
    async with grpc.aio.insecure_channel(target) as bare:
        rpc = bare.unary_unary("/any/Thing")
        calls = [rpc(b"", timeout=20) for _ in range(30)]
        ends = [await call.code() for call in calls]
    assert set(ends) <= {grpc.StatusCode.OK, grpc.StatusCode.CANCELLED}
    return ends.count(grpc.StatusCode.CANCELLED)


async def test_repeats_stop_while_most_calls_fail(service, connect):
    """A client must not answer an outage with four times the load."""
    service.will("Status", service.fails(grpc.StatusCode.UNAVAILABLE, "away"))
    client = connect()
    for _ in range(40):
        with pytest.raises(errors.Unavailable):
            await client.status("chat-42")
    # Fifty attempts take the tokens down to half; from there each call is sent once.
    assert len(service.received) < TOKENS_MAX / 2 + 40
    service.will("Status", service.default("Status"))
    for _ in range(200):
        await client.status("chat-42")
    service.received.clear()
    service.will("Status", store_away(service), service.default("Status"))
    await client.status("chat-42")
    assert len(service.received) == 2, "repeats are back"


def test_the_throttle_neither_overflows_nor_runs_into_debt():
    """The change to the other state takes the same number of calls after any duration."""
    throttle = RetryThrottle()
    for _ in range(1_000):
        throttle.succeeded()
    allowed = [throttle.may_retry() for _ in range(1_000)]
    assert sum(allowed) == TOKENS_MAX / 2 - 1
    assert allowed == sorted(allowed, reverse=True)
    for _ in range(110):
        throttle.succeeded()
    assert throttle.may_retry()


@pytest.mark.parametrize(
    "settings",
    [{"attempts_max": 0}, {"backoff_first_s": -1}, {"backoff_first_s": 3, "backoff_max_s": 2}],
)
def test_a_policy_that_cannot_be_is_refused(settings):
    """In the constructor."""
    with pytest.raises(ValueError, match=next(iter(settings))):
        agent_routing.RetryPolicy(**settings)


def test_waits_double_up_to_their_bound_and_are_spread_evenly():
    """Callers that failed together must not repeat at the same time."""
    policy = agent_routing.RetryPolicy(attempts_max=9, backoff_first_s=0.2, backoff_max_s=1)
    error = errors.Unavailable("away", code=grpc.StatusCode.UNAVAILABLE)
    for attempts, ceiling_s in [(1, 0.2), (2, 0.4), (3, 0.8), (4, 1), (8, 1)]:
        waits = [policy.wait_s(error, attempts=attempts, remaining_s=60) for _ in range(500)]
        assert max(waits) <= ceiling_s
        assert max(waits) > 0.9 * ceiling_s
        assert min(waits) < 0.1 * ceiling_s
        assert 0.4 * ceiling_s < sum(waits) / len(waits) < 0.6 * ceiling_s
    assert policy.wait_s(error, attempts=9, remaining_s=60) is None


async def test_closing_the_client_ends_calls_with_a_word(service, connect):
    """Not as an overload that would be repeated, and not as a cancelled task."""
    service.will("Status", service.hangs())
    client = connect()
    waiting = asyncio.create_task(client.status("chat-42", timeout=20))
    await asyncio.to_thread(service.arrived.wait, 10)
    await client.close()
    with pytest.raises(RuntimeError, match="is closed"):
        await waiting


async def test_a_cancelled_call_is_cancelled_and_not_repeated(service):
    """The caller cancelled, so the service must learn it too."""
    service.will("Status", service.hangs())
    async with agent_routing.AsyncClient(f"127.0.0.1:{service.port}") as client:
        waiting = asyncio.create_task(client.status("chat-42"))
        await asyncio.to_thread(service.arrived.wait, 10)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert len(service.received) == 1


@pytest.mark.parametrize(
    ("target", "replicated"),
    [
        ("127.0.0.1:50051", False),
        ("routing.example.com:443", False),
        ("dns:///routing:50051", True),
        ("dns:routing:50051", True),
        ("ipv4:10.0.0.1:50051,10.0.0.2:50051", True),
        ("ipv4:10.0.0.1:50051", False),
        ("ipv6:[::1]:50051,[::1]:50052", True),
        ("unix:/run/routing.sock", False),
    ],
)
def test_calls_are_spread_where_a_target_names_replicas(target, replicated):
    """With one replica there is nothing to balance, and no other one while it is not ready."""
    assert channel.is_replicated(target) is replicated
    assert ("grpc.service_config" in dict(channel.channel_options(target, ()))) is replicated


class Replica:
    """A replica with its health."""

    async def start(self):
        """Listen on a free port."""
        self.calls = 0
        self.health = health.aio.HealthServicer()
        self.server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self.server)
        replica = self

        class Count(grpc.GenericRpcHandler):
            def service(self, _details):
                async def count(_request, _context):
                    replica.calls += 1
                    return b""

                return grpc.unary_unary_rpc_method_handler(count)

        self.server.add_generic_rpc_handlers((Count(),))
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        await self.is_ready(yes=True)
        await self.server.start()
        return self

    async def is_ready(self, *, yes):
        """Report readiness."""
        status = health_pb2.HealthCheckResponse
        await self.health.set(channel.HEALTH_SERVICE, status.SERVING if yes else status.NOT_SERVING)


async def test_calls_go_to_the_replicas_that_are_ready(connect):
    """A replica that drains, lost its store or died gets no calls."""
    replicas = [await Replica().start() for _ in range(3)]

    async def spread(client):
        for replica in replicas:
            replica.calls = 0
        for _ in range(30):
            await client.status("chat-42")
        return [replica.calls for replica in replicas]

    async def settles(client, *serving):
        """Wait until exactly these replicas serve, each with its share."""
        for _ in range(100):
            calls = await spread(client)
            # Rebuilding its list, gRPC begins anywhere in it: shares differ by a few then.
            if all((count >= 5) is (index in serving) for index, count in enumerate(calls)):
                assert sum(calls) == 30
                return
        pytest.fail(f"calls went to {calls}, not to {serving}")

    try:
        client = connect("ipv4:" + ",".join(f"127.0.0.1:{each.port}" for each in replicas))
        await settles(client, 0, 1, 2)
        await replicas[0].is_ready(yes=False)
        await settles(client, 1, 2)
        await replicas[1].server.stop(None)
        await settles(client, 2)
        await replicas[0].is_ready(yes=True)
        await settles(client, 0, 2)
    finally:
        for replica in replicas:
            await replica.server.stop(None)
