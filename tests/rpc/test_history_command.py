"""Command names in every language, and /history, on a real server."""

import pytest

from tests.rpc.live_service import ask, fresh_id, hand_to, serving, went
from tests.rpc.registries import DESK


@pytest.fixture
async def service(tmp_path):
    """A help desk whose agents differ in one thing each."""
    async with serving(tmp_path, DESK) as running:
        yield running


def in_language(chat, locale, **profile):
    """Set the language of the chat's user."""
    chat.profile = {"locale": locale, "channel": "web", **profile}
    return chat


async def test_help_lists_the_names_of_the_users_language(service):
    """Each command with its slash, in the table's order."""
    commands = {
        "en": "/supervisor /reset /agents /agent /status /history /help",
        "es": "/supervisor /reiniciar /agentes /agente /estado /historial /ayuda",
        "pt-BR": "/supervisor /reiniciar /agentes /agente /estado /histórico /ajuda",
    }
    for locale, names in commands.items():
        routed = await service.chat().say("/help", locale=locale)
        listed = [line for line in routed.reply.text.splitlines() if line.startswith("/")]
        assert [line.split(maxsplit=1)[0].rstrip(":") for line in listed] == names.split()


@pytest.mark.parametrize("locale", ["en", "es", "pt"])
async def test_commands_of_every_language_work_in_every_session(service, locale):
    """A Spanish command works in a session that began in English."""
    for typed, command in (
        ("/Estado", "/status"),
        ("/agentes", "/agents"),
        ("/ayuda", "/help"),
        ("/ajuda", "/help"),
        ("/historico", "/history"),
        ("/supervisora", "/supervisor"),
        ("/reiniciar", "/reset"),
    ):
        chat = await in_language(service.chat(), locale).with_agent("sales")
        routed = await chat.say(typed)
        assert (routed.reply.command, routed.reply.locale) == (command, locale)
        assert not routed.HasField("dispatch")
    routed = await chat.say("/agente support no me funciona")
    assert went(routed.dispatch) == ("support", "USER_SELECTED")
    assert routed.dispatch.text == "no me funciona"


@pytest.mark.parametrize(
    ("locale", "expected"),
    [
        (
            "en",
            (
                "This conversation so far, by agent:\n"
                "- Front desk: one answer\n"
                "- Sales: 2 answers\n"
                "Your latest messages, and who had them:\n"
                "- “I want a book”: Front desk → Sales\n"
                "- “a cheap one”: Sales"
            ),
        ),
        (
            "es-MX",
            (
                "Esta conversación hasta ahora, por agente:\n"
                "- Recepción: una respuesta\n"
                "- Ventas: 2 respuestas\n"
                "Tus últimos mensajes y quién los atendió:\n"
                "- «I want a book»: Recepción → Ventas\n"
                "- «a cheap one»: Ventas"
            ),
        ),
    ],
)
async def test_history_command_tells_the_conversation_by_agent(service, locale, expected):
    """How often each agent answered, in the order of first turns, and what it had; no agent's call.

    The command changes nothing: an open question stays open.
    """
    chat = in_language(service.chat(), locale)
    routed = await chat.say("I want a book")
    handed = await chat.answer(routed.dispatch, **hand_to("sales"))
    await chat.answer(handed.next, "which one?", **ask())
    routed = await chat.say("a cheap one")
    await chat.answer(routed.dispatch, "this?", **ask())
    calls = service.observer.dispatches(chat.session_id)
    told = await chat.say("/history")
    assert told.reply.command == "/history"
    assert told.reply.text == expected
    assert not told.HasField("dispatch")
    assert service.observer.dispatches(chat.session_id) == calls
    status = await chat.status()
    assert (status.active_agent.agent_id, status.locked) == ("sales", True)
    assert (await chat.say("/historial")).reply.text == expected


async def test_history_before_any_answer_says_so(service):
    """As the very first message, and while the first message waits for its answer."""
    chat = service.chat()
    none = "Nobody has answered you in this conversation yet."
    assert (await chat.say("/history")).reply.text == none
    await chat.say("hello")
    assert (await chat.say("/history")).reply.text.startswith(f"{none}\nYour latest messages")


async def test_history_is_the_same_after_a_restart_and_on_trial(tmp_path):
    """The reply is built from the store, not from a process's memory."""
    async with serving(tmp_path, DESK) as service:
        chat = await service.chat().with_agent("sales")
        async with chat.unchanged():
            tried = await chat.say("/history", validate_only=True)
        session_id = chat.session_id
    async with serving(tmp_path, DESK) as service:
        chat = service.chat(session_id)
        told = await chat.say("/history")
        assert told.reply.text == tried.reply.text
        assert "Sales" in told.reply.text


async def test_repeated_history_gets_the_first_answer(service):
    """A repeat gets the first reply, without later answers."""
    chat = await service.chat().with_agent("sales")
    request_id = fresh_id()
    first = await chat.say("/history", request_id=request_id)
    routed = await chat.say("one more")
    await chat.answer(routed.dispatch, "done")
    assert await chat.say("/history", request_id=request_id) == first
    assert (await chat.say("/history")).reply.text != first.reply.text
