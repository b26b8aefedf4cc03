"""The automatic off: stickiness is switched off for one agent whose users leave it at once."""

import asyncio
import itertools

import grpc
import pytest
from structlog.testing import capture_logs

from agent_routing.v1 import admin_service_pb2 as pb
from agent_routing.v1 import admin_service_pb2_grpc
from routing_service.analytics.stored_forms import STUCK_WINDOW, decode
from routing_service.analytics.stuck_windows import StuckWindow
from routing_service.server.bounds import Bounds
from tests.rpc.live_service import serving, went
from tests.rpc.registries import DESK

WATCHED = f"""{DESK}
stickiness:
  auto_off: {{stuck_share: 0.5, window: 15m, turns_min: 6, users_min: 5}}
"""

WAIT_S = 20.0
PART_S = 181
"""More than a fifth of the window: what follows is in a later part."""

WINDOW_S = 16 * 60
DAY_S = 25 * 3600

_users = itertools.count(1)


@pytest.fixture
async def service(tmp_path):
    """A help desk whose registry asks for the automatic off."""
    async with serving(tmp_path, WATCHED) as running:
        yield running


def admin(service):
    """Return the operators' stub."""
    return admin_service_pb2_grpc.AdminServiceStub(service.channel)


async def state(service):
    """Ask how the switch stands."""
    return await admin(service).GetStickiness(pb.GetStickinessRequest())


async def records(service):
    """List the switches in the audit."""
    page = await admin(service).ListEvents(pb.ListEventsRequest(kinds=["stickiness_switched"]))
    return list(page.records)


async def leave(service, agent_id, users=6):
    """New users get an agent and ask for the supervisor at once."""
    for number in itertools.islice(_users, users):
        chat = await service.chat(user_id=f"user-{number}").with_agent(agent_id)
        await chat.say("/supervisor")


async def stay(service, agent_id, users=6):
    """New users get an agent and stay."""
    for number in itertools.islice(_users, users):
        chat = await service.chat(user_id=f"user-{number}").with_agent(agent_id)
        await chat.answer((await chat.say("go on")).dispatch, "gladly")


async def until_off(service, *agent_ids):
    """Wait until stickiness is off for exactly these agents; return the switch."""
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + WAIT_S
    while set((now := await state(service)).agent_ids) != set(agent_ids):
        assert loop.time() < ends_s, f"off for {list(now.agent_ids)}, not for {agent_ids}"
        await asyncio.sleep(0.1)
    return now


async def until_seen_below(service, agent_id):
    """Wait until an agent that was switched off has been seen below the bound."""
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + WAIT_S
    while agent_id in (await window(service)).alarmed:
        assert loop.time() < ends_s, f"{agent_id} was not seen below the bound"
        await asyncio.sleep(0.1)


async def window(service):
    """Read the stored window."""
    return decode(StuckWindow, await service.store.get_setting("default", STUCK_WINDOW), "window")


async def test_it_is_off_by_default(tmp_path):
    """Without the key users may leave as they like: nothing is kept for it, nothing is switched."""
    async with serving(tmp_path, DESK) as service:
        await leave(service, "sales", users=12)
        stats = await admin(service).GetRoutingStats(pb.GetRoutingStatsRequest())
        assert stats.stuck == 12
        assert await service.store.get_setting("default", STUCK_WINDOW) is None
        assert (await state(service)).enabled
        assert await records(service) == []


