"""Operators' acts that say what they expect: of two operators the second is refused."""

import asyncio

import pytest
from google.protobuf import timestamp_pb2

from agent_routing.v1 import admin_service_pb2 as pb
from agent_routing.v1 import admin_service_pb2_grpc
from tests.rpc.live_service import finish, refusal, serving
from tests.rpc.registries import DESK


@pytest.fixture
async def service(tmp_path):
    """A help desk whose agents differ in one thing each."""
    async with serving(tmp_path, DESK) as running:
        yield running


def admin(service):
    """Return the stub of AdminService."""
    return admin_service_pb2_grpc.AdminServiceStub(service.channel)


async def talked(service, name, user="ana"):
    """Hold a conversation that has ended."""
    chat = service.chat(name, user_id=user)
    routed = await chat.say("hello")
    await chat.answer(routed.dispatch, "hello", **finish())
    return chat


async def is_changed(call):
    """Check that a call is refused because what it is about has changed; return the metadata."""
    refused = await refusal(call)
    assert tuple(refused) == ("ABORTED", "STATE_CHANGED"), refused
    return refused.metadata


async def test_of_two_operators_who_switch_stickiness_the_second_is_refused(service):
    """Both have read it while it was on, and neither overwrites the other's switch unseen."""
    read = await admin(service).GetStickiness(pb.GetStickinessRequest())
    version = read.state_version
    off = pb.SetStickinessRequest(enabled=False, reason="first", expected_state_version=version)
    await admin(service).SetStickiness(off)
    for second in (
        pb.SetStickinessRequest(enabled=False, agent_ids=["sales"], reason="second"),
        pb.SetStickinessRequest(enabled=False, reason="the same"),
        pb.SetStickinessRequest(enabled=True, validate_only=True),
    ):
        second.expected_state_version = version
        metadata = await is_changed(admin(service).SetStickiness(second))
        assert metadata["field"] == "expected_state_version"
        assert metadata["expected"] == version
    now = await admin(service).GetStickiness(pb.GetStickinessRequest())
    assert (now.reason, now.state_version != version) == ("first", True)
    on = pb.SetStickinessRequest(enabled=True, expected_state_version=now.state_version)
    assert (await admin(service).SetStickiness(on)).enabled


async def test_switches_in_the_same_instant_are_one_switch(service):
    """Ten operators press the button together: one switches, and nine are refused."""
    read = await admin(service).GetStickiness(pb.GetStickinessRequest())

    async def switch(number):
        request = pb.SetStickinessRequest(
            enabled=False,
            users_percent=number + 1,
            reason=f"operator {number}",
            expected_state_version=read.state_version,
        )
        try:
            await admin(service).SetStickiness(request)
        except Exception as error:  # noqa: BLE001 - looked at below
            return error
        return number

    done = await asyncio.gather(*(switch(number) for number in range(10)))
    (winner,) = (each for each in done if isinstance(each, int))
    now = await admin(service).GetStickiness(pb.GetStickinessRequest())
    assert now.reason == f"operator {winner}"
    assert all("ABORTED" in str(each) for each in done if not isinstance(each, int))
    listed = await admin(service).ListEvents(pb.ListEventsRequest(kinds=["stickiness_switched"]))
    assert len(listed.records) == 1


async def test_a_reload_is_of_the_file_and_the_registry_that_were_tried(service, tmp_path):
    """Another operator reloaded, or the file was written again: nothing is put in force."""
    path = tmp_path / "agents.yaml"
    tried_text = DESK.replace("version: desk-1", "version: desk-2")
    assert tried_text != DESK, "the registry of these tests has another version"
    path.write_text(tried_text)
    tried = await admin(service).ReloadAgents(pb.ReloadAgentsRequest(validate_only=True))

    def as_tried():
        return admin(service).ReloadAgents(
            pb.ReloadAgentsRequest(
                reason="as tried",
                expected_registry_version=tried.previous_registry_version,
                expected_file_version=tried.registry_version,
            )
        )

    path.write_text(DESK.replace("version: desk-1", "version: desk-3"))
    metadata = await is_changed(as_tried())
    assert (metadata["field"], metadata["actual"]) == ("expected_file_version", "desk-3")
    in_force = await admin(service).GetServerStatus(pb.GetServerStatusRequest())
    assert in_force.registry_version == tried.previous_registry_version
    path.write_text(tried_text)
    made = await as_tried()
    assert made.registry_version == "desk-2"
    assert tuple(await refusal(as_tried())) == ("ABORTED", "REVISION_MISMATCH")


async def test_an_erasure_is_of_what_was_tried(service):
    """The user wrote meanwhile, or another operator was faster: nothing is erased."""
    chat = await talked(service, "one")
    tried = await admin(service).EraseUser(pb.EraseUserRequest(user_id="ana", validate_only=True))
    erasing = pb.EraseUserRequest(
        user_id="ana",
        reason="asked",
        expected_sessions=tried.sessions_erased,
        expected_turns=tried.turns_erased,
    )
    await chat.say("one more thing")
    metadata = await is_changed(admin(service).EraseUser(erasing))
    assert (metadata["field"], metadata["expected"]) == ("expected_turns", "1")
    assert "SessionErased" not in await chat.kinds()
    erasing.expected_turns = int(metadata["actual"])
    assert (await admin(service).EraseUser(erasing)).sessions_erased == 1
    assert (await is_changed(admin(service).EraseUser(erasing)))["actual"] == "0"


async def test_a_purge_is_of_what_was_tried(service):
    """Another operator has removed some of it: the second sees how much is left."""
    for name in ("one", "two", "three"):
        await talked(service, name)
    service.clock.advance(60)
    when = timestamp_pb2.Timestamp()
    when.FromMicroseconds(service.clock.now_us)
    tried = await admin(service).PurgeSessions(
        pb.PurgeSessionsRequest(update_time_before=when, validate_only=True)
    )
    first = pb.PurgeSessionsRequest(update_time_before=when, sessions_max=1, expected_sessions=1)
    assert (await admin(service).PurgeSessions(first)).sessions_purged == 1
    second = pb.PurgeSessionsRequest(
        update_time_before=when, expected_sessions=tried.sessions_purged
    )
    metadata = await is_changed(admin(service).PurgeSessions(second))
    left = int(metadata["actual"])
    assert left == tried.sessions_purged - 1
    second.expected_sessions = left
    assert (await admin(service).PurgeSessions(second)).sessions_purged == left
