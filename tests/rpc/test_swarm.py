"""A swarm: agents without a supervisor; a default agent gets unassigned messages."""

import pytest

from agent_routing.v1 import agent_pb2, routing_service_pb2
from tests.rpc.live_service import (
    INTERLUDE,
    ask,
    finish,
    hand_to,
    handed_from,
    initiator,
    mode,
    serving,
    stack,
    went,
)
from tests.rpc.registries import SWARM


@pytest.fixture
async def swarm(tmp_path):
    """Greeter, flights and hotels."""
    async with serving(tmp_path, SWARM) as running:
        yield running


async def test_default_agent_gets_what_is_nobody_s(swarm):
    """The dispatch has its own reason, and does not count as a bypassed supervisor."""
    chat = swarm.chat()
    for _ in range(2):
        routed = await chat.say()
        assert went(routed.dispatch) == ("greeter", "DEFAULT_AGENT")
        assert not routed.supervisor_bypassed
        await chat.answer(routed.dispatch, "welcome")
        assert not (await chat.status()).HasField("active_agent")
    assert (await chat.status()).next_agent.agent_id == "greeter"


async def test_agents_of_a_swarm_hand_to_each_other(swarm):
    """No supervisor is called in between, and the target sticks."""
    chat = swarm.chat()
    routed = await chat.say("I want to fly")
    handed = await chat.answer(routed.dispatch, **hand_to("flights"))
    assert went(handed.next) == ("flights", "AGENT_HANDOFF")
    assert initiator(handed.next.handoff) == "AGENT"
    await chat.answer(handed.next, "booked")
    assert went((await chat.say("and sleep")).dispatch) == ("flights", "STICKY")
    moved = await chat.set_active("hotels", from_agent_id="flights")
    assert went((await chat.say("two nights")).dispatch) == ("hotels", "STICKY")
    assert initiator(moved.handoff) == "AGENT"
    moved = await chat.set_active("flights", from_agent_id="greeter")
    assert initiator(moved.handoff) == "AGENT"


@pytest.mark.parametrize(
    ("locale", "words"),
    [
        ("en", "Greeter is with you again, in place of Flights."),
        ("es", "Vuelves a estar con la anfitriona en lugar de Vuelos."),
    ],
)
async def test_supervisor_command_returns_to_the_default_agent(swarm, locale, words):
    """Users do not have to know that there is no supervisor."""
    chat = await swarm.chat().with_agent("flights", **ask())
    routed = await chat.say("/supervisor what else is there?", locale=locale)
    assert words in routed.reply.text
    assert went(routed.dispatch) == ("greeter", "COMMAND")
    await chat.answer(routed.dispatch, "hotels")
    assert went((await chat.say("good")).dispatch) == ("greeter", "DEFAULT_AGENT")


async def test_default_agent_that_asks_gets_the_answer(swarm):
    """Unlike a supervisor it may lock, and so become active."""
    chat = swarm.chat()
    routed = await chat.say()
    asked = await chat.answer(routed.dispatch, "where to?", **ask())
    assert (asked.active_agent.agent_id, asked.locked) == ("greeter", True)
    routed = await chat.say("Rome")
    assert went(routed.dispatch) == ("greeter", "FOLLOW_UP_LOCK")
    answered = await chat.answer(routed.dispatch, "nice")
    assert not answered.locked


async def test_default_agent_can_be_interrupted(swarm):
    """It is put on the stack although it had not become active."""
    chat = swarm.chat()
    routed = await chat.say("I am afraid of flying")
    handed = await chat.answer(routed.dispatch, **hand_to("comforts"))
    assert (mode(handed.next.handoff), handed_from(handed.next.handoff)) == (
        "INTERLUDE",
        "greeter",
    )
    assert stack(await chat.status()) == ["greeter"]
    back = await chat.answer(handed.next, "breathe", **finish())
    assert went(back.next) == ("greeter", "RETURNED")
    assert back.active_agent.agent_id == "greeter"


async def test_clear_goes_back_to_the_default_agent(swarm):
    """The interrupted agents are removed from the stack."""
    chat = await swarm.chat().with_agent("flights")
    await chat.set_active("hotels", mode=INTERLUDE)
    cleared = await chat.clear()
    assert (cleared.previous_agent.agent_id, cleared.agent.agent_id) == ("hotels", "greeter")
    assert not (await chat.status()).return_stack


async def test_handing_to_the_default_agent_makes_it_active(swarm):
    """It can stick like any other agent."""
    chat = await swarm.chat().with_agent("flights")
    moved = await chat.set_active("greeter", from_agent_id="flights")
    assert mode(moved.handoff) == "TRANSFER"
    assert went((await chat.say()).dispatch) == ("greeter", "STICKY")


async def test_registry_of_a_swarm_names_its_home(swarm):
    """A swarm has no supervisor."""
    response = await swarm.call("ListAgents", routing_service_pb2.ListAgentsRequest())
    assert response.home_agent_id == "greeter"
    kinds = {agent.kind for agent in response.agents}
    assert kinds == {agent_pb2.AGENT_KIND_SPECIALIST}
