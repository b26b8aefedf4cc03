"""User commands, their replies in the user's language, and texts that are not commands."""

import pytest

from agent_routing.v1 import item_pb2
from routing_service.core import events as ev
from tests.rpc.live_service import (
    ask,
    fresh_id,
    hand_to,
    initiator,
    is_replayed,
    mode,
    serving,
    stack,
    task_status,
    went,
)
from tests.rpc.registries import DESK

# A tutor whose pupils may not leave a lesson.
NO_WAY_OUT = DESK.replace("agents:\n", "commands: {disabled: [supervisor]}\nagents:\n", 1)


@pytest.fixture
async def service(tmp_path):
    """A help desk whose agents differ in one thing each."""
    async with serving(tmp_path, DESK) as running:
        yield running


@pytest.fixture
async def tax(tmp_path):
    """The tax assistant example."""
    async with serving(tmp_path, "tax") as running:
        yield running


def in_language(chat, locale, **profile):
    """Set the language of the chat's user."""
    chat.profile = {"locale": locale, "channel": "web", **profile}
    return chat


@pytest.mark.parametrize("typed", ["/supervisor", "  /SUPERVISOR", "\t\n/Supervisor  "])
@pytest.mark.parametrize(
    ("locale", "words"),
    [
        ("en", ("Front desk is with you again, in place of Sales.", "What we sell.")),
        ("es", ("Vuelves a estar con Recepción en lugar de Ventas.", "Lo que vendemos.")),
    ],
)
async def test_supervisor_command_clears_and_says_what_can_be_asked(service, typed, locale, words):
    """In any case, with leading spaces; the reply confirms and lists, and calls no agent."""
    chat = await in_language(service.chat(), locale).with_agent("sales", **ask())
    calls = service.observer.dispatches(chat.session_id)
    routed = await chat.say(typed)
    assert routed.reply.command == "/supervisor"
    assert routed.reply.locale == locale
    assert all(word in routed.reply.text for word in words)
    assert not routed.HasField("dispatch")
    assert not routed.supervisor_bypassed
    assert service.observer.dispatches(chat.session_id) == calls
    status = await chat.status()
    assert not status.HasField("active_agent")
    assert not status.locked
    assert status.next_agent.agent_id == "front"
    assert task_status(status.task.status) == "RUNNING"
    assert routed.task_id == status.task.task_id
    assert went((await chat.say("next")).dispatch) == ("front", "NO_ACTIVE_AGENT")


@pytest.mark.parametrize(
    ("typed", "rest"),
    [
        ("/supervisor show me taxes", "show me taxes"),
        ("  /SuperVisor \t Show  ME   taxes\nplease ", "Show  ME   taxes\nplease "),
        ("/supervisor /reset", "/reset"),
    ],
)
async def test_rest_of_the_message_goes_to_the_supervisor(service, typed, rest):
    """One message can clear and ask; the text after the command is passed on unchanged."""
    chat = await service.chat().with_agent("sales")
    routed = await chat.say(typed)
    assert routed.reply.command == "/supervisor"
    assert went(routed.dispatch) == ("front", "COMMAND")
    assert routed.dispatch.text == rest
    assert routed.dispatch.previous_agent_id == "sales"
    assert (await chat.turns())[-1].user_text == rest
    assert not (await chat.status()).HasField("active_agent")


@pytest.mark.parametrize(
    "text",
    [
        "/supervisors",
        "a /status page",
        "/ supervisor",
        "//supervisor",
        "/",
        "supervisor",
        "/résumé",
        "/status/",
        "/\u212aelp",
        "see /reset",
        "/super visor",
        "/reset-password",
    ],
)
async def test_ordinary_text_is_never_taken_for_a_command(service, text):
    """A slash alone is not a command, nor is a word that only starts like one."""
    chat = await service.chat().with_agent("sales")
    routed = await chat.say(text)
    assert went(routed.dispatch) == ("sales", "STICKY")
    assert routed.dispatch.text == text
    assert not routed.HasField("reply")


async def test_literal_text_is_passed_on_with_its_slash(service):
    """A program that sends a message for another person does not want commands to run."""
    chat = await service.chat().with_agent("sales")
    routed = await chat.say("/supervisor", literal_text=True)
    assert went(routed.dispatch) == ("sales", "STICKY")
    assert routed.dispatch.text == "/supervisor"


