"""Routing statistics of known conversations, on a real server."""

import asyncio
import signal
from contextlib import suppress

import grpc
import pytest
from google.protobuf import timestamp_pb2

from agent_routing.v1 import admin_service_pb2 as pb
from agent_routing.v1 import (
    admin_service_pb2_grpc,
    handoff_pb2,
    route_reason_pb2,
    routing_service_pb2_grpc,
    turn_pb2,
)
from agent_routing.v1 import routing_service_pb2 as rpb
from routing_service.analytics.stored_forms import HEAD
from tests.rpc.live_service import (
    INTERLUDE,
    START_US,
    Chat,
    ask,
    finish,
    hand_to,
    refusal,
    serving,
)
from tests.rpc.registries import DESK


@pytest.fixture
async def service(tmp_path):
    """A help desk whose agents differ in one thing each."""
    async with serving(tmp_path, DESK) as running:
        yield running


def admin(service):
    """Return the stub of AdminService."""
    return admin_service_pb2_grpc.AdminServiceStub(service.channel)


async def stats_of(service, **fields):
    """Call GetRoutingStats."""
    return await admin(service).GetRoutingStats(pb.GetRoutingStatsRequest(**fields), timeout=30)


def reasons(stats):
    """Return the reasons' counts by name."""
    name = route_reason_pb2.RouteReason.Name
    return {name(row.reason).removeprefix("ROUTE_REASON_"): row.count for row in stats.reasons}


def pairs(stats):
    """Return each handoff row: source, target, initiator, mode, and its four counts."""
    by, how = handoff_pb2.Initiator.Name, handoff_pb2.HandoffMode.Name
    return {
        (
            row.from_agent_id,
            row.to_agent_id,
            by(row.initiator).removeprefix("INITIATOR_"),
            how(row.mode).removeprefix("HANDOFF_MODE_"),
        ): (row.count, row.refused, row.returned, row.ping_pongs)
        for row in stats.handoffs
    }


def agents(stats):
    """Return the agents' rows by id."""
    return {row.agent_id: row for row in stats.agents}


def outcomes(row):
    """Return an agent's outcomes by name."""
    name = turn_pb2.TurnOutcome.Name
    return {name(each.outcome).removeprefix("TURN_OUTCOME_"): each.count for each in row.outcomes}


def at(time_us):
    """Return a time for a request."""
    made = timestamp_pb2.Timestamp()
    made.FromMicroseconds(time_us)
    return made


async def known_conversation(service):
    """Hold a conversation for which every figure is known; it takes four and a half seconds."""
    chat = service.chat("known", "ana")
    chat.profile = {"channel": "web"}
    routed = await chat.say("hello")
    service.clock.advance(0.5)
    await refusal(chat.answer(routed.dispatch, **hand_to("premium")))
    handed = await chat.answer(routed.dispatch, **hand_to("sales"))
    service.clock.advance(2)
    await chat.answer(handed.next, "which one?", **ask())
    routed = await chat.say("the red one")
    handed = await chat.answer(routed.dispatch, **hand_to("interrupts", mode=INTERLUDE))
    service.clock.advance(2)
    returned = await chat.answer(handed.next, "that was it", **finish())
    await chat.answer(returned.next, "good")
    await chat.say("/status")
    routed = await chat.say("more")
    await chat.answer(routed.dispatch, "yes")
    routed = await chat.say("and more")
    await chat.answer(routed.dispatch, **hand_to("support"))
    await chat.say("/supervisor")
    return chat