async def test_agent_that_users_leave_at_once_is_switched_off_alone(tmp_path):
    """Its users get the supervisor, the others keep their agents, and it says who, when and why."""
    with capture_logs() as lines:
        async with serving(tmp_path, WATCHED, metrics_listen="127.0.0.1:0") as service:
            fond = await service.chat(user_id="fond").with_agent("sales")
            helped = await service.chat(user_id="helped").with_agent("support")
            await stay(service, "support")
            await leave(service, "sales")
            now = await until_off(service, "sales")
            assert (now.enabled, now.users_percent, now.actor) == (False, 0, "agent-routing")
            assert now.source == pb.STICKINESS_SOURCE_TENANT
            assert "6 of 7 times" in now.reason
            assert "auto_off is at 50%" in now.reason
            await asyncio.sleep(1)  # Every process follows a switch within a second.
            assert went((await fond.say("hello")).dispatch) == ("front", "STICKINESS_DISABLED")
            assert went((await helped.say("hello")).dispatch) == ("support", "STICKY")
            (record,) = await records(service)
            switched = record.event.stickiness_switched
            assert (switched.enabled, switched.previously_enabled) == (False, True)
            assert (list(switched.agent_ids), switched.reason) == (["sales"], now.reason)
            assert record.actor == "agent-routing"
            assert "agent_routing_stickiness_auto_off_total 1" in await page(service)
    (said,) = [line for line in lines if line["event"] == "stickiness_auto_off"]
    assert (said["log_level"], said["agent_id"], said["stuck"]) == ("warning", "sales", 6)


async def test_few_users_are_not_enough(service):
    """However often they come and go, alone or in a crowd that stays."""
    for number in range(30):
        chat = service.chat(user_id=f"restless-{number % 2}")
        await (await chat.with_agent("sales")).say("/supervisor")
        await (await service.chat(user_id="restless").with_agent("idles")).say("/reset")
    await stay(service, "idles", users=8)
    await leave(service, "support")
    await until_off(service, "support")
    kept = await window(service)
    assert kept.alarmed in ([], ["support"])
    assert (await state(service)).agent_ids == ["support"]


async def test_share_that_was_always_high_is_no_jump(service):
    """An agent that users only ask one thing is as it was; the one next to it has changed."""
    for _ in range(3):
        await leave(service, "sales", users=4)  # Too few to be judged.
        service.clock.advance(WINDOW_S)
    await leave(service, "sales")
    await leave(service, "support")
    await until_off(service, "support")
    assert "the 24 hours before: not used" in (await state(service)).reason


async def test_operator_who_switches_on_again_is_not_overruled_until_a_new_jump(service):
    """Neither for what was before nor while it goes on; once it was better and is bad again."""
    await leave(service, "sales")
    await until_off(service, "sales")
    service.clock.advance(1)
    await admin(service).SetStickiness(pb.SetStickinessRequest(enabled=True, reason="we know"))
    service.clock.advance(PART_S)
    await leave(service, "sales", users=12)
    await leave(service, "support")
    now = await until_off(service, "support")
    assert list(now.agent_ids) == ["support"]
    service.clock.advance(WINDOW_S)
    await stay(service, "sales", users=12)
    await until_seen_below(service, "sales")
    service.clock.advance(DAY_S)
    await leave(service, "sales")
    await until_off(service, "support", "sales")
    switches = [record.event.stickiness_switched for record in await records(service)]
    assert [(each.enabled, list(each.agent_ids)) for each in switches] == [
        (False, ["sales"]),
        (True, []),
        (False, ["support"]),
        (False, ["support", "sales"]),
    ]


async def test_share_of_users_stays_off(service):
    """An operator's canary is kept when an agent is switched off next to it."""
    await admin(service).SetStickiness(pb.SetStickinessRequest(enabled=False, users_percent=1))
    service.clock.advance(PART_S)
    await leave(service, "sales", users=10)
    now = await until_off(service, "sales")
    assert now.users_percent == 1


@pytest.mark.parametrize(
    "written",
    ["{auto_off: {}}", "{auto_off: {stuck_share: 2}}", "{auto_off: {stuck_share: 1, window: 5s}}"],
)
async def test_file_with_a_senseless_bound_is_refused(tmp_path, written):
    """A share is needed and at most 1; a window has a minute at least."""
    async with serving(tmp_path, DESK, bounds=Bounds(registry_poll_s=60)) as service:
        (tmp_path / "agents.yaml").write_text(f"{DESK}\nstickiness: {written}\n")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await admin(service).ReloadAgents(pb.ReloadAgentsRequest())
    assert "stickiness" in refused.value.details()


async def page(service):
    """Fetch the metrics page."""
    host, port = service.server.metrics_address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
    try:
        return (await reader.read()).decode()
    finally:
        writer.close()