async def test_no_command_is_read_from_items_or_agents(service):
    """Only the user's typed text is read."""
    chat = await service.chat().with_agent("sales")
    routed = await chat.say(
        "see below", items=[item_pb2.Item(content_type="text/plain", text="/reset")]
    )
    assert went(routed.dispatch) == ("sales", "STICKY")
    answered = await chat.answer(routed.dispatch, "/reset")
    assert answered.text == "/reset"
    assert answered.active_agent.agent_id == "sales"
    assert "CommandHandled" not in await chat.kinds()


async def test_command_with_an_item_alone_passes_the_item_on(service):
    """A picture with "/supervisor" is a message, even without further text."""
    chat = await service.chat().with_agent("sales")
    picture = item_pb2.Item(content_type="image/png", uri="https://example.com/a.png")
    routed = await chat.say("/supervisor", items=[picture])
    assert went(routed.dispatch) == ("front", "COMMAND")
    assert routed.dispatch.text == ""
    assert list(routed.dispatch.items) == [picture]


@pytest.mark.parametrize(
    ("locale", "with_sales", "without"),
    [
        ("en", ("You are talking to Sales.", "type /supervisor"), "You are with Front desk."),
        ("es-MX", ("Estás hablando con Ventas.", "escribe /supervisor"), "Estás con Recepción."),
    ],
)
async def test_status_command_names_the_agent_and_the_way_back(
    service, locale, with_sales, without
):
    """Or the supervisor, if no other agent is active. It changes nothing."""
    chat = await in_language(service.chat(), locale).with_agent("sales", **ask())
    routed = await chat.say("/status")
    assert routed.reply.command == "/status"
    assert all(words in routed.reply.text for words in with_sales)
    assert not routed.HasField("dispatch")
    status = await chat.status()
    assert status.active_agent.agent_id == "sales"
    assert status.locked
    await chat.say("/supervisor")
    routed = await chat.say(" /STATUS")
    assert without in routed.reply.text
    assert "/supervisor" not in routed.reply.text


@pytest.mark.parametrize(
    ("profile", "listed"),
    [
        ({"channel": "whatsapp"}, ["income_tax", "vat", "invoices"]),
        (
            {"channel": "web", "entitlements": ["plan:premium"]},
            ["income_tax", "vat", "invoices", "payroll", "filing"],
        ),
        ({"channel": "telephone"}, ["income_tax"]),
    ],
)
@pytest.mark.parametrize("locale", ["es", "en"])
async def test_agents_command_lists_those_this_user_may_reach(tax, locale, profile, listed):
    """By entitlements and channel; never a system agent, and in the user's language."""
    names = {
        "income_tax": {"es": "Asesor de renta", "en": "Income tax advisor"},
        "vat": {"es": "Especialista en IVA", "en": "VAT specialist"},
        "invoices": {"es": "Facturación", "en": "Invoices"},
        "payroll": {"es": "Nóminas", "en": "Payroll"},
        "filing": {"es": "Presentación", "en": "Filing"},
        "audit_log": {"es": "Registro de auditoría", "en": "Audit log"},
    }
    chat = tax.chat()
    routed = await chat.say("/agents", locale=locale, **profile)
    assert routed.reply.command == "/agents"
    lines = routed.reply.text.splitlines()[1:]
    found = [
        agent_id
        for line in lines
        for agent_id, name in names.items()
        if line.split(". ", 1)[-1].startswith(name[locale])
    ]
    assert found == listed
    assert not routed.HasField("dispatch")
    reachable = await chat.agents()
    assert [agent_id for agent_id in reachable if agent_id in listed] == listed


async def test_reset_cancels_the_task_and_empties_lock_and_stack(service):
    """Everything open is cancelled; the next message begins a new task with the supervisor."""
    chat = await service.chat().with_agent("sales", **ask())
    routed = await chat.say("wait")
    handed = await chat.answer(routed.dispatch, **hand_to("interrupts"))
    await chat.answer(handed.next, "how are you?", **ask())
    open_request = await chat.say("well")
    before = await chat.status()
    assert (stack(before), before.locked) == (["sales"], True)
    reset = await chat.say("/reset")
    assert reset.reply.command == "/reset"
    assert "Front desk" in reset.reply.text
    assert not reset.HasField("dispatch")
    status = await chat.status()
    assert not status.HasField("active_agent")
    assert not status.locked
    assert not status.return_stack
    assert not status.open_requests
    assert task_status(status.task.status) == "CANCELLED"
    assert [task_status(task.status) for task in await chat.tasks()] == ["CANCELLED"]
    late = await chat.answer(open_request.dispatch, "what I had to say", **ask())
    assert not late.locked
    routed = await chat.say("from the start")
    assert went(routed.dispatch) == ("front", "NO_ACTIVE_AGENT")
    assert routed.task_id != before.task.task_id


