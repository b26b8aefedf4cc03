"""Conversations as people type them: ways out, picks, replies to offers, and models' markers."""

import asyncio
import os
import sys

import pytest

from agent_routing.v1 import item_pb2
from tests.rpc.live_service import ask, fail, refusal, serving, task_status, went
from tests.scripted_topics import ScriptedModel

STUDIO = """
api_version: agent_routing/v1
version: studio-1
supervisor: assistant
default_locale: es
commands: {words: {supervisor: [recepción], agents: [equipo]}}
agents:
  - {id: assistant, name: {es: Asistente, pt: Assistente, en: Assistant}}
  - {id: income_tax, name: {es: Asesor de renta}, user_selectable: true}
  - {id: vat, name: {es: Especialista en IVA}, user_selectable: true}
  - {id: invoices, name: {es: Facturación}, user_selectable: true}
  - {id: payroll, name: {es: Remuneraciones y personal}, user_selectable: true}
"""


@pytest.fixture
async def studio(tmp_path):
    """An accountants' studio."""
    async with serving(tmp_path, STUDIO) as running:
        yield running


@pytest.mark.parametrize(
    "typed",
    [
        "/supervisor.",
        "/Supervisor!",
        "／supervisor",  # noqa: RUF001 - the slash of East Asian keyboards.
        "\u200b/supervisor\u200b",
        "\ufeff/supervisor",
        "\u00a0/supervisor\u00a0",
        "/salir",
        "/Volver.",
        "/início",
        "/sair!",
        "/home",
        "/RECEPCION",
    ],
)
async def test_way_out_is_found_however_it_is_typed(studio, typed):
    """A phone may add a period, a page an invisible character; the way out still works."""
    chat = await studio.chat().with_agent("vat", **ask())
    routed = await chat.say(typed)
    assert routed.reply.command == "/supervisor"
    assert not routed.HasField("dispatch")
    assert not (await chat.status()).HasField("active_agent")


async def test_what_follows_the_way_out_is_passed_on(studio):
    """A comma after it is dropped; a path or a longer word is the user's text, unchanged."""
    chat = await studio.chat().with_agent("vat", **ask())
    for text in ("/reset-password", "/home/ana/factura.pdf", "/help.txt", "//status"):
        routed = await chat.say(text)
        assert (routed.dispatch.agent.agent_id, routed.dispatch.text) == ("vat", text)
    routed = await chat.say("/supervisor, muestra mis facturas")
    assert went(routed.dispatch) == ("assistant", "COMMAND")
    assert routed.dispatch.text == "muestra mis facturas"


async def test_user_picks_by_the_number_in_the_list_just_shown(studio):
    """The list, a number from it, a word unique to one name, and an ambiguous one."""
    chat = studio.chat()
    listed = await chat.say("/equipo")
    assert "\n2. Especialista en IVA" in listed.reply.text
    routed = await chat.say("/agente 2, ¿cuánto debo?")
    assert went(routed.dispatch) == ("vat", "USER_SELECTED")
    assert routed.dispatch.text == "¿cuánto debo?"
    routed = await chat.say("/agente facturacion necesito la 1043")
    assert (routed.dispatch.agent.agent_id, routed.dispatch.text) == (
        "invoices",
        "necesito la 1043",
    )
    asked = await chat.say("/agente renta y personal")
    assert not asked.HasField("dispatch")
    assert "\n1. Asesor de renta" in asked.reply.text
    assert "\n2. Remuneraciones y personal" in asked.reply.text
    # A new list was shown, so its numbers count now.
    await chat.say("/agente 2")
    assert (await chat.status()).active_agent.agent_id == "payroll"
    unknown = await chat.say("/agente 9")
    assert "9" in unknown.reply.text
    assert (await chat.status()).active_agent.agent_id == "payroll"


async def test_long_list_comes_in_pages_that_a_channel_takes(tmp_path):
    """120 agents with long descriptions: no reply is longer than a message may be."""
    agents = "".join(
        f"  - {{id: a{number}, name: Agente {number} {'muy ' * 20}largo, user_selectable: true, "
        f"description: {'Lo que hace. ' * 20}}}\n"
        for number in range(1, 121)
    )
    async with serving(tmp_path, STUDIO + agents) as service:
        chat = service.chat()
        first = await chat.say("/agentes")
        assert "\n20. " in first.reply.text
        assert "\n21. " not in first.reply.text
        assert "/agentes 2" in first.reply.text
        second = await chat.say("/agentes 2")
        assert "\n21. " in second.reply.text
        assert "\n20. " not in second.reply.text
        for text in ("/agentes 7", "/agentes 99", "/supervisor", "/agente", "/agente nadie"):
            assert len((await chat.say(text)).reply.text) <= 4000
        await chat.say("/agente 24")
        assert (await chat.status()).active_agent.agent_id == "a20"


@pytest.fixture
async def offering(tmp_path):
    """The studio; for a message with #vat the specialist in VAT is suggested."""
    topics = STUDIO.replace("agents:\n", "topics: {mode: suggest}\nagents:\n", 1)
    async with serving(tmp_path, topics, model=ScriptedModel()) as running:
        yield running


async def with_offer(service):
    """Return a chat with the agent for invoices, in which the specialist in VAT is suggested."""
    chat = await service.chat().with_agent("invoices")
    routed = await chat.say("#vat cuánto debo")
    assert routed.suggestion.agent.agent_id == "vat"
    return chat, routed.suggestion