def check_known(stats):
    """Compare with figures counted by hand."""
    assert stats.user_messages == 4
    assert stats.supervisor_calls_saved == 3
    assert stats.supervisor_calls_saved_share == 0.75
    assert stats.sessions == 1
    assert reasons(stats) == {
        "NO_ACTIVE_AGENT": 1,
        "SUPERVISOR_HANDOFF": 1,
        "FOLLOW_UP_LOCK": 1,
        "AGENT_HANDOFF": 2,
        "RETURNED": 1,
        "STICKY": 2,
    }
    assert dict(stats.commands) == {"/status": 1, "/supervisor": 1}
    assert pairs(stats) == {
        ("front", "premium", "SUPERVISOR", "UNSPECIFIED"): (0, 1, 0, 0),
        ("front", "sales", "SUPERVISOR", "TRANSFER"): (1, 0, 0, 0),
        ("sales", "interrupts", "AGENT", "INTERLUDE"): (1, 0, 1, 0),
        ("sales", "support", "AGENT", "TRANSFER"): (1, 0, 0, 0),
    }
    assert (stats.handoffs_total, stats.refusals_total) == (3, 1)
    assert dict(stats.refusals_by_rule) == {"entitled": 1}
    assert dict(stats.messages_by_channel) == {"web": 4}
    rows = agents(stats)
    assert {name: row.turns for name, row in rows.items()} == {
        "front": 1,
        "sales": 5,
        "interrupts": 1,
        "support": 1,
    }
    assert outcomes(rows["front"]) == {"HANDOFF": 1}
    assert outcomes(rows["sales"]) == {"FOLLOW_UP": 1, "PROCEED": 2, "HANDOFF": 2}
    assert outcomes(rows["interrupts"]) == {"COMPLETE": 1}
    assert {name: row.activations for name, row in rows.items()} == {
        "front": 0,
        "sales": 1,
        "interrupts": 1,
        "support": 1,
    }
    # The user left support by /supervisor in its first turn.
    assert (stats.stuck, rows["support"].stuck, rows["sales"].stuck) == (1, 1, 0)
    assert stats.stuck_share == pytest.approx(1 / 3)
    # The interlude did not end the stay with sales: five turns in one stay.
    stays = {name: (row.stays, row.stay_turns, row.stay_turns_p50) for name, row in rows.items()}
    assert stays["sales"] == (1, 5, 5)
    assert stays["interrupts"] == (1, 1, 1)
    assert stays["support"] == (1, 1, 1)
    front_s = rows["front"].response_duration_p50.ToTimedelta().total_seconds()
    slow_s = rows["sales"].response_duration_p95.ToTimedelta().total_seconds()
    assert front_s == pytest.approx(0.5, rel=1 / 32)
    assert slow_s == pytest.approx(2, rel=1 / 32)
    assert not rows["support"].HasField("response_duration_p50")
    assert stats.ping_pongs == 0
    assert [period.user_messages for period in stats.periods] == [4]
    assert stats.stickiness_enabled


async def test_known_conversation_has_exact_figures(service):
    """Each figure was counted by hand; the call folds the log first, so the test does not wait."""
    await known_conversation(service)
    stats = await stats_of(service)
    check_known(stats)
    assert stats.as_of_time.ToMicroseconds() == service.clock.now_us
    # A second call counts nothing twice, and all tenants together have the same figures.
    check_known(await stats_of(service))
    everywhere = await stats_of(service, tenant="*")
    assert pairs(everywhere) == pairs(stats)
    assert everywhere.sessions == 1


async def test_nothing_is_counted_before_anything_has_happened(service):
    """A share is 0 if its divisor is 0."""
    stats = await stats_of(service)
    assert (stats.user_messages, stats.supervisor_calls_saved_share, stats.stuck_share) == (0, 0, 0)
    assert not stats.HasField("start_time")
    assert stats.as_of_time.ToMicroseconds() == service.clock.now_us


async def test_figures_are_the_same_after_a_restart(tmp_path):
    """They are stored together with the log position, not kept in a process."""
    async with serving(tmp_path, DESK) as service:
        await known_conversation(service)
        before = await stats_of(service)
    async with serving(tmp_path, DESK) as service:
        check_known(await stats_of(service))
        chat = service.chat("later")
        await chat.say("hello")
        after = await stats_of(service)
        assert after.user_messages == before.user_messages + 1
        assert after.sessions == 2


async def test_conversation_goes_on_over_a_restart_and_is_counted_whole(tmp_path):
    """The earlier messages are read again when the session changes."""
    async with serving(tmp_path, DESK) as service:
        chat = await service.chat("over").with_agent("sales")
        for _ in range(3):
            await chat.say("more")
        await stats_of(service)
    async with serving(tmp_path, DESK) as service:
        chat = service.chat("over")
        await chat.clear()
        row = agents(await stats_of(service))["sales"]
        assert (row.stays, row.stay_turns, row.stuck) == (1, 4, 0)