async def test_reset_passes_the_rest_on_in_a_new_task(service):
    """Even if the frontend still names the task that the command has just cancelled."""
    chat = await service.chat().with_agent("sales")
    old = (await chat.status()).task.task_id
    routed = await chat.say("/reset I want to return a book", task_id=old)
    assert went(routed.dispatch) == ("front", "COMMAND")
    assert routed.dispatch.text == "I want to return a book"
    assert routed.task_id == routed.dispatch.task_id != old
    statuses = {task.task_id: task_status(task.status) for task in await chat.tasks()}
    assert statuses == {old: "CANCELLED", routed.task_id: "RUNNING"}


@pytest.mark.parametrize("typed", ["/help", "/status", "/agents", "/agent", "/history"])
async def test_question_stays_open_over_commands_that_only_tell(service, typed):
    """Only /supervisor, /reset and /agent NAME end a question."""
    chat = await service.chat().with_agent("sales", **ask())
    routed = await chat.say(typed)
    assert routed.HasField("reply")
    assert not routed.HasField("dispatch")
    assert went((await chat.say("the answer")).dispatch) == ("sales", "FOLLOW_UP_LOCK")


async def test_help_lists_the_commands(service):
    """Each with its slash and description, in the user's language."""
    routed = await service.chat().say("/help", locale="en")
    assert routed.reply.command == "/help"
    for command in ("/supervisor", "/reset", "/agents", "/agent", "/status", "/help"):
        assert f"\n{command}" in routed.reply.text
    spanish = await service.chat().say("/help", locale="es")
    assert "volver con Recepción" in spanish.reply.text
    assert spanish.reply.text.count("\n/") == routed.reply.text.count("\n/")


async def test_disabled_command_only_replies(tmp_path):
    """If the registry disables the way out, the reply says so and nothing changes."""
    async with serving(tmp_path, NO_WAY_OUT) as service:
        chat = await service.chat().with_agent("sales", **ask())
        for typed in ("/supervisor", " /Supervisor take me out"):
            routed = await chat.say(typed)
            assert routed.reply.command == "/supervisor"
            assert routed.reply.text.startswith("/supervisor is not available here.")
            assert not routed.HasField("dispatch")
        status = await chat.status()
        assert status.active_agent.agent_id == "sales"
        assert status.locked
        helped = await chat.say("/help")
        assert "/supervisor:" not in helped.reply.text
        assert "/reset:" in helped.reply.text
        # The supervisor's name is not a way out either; handoffs by agents and operators are.
        refused = await chat.say("/agent front")
        assert not refused.HasField("dispatch")
        assert (await chat.status()).active_agent.agent_id == "sales"
        cleared = await chat.clear()
        assert cleared.previous_agent.agent_id == "sales"


async def test_user_picks_an_agent(service):
    """By id, alias or name, in any language and case; the remaining text goes to the agent."""
    for typed in ("/agent sales", "/AGENT Sales", '/agent "sales team"', "/agent ventas"):
        chat = service.chat()
        await chat.say()
        routed = await chat.say(typed)
        assert routed.reply.text == "You are now talking to Sales."
        assert not routed.HasField("dispatch")
        status = await chat.status()
        assert status.active_agent.agent_id == "sales"
    routed = await chat.say("/agent support my screen is black")
    assert went(routed.dispatch) == ("support", "USER_SELECTED")
    assert routed.dispatch.text == "my screen is black"
    assert routed.dispatch.previous_agent_id == "front"
    handoff = routed.dispatch.handoff
    assert (initiator(handoff), mode(handoff), handoff.to.agent_id) == (
        "USER",
        "TRANSFER",
        "support",
    )


async def test_picking_the_agent_one_is_with_ends_its_question(service):
    """The user wants to continue with the agent without answering its question."""
    chat = await service.chat().with_agent("sales", **ask())
    routed = await chat.say("/agent sales something else")
    assert routed.reply.text == "You are already talking to Sales."
    assert went(routed.dispatch) == ("sales", "USER_SELECTED")
    assert not routed.dispatch.locked
    assert not (await chat.status()).locked


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("premium", "Your plan does not include it."),
        ("on_web", "It is not available on this channel."),
        ("disabled", "It is not available at the moment."),
        ("not_selectable", "It cannot be chosen directly"),
        ("journal", "Nobody can talk to it directly."),
        ("nobody", "Nobody here is called “nobody”."),
    ],
)
async def test_agent_that_the_user_may_not_pick_is_refused_in_words(service, name, words):
    """The reply says why; nothing is dispatched, including the text after the command."""
    chat = await service.chat().with_agent("sales", **ask())
    routed = await chat.say(f"/agent {name} help me")
    assert words in routed.reply.text
    assert not routed.HasField("dispatch")
    status = await chat.status()
    assert (status.active_agent.agent_id, status.locked) == ("sales", True)


