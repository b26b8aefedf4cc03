"""Replies as a registry words them and as each channel takes them, over a real server."""

import re

import pytest

from routing_service.registry.file import RegistryFileError, check_registry
from tests.rpc.live_service import ask, serving
from tests.scripted_topics import ScriptedModel

OFFICE = """
api_version: agent_routing/v1
version: office-1
supervisor: front
default_locale: es
topics: {mode: suggest, threshold: 0.8}
STYLE
agents:
  - {id: front, name: {es: Asistente principal, en: Main assistant, pt: Assistente principal}}
  - id: vat
    name: {es: Especialista en IVA, en: VAT specialist, pt: Especialista em IVA}
    description: {es: El IVA y sus plazos., en: VAT., pt: O IVA.}
    user_selectable: true
  - id: bills
    name: {es: Facturación, en: Invoices, pt: Faturas}
    description: {es: Tus facturas., en: Your invoices., pt: As suas faturas.}
    user_selectable: true
  - {id: payroll, name: {es: Nóminas 💶, en: Payroll, pt: Folha}, requires: ["plan:pro"]}
  - {id: on_web, name: {es: Gestora, en: Manager, pt: Gestora}, channels: [Web]}
"""

PICTURES = re.compile("[\U0001f300-\U0001faff]")


def office(style: str = "") -> str:
    """Return the registry with a style of its own."""
    return OFFICE.replace("STYLE", style)


def as_user(service, locale="es", channel="web"):
    """Return a chat of a user who writes on a channel."""
    chat = service.chat()
    chat.profile = {"locale": locale, "channel": channel}
    return chat


async def said(chat, text):
    """Return the reply to a command."""
    return (await chat.say(text)).reply.text


async def test_lists_have_buttons_where_the_channel_shows_them(tmp_path):
    """A press sends the option's text, which picks the agent; other channels choose by number."""
    style = "channels: {web: {button_characters: 9}, whatsapp: {choices: numbers}}"
    async with serving(tmp_path, office(style), model=ScriptedModel()) as service:
        chat = as_user(service)
        reply = (await chat.say("/agentes")).reply
        assert [(each.label, each.text) for each in reply.options] == [
            ("Especial…", "/agente vat"),
            ("Facturac…", "/agente bills"),
        ]
        picked = await chat.say(reply.options[1].text)
        assert picked.reply.text == "Ahora hablas con Facturación."
        left = (await chat.say("/agentes")).reply
        assert [each.text for each in left.options] == ["/agente vat"]
        unknown = (await chat.say("/agente nadie")).reply
        assert [each.text for each in unknown.options] == ["/agente vat", "/agente bills"]
        by_number = as_user(service, channel="whatsapp")
        assert not (await by_number.say("/agentes")).reply.options
        assert not (await chat.say("/estado")).reply.options


async def test_more_agents_than_a_page_have_a_button_for_the_next(tmp_path):
    """The last option of a page shows the next page."""
    many = "".join(
        f"  - {{id: a{number}, name: Agent {number}, user_selectable: true}}\n"
        for number in range(30)
    )
    async with serving(tmp_path, office() + many, model=ScriptedModel()) as service:
        chat = as_user(service, "en")
        seen = []
        text = "/agents"
        while text.startswith("/agents"):
            options = (await chat.say(text)).reply.options
            seen += [each.text for each in options if not each.text.startswith("/agents")]
            text = options[-1].text
        assert len(seen) == len(set(seen)) == 32


async def test_spanish_and_portuguese_names_have_their_article(tmp_path):
    """The user leaves the VAT specialist for the main assistant, and reads a whole sentence."""
    async with serving(tmp_path, office(), model=ScriptedModel()) as service:
        chat = await as_user(service).with_agent("vat", **ask())
        assert (await said(chat, "/estado")).splitlines() == [
            "Estás hablando con el especialista en IVA.",
            "El especialista en IVA espera tu respuesta.",
            "Tu tarea está en curso.",
            "Para volver con el asistente principal, escribe /supervisor",
        ]
        first, *_, last = (await said(chat, "/supervisor")).splitlines()
        assert first == (
            "Vuelves a estar con el asistente principal en lugar del especialista en IVA."
        )
        assert last == "¿Qué necesitas?"
        chat = await as_user(service, "pt-BR").with_agent("vat")
        first, *_ = (await said(chat, "/sair")).splitlines()
        assert first == (
            "Você está de novo com o assistente principal, no lugar do especialista em IVA."
        )
        chat = await as_user(service).with_agent("bills")
        first, *_ = (await said(chat, "/supervisor")).splitlines()
        assert first == "Vuelves a estar con el asistente principal en lugar de Facturación."


