"""Topics and the state of a conversation: open turns, answers without text, two requests."""

from __future__ import annotations

import pytest

from agent_routing.v1 import routing_service_pb2 as pb
from tests.rpc.live_service import serving, went
from tests.scripted_topics import ScriptedModel

REGISTRY = """
api_version: agent_routing/VERSION
version: state-1
supervisor: front
topics: {mode: auto, threshold: 0.5, first_message: auto}
agents:
  - {id: front, name: Front desk}
  - {id: vat, name: VAT, description: VAT returns and sales taxes., examples: [my VAT of May]}
  - {id: payroll, name: Payroll, description: Wages., examples: [when is my salary paid]}
  - {id: invoices, name: Invoices, description: Invoices., examples: [send an invoice to Acme]}
"""


def registry(version: str = "v1.1") -> str:
    """Return the registry in a version of the format."""
    return REGISTRY.replace("VERSION", version)


@pytest.fixture(params=["v1.1"])
async def scripted(request, tmp_path):
    """A server whose messages say whose they are."""
    async with serving(tmp_path, registry(request.param), model=ScriptedModel()) as running:
        yield running


async def test_message_stays_while_the_agent_works_on_another(scripted):
    """Users write in bursts: the second line goes with the first one."""
    chat = await scripted.chat().with_agent("vat")
    first = await chat.say("my return please")
    second = await chat.say("#payroll=0.8 and Ana's wages")
    assert went(second.dispatch) == ("vat", "STICKY")
    await chat.answer(first.dispatch, "Done.")
    await chat.answer(second.dispatch, "Done too.")
    assert went((await chat.say("#payroll=0.8 and Ana's wages")).dispatch)[0] == "payroll"


async def test_open_turn_changes_nothing_in_files_of_the_first_version(tmp_path):
    """Their threshold alone decides, as before."""
    async with serving(tmp_path, registry("v1"), model=ScriptedModel()) as running:
        chat = await running.chat().with_agent("vat")
        await chat.say("my return please")
        second = await chat.say("#payroll=0.8 and Ana's wages")
        assert went(second.dispatch) == ("payroll", "TOPIC_SWITCH")


async def test_message_goes_where_it_is_clearly_for_in_spite_of_an_open_turn(scripted):
    """The trace says which threshold held."""
    chat = await scripted.chat().with_agent("vat")
    await chat.say("my return please")
    moved = await chat.say("#payroll=0.95 when are wages paid", explain_topic=True)
    assert went(moved.dispatch) == ("payroll", "TOPIC_SWITCH")
    assert moved.topic_trace.threshold == pytest.approx(0.9)


async def test_unsure_message_is_not_asked_about_while_the_agent_works(tmp_path):
    """It waits with the message before it."""
    async with serving(tmp_path, registry(), model=ScriptedModel()) as running:
        chat = await running.chat().with_agent("vat")
        first = await chat.say("my return please")
        unsure = await chat.say("#payroll=0.52 hm", explain_topic=True)
        assert went(unsure.dispatch) == ("vat", "STICKY")
        assert unsure.topic_trace.outcome == pb.TOPIC_OUTCOME_UNSURE
        await chat.answer(first.dispatch, "Done.")
        await chat.answer(unsure.dispatch, "Done.")
        assert went((await chat.say("#payroll=0.52 hm")).dispatch) == ("front", "TOPIC_UNSURE")


SMALL_TALK = ("how is my VAT return going", "ok do it", "show me more", "and the next one please")


@pytest.mark.parametrize("version", ["v1", "v1.1"])
async def test_agent_that_answers_without_text_keeps_its_messages(tmp_path, version):
    """Some agents answer with a picture or a button: the outcome says that they answered."""
    async with serving(tmp_path, registry(version)) as running:
        chat = running.chat()
        went_to = []
        for text in SMALL_TALK:
            routed = await chat.say(text)
            went_to.append(routed.dispatch.agent.agent_id)
            await chat.answer(routed.dispatch)
    assert went_to == ["vat"] * len(SMALL_TALK)


@pytest.mark.parametrize("version", ["v1", "v1.1"])
async def test_agent_that_still_works_keeps_what_the_user_adds(tmp_path, version):
    """The user writes again before there is any answer."""
    async with serving(tmp_path, registry(version)) as running:
        chat = running.chat()
        went_to = [(await chat.say(text)).dispatch.agent.agent_id for text in SMALL_TALK]
    assert went_to == ["vat"] * len(SMALL_TALK)


async def test_newer_of_two_requests_decides_and_the_other_is_offered(tmp_path):
    """Accepting the offer sends the message to the other agent."""
    async with serving(tmp_path, registry(), model=ScriptedModel()) as running:
        chat = running.chat()
        text = "#vat how much is it. #payroll when are wages paid"
        both = await chat.say(text, explain_topic=True)
        assert went(both.dispatch) == ("payroll", "TOPIC_SWITCH")
        assert both.topic_trace.second_request_agent_id == "vat"
        assert both.suggestion.agent.agent_id == "vat"
        await chat.answer(both.dispatch, "On the 30th.")
        accepted = await chat.say("", quick_reply_id=both.suggestion.suggestion_id)
        assert went(accepted.dispatch) == ("vat", "TOPIC_SWITCH")
        assert accepted.dispatch.text == text