async def test_span_is_cut_to_whole_hours_and_sessions_are_distinct(service):
    """A session with messages in three hours is one session in any span that includes them."""
    chat = service.chat("spans")
    other = service.chat("other")
    hour_us = 3_600_000_000
    first_hour = START_US // hour_us
    service.clock.now_us = first_hour * hour_us
    for _ in range(3):
        await chat.say("hello")
        service.clock.advance(3600)
    await other.say("hello")
    everything = await stats_of(service)
    assert (everything.sessions, everything.user_messages) == (2, 4)
    assert [period.user_messages for period in everything.periods] == [1, 1, 1, 1]
    assert everything.start_time.ToMicroseconds() == first_hour * hour_us
    cut = await stats_of(
        service,
        start_time=at((first_hour + 1) * hour_us + 5),
        end_time=at((first_hour + 2) * hour_us + 5),
    )
    assert cut.start_time.ToMicroseconds() == (first_hour + 1) * hour_us
    assert (cut.user_messages, cut.sessions) == (2, 1)
    later = await stats_of(service, start_time=at((first_hour + 3) * hour_us))
    assert (later.user_messages, later.sessions) == (1, 1)
    none = await stats_of(service, start_time=at((first_hour + 900) * hour_us))
    assert (none.user_messages, none.sessions) == (0, 0)


async def test_long_span_is_read_by_days_with_hours_at_its_ends(service):
    """The same messages, from the hourly and from the daily settings."""
    chat = service.chat("long")
    for _ in range(12):
        await chat.say("hello")
        service.clock.advance(23 * 3600)
    stats = await stats_of(service)
    assert (stats.user_messages, stats.sessions) == (12, 1)
    assert sum(period.user_messages for period in stats.periods) == 12
    assert {period.length.ToSeconds() for period in stats.periods} == {86_400}
    begin_us = START_US + 30 * 3_600_000_000
    cut = await stats_of(service, start_time=at(begin_us))
    assert (cut.user_messages, cut.sessions) == (10, 1)


async def test_figures_of_a_channel_and_of_a_tenant_are_apart(service):
    """A session is counted in the channel of each message."""
    chat = service.chat("mixed")
    await chat.say("hello", channel="web")
    await chat.say("hello", channel="whatsapp")
    await chat.say("hello")
    await service.chat("elsewhere", tenant="acme").say("hello", channel="web")
    web = await stats_of(service, channel="web")
    phone = await stats_of(service, channel="whatsapp")
    assert (web.user_messages, web.sessions) == (1, 1)
    assert (phone.user_messages, phone.sessions) == (2, 1)
    assert (await stats_of(service, channel="pigeon")).user_messages == 0
    mine = await stats_of(service)
    assert (mine.user_messages, mine.sessions) == (3, 1)
    assert dict(mine.messages_by_channel) == {"web": 1, "whatsapp": 2}
    assert (await stats_of(service, tenant="acme")).user_messages == 1
    everywhere = await stats_of(service, tenant="*")
    assert (everywhere.user_messages, everywhere.sessions) == (4, 2)


async def test_parked_tasks_are_counted_each_by_itself(tmp_path):
    """Parking is no handoff, and the stay of the parked task's agent goes on when the task does."""
    async with serving(tmp_path, DESK + "while_paused: park\n") as service:
        chat = service.chat()

        routed = await chat.say("I need sales")
        handed = await chat.answer(routed.dispatch, **hand_to("sales"))
        pauses = rpb.ApprovalNeededOutcome(prompt="Pay?")
        one = await chat.answer(handed.next, approval_needed=pauses)
        routed = await chat.say("something else")
        handed = await chat.answer(routed.dispatch, **hand_to("support"))
        await chat.answer(handed.next, "Try again.")
        resumed = await service.call(
            "ResumeTask",
            rpb.ResumeTaskRequest(
                user_id="ana", task_id=one.task_id, request_id=one.request_id, decision=1
            ),
        )
        await chat.answer(resumed.dispatch, "It is paid.", **finish())
        routed = await chat.say("thanks")
        await chat.answer(routed.dispatch, "You are welcome.", **finish())
        stats = await stats_of(service)
    assert (stats.user_messages, stats.supervisor_calls_saved, stats.sessions) == (3, 1, 1)
    assert pairs(stats) == {
        ("front", "sales", "SUPERVISOR", "TRANSFER"): (1, 0, 0, 0),
        ("front", "support", "SUPERVISOR", "TRANSFER"): (1, 0, 0, 0),
    }
    rows = agents(stats)
    assert outcomes(rows["sales"]) == {"APPROVAL_NEEDED": 1, "COMPLETE": 1}
    assert outcomes(rows["support"]) == {"PROCEED": 1, "COMPLETE": 1}
    assert {name: (row.activations, row.stays, row.stay_turns) for name, row in rows.items()} == {
        "front": (0, 0, 0),
        "sales": (1, 1, 2),
        "support": (1, 1, 2),
    }
    assert (stats.ping_pongs, stats.stuck) == (0, 0)


