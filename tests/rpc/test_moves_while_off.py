"""What agents do while stickiness is off is kept, and takes effect once it is on again."""

import pytest

from agent_routing.v1 import admin_service_pb2 as pb
from agent_routing.v1 import admin_service_pb2_grpc
from tests.rpc.live_service import (
    INTERLUDE,
    ask,
    finish,
    hand_to,
    outcome_status,
    serving,
    stack,
    task_status,
    went,
)
from tests.rpc.registries import DESK


@pytest.fixture
async def service(tmp_path):
    """A help desk whose agents differ in one thing each."""
    async with serving(tmp_path, DESK) as running:
        yield running


async def switch(service, *, on, **fields):
    """Switch stickiness, a second after what came before."""
    service.clock.advance(1)
    stub = admin_service_pb2_grpc.AdminServiceStub(service.channel)
    await stub.SetStickiness(pb.SetStickinessRequest(enabled=on, **fields))
    service.clock.advance(1)


async def turn_of(chat, agent_id, text="hello"):
    """Let the supervisor pass a message on to an agent; return the agent's dispatch."""
    routed = await chat.say(text)
    assert went(routed.dispatch) == ("front", "STICKINESS_DISABLED")
    return (await chat.answer(routed.dispatch, **hand_to(agent_id))).next


async def test_agent_that_completed_meanwhile_is_not_active_again(service):
    """Without fresh; until then all that is stored stays as it was."""
    chat = await service.chat().with_agent("sales")
    await switch(service, on=False)
    dispatch = await turn_of(chat, "sales")
    done = await chat.answer(dispatch, "Sold.", **finish())
    assert task_status(done.task_status) == "COMPLETED"
    assert (await chat.status()).active_agent.agent_id == "sales"
    assert went((await chat.say("and?")).dispatch) == ("front", "STICKINESS_DISABLED")
    await switch(service, on=True)
    status = await chat.status()
    assert not status.HasField("active_agent")
    assert status.next_agent.agent_id == "front"
    assert went((await chat.say("hello")).dispatch) == ("front", "NO_ACTIVE_AGENT")


async def test_handoff_away_takes_effect_at_the_switch(service):
    """Support has the conversation, as it would without the switch; it can hand on, too."""
    chat = await service.chat().with_agent("sales", **ask())
    await switch(service, on=False)
    dispatch = await turn_of(chat, "sales")
    handed = await chat.answer(dispatch, **hand_to("support"))
    await chat.answer(handed.next, "Support here.")
    assert (await chat.status()).active_agent.agent_id == "sales"
    await switch(service, on=True)
    assert (await chat.status()).active_agent.agent_id == "support"
    assert went((await chat.say("hello")).dispatch) == ("support", "STICKY")


async def test_interlude_meanwhile_returns_with_the_question(service):
    """Sales asks, is interrupted and comes back while it is off: it still waits afterwards."""
    chat = await service.chat().with_agent("sales", **ask())
    await switch(service, on=False)
    dispatch = await turn_of(chat, "sales")
    handed = await chat.answer(dispatch, **hand_to("support", mode=INTERLUDE))
    await switch(service, on=True)
    # The turn that was begun while it was off goes on.
    done = await chat.answer(handed.next, "Restart it.", **ask())
    assert outcome_status(done) == "APPLIED"
    status = await chat.status()
    assert (status.active_agent.agent_id, stack(status)) == ("support", ["sales"])
    routed = await chat.say("done")
    assert went(routed.dispatch) == ("support", "FOLLOW_UP_LOCK")
    await chat.answer(routed.dispatch, "Good.", **finish())
    status = await chat.status()
    assert (status.active_agent.agent_id, status.locked) == ("sales", True)


async def test_agent_that_stood_in_meanwhile_moves_nothing(service):
    """Only the agent that has the conversation gives it away."""
    chat = await service.chat().with_agent("sales")
    await switch(service, on=False)
    await chat.answer(await turn_of(chat, "support"), "Fixed.", **finish())
    await switch(service, on=True)
    assert went((await chat.say("hello")).dispatch) == ("sales", "STICKY")


async def test_conversation_leaves_an_agent_that_is_off(service):
    """Sales alone is off: it hands over, and its successor gets the next message."""
    chat = await service.chat().with_agent("sales")
    await switch(service, on=False, agent_ids=["sales"])
    dispatch = await turn_of(chat, "sales")
    handed = await chat.answer(dispatch, **hand_to("support"))
    await chat.answer(handed.next, "Support here.")
    assert went((await chat.say("hello")).dispatch) == ("support", "STICKY")


async def test_users_way_home_meanwhile_counts_more(service):
    """What was kept before a /supervisor is gone with it."""
    chat = await service.chat().with_agent("sales")
    await switch(service, on=False)
    handed = await chat.answer(await turn_of(chat, "sales"), **hand_to("support"))
    await chat.answer(handed.next, "Support here.")
    await chat.say("/supervisor")
    await switch(service, on=True)
    assert went((await chat.say("hello")).dispatch) == ("front", "NO_ACTIVE_AGENT")


async def test_what_was_kept_survives_a_restart(tmp_path):
    """It is in the log, like all else."""
    async with serving(tmp_path, DESK) as service:
        chat = await service.chat(session_id="chat-off").with_agent("sales")
        await switch(service, on=False)
        await chat.answer(await turn_of(chat, "sales"), "Sold.", **finish())
    async with serving(tmp_path, DESK) as service:
        service.clock.advance(10)
        await switch(service, on=True)
        chat = service.chat(session_id="chat-off")
        assert went((await chat.say("hello")).dispatch) == ("front", "NO_ACTIVE_AGENT")
