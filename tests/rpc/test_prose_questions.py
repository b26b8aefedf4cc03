"""Agents that ask in plain prose: asks_in_prose turns the question into a soft lock."""

import pytest

from agent_routing.v1 import item_pb2
from routing_service.core import events as ev
from tests.rpc.live_service import ask, hand_to, outcome, serving, went
from tests.scripted_topics import ScriptedModel

CLINIC = """
api_version: agent_routing/v1
version: clinic-1
supervisor: desk
default_locale: es
topics: {mode: auto, threshold: 0.8}
agents:
  - {id: desk, name: Recepción}
  - {id: dates, name: Citas, description: Da citas., asks_in_prose: lock}
  - {id: bills, name: Facturas, description: Cobra., asks_in_prose: "off"}
  - {id: brief, name: Dudas, sticks: follow_up, description: Aclara., asks_in_prose: lock}
  - {id: guest, name: Avisos, sticks: never, description: Avisa., asks_in_prose: lock}
"""


@pytest.fixture
async def service(tmp_path):
    """A clinic without topic detection."""
    async with serving(tmp_path, CLINIC.replace("mode: auto", "mode: 'off'")) as running:
        yield running


async def answered(chat, agent_id, text, **fields):
    """Let an agent get a message and answer it by proceed; return the answer's response."""
    routed = await chat.say("hola")
    handed = await chat.answer(routed.dispatch, **hand_to(agent_id))
    return await chat.answer(handed.next, text, **fields)


@pytest.mark.parametrize(
    "question",
    ["¿Qué día le viene bien?", "Dígame su número de historia.", "Qual é o seu CPF?", "Which day?"],
)
async def test_question_in_prose_is_followed_by_its_answer(service, question):
    """Dates asks and says proceed; the next message is the answer to it."""
    chat = service.chat()
    done = await answered(chat, "dates", f"Tengo hueco el martes. {question}")
    assert (done.active_agent.agent_id, done.locked) == ("dates", True)
    assert (await chat.status()).locked
    routed = await chat.say("el martes")
    assert went(routed.dispatch) == ("dates", "FOLLOW_UP_LOCK")
    assert routed.dispatch.locked
    done = await chat.answer(routed.dispatch, "Anotado.")
    assert not done.locked
    assert went((await chat.say("gracias")).dispatch) == ("dates", "STICKY")


async def test_off_by_default_a_question_in_prose_is_only_text(service):
    """As before: only follow_up locks."""
    chat = service.chat()
    done = await answered(chat, "bills", "¿Se la mando por correo?")
    assert not done.locked
    assert went((await chat.say("sí")).dispatch) == ("bills", "STICKY")


async def test_agent_that_stays_only_while_it_asks_stays_for_its_question(service):
    """Without it the answer would go to the desk."""
    chat = service.chat()
    await answered(chat, "brief", "¿Se refiere al copago?")
    assert went((await chat.say("sí")).dispatch) == ("brief", "FOLLOW_UP_LOCK")
    other = service.chat()
    await answered(other, "brief", "El copago es de 5 €.")
    assert went((await other.say("vale")).dispatch) == ("desk", "NO_ACTIVE_AGENT")


async def test_agent_that_never_sticks_is_not_locked(service):
    """Its sticks: never counts more."""
    chat = service.chat()
    await answered(chat, "guest", "¿Lo apunta?")
    assert went((await chat.say("sí")).dispatch) == ("desk", "NO_ACTIVE_AGENT")


async def test_history_keeps_the_outcome_that_the_agent_gave(service):
    """A proceed; the log has the lock, and says that it is a soft one."""
    chat = service.chat()
    await answered(chat, "dates", "", items=[_item("¿A las 9 o a las 11?")])
    assert outcome((await chat.turns())[-1]) == ("PROCEED", "APPLIED")
    (lock,) = [event for event in await chat.events() if isinstance(event, ev.LockEngaged)]
    assert (lock.agent_id, lock.soft) == ("dates", True)


async def test_other_outcomes_are_as_they_were(service):
    """A completion that ends in a question releases, and a question by follow_up locks hard."""
    chat = service.chat()
    await answered(chat, "dates", "¿Qué día?", **ask())
    (lock,) = [event for event in await chat.events() if isinstance(event, ev.LockEngaged)]
    assert not lock.soft


async def test_message_for_another_agent_gets_past_a_soft_lock(tmp_path):
    """After a question by follow_up it stays; after one in prose its topic takes it along."""
    async with serving(tmp_path, CLINIC, model=ScriptedModel()) as service:
        hard, soft = service.chat(), service.chat()
        await answered(hard, "dates", "¿Qué día?", **ask())
        await answered(soft, "dates", "¿Qué día?")
        assert went((await hard.say("y la factura? #bills")).dispatch) == (
            "dates",
            "FOLLOW_UP_LOCK",
        )
        assert went((await soft.say("el martes")).dispatch) == ("dates", "FOLLOW_UP_LOCK")
        assert went((await soft.say("y la factura? #bills")).dispatch) == ("bills", "TOPIC_SWITCH")


def _item(text):
    return item_pb2.Item(content_type="text/plain", text=text)
