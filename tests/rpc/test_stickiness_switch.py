"""The kill switch: what it says of itself, and stickiness that is off for some alone."""

import pytest
from structlog.testing import capture_logs

from agent_routing.v1 import admin_service_pb2 as pb
from agent_routing.v1 import admin_service_pb2_grpc
from routing_service.server.bounds import Bounds
from routing_service.sessions.stickiness_switch import user_share
from tests.rpc.live_service import START_US, hand_to, refusal, serving, went
from tests.rpc.registries import DESK


@pytest.fixture
async def service(tmp_path):
    """A help desk whose agents differ in one thing each."""
    async with serving(tmp_path, DESK) as running:
        yield running


def admin(service):
    """Return the operators' stub."""
    return admin_service_pb2_grpc.AdminServiceStub(service.channel)


def off(**fields):
    """Ask for it to be off."""
    return pb.SetStickinessRequest(enabled=False, **fields)


async def state(service, tenant=""):
    """Ask how it stands."""
    return await admin(service).GetStickiness(pb.GetStickinessRequest(tenant=tenant))


async def test_switch_says_since_when_and_why(service):
    """Before: the registry. After: the switch, and what it overrules."""
    before = await state(service)
    assert (before.enabled, before.source) == (True, pb.STICKINESS_SOURCE_REGISTRY)
    assert not before.HasField("switch_time")
    await admin(service).SetStickiness(off(reason="answers nonsense"))
    now = await state(service)
    assert (now.enabled, now.start_enabled) == (False, True)
    assert (now.source, now.reason) == (pb.STICKINESS_SOURCE_TENANT, "answers nonsense")
    assert now.switch_time.ToMicroseconds() == START_US
    assert now.actor == ""  # Nobody signs in here.
    service.clock.advance(1)
    await admin(service).SetStickiness(off(tenant="*", reason="all"))
    assert (await state(service)).source == pb.STICKINESS_SOURCE_ALL_TENANTS
    assert (await state(service, "acme")).source == pb.STICKINESS_SOURCE_ALL_TENANTS


async def test_each_switch_is_in_the_audit(service):
    """With its reason; a repeat that changes nothing leaves no record."""
    await admin(service).SetStickiness(off(reason="incident 7", agent_ids=["Sales Team"]))
    await admin(service).SetStickiness(off(reason="again", agent_ids=["sales"]))
    service.clock.advance(1)
    await admin(service).SetStickiness(pb.SetStickinessRequest(tenant="*", enabled=True))
    await service.chat().say("hello")
    request = pb.ListEventsRequest(kinds=["stickiness_switched"])
    page = await admin(service).ListEvents(request)
    first, second = (record.event.stickiness_switched for record in page.records)
    assert (first.enabled, first.previously_enabled) == (False, True)
    assert (first.reason, list(first.agent_ids)) == ("incident 7", ["sales"])
    assert (second.enabled, second.all_tenants) == (True, True)
    assert (await state(service)).enabled
    assert {record.method for record in page.records} == {
        "/agent_routing.v1.AdminService/SetStickiness"
    }
    assert [record.event.session_id for record in page.records] == ["", ""]


async def test_off_for_one_agent_leaves_the_others(service):
    """Its conversations go home, and come back to it when it is on again."""
    sales = await service.chat().with_agent("sales")
    support = await service.chat().with_agent("support")
    await admin(service).SetStickiness(off(agent_ids=["sales"]))
    assert went((await sales.say("hello")).dispatch) == ("front", "STICKINESS_DISABLED")
    assert (await sales.status()).next_agent.agent_id == "front"
    assert went((await support.say("hello")).dispatch) == ("support", "STICKY")
    assert (await support.status()).next_agent.agent_id == "support"
    assert list((await state(service)).agent_ids) == ["sales"]
    await admin(service).SetStickiness(pb.SetStickinessRequest(enabled=True))
    assert went((await sales.say("hello")).dispatch) == ("sales", "STICKY")


async def test_off_for_a_share_of_the_users(service):
    """A user is in the share or not, in every session."""
    await admin(service).SetStickiness(off(users_percent=30))
    found = {}
    for number in range(12):
        user_id = f"user-{number}"
        chat = await service.chat(user_id=user_id).with_agent("sales")
        found[user_id] = (await chat.say("hello")).dispatch.agent.agent_id
    assert set(found.values()) == {"front", "sales"}
    assert {user for user, agent in found.items() if agent == "front"} == {
        user for user in found if user_share(user) < 30
    }


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"enabled": True, "agent_ids": ["sales"]}, "agent_ids"),
        ({"enabled": True, "users_percent": 5}, "users_percent"),
        ({"enabled": False, "users_percent": 100}, "users_percent"),
        ({"enabled": False, "agent_ids": ["moon"]}, "agent_ids"),
        ({"enabled": False, "agent_ids": ["front"]}, "agent_ids"),
    ],
)
async def test_switch_for_some_alone_is_checked(service, fields, field):
    """On is on for all; the home agent gets the messages itself."""
    refused = await refusal(admin(service).SetStickiness(pb.SetStickinessRequest(**fields)))
    assert list(refused.violations) == [field]


