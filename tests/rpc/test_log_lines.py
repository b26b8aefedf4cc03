"""The log line of each decision names the new agent, the one before, the reason and the channel."""

import pytest

from tests.rpc.live_service import hand_to, proceed, refusal, serving, went
from tests.rpc.registries import DESK, SWARM


@pytest.fixture
async def service(tmp_path):
    """A help desk whose agents differ in one thing each."""
    async with serving(tmp_path, DESK) as running:
        yield running


def line(service):
    """Return the agents of the latest line: before, now, why, channel."""
    call = service.observer.calls[-1]
    assert call.session_id
    assert call.request_id
    return call.previous_agent_id, call.agent_id, call.reason, call.channel


async def on_whatsapp(service, agent_id):
    """Return a chat on a channel, with an agent that sticks."""
    chat = service.chat()
    chat.profile = {"channel": "whatsapp"}
    return await chat.with_agent(agent_id)


async def test_each_line_has_agents_reason_and_channel(service):
    """Also for calls that name no channel: the session's channel is logged."""
    chat = await on_whatsapp(service, "sales")
    assert line(service)[1:] == ("sales", "", "whatsapp")
    routed = await chat.say("How much?")
    assert line(service) == ("sales", "sales", "sticky", "whatsapp")
    await chat.answer(routed.dispatch, **hand_to("support"))
    assert line(service) == ("sales", "support", "agent_handoff", "whatsapp")
    await chat.set_active("sales")
    assert line(service) == ("support", "sales", "agent_handoff", "whatsapp")
    await chat.clear()
    assert line(service) == ("sales", "front", "no_active_agent", "whatsapp")


async def test_bare_commands_say_who_gets_the_next_message(service):
    """They dispatch nothing, so they count as commands and not as decisions."""
    chat = await on_whatsapp(service, "sales")
    for text, expected in (
        ("/supervisor", ("sales", "front", "command")),
        ("/agent support", ("front", "support", "user_selected")),
        ("/agent premium", ("support", "premium", "user_selected")),
        ("/agent support", ("support", "support", "command")),
        ("/reset", ("support", "front", "command")),
        ("/status", ("front", "front", "command")),
    ):
        before = service.observer.dispatches(chat.session_id)
        answered = await chat.say(text)
        assert not answered.HasField("dispatch")
        assert line(service) == (*expected, "whatsapp")
        assert service.observer.calls[-1].command == text[1:].split()[0]
        assert service.observer.dispatches(chat.session_id) == before
    assert [c.refused_rules for c in service.observer.calls if c.refused_rules] == [("entitled",)]


async def test_refused_handoff_names_both_agents(service):
    """By an outcome, between messages, and in a trial."""
    chat = await on_whatsapp(service, "sales")
    routed = await chat.say("And more?")
    await refusal(chat.answer(routed.dispatch, **hand_to("premium")))
    assert line(service) == ("sales", "premium", "", "whatsapp")
    call = service.observer.calls[-1]
    assert (call.refused_rules, call.initiator) == (("entitled",), "agent")
    assert call.task_id == routed.task_id
    assert call.revision == routed.revision
    await refusal(chat.set_active("disabled"))
    assert line(service) == ("sales", "disabled", "", "whatsapp")
    await chat.set_active("disabled", validate_only=True)
    assert line(service) == ("sales", "disabled", "", "whatsapp")
    assert service.observer.calls[-1].refused_rules == ("enabled",)


async def test_supervisors_own_handoff_bypasses_nobody(service):
    """Only a user's message that goes straight to an agent saves the supervisor's call."""
    chat = service.chat()
    routed = await chat.say("I need sales")
    handed = await chat.answer(routed.dispatch, **hand_to("sales"))
    assert went(handed.next) == ("sales", "SUPERVISOR_HANDOFF")
    assert not service.observer.calls[-1].supervisor_bypassed
    await chat.answer(handed.next, "Here I am.", **proceed())
    assert (await chat.say("How much?")).supervisor_bypassed
    assert service.observer.calls[-1].supervisor_bypassed


async def test_default_agent_of_a_swarm_is_named_after_a_command(tmp_path):
    """There is no supervisor; the default agent gets the next message."""
    async with serving(tmp_path, SWARM) as service:
        chat = service.chat()
        await chat.say("/reset")
        call = service.observer.calls[-1]
        assert (call.agent_id, call.reason) == ("greeter", "command")
        await chat.clear()
        assert service.observer.calls[-1].reason == "default_agent"
