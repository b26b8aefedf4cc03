"""RouteStream: many messages on one stream, each with its own answer."""

import asyncio

import pytest
from google.rpc import error_details_pb2

from agent_routing.v1 import routing_service_pb2 as pb
from routing_service.ids import new_uuid7
from tests.rpc.live_service import refusal, serving, went

WAIT_S = 20


@pytest.fixture
async def service(tmp_path):
    """The tax example over SQLite."""
    async with serving(tmp_path, "tax") as running:
        yield running


def message(session_id, text="hello", **fields):
    """Return a message of a stream."""
    given = {"session_id": session_id, "user_id": "ana", "text": text, "request_id": new_uuid7()}
    return pb.RouteStreamRequest(route=pb.RouteRequest(**(given | fields)))


def reason_of(status):
    """Return the reason in an answer's error."""
    info = error_details_pb2.ErrorInfo()
    status.details[0].Unpack(info)
    return info.reason


async def answers(service, requests):
    """Send messages on one stream and read every answer."""

    async def send():
        for request in requests:
            yield request

    call = service.stub.RouteStream(send())
    return [answer async for answer in call]


async def test_stream_answers_every_message_under_its_own_id(service):
    """Many sessions on one stream, each message once."""
    requests = [message(f"stream-{place % 20}") for place in range(200)]
    found = await asyncio.wait_for(answers(service, requests), WAIT_S)
    assert sorted(a.request_id for a in found) == sorted(r.route.request_id for r in requests)
    assert all(a.WhichOneof("result") == "route" for a in found)
    assert all(went(a.route.dispatch) == ("coordinator", "NO_ACTIVE_AGENT") for a in found)
    assert all(a.route.session_id == a.session_id for a in found)


async def test_stream_keeps_the_order_of_a_session(service):
    """Revisions and answers come in the order in which the messages were sent."""
    requests = [message("stream-order", text=f"message {place}") for place in range(100)]
    found = await asyncio.wait_for(answers(service, requests), WAIT_S)
    assert [a.request_id for a in found] == [r.route.request_id for r in requests]
    assert [a.route.revision for a in found] == list(range(1, 101))
    assert [a.route.dispatch.text for a in found] == [f"message {place}" for place in range(100)]


async def test_client_that_takes_more_gets_every_answer_once(service):
    """Several in a message, errors among them; each session's still in order."""
    together = 0
    for attempt in range(20):
        requests = [message(f"more-{attempt}-{place % 32}", text=f"{place}") for place in range(96)]
        requests.append(message("more\tbad"))
        requests[0].takes_more = True
        found = await asyncio.wait_for(answers(service, requests), WAIT_S)
        flat = [each for answer in found for each in (answer, *answer.more)]
        assert sorted(a.request_id for a in flat) == sorted(r.route.request_id for r in requests)
        assert not any(each.more for answer in found for each in answer.more)
        [bad] = [each for each in flat if each.WhichOneof("result") == "error"]
        assert reason_of(bad.error) == "INVALID_FIELD"
        for session in range(32):
            name = f"more-{attempt}-{session}"
            said = [a.route.dispatch.text for a in flat if a.session_id == name]
            assert said == [str(place) for place in range(session, 96, 32)]
        together += len(flat) - len(found)
        if together:
            return
    pytest.fail("of 20 times 97 messages no two were answered together")


async def test_bad_message_gets_its_own_error_and_the_stream_goes_on(service):
    """With the same status and details as from Route."""
    requests = [
        message("stream-bad"),
        message("stream\tbad"),
        message("stream-bad", request_id=""),
        message("stream-bad", user_id="ben"),
        message("stream-bad", text="and on"),
    ]
    found = await asyncio.wait_for(answers(service, requests), WAIT_S)
    by_id = {a.request_id: a for a in found}
    assert len(found) == len(requests)
    reasons = {
        request_id: reason_of(answer.error)
        for request_id, answer in by_id.items()
        if answer.HasField("error")
    }
    assert reasons == {
        requests[1].route.request_id: "INVALID_FIELD",
        "": "INVALID_FIELD",
        requests[3].route.request_id: "OWNER_MISMATCH",
    }
    assert by_id[requests[4].route.request_id].route.dispatch.text == "and on"