async def test_conversation_that_goes_back_and_forth_is_seen(service):
    """Sales to support and back within one message is counted as ping-pong."""
    chat = await service.chat().with_agent("sales")
    routed = await chat.say("help")
    handed = await chat.answer(routed.dispatch, **hand_to("support"))
    await chat.answer(handed.next, **hand_to("sales"))
    stats = await stats_of(service)
    assert stats.ping_pongs == 1
    assert pairs(stats)["support", "sales", "AGENT", "TRANSFER"] == (1, 0, 0, 1)


async def test_what_was_counted_stays_after_erasing_and_purging(service):
    """Figures have no user and no session. A session begun again under the same id is a new one."""
    chat = await service.chat("gone").with_agent("sales", **ask())
    before = await stats_of(service)
    await admin(service).EraseUser(pb.EraseUserRequest(user_id="ana"))
    after = await stats_of(service)
    assert (after.user_messages, after.sessions) == (before.user_messages, before.sessions)
    assert pairs(after) == pairs(before)
    # The erasure ended the stay together with the session.
    assert (agents(before)["sales"].stays, agents(after)["sales"].stays) == (0, 1)
    service.clock.advance(60)
    await admin(service).PurgeSessions(
        pb.PurgeSessionsRequest(update_time_before=at(service.clock.now_us))
    )
    service.clock.advance(60)
    assert (await chat.say("hello again")).revision == 1
    anew = await stats_of(service)
    assert (anew.user_messages, agents(anew)["front"].turns) == (2, 2)


async def test_bad_spans_are_named(service):
    """Like every bad field."""
    refused = await refusal(stats_of(service, start_time=at(START_US), end_time=at(START_US - 1)))
    assert (refused.reason, refused.rules) == ("INVALID_FIELD", ["end_time"])


async def test_two_replicas_that_count_at_once_count_once(tmp_path):
    """Each step is taken by one replica; the figures are the same as with one."""
    async with (
        serving(tmp_path, DESK) as service,
        serving(tmp_path, DESK, shared=service.store, clock=service.clock) as replica,
    ):
        for place in range(5):
            chat = service.chat(f"both-{place}")
            await chat.with_agent("sales")
            await replica.chat(f"both-{place}").say("more")
            one, two = await stats_of(service), await stats_of(replica)
            assert one.user_messages == two.user_messages == 2 * (place + 1)


@pytest.mark.timeout(120)
async def test_figures_survive_a_killed_process(serve_process):
    """Killed with SIGKILL several times while it counts; the figures still cover all messages."""
    said = 0
    for _ in range(3):
        running = await serve_process()
        async with grpc.aio.insecure_channel(running.address) as channel:
            stub = routing_service_pb2_grpc.RoutingServiceStub(channel)
            counted = admin_service_pb2_grpc.AdminServiceStub(channel)

            class Service:
                """The part of a service that a conversation needs."""

                call = staticmethod(
                    lambda rpc, request, _tenant="", stub=stub: getattr(stub, rpc)(
                        request, timeout=20
                    )
                )

            for _ in range(20):
                await Chat(Service, f"killed-{said % 7}").say("hello")
                said += 1
            asking = counted.GetRoutingStats(pb.GetRoutingStatsRequest(), timeout=20)
            running.send(signal.SIGKILL)
            with suppress(grpc.aio.AioRpcError):
                for _ in range(100):
                    await asking
                    asking = counted.GetRoutingStats(pb.GetRoutingStatsRequest(), timeout=20)
        await running.end()
    running = await serve_process()
    async with grpc.aio.insecure_channel(running.address) as channel:
        counted = admin_service_pb2_grpc.AdminServiceStub(channel)
        stats = await counted.GetRoutingStats(pb.GetRoutingStatsRequest(), timeout=30)
    assert (stats.user_messages, stats.sessions) == (said, 7)


async def test_server_counts_by_itself(service):
    """The server folds the log without a call."""
    await service.chat().say("hello")
    async with asyncio.timeout(40):
        while await service.store.get_setting("*", HEAD) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
