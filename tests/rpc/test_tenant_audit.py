"""The audit over all sessions of a tenant, on a real server."""

import pytest
from google.protobuf import timestamp_pb2

from agent_routing.v1 import admin_service_pb2 as pb
from agent_routing.v1 import admin_service_pb2_grpc
from routing_service.server.bounds import Bounds
from tests.rpc.live_service import hand_to, refusal, serving
from tests.rpc.registries import DESK


@pytest.fixture
async def service(tmp_path):
    """A help desk whose agents differ in one thing each."""
    async with serving(tmp_path, DESK) as running:
        yield running


async def pages(service, page_size=0, **filters):
    """Read all pages; return each with its records."""
    stub = admin_service_pb2_grpc.AdminServiceStub(service.channel)
    found, token = [], ""
    while True:
        request = pb.ListEventsRequest(page_size=page_size, page_token=token, **filters)
        page = await stub.ListEvents(request, timeout=30)
        found.append(list(page.records))
        token = page.next_page_token
        if not token:
            return found


async def listed(service, page_size=0, **filters):
    """Read all records, as (session, revision, kind)."""
    return [
        (record.event.session_id, record.event.revision, record.event.WhichOneof("kind"))
        for page in await pages(service, page_size, **filters)
        for record in page
    ]


async def three_sessions(service):
    """Hold two conversations with handoffs, one of them refused, and one of another user."""
    for name in ("all-1", "all-2"):
        chat = service.chat(name)
        routed = await chat.say("hello")
        service.clock.advance(1)
        await refusal(chat.answer(routed.dispatch, **hand_to("premium")))
        service.clock.advance(1)
        await chat.answer(routed.dispatch, **hand_to("sales"))
        service.clock.advance(1)
    await service.chat("all-3", user_id="ben").say("hello")
    await service.chat("all-1", tenant="acme").say("not mine")


ONE = [
    (1, "session_started"),
    (1, "task_created"),
    (1, "message_routed"),
    (1, "handoff_refused"),
    (2, "turn_completed"),
    (2, "agent_handoff"),
]
EVERYTHING = [
    *(("all-1", *each) for each in ONE),
    *(("all-2", *each) for each in ONE),
    *(("all-3", *each) for each in ONE[:3]),
]


@pytest.mark.parametrize("page_size", [1, 4, 6, 10])
async def test_page_is_as_large_as_asked_but_for_what_one_change_did(service, page_size):
    """A change of three events is not split, nor is a refusal next to it."""
    await three_sessions(service)
    found = await pages(service, page_size)
    assert max(map(len, found)) <= max(page_size, 4)
    assert len(found) > 1


@pytest.mark.parametrize("page_size", [0, 1, 2, 3, 7])
async def test_pages_of_any_size_have_everything_once_and_in_order(service, page_size):
    """Refused handoffs come where they happened, between changes."""
    await three_sessions(service)
    assert await listed(service, page_size) == EVERYTHING
    assert await listed(service, page_size, order=pb.EVENT_ORDER_OLDEST_FIRST) == EVERYTHING


async def test_filters_must_all_hold(service):
    """Filters by owner, agent, kind, request and time."""
    await three_sessions(service)
    assert await listed(service, owner="ben") == EVERYTHING[-3:]
    assert await listed(service, owner="nobody") == []
    handoffs = await listed(service, kinds=["agent_handoff"], agent_id="sales")
    assert handoffs == [("all-1", 2, "agent_handoff"), ("all-2", 2, "agent_handoff")]
    assert await listed(service, agent_id="premium") == [
        ("all-1", 1, "handoff_refused"),
        ("all-2", 1, "handoff_refused"),
    ]
    later = timestamp_pb2.Timestamp()
    later.FromMicroseconds(service.clock.now_us)
    assert await listed(service, event_time_from=later) == EVERYTHING[-3:]
    assert await listed(service, event_time_before=later) == EVERYTHING[:-3]
    acme = await listed(service, tenant="acme")
    assert acme == [("all-1", *each) for each in ONE[:3]]


async def test_page_is_bounded_work_and_goes_on(tmp_path):
    """A filter that matches nothing gives short pages; no call reads the whole store."""
    bounds = Bounds(audit_scanned_max=2, audit_read_max=1)
    async with serving(tmp_path, DESK, bounds=bounds) as service:
        await three_sessions(service)
        found = await pages(service, kinds=["task_failed"])
        assert len(found) >= 3
        assert not any(found)
        assert await listed(service) == EVERYTHING