@pytest.mark.parametrize(
    ("asked", "spoken", "home"),
    [
        ("es-AR", "es", "Recepción"),
        ("es_419", "es", "Recepción"),
        ("fr", "en", "Front desk"),
        ("", "en", "Front desk"),
    ],
)
async def test_reply_names_the_language_it_is_in(service, asked, spoken, home):
    """A language without texts falls back to the registry's, and the reply names it."""
    routed = await service.chat().say("/status", locale=asked)
    assert routed.reply.locale == spoken
    assert home in routed.reply.text


async def test_repeated_command_is_carried_out_once(service):
    """A retry after a lost reply must not clear later changes."""
    chat = await service.chat().with_agent("sales")
    request_id = fresh_id()
    first = await chat.say("/supervisor", request_id=request_id)
    await chat.set_active("support")
    again = chat.say("/supervisor", request_id=request_id)
    assert await again == first
    assert await is_replayed(again)
    assert (await chat.status()).active_agent.agent_id == "support"


async def test_first_message_may_be_a_command(service):
    """It opens no task, which no agent would end; the first task gets the id in its answer."""
    chat = service.chat()
    routed = await chat.say("/agents")
    assert (routed.revision, bool(routed.task_id)) == (1, True)
    assert await chat.kinds() == ["SessionStarted", "CommandHandled"]
    assert await chat.tasks() == []
    assert not (await chat.status()).HasField("task")
    assert (await chat.say("/help")).task_id == routed.task_id
    routed_next = await chat.say("hello")
    assert routed_next.task_id == routed.task_id
    assert [task.task_id for task in await chat.tasks()] == [routed.task_id]
    assert await chat.turns() != []
    (event,) = [e for e in await chat.events() if isinstance(e, ev.MessageRouted)]
    assert not event.mid_task


@pytest.mark.parametrize("command", ["/help", "/supervisor", "/reset", "/agent sales", "/status"])
async def test_session_of_commands_alone_has_nothing_to_end(service, command):
    """No task is left running, even if the user typed other commands first."""
    chat = service.chat()
    await chat.say(command)
    await chat.say("/history")
    assert await chat.tasks() == []


async def test_task_that_the_frontend_names_begins_with_its_first_message(service):
    """A command before it changes nothing about that."""
    chat = service.chat()
    task_id = fresh_id()
    assert (await chat.say("/help", task_id=task_id)).task_id == task_id
    assert await chat.tasks() == []
    assert (await chat.say("hello", task_id=task_id)).task_id == task_id
    assert [task_status(task.status) for task in await chat.tasks()] == ["RUNNING"]


async def test_markers_in_a_command_pick_no_agent(service):
    """What a user types in brackets is text, also where a command expects a name."""
    chat = await service.chat().with_agent("support")
    for typed in (
        "[COMPLETE] [FOLLOW_UP] [HANDOFF_TO:front]",
        "[HANDOFF_TO: sales]",
        '"**[HANDOFF_TO:sales]**"',
        "[complete] sales",
    ):
        said = (await chat.say(f"/agent {typed}")).reply.text
        assert "Nobody here is called" in said, typed
        assert (await chat.status()).active_agent.agent_id == "support"
    routed = await chat.say("/agent sales hello [HANDOFF_TO:front]")
    assert routed.dispatch.agent.agent_id == "sales"
    assert routed.dispatch.text == "hello [HANDOFF_TO:front]"
    # The list shows ids in plain brackets.
    assert "now talking to Support" in (await chat.say("/agent [support]")).reply.text


async def test_commands_leave_no_turn_unless_they_dispatch(service):
    """History has what agents were asked; only the log has what was typed."""
    chat = await service.chat().with_agent("sales")
    turns = await chat.turns()
    for typed in ("/status", "/agents", "/help", "/supervisor"):
        await chat.say(typed)
    assert await chat.turns() == turns
    typed = [e.text for e in await chat.events() if type(e).__name__ == "CommandHandled"]
    assert typed == ["/status", "/agents", "/help", "/supervisor"]


async def test_validated_command_changes_nothing(service):
    """A trial of /reset returns its reply."""
    chat = await service.chat().with_agent("sales")
    async with chat.unchanged():
        tried = await chat.say("/reset", validate_only=True)
        assert tried.reply.command == "/reset"
