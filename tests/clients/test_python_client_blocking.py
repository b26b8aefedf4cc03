"""The blocking client against a channel that the test drives, attempt by attempt."""

from concurrent.futures import ThreadPoolExecutor

import grpc
import grpc_testing
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

import agent_routing
from agent_routing import errors
from agent_routing.v1 import routing_service_pb2

SERVICE = routing_service_pb2.DESCRIPTOR.services_by_name["RoutingService"]
ROUTE = SERVICE.methods_by_name["Route"]
STATUS = SERVICE.methods_by_name["Status"]
QUICK = agent_routing.RetryPolicy(backoff_first_s=0.001)


@pytest.fixture
def driven():
    """A channel whose calls wait for the test to end them."""
    return grpc_testing.channel([SERVICE], grpc_testing.strict_real_time())


@pytest.fixture
def pool():
    """Threads to call from."""
    with ThreadPoolExecutor(8) as pool:
        yield pool


def end(rpc, answer, *, code=grpc.StatusCode.OK, words="", trailing=()):
    """End a call."""
    rpc.send_initial_metadata(())
    rpc.terminate(answer, trailing, code, words)


def details_of(*details):
    """Return trailing metadata with details."""
    status = Status()
    for detail in details:
        status.details.add().Pack(detail)
    return (("grpc-status-details-bin", status.SerializeToString()),)


def test_the_next_attempt_begins_when_the_one_before_has_failed(driven, pool):
    """There are never two attempts of one request at a time."""
    client = agent_routing.Client("driven", channel=driven, retry=QUICK, tenant="acme")
    calling = pool.submit(client.route, "hello", user_id="ana")
    metadata, first, rpc = driven.take_unary_unary(ROUTE)
    assert ("agent-routing-tenant", "acme") in metadata
    assert not calling.done()
    end(rpc, None, code=grpc.StatusCode.UNAVAILABLE)
    _, second, rpc = driven.take_unary_unary(ROUTE)
    assert second == first
    answer = routing_service_pb2.RouteResponse(session_id=second.session_id, revision=4)
    end(rpc, answer, trailing=(("agent-routing-replayed", "true"),))
    result = calling.result(10)
    assert (result.response, result.replayed) == (answer, True)


def test_a_refusal_ends_the_call_with_all_it_says(driven, pool):
    """Also with the test channel's error type, which differs from a real one."""
    client = agent_routing.Client("driven", channel=driven, retry=QUICK)
    calling = pool.submit(client.status, "chat-42")
    _, request, rpc = driven.take_unary_unary(STATUS)
    assert request.session_id == "chat-42"
    end(
        rpc,
        None,
        code=grpc.StatusCode.NOT_FOUND,
        words='session "chat-42" is not known; it begins with its first Route',
        trailing=details_of(
            ErrorInfo(
                reason="UNKNOWN_SESSION",
                domain="agent_routing",
                metadata={"session_id": "chat-42"},
            )
        ),
    )
    with pytest.raises(errors.UnknownSession, match="begins with its first Route") as raised:
        calling.result(10)
    assert raised.value.session_id == "chat-42"


def test_threads_share_one_client(driven, pool):
    """Each call gets its own answer, and its own repeats."""
    client = agent_routing.Client("driven", channel=driven, retry=QUICK)
    names = [f"chat-{number}" for number in range(8)]
    calls = {name: pool.submit(client.status, name) for name in names}
    attempts = dict.fromkeys(names, 0)
    for _ in range(16):
        _, request, rpc = driven.take_unary_unary(STATUS)
        attempts[request.session_id] += 1
        if attempts[request.session_id] == 1:
            end(rpc, None, code=grpc.StatusCode.UNAVAILABLE)
        else:
            end(rpc, routing_service_pb2.StatusResponse(session_id=request.session_id))
    assert {name: call.result(10).session_id for name, call in calls.items()} == {
        name: name for name in names
    }
    assert set(attempts.values()) == {2}


def test_waiting_holds_up_no_other_thread(driven, pool):
    """The backoff of one caller does not delay others."""
    client = agent_routing.Client("driven", channel=driven)
    slow = pool.submit(client.status, "slow")
    _, _, rpc = driven.take_unary_unary(STATUS)
    retry_info = RetryInfo(retry_delay=Duration(seconds=1))
    end(rpc, None, code=grpc.StatusCode.UNAVAILABLE, trailing=details_of(retry_info))
    quick = pool.submit(client.status, "quick")
    _, request, rpc = driven.take_unary_unary(STATUS)
    assert request.session_id == "quick"
    end(rpc, routing_service_pb2.StatusResponse())
    quick.result(10)
    assert not slow.done()
    _, request, rpc = driven.take_unary_unary(STATUS)
    assert request.session_id == "slow"
    end(rpc, routing_service_pb2.StatusResponse())
    slow.result(10)
