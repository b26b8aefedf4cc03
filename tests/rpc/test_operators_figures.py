"""What the console's pages read: the server's status, the audit's proof, a handoff's sessions."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
from google.protobuf import timestamp_pb2

from agent_routing.v1 import admin_service_pb2 as pb
from agent_routing.v1 import admin_service_pb2_grpc
from routing_service.analytics import time_index
from routing_service.server.parts import Counts
from tests.rpc.live_service import ask, hand_to, refusal, serving
from tests.rpc.registries import DESK

HOUR_S = 3600


@pytest.fixture
async def service(tmp_path):
    """A server that counts its calls."""
    async with serving(tmp_path, DESK, counts=Counts()) as running:
        yield running


def admin(service):
    """Return the stub of AdminService."""
    return admin_service_pb2_grpc.AdminServiceStub(service.channel)


def moment(time_us):
    """Return a time of the server's clock as a message."""
    made = timestamp_pb2.Timestamp()
    made.FromMicroseconds(time_us)
    return made


async def events(service, **fields):
    """List events without a session, over all pages; return their sessions and the calls made."""
    found, pages, token = [], 0, ""
    while token or not pages:
        page = await admin(service).ListEvents(pb.ListEventsRequest(**fields, page_token=token))
        found += [(each.event.session_id, each.event.WhichOneof("kind")) for each in page.records]
        pages, token = pages + 1, page.next_page_token
    return found, pages


async def test_a_server_says_how_it_is_doing(service):
    """Engine, registry, readiness and its calls with their durations; refused ones are counted."""
    before = await admin(service).GetServerStatus(pb.GetServerStatusRequest())
    chat = await service.chat().with_agent("sales", **ask())
    await refusal(chat.set_active("nobody"))
    after = await admin(service).GetServerStatus(pb.GetServerStatusRequest())
    assert (after.store_engine, after.ready, after.agents) == ("sqlite", True, before.agents)
    assert after.registry_version == (await chat.status()).registry_version
    assert after.start_time == before.start_time
    assert after.server == before.server
    rows = {row.method: row for row in after.calls}
    assert sum(rows["Route"].counts) == 1
    assert (sum(rows["SetActiveAgent"].counts), rows["SetActiveAgent"].failed) == (1, 1)
    assert {len(row.counts) for row in after.calls} == {len(after.duration_bounds) + 1}


async def test_the_audit_is_proved_on_request(service, tmp_path):
    """Whole at first; a change that was altered in the store is named."""
    chat = await service.chat("chat-a").with_agent("sales", **ask())
    await service.chat("chat-b").say("hello")
    whole = await admin(service).VerifyAudit(pb.VerifyAuditRequest())
    assert (whole.sessions, whole.changes) == (2, (await chat.status()).revision + 1)
    assert list(whole.problems) == []
    with closing(sqlite3.connect(tmp_path / "routing.db")) as connection, connection:
        connection.execute("UPDATE changes SET time_us = time_us + 1 WHERE position = 1")
    broken = await admin(service).VerifyAudit(pb.VerifyAuditRequest())
    assert "chat-a" in broken.problems[0]
    error = await refusal(admin(service).VerifyAudit(pb.VerifyAuditRequest(tenant="*")))
    assert error.violations == {"tenant": 'is "*"; name one tenant'}


async def test_events_from_a_time_on_do_not_read_the_log_before(service):
    """The place of each hour is noted as it is counted, also for hours without a change."""
    for hour in range(3):
        for _ in range(4):
            await service.chat(f"chat-{hour}").say("hello")
        await admin(service).GetRoutingStats(pb.GetRoutingStatsRequest())
        service.clock.advance(2 * HOUR_S)
    late_us = service.clock.now_us - 2 * HOUR_S * 1_000_000
    place = await time_index.log_place_before(service.store, late_us)
    page, _ = await service.store.read_log(place, 100)
    assert [key.session_id for key, _ in page] == ["chat-1"] * 4 + ["chat-2"] * 4
    found, _ = await events(service, event_time_from=moment(late_us), kinds=["message_routed"])
    assert found == [("chat-2", "message_routed")] * 4
    early = await time_index.log_place_before(service.store, late_us - 100 * HOUR_S * 1_000_000)
    assert len((await service.store.read_log(early, 100))[0]) == 12


async def test_handoffs_between_two_agents_are_found(service):
    """Carried out and refused, by source and target."""
    refused = await service.chat("chat-no").with_agent("sales", **ask())
    routed = await refused.say("and more?")
    await refusal(refused.answer(routed.dispatch, **hand_to("disabled")))
    chat = await service.chat("chat-there").with_agent("sales", **ask())
    routed = await chat.say("and my order?")
    await chat.answer(routed.dispatch, **hand_to("support"))
    found, _ = await events(service, from_agent_id="sales", to_agent_id="support")
    assert found == [("chat-there", "agent_handoff")]
    found, _ = await events(service, to_agent_id="sales", kinds=["agent_handoff"])
    assert found == [("chat-no", "agent_handoff"), ("chat-there", "agent_handoff")]
    found, _ = await events(service, from_agent_id="sales", to_agent_id="disabled")
    assert found == [("chat-no", "handoff_refused")]
    assert (await events(service, from_agent_id="support"))[0] == []


async def test_registries_are_named_with_the_messages_they_decided(service):
    """So that two versions can be compared by the periods in which they decided."""
    chat = service.chat()
    await chat.say("hello")
    stats = await admin(service).GetRoutingStats(pb.GetRoutingStatsRequest())
    [row] = stats.registry_versions
    assert row.registry_version == (await chat.status()).registry_version
    assert row.user_messages == 1
    assert row.end_time.seconds - row.start_time.seconds == HOUR_S
