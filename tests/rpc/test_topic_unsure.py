"""Messages for which topic detection is unsure: the supervisor asked, a hint, or an offer."""

from __future__ import annotations

import asyncio

import pytest

from agent_routing.v1 import routing_service_pb2 as pb
from agent_routing.v1 import session_event_pb2
from tests.rpc.live_service import ask, finish, hand_to, serving, went
from tests.scripted_topics import ScriptedModel

FILE = """
api_version: agent_routing/v1.1
version: unsure-1
HOME
topics: {mode: auto MORE}
agents:
  - {id: front, name: Front desk}
  - {id: vat, name: VAT, description: VAT returns., sticks: session}
  - {id: payroll, name: Payroll, description: Wages., user_selectable: true}
  - {id: archive, name: Archive, description: Old papers., receives_as: interlude}
"""

UNSURE = "#payroll=0.52 and what about Ana"
"""Stay has 0.48, so the lead is far below the bound."""


def registry(more: str = "", home: str = "supervisor: front", version: str = "v1.1") -> str:
    """Return a registry with these topic settings."""
    text = FILE.replace("MORE", f", {more}" if more else "").replace("HOME", home)
    return text.replace("agent_routing/v1.1", f"agent_routing/{version}")


@pytest.fixture
async def asking(tmp_path):
    """A server that asks the supervisor when it is unsure, as v1.1 files do."""
    async with serving(tmp_path, registry(), model=ScriptedModel()) as running:
        yield running


def candidates(dispatch) -> list[tuple[str, float]]:
    """Return the candidates of an unsure message."""
    return [(each.agent_id, round(each.probability, 2)) for each in dispatch.candidates]


async def told(chat) -> list[session_event_pb2.SessionEvent]:
    """Return a watcher's messages since the session's beginning."""
    head = (await chat.status()).revision
    request = pb.WatchSessionRequest(session_id=chat.session_id, user_id=chat.user_id)
    request.after_revision = 0
    events: list[session_event_pb2.SessionEvent] = []
    async with asyncio.timeout(10):
        async for message in chat.service.stub.WatchSession(request):
            if message.HasField("change"):
                events += message.change.events
                if message.change.revision >= head:
                    return events
    raise AssertionError


async def test_supervisor_is_asked_and_hands_the_message_back(asking):
    """The active agent keeps its lock and no handoff is reported: the owner did not change."""
    chat = await asking.chat().with_agent("vat")
    first = await chat.say("my return please")
    await chat.answer(first.dispatch, "Which month?", **ask())
    asked = await chat.say(UNSURE)
    assert went(asked.dispatch) == ("front", "TOPIC_UNSURE")
    assert candidates(asked.dispatch) == [("payroll", 0.52)]
    assert not asked.supervisor_bypassed
    status = await chat.status()
    assert (status.active_agent.agent_id, status.locked) == ("vat", True)
    (waiting,) = status.open_requests
    assert (waiting.reason, candidates(waiting)) == (
        asked.dispatch.reason,
        candidates(asked.dispatch),
    )
    back = await chat.answer(asked.dispatch, "", **hand_to("vat"))
    assert went(back.next) == ("vat", "FOLLOW_UP_LOCK")
    assert back.next.locked
    assert not back.next.HasField("handoff")
    assert back.next.text == UNSURE
    status = await chat.status()
    assert (status.active_agent.agent_id, status.locked) == ("vat", True)
    kinds = [event.WhichOneof("kind") for event in await told(chat)]
    assert kinds.count("agent_handoff") == 1  # The handoff to vat.
    await chat.answer(back.next, "October then.")
    assert went((await chat.say("yes")).dispatch) == ("vat", "STICKY")


async def test_supervisor_that_was_asked_hands_over_as_ever(asking):
    """If it chooses another agent, that agent gets the conversation by an ordinary handoff."""
    chat = await asking.chat().with_agent("vat")
    asked = await chat.say(UNSURE)
    over = await chat.answer(asked.dispatch, "", **hand_to("payroll"))
    assert went(over.next) == ("payroll", "SUPERVISOR_HANDOFF")
    assert (await chat.status()).active_agent.agent_id == "payroll"