async def test_stored_switch_overrules_the_setting_loudly(tmp_path):
    """A server whose setting is on logs at its start that the stored switch is off, and why."""
    async with serving(tmp_path, DESK) as service:
        await admin(service).SetStickiness(off(reason="incident 7"))
    with capture_logs() as lines:
        async with serving(tmp_path, DESK, stickiness="enabled") as service:
            now = await state(service)
    (started,) = [line for line in lines if line["event"] == "server_started"]
    assert (started["stickiness_enabled"], started["stickiness_source"]) == (False, "tenant")
    (said,) = [line for line in lines if line["event"] == "stickiness_overruled_by_switch"]
    assert (said["log_level"], said["reason"], said["setting"]) == (
        "warning",
        "incident 7",
        "enabled",
    )
    assert (now.enabled, now.start_enabled) == (False, True)


async def test_setting_is_named_where_nobody_has_switched(tmp_path):
    """It comes before the registry file."""
    async with serving(tmp_path, DESK, stickiness="disabled") as service:
        now = await state(service)
        assert (now.enabled, now.source) == (False, pb.STICKINESS_SOURCE_SETTING)


async def test_figures_follow_the_switch(tmp_path):
    """Also for a process that gets no calls."""
    async with serving(tmp_path, DESK, bounds=Bounds(stickiness_gauge_s=0.05)) as service:
        parts = service.server._parts
        assert parts.switch.enabled_for_all
        await admin(service).SetStickiness(off(agent_ids=["sales"]))
        await service.chat().say("hello")
        assert not parts.switch.enabled_for_all
        assert parts.switch.tenants_off == 1


async def test_agent_that_is_off_does_not_take_over_by_its_answer(service):
    """A turn that it gets by a handoff is answered; the next message is the supervisor's."""
    await admin(service).SetStickiness(off(agent_ids=["sales"]))
    chat = service.chat()
    routed = await chat.say("I need sales")
    handed = await chat.answer(routed.dispatch, **hand_to("sales"))
    assert went(handed.next) == ("sales", "SUPERVISOR_HANDOFF")
    await chat.answer(handed.next, "Here I am.")
    assert went((await chat.say("hello")).dispatch) == ("front", "STICKINESS_DISABLED")


async def test_fresh_start_clears_what_went_stale(service):
    """A session that went on without its agent begins at home; an idle one keeps its agent."""
    used = await service.chat().with_agent("sales")
    idle = await service.chat().with_agent("sales")
    service.clock.advance(1)
    await admin(service).SetStickiness(off())
    service.clock.advance(1)
    assert went((await used.say("hello")).dispatch) == ("front", "STICKINESS_DISABLED")
    service.clock.advance(1)
    await admin(service).SetStickiness(pb.SetStickinessRequest(enabled=True, fresh=True))
    service.clock.advance(1)
    assert (await used.status()).next_agent.agent_id == "front"
    assert went((await used.say("hello")).dispatch) == ("front", "NO_ACTIVE_AGENT")
    assert went((await idle.say("hello")).dispatch) == ("sales", "STICKY")
    await used.with_agent("support")
    assert went((await used.say("hello")).dispatch) == ("support", "STICKY")
    refused = await refusal(admin(service).SetStickiness(off(fresh=True)))
    assert list(refused.violations) == ["fresh"]


async def test_without_a_fresh_start_agents_are_active_again(service):
    """As if it had never been off."""
    chat = await service.chat().with_agent("sales")
    service.clock.advance(1)
    await admin(service).SetStickiness(off())
    service.clock.advance(1)
    await chat.say("hello")
    await admin(service).SetStickiness(pb.SetStickinessRequest(enabled=True))
    assert went((await chat.say("hello")).dispatch) == ("sales", "STICKY")


async def test_agent_command_says_that_the_agent_has_to_wait(service):
    """The pick is kept; until stickiness is on again every message is the supervisor's."""
    chat = service.chat()
    await admin(service).SetStickiness(off())
    said = (await chat.say("/agent sales")).reply.text
    assert "Front desk takes every message for the time being" in said
    assert "after that you talk to Sales" in said
    assert went((await chat.say("hello")).dispatch) == ("front", "STICKINESS_DISABLED")
    await admin(service).SetStickiness(pb.SetStickinessRequest(enabled=True))
    assert went((await chat.say("hello")).dispatch) == ("sales", "STICKY")
    assert "You are already talking to Sales" in (await chat.say("/agent sales")).reply.text