async def test_offer_of_another_agent_is_whole_sentences_too(tmp_path):
    """Both buttons of an offer name an agent with its article."""
    async with serving(tmp_path, office(), model=ScriptedModel()) as service:
        chat = await as_user(service).with_agent("bills")
        offer = (await chat.say("#vat ¿cuándo toca?")).suggestion
        assert offer.text == "Esto parece cosa del especialista en IVA. ¿Quieres cambiar?"
        assert [option.label for option in offer.options] == [
            "Cambiar al especialista en IVA",
            "Seguir con Facturación",
        ]
        routed = await chat.say("Cambiar al especialista en IVA")
        assert routed.dispatch.agent.agent_id == "vat"


async def test_supervisor_lists_only_whom_this_user_may_reach(tmp_path):
    """Payroll is of another plan, and the manager of another channel."""
    async with serving(tmp_path, office(), model=ScriptedModel()) as service:
        text = await said(as_user(service, channel="telephone"), "/supervisor")
        assert "Facturación" in text
        assert "Nóminas" not in text
        assert "Gestora" not in text


async def test_help_lists_what_this_user_can_use(tmp_path):
    """Without an agent to choose there is nothing to choose with."""
    alone = office().split("  - id: vat")[0]
    few = alone + '  - {id: vip, name: VIP, requires: ["plan:vip"], user_selectable: true}\n'
    async with serving(tmp_path, few, model=ScriptedModel()) as service:
        assert "/agent" not in await said(as_user(service, "en"), "/help")
        chat = as_user(service, "en")
        chat.profile["entitlements"] = ["plan:vip"]
        helped = await said(chat, "/help")
        assert "/agents:" in helped
        assert "/agent NAME:" in helped


async def test_status_does_not_wait_for_an_agent_that_gets_no_messages(tmp_path):
    """That it waits for an answer and that another agent gets the messages are opposites."""
    async with serving(tmp_path, office(), model=ScriptedModel()) as service:
        chat = await as_user(service, channel="Web").with_agent("on_web", **ask())
        assert "La gestora espera tu respuesta." in await said(chat, "/estado")
        chat.profile["channel"] = "telephone"
        away, *others = (await said(chat, "/estado")).splitlines()
        assert away.startswith("La gestora no está disponible en este momento, así que el asis")
        assert others == ["Tu tarea está en curso."]


OWN_TEXTS = """
replies:
  tone: {es: formal}
  emoji: true
  texts:
    es:
      supervisor-done: "¡Hola de nuevo! Le atiende {home_the}, de Gestoría Sol."
      ask-what: Cuénteme.
    es-MX: {ask-what: "¿En qué le ayudo?"}
    fr: {status-none-active: "Vous parlez avec {home}."}
"""


async def test_brand_speaks_with_its_own_sentences_and_address(tmp_path):
    """Usted instead of tú, the brand's welcome, and an emoji in front."""
    async with serving(tmp_path, office(OWN_TEXTS), model=ScriptedModel()) as service:
        chat = await as_user(service).with_agent("vat", **ask())
        assert "espera su respuesta" in await said(chat, "/estado")
        first, *_, last = (await said(chat, "/supervisor")).splitlines()
        assert first == "👋 ¡Hola de nuevo! Le atiende el asistente principal, de Gestoría Sol."
        assert last == "Cuénteme."
        mexican = (await said(as_user(service, "es-MX"), "/supervisor")).splitlines()
        assert mexican[-1] == "¿En qué le ayudo?"
        assert mexican[0] == "👋 Ya está con el asistente principal."
        routed = await as_user(service, "fr").say("/status")
        assert routed.reply.text.splitlines()[0] == "📍 Vous parlez avec Asistente principal."
        assert routed.reply.locale == "fr"


async def test_brand_without_emoji_has_none_even_in_names(tmp_path):
    """The registry's names may have them for its web pages."""
    async with serving(
        tmp_path, office("replies: {emoji: false}"), model=ScriptedModel()
    ) as service:
        chat = as_user(service)
        chat.profile["entitlements"] = ["plan:pro"]
        text = await said(chat, "/agentes")
        assert "3. Nóminas\n" in text
        assert not PICTURES.search(text)


@pytest.mark.parametrize(
    ("own", "problem", "remedy"),
    [
        ("supervisor-dome: Hola", 'no text "supervisor-dome"', 'did you mean "supervisor-done"'),
        ("agent-done: Con {agnt}", 'the placeholder {agnt}, which "agent-done"', "{agent}"),
        ("agent-done: 'Con { $count }'", "the placeholder {count}", "{agent_the}"),
        ("agent-done: 'Con {agent'", "does not parse", "{agent}"),
        ("agent-done: 'Con {-brand}'", "refers to -brand", "{home_the}"),
    ],
)
def test_sentence_that_could_not_be_said_is_refused_with_its_place(own, problem, remedy):
    """A user would see a hole."""
    style = f"replies:\n  texts:\n    es:\n      {own}"
    with pytest.raises(RegistryFileError) as refused:
        check_registry(office(style), "office.yaml")
    (found,) = refused.value.problems
    assert problem in found.message
    assert remedy in found.remedy
    assert found.line == 10