@pytest.mark.parametrize(
    "typed",
    ["Cambiar a Especialista en IVA", "dale", "sí, conéctame", "1", "bora", "👍", "sure, go ahead"],
)
async def test_offer_is_accepted_in_words(offering, typed):
    """By its label, its number, or a yes in any of the languages."""
    chat, _ = await with_offer(offering)
    routed = await chat.say(typed)
    assert went(routed.dispatch) == ("vat", "TOPIC_SWITCH")
    assert routed.dispatch.text == "#vat cuánto debo"


@pytest.mark.parametrize("typed", ["mejor no", "todavía no", "agora não", "not now", "👎"])
async def test_offer_is_declined_in_words(offering, typed):
    """The offer is withdrawn; the agent gets the no as well, which may be for it."""
    chat, offer = await with_offer(offering)
    routed = await chat.say(typed)
    assert (routed.dispatch.agent.agent_id, routed.dispatch.text) == ("invoices", typed)
    refused = await refusal(chat.say(quick_reply_id=offer.suggestion_id, text=""))
    assert refused.reason == "UNKNOWN_SUGGESTION"


@pytest.mark.parametrize("typed", ["Seguir con Facturación", "2"])
async def test_option_to_stay_can_be_typed(offering, typed):
    """The option belongs to the service, so the text does not go to an agent."""
    chat, _ = await with_offer(offering)
    routed = await chat.say(typed)
    assert routed.reply.text == "Sigues con Facturación."
    assert not routed.HasField("dispatch")
    assert not (await chat.status()).HasField("suggestion")


@pytest.mark.parametrize(
    "typed",
    ["sí, y cuánto es?", "no me llegó la boleta", "12", "ok gracias", "perfecto, mándamela"],
)
async def test_what_is_more_than_an_answer_goes_to_the_agent(offering, typed):
    """The text is unchanged, and the offer stays open."""
    chat, offer = await with_offer(offering)
    routed = await chat.say(typed)
    assert (routed.dispatch.agent.agent_id, routed.dispatch.text) == ("invoices", typed)
    accepted = await chat.say(quick_reply_id=offer.suggestion_id, text="")
    assert went(accepted.dispatch) == ("vat", "TOPIC_SWITCH")


@pytest.mark.parametrize(
    "marker",
    [
        "[HANDOFF_TO:motivator]",
        "**[HANDOFF_TO:motivator]**",
        "`[HANDOFF\\_TO:motivator]`",
        "[[HANDOFF_TO: Motivadora]]",
        "［HANDOFF_TO:motivator］",  # noqa: RUF001 - as models write them.
        "[HANDOFF_TO:motivator",
    ],
)
async def test_marker_is_followed_and_never_shown_however_a_model_writes_it(tmp_path, marker):
    """The tutor asks the motivator for an interlude; the pupil only reads the sentence."""
    async with serving(tmp_path, "tutor") as service:
        chat = await service.chat().with_agent("math_specialist", **ask())
        routed = await chat.say("no puedo más", locale="es")
        handed = await chat.answer(routed.dispatch, f"Respira hondo. {marker}")
        assert handed.text == "Respira hondo."
        assert went(handed.next) == ("motivator", "AGENT_HANDOFF")
        assert [turn.agent_text for turn in await chat.turns()][-2:] == ["Respira hondo.", ""]


async def test_marker_in_an_item_counts_and_is_never_shown(tmp_path):
    """An item that was nothing else is left out of what the user gets."""
    async with serving(tmp_path, "tutor") as service:
        chat = await service.chat().with_agent("math_specialist")
        routed = await chat.say("no puedo más")
        items = [
            item_pb2.Item(content_type="text/plain", text="[HANDOFF_TO:motivator]"),
            item_pb2.Item(content_type="text/plain", text="Respira. **[HANDOFF_TO:assessor]**"),
        ]
        handed = await chat.answer(routed.dispatch, "", items=items)
        assert went(handed.next) == ("motivator", "AGENT_HANDOFF")
        (kept,) = (await chat.turns())[-2].agent_items
        assert kept.text == "Respira."


async def test_failure_in_an_interlude_returns_and_the_lesson_goes_on(tmp_path):
    """The motivator cannot do it: the teacher has the pupil back, and the task stays running."""
    async with serving(tmp_path, "tutor") as service:
        chat = await service.chat().with_agent("math_specialist", **ask())
        routed = await chat.say("no puedo más")
        handed = await chat.answer(routed.dispatch, "Respira. [HANDOFF_TO:motivator]")
        failed = await chat.answer(handed.next, "", **fail("no words"))
        assert went(failed.next) == ("math_specialist", "RETURNED")
        status = await chat.status()
        assert status.active_agent.agent_id == "math_specialist"
        assert task_status(status.task.status) == "RUNNING"


@pytest.mark.parametrize("text", [" ", "\n\t", "\u200b\ufeff", "\u00a0"])
async def test_blank_message_is_refused(studio, text):
    """No agent can answer it; with an item it is a message."""
    chat = studio.chat()
    refused = await refusal(chat.say(text))
    assert (refused.code, refused.reason, refused.rules) == (
        "INVALID_ARGUMENT",
        "INVALID_FIELD",
        ["text"],
    )
    picture = item_pb2.Item(content_type="image/png", uri="https://example.com/a.png")
    assert (await chat.say(text, items=[picture])).dispatch.agent.agent_id == "assistant"


async def test_chat_takes_any_bytes_in_any_locale(tmp_path):
    """The input has bytes that are not UTF-8, and the container has no locale."""
    command = [sys.executable, "-c", "from routing_service.cli import main; main()"]
    process = await asyncio.create_subprocess_exec(
        *command,
        *("chat", "--example", "tax", "--locale", "es"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "HOME": str(tmp_path)},
    )
    said, _ = await process.communicate(b"hola \xff\xfe\n/estado\n")
    assert process.returncode == 0, said
    assert b"Traceback" not in said
    assert b"Coordinadora" in said
