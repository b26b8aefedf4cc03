"""read_reason: who reads the texts of a conversation needs a right and leaves a record."""

from __future__ import annotations

import pytest

from agent_routing.v1 import admin_service_pb2 as pb
from agent_routing.v1 import admin_service_pb2_grpc
from agent_routing.v1 import routing_service_pb2 as rpb
from routing_service.sessions.text_reads import SAME_READ_US
from tests.rpc.live_service import SECOND_US, Clock, refusal
from tests.rpc.registries import DESK
from tests.rpc.signed_in import bearer, serving_signed_in, token

WHY = "ticket 7: the user says the bot is stuck"


@pytest.fixture
async def service(tmp_path):
    """A server with one conversation of ana."""
    async with serving_signed_in(tmp_path, DESK, clock=Clock()) as running:
        await running.stub.Route(
            rpb.RouteRequest(session_id="s", text="my secret"),
            metadata=bearer(token("route", user="ana")),
            timeout=20,
        )
        yield running


def turns(service, *scopes, subject="sam", why=WHY):
    """Read the turns for a reason."""
    request = rpb.ListTurnsRequest(session_id="s", read_reason=why)
    metadata = bearer(token(*scopes, subject=subject))
    return service.stub.ListTurns(request, metadata=metadata, timeout=20)


def events(service, *scopes, **fields):
    """Read the audit."""
    stub = admin_service_pb2_grpc.AdminServiceStub(service.channel)
    request = pb.ListEventsRequest(**fields)
    return stub.ListEvents(request, metadata=bearer(token(*scopes, subject="sam")), timeout=20)


async def acts(service):
    """Return what the audit has of reads: actor, method, target and reason."""
    page = await events(service, "admin", kinds=["operator_act"])
    return [
        (
            record.actor,
            record.event.operator_act.method,
            record.event.operator_act.target,
            record.event.operator_act.reason,
        )
        for record in page.records
    ]


async def test_a_read_for_a_reason_needs_the_scope(service):
    """Without it nothing is returned, and nothing is recorded."""
    refused = await refusal(turns(service, "admin"))
    assert (refused.code, refused.reason) == ("PERMISSION_DENIED", "SCOPE_MISSING")
    assert refused.metadata["scope"] == "read_words"
    refused = await refusal(events(service, "admin", session_id="s", read_reason=WHY))
    assert refused.reason == "SCOPE_MISSING"
    assert await acts(service) == []


async def test_a_blank_reason_is_none(service):
    """The audit would say that somebody read, and not why."""
    both = ("admin", "read_words")
    for blank in (" ", "\t\n", "\u3000"):
        refused = await refusal(turns(service, *both, why=blank))
        assert (refused.reason, refused.metadata["field"]) == ("INVALID_FIELD", "read_reason")
        refused = await refusal(events(service, *both, session_id="s", read_reason=blank))
        assert (refused.reason, refused.metadata["field"]) == ("INVALID_FIELD", "read_reason")
    assert await acts(service) == []


async def test_a_read_for_a_reason_is_recorded_once_in_five_minutes(service):
    """With its operator, session and reason; another operator and another reason have their own."""
    both = ("admin", "read_words")
    read = await turns(service, *both)
    assert read.turns[0].user_text == "my secret"
    await turns(service, *both)
    await events(service, *both, session_id="s", read_reason=WHY)
    texts = 'texts of session "s"'
    listed = [
        ("sam", "ListTurns", texts, WHY),
        ("sam", "ListEvents", texts, WHY),
    ]
    assert await acts(service) == listed
    await turns(service, *both, subject="tia")
    await turns(service, *both, why="another ticket")
    listed += [("tia", "ListTurns", texts, WHY), ("sam", "ListTurns", texts, "another ticket")]
    assert await acts(service) == listed
    service.clock.advance(SAME_READ_US / SECOND_US)
    await turns(service, *both)
    assert await acts(service) == [*listed, listed[0]]


async def test_a_read_without_a_reason_is_as_it_was(service):
    """Over gRPC an operator reads as before, and nothing is recorded."""
    read = await turns(service, "admin", why="")
    assert read.turns[0].user_text == "my secret"
    assert await acts(service) == []


async def test_a_read_of_a_session_that_is_refused_leaves_no_record(service):
    """The scope read_words alone opens no session."""
    refused = await refusal(turns(service, "read_words"))
    assert refused.reason == "SCOPE_MISSING"
    missing = rpb.ListTurnsRequest(session_id="nobody", read_reason=WHY)
    metadata = bearer(token("admin", "read_words", subject="sam"))
    refused = await refusal(service.stub.ListTurns(missing, metadata=metadata, timeout=20))
    assert refused.reason == "UNKNOWN_SESSION"
    assert await acts(service) == []
