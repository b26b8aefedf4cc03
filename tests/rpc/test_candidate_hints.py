"""Hints that a framework's adapter gives a model about a message that may be for another agent."""

from __future__ import annotations

from agent_routing.integrations.agent_tools import note_of_dispatch
from tests.rpc.live_service import serving
from tests.rpc.test_topic_unsure import UNSURE, registry
from tests.scripted_topics import ScriptedModel

NAMES = {"payroll": "Payroll", "vat": "VAT"}


async def test_adapters_tell_the_model_whom_an_unsure_message_may_be_for(tmp_path):
    """This holds for the supervisor and for agents; a sure message has no such note."""
    async with serving(tmp_path, registry(), model=ScriptedModel()) as running:
        chat = await running.chat().with_agent("vat")
        asked = await chat.say(UNSURE)
        note = note_of_dispatch(asked.dispatch, NAMES)
        assert "this message may be for Payroll (payroll). Hand it over if so" in note
        sure = await running.chat().say("#payroll wages")
        assert "may be for" not in note_of_dispatch(sure.dispatch, NAMES)


async def test_active_agent_has_the_same_hint(tmp_path):
    """when_unsure: agent."""
    text = registry("when_unsure: agent")
    async with serving(tmp_path, text, model=ScriptedModel()) as running:
        chat = await running.chat().with_agent("vat")
        hinted = await chat.say(UNSURE)
        assert "may be for Payroll" in note_of_dispatch(hinted.dispatch, NAMES)