async def test_message_handed_back_keeps_the_agents_it_interrupted(asking):
    """The return stack belongs to the active agent, with or without the question."""
    chat = await asking.chat().with_agent("vat")
    turn = await chat.say("show me 2019")
    over = await chat.answer(turn.dispatch, "", **hand_to("archive"))
    await chat.answer(over.next, "Here it is.")
    before = await chat.status()
    asked = await chat.say(UNSURE)
    moved = await chat.set_active("archive", turn_request_id=asked.dispatch.request_id)
    assert not moved.HasField("handoff") or moved.agent.agent_id == "archive"
    after = await chat.status()
    assert list(after.return_stack) == list(before.return_stack) != []
    (waiting,) = after.open_requests
    assert went(waiting) == ("archive", "STICKY")
    done = await chat.answer(waiting, "That was all.", **finish())
    assert done.active_agent.agent_id == "vat"


async def test_supervisor_that_answers_itself_leaves_the_agent_where_it_is(asking):
    """The supervisor only answers this one message."""
    chat = await asking.chat().with_agent("vat")
    asked = await chat.say(UNSURE)
    await chat.answer(asked.dispatch, "Ana is on leave.")
    assert went((await chat.say("thanks")).dispatch) == ("vat", "STICKY")


async def test_agent_mode_gives_the_active_agent_a_hint(tmp_path):
    """The agent may hand over; nothing else differs."""
    text = registry("when_unsure: agent")
    async with serving(tmp_path, text, model=ScriptedModel()) as running:
        chat = await running.chat().with_agent("vat")
        routed = await chat.say(UNSURE)
        assert went(routed.dispatch) == ("vat", "STICKY")
        assert candidates(routed.dispatch) == [("payroll", 0.52)]
        sure = await chat.say("#payroll it is about wages")
        assert went(sure.dispatch) == ("payroll", "TOPIC_SWITCH")
        assert candidates(sure.dispatch) == []


async def test_swarm_offers_the_likeliest_agent_when_it_is_unsure(tmp_path):
    """A swarm has no supervisor, so the user is asked."""
    text = registry(home="default_agent: front")
    async with serving(tmp_path, text, model=ScriptedModel()) as running:
        chat = await running.chat().with_agent("vat")
        routed = await chat.say(UNSURE)
        assert went(routed.dispatch) == ("vat", "STICKY")
        assert routed.suggestion.agent.agent_id == "payroll"
        accepted = await chat.say("", quick_reply_id=routed.suggestion.suggestion_id)
        assert went(accepted.dispatch) == ("payroll", "TOPIC_SWITCH")
        assert accepted.dispatch.text == UNSURE


async def test_files_of_the_first_version_do_as_they_did(tmp_path):
    """Nothing changes for operators who keep their file."""
    text = registry("threshold: 0.5", version="v1")
    async with serving(tmp_path, text, model=ScriptedModel()) as running:
        chat = await running.chat().with_agent("vat")
        assert went((await chat.say(UNSURE)).dispatch) == ("payroll", "TOPIC_SWITCH")


async def test_trace_is_kept_with_the_message(asking):
    """The trace has the detector's figures, and the bound in use at that time."""
    chat = await asking.chat().with_agent("vat")
    routed = await chat.say(UNSURE, explain_topic=True)
    assert routed.topic_trace.outcome == pb.TOPIC_OUTCOME_ASKED
    assert 0 < routed.topic_trace.bound < 1
    (event,) = (
        event
        for event in await told(chat)
        if event.WhichOneof("kind") == "message_routed" and event.message_routed.topic.asked
    )
    topic = event.message_routed.topic
    assert event.message_routed.reason == routed.dispatch.reason
    assert topic.model == "scripted-1"
    assert [each.agent_id for each in topic.candidates] == ["payroll"]
    assert topic.bound == routed.topic_trace.bound
    assert topic.sureness < topic.bound
    assert topic.stay == pytest.approx(0.48)


async def test_share_of_asked_messages_follows_the_registry(tmp_path):
    """The bound adapts until about ask_share of the messages are asked."""
    text = registry("ask_share: 0.1")
    async with serving(tmp_path, text, model=ScriptedModel()) as running:
        asked = 0
        for number in range(600):
            chat = running.chat()
            # Sureness is spread over 0 to 0.2, so half of it is below the first bound.
            probability = 0.5 + (number * 37 % 100) / 1000
            reply = await chat.say(f"#payroll={probability} {number}")
            late = number >= 300
            asked += late and went(reply.dispatch)[1] == "TOPIC_UNSURE"
        assert 0.05 <= asked / 300 <= 0.2


async def test_supervisor_can_be_asked_only_where_there_is_one(tmp_path):
    """The file is refused, and the error names the remedy."""
    text = registry("when_unsure: supervisor", home="default_agent: front")
    with pytest.raises(Exception, match="suggest or agent"):
        async with serving(tmp_path, text, model=ScriptedModel()):
            pass