async def test_repeat_on_a_stream_gets_the_first_answer(service):
    """The first call may come by a stream or by Route."""
    first = message("stream-repeat")
    routed = await service.stub.Route(first.route)
    (again,) = await asyncio.wait_for(answers(service, [first]), WAIT_S)
    assert again.route == routed


async def test_bytes_that_are_no_message_are_answered(service):
    """A faulty client must not affect the gateway's other users."""

    async def send():
        yield b"\xff\xff\xff"
        yield message("stream-bytes").SerializeToString()

    call = service.channel.stream_stream("/agent_routing.v1.RoutingService/RouteStream")(send())
    found = [pb.RouteStreamResponse.FromString(data) async for data in call]
    reasons = [reason_of(a.error) for a in found if a.HasField("error")]
    assert reasons == ["MALFORMED_REQUEST"]
    assert sum(a.HasField("route") for a in found) == 1


async def test_stream_that_is_dropped_leaves_the_server_well(service):
    """The caller cancels in the middle; others are served."""

    async def send():
        for place in range(1_000):
            yield message(f"stream-drop-{place}")
        await asyncio.sleep(WAIT_S)

    call = service.stub.RouteStream(send())
    await call.read()
    call.cancel()
    routed = await service.stub.Route(message("stream-after").route)
    assert routed.revision == 1


async def test_messages_that_name_a_task_alone_are_answered_in_order(service):
    """They go to the task's session, whose id the caller does not have to know."""
    first = message("stream-task")
    (begun,) = await asyncio.wait_for(answers(service, [first]), WAIT_S)
    task_id = begun.route.task_id
    requests = [message("", text=f"m{n}", task_id=task_id) for n in range(30)]
    found = await asyncio.wait_for(answers(service, requests), WAIT_S)
    assert [a.request_id for a in found] == [r.route.request_id for r in requests]
    assert [a.route.revision for a in found] == list(range(2, 32))
    assert {a.session_id for a in found} == {"stream-task"}


async def test_caller_who_reads_slowly_gets_every_answer_and_holds_up_nobody(service):
    """The answers exceed every buffer; others are served, and all answers arrive in the end."""
    count, text = 600, "x" * 8_000

    async def send():
        for place in range(count):
            yield message(f"stream-slow-{place % 3}", text=text, history_turns=-1)

    call = service.stub.RouteStream(send())
    await call.read()
    # The stream is not read meanwhile.
    for place in range(20):
        routed = await asyncio.wait_for(
            service.stub.Route(message(f"stream-beside-{place}").route), WAIT_S
        )
        assert routed.revision == 1
    found = [await asyncio.wait_for(call.read(), WAIT_S) for _ in range(count - 1)]
    assert all(a.route.dispatch.text == text for a in found)
    revisions = {}
    for answer in found:
        assert answer.route.revision > revisions.get(answer.session_id, 0)
        revisions[answer.session_id] = answer.route.revision
    assert set(revisions.values()) == {count // 3}


async def test_stream_ends_when_the_server_drains(service):
    """Accepted messages are answered; the status says where to repeat the rest."""
    taken = asyncio.Event()

    async def send():
        for place in range(20):
            yield message(f"stream-drain-{place}")
        taken.set()
        await asyncio.sleep(WAIT_S * 2)

    call = service.stub.RouteStream(send())
    found = [await asyncio.wait_for(call.read(), WAIT_S) for _ in range(20)]
    assert all(a.HasField("route") for a in found)
    await asyncio.wait_for(taken.wait(), WAIT_S)
    stopping = asyncio.create_task(service.server.stop(WAIT_S))
    refused = await refusal(asyncio.wait_for(call.read(), WAIT_S))
    assert (refused.code, refused.reason) == ("UNAVAILABLE", "SHUTTING_DOWN")
    assert refused.retry_after_s is not None
    await asyncio.wait_for(stopping, WAIT_S)