def test_sentence_that_leaves_out_a_placeholder_is_a_warning():
    """It can be meant."""
    style = "replies:\n  texts:\n    es: {supervisor-done: Hola., agent-unknown: '¿Quién?'}"
    found = check_registry(office(style), "office.yaml").warnings
    messages = [warning.message for warning in found if "leaves out" in warning.message]
    assert messages == [
        'the text of "supervisor-done" leaves out {agent}, {home}',
        'the text of "agent-unknown" leaves out {written}',
    ]


PROFILES = """
channels:
  WhatsApp: {}
  voice: {}
  any: {bold: double_stars, reply_characters: 200}
"""


async def test_offer_on_whatsapp_is_answered_by_its_numbers(tmp_path):
    """Numbered choices in the text, bold names, short labels; the channel's name in any case."""
    async with serving(tmp_path, office(PROFILES), model=ScriptedModel()) as service:
        chat = await as_user(service, channel="whatsapp").with_agent("bills")
        offer = (await chat.say("#vat ¿cuándo toca?")).suggestion
        assert offer.text.splitlines() == [
            "Esto parece cosa del *especialista en IVA*. ¿Quieres cambiar?",
            "1. Cambiar al especialista en IVA",
            "2. Seguir con Facturación",
        ]
        assert max(len(option.label) for option in offer.options) <= 20
        routed = await chat.say("1")
        assert routed.dispatch.agent.agent_id == "vat"
        listed = await said(chat, "/agentes")
        assert "1. *Especialista en IVA*: El IVA y sus plazos." in listed
        assert listed.endswith("Escribe /agente y el número o el nombre.")
        assert (await chat.say("/agente 2")).reply.text == "Ahora hablas con *Facturación*."


async def test_voice_names_no_commands_and_asks_for_yes_or_no(tmp_path):
    """A caller on the phone cannot type a slash."""
    async with serving(tmp_path, office(PROFILES), model=ScriptedModel()) as service:
        chat = await as_user(service, channel="voice").with_agent("bills")
        status = await said(chat, "/estado")
        assert "/" not in status
        offer = (await chat.say("#vat ¿cuándo toca?")).suggestion
        assert offer.text.endswith("Di «sí» o «no».")
        assert (await chat.say("sí")).dispatch.agent.agent_id == "vat"


async def test_no_reply_is_longer_than_its_channel_takes(tmp_path):
    """Forty agents with long descriptions, on each channel."""
    many = "".join(
        f"  - {{id: a{n}, name: Agente número {n}, description: '{'muy largo ' * 30}', "
        "user_selectable: true}\n"
        for n in range(40)
    )
    async with serving(tmp_path, office(PROFILES) + many, model=ScriptedModel()) as service:
        bounds = {"whatsapp": 1024, "VOICE": 300, "sms": 200}
        for channel, characters_max in bounds.items():
            chat = as_user(service, channel=channel)
            for typed in ("/supervisor", "/agentes", "/agente", "/ayuda", "/agente nadie"):
                assert 0 < len(await said(chat, typed)) <= characters_max


async def test_channels_are_matched_in_any_case_where_they_have_profiles(tmp_path):
    """The manager is on Web; a file without profiles compares as it always did."""
    async with serving(tmp_path, office(PROFILES), model=ScriptedModel()) as service:
        assert "Gestora" in await said(as_user(service, channel="WEB"), "/agentes")
    async with serving(tmp_path, office(), model=ScriptedModel()) as service:
        assert "Gestora" not in await said(as_user(service, channel="WEB"), "/agentes")


async def test_newer_files_have_the_built_in_profiles(tmp_path):
    """agent_routing/v1 files keep their replies."""
    newer = office().replace("agent_routing/v1", "agent_routing/v1.1")
    async with serving(tmp_path, newer, model=ScriptedModel()) as service:
        assert "*Facturación*" in await said(as_user(service, channel="whatsapp"), "/agentes")
    async with serving(tmp_path, office(), model=ScriptedModel()) as service:
        assert "*" not in await said(as_user(service, channel="whatsapp"), "/agentes")


def test_channel_named_twice_is_refused():
    """Which of the two profiles counts would be a guess."""
    with pytest.raises(RegistryFileError, match='"Web" is the same channel as "web"'):
        check_registry(office("channels: {web: {}, Web: {}}"), "office.yaml")
