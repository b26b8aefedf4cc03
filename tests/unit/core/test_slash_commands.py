"""Commands that users type: which texts are commands, which are not, and their arguments."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing_service.core.commands import FollowUp
from routing_service.core.registry import Agent
from routing_service.core.slash_commands import (
    COMMANDS_BY_NAME,
    SLASH_COMMANDS,
    TASK_COMMANDS,
    ParsedCommand,
    parse,
)
from routing_service.core.typed_text import fold_word, says_nothing, skip_invisible
from routing_service.texts import shipped_texts
from tests.simulation.conversation import Conversation, registry_of
from tests.typed_inputs import field_inputs, own_inputs

NAMES = [command.name for command in SLASH_COMMANDS]
WITH_ARGUMENT = [command.name for command in SLASH_COMMANDS if command.takes_argument]
WITHOUT_ARGUMENT = [command.name for command in SLASH_COMMANDS if not command.takes_argument]

# What str.split() takes for white space, line breaks and no-break spaces among it.
SPACES = [" ", "\t", "\n", "\r\n", "\N{NO-BREAK SPACE}", "\N{IDEOGRAPHIC SPACE}", "  "]

# Invisible: people paste them, and keyboards add them.
INVISIBLE = [
    "\N{ZERO WIDTH SPACE}",
    "\N{ZERO WIDTH JOINER}",
    "\N{ZERO WIDTH NO-BREAK SPACE}",
    "\N{LEFT-TO-RIGHT MARK}",
    "\N{RIGHT-TO-LEFT OVERRIDE}",
    "\N{SOFT HYPHEN}",
    "\N{WORD JOINER}",
]


def test_table_has_the_commands_that_users_know():
    """The names are part of what users and operators rely on."""
    assert [
        *("supervisor", "reset", "agents", "agent", "status"),
        *("tasks", "task", "history", "help"),
    ] == NAMES


def test_only_three_commands_unlock_change_ownership_and_dispatch():
    """Looking at something must not change it."""
    acting = {"supervisor", "reset", "agent"}
    unlocking, changing, dispatching = set(), set(), set()
    for command in SLASH_COMMANDS:
        agents = (Agent("math"), Agent("art", user_selectable=True))
        chat = Conversation(registry_of(*agents)).with_agent("math")
        chat.says("how much?")
        chat.answers(FollowUp())
        assert chat.locked
        if command.name in TASK_COMMANDS:
            continue  # Text where nothing is ever parked (tests/rpc/test_parked_tasks.py).
        decision = chat.says(f"/{command.name} art hello")
        if not chat.locked:
            unlocking.add(command.name)
        if chat.active != "math":
            changing.add(command.name)
        if decision.dispatch is not None:
            dispatching.add(command.name)
    assert unlocking == changing == dispatching == acting
    assert WITH_ARGUMENT == ["agent", "task"]


def row_ids(rows):
    """Pair each name with its command's name."""
    return [(name, command.name) for name, command in rows]


def test_every_name_in_the_table_leads_to_its_row():
    """In every language; none of them stands for two commands."""
    rows = [
        (name, command)
        for command in SLASH_COMMANDS
        for name in map(fold_word, (command.name, *chain(*command.names.values())))
    ]
    assert len(dict(rows)) == len(set(row_ids(rows)))
    assert dict(COMMANDS_BY_NAME) == dict(rows)


def test_every_command_has_a_name_in_every_language_of_the_replies():
    """/help tells what to type in the user's language."""
    languages = set(shipped_texts().locales)
    assert languages == {"en", "es", "pt"}
    for command in SLASH_COMMANDS:
        assert set(command.names) == languages
        assert all(command.names.values())


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("/supervisor", "supervisor"),
        ("/supervisora", "supervisor"),
        ("/reiniciar", "reset"),
        ("/agentes", "agents"),
        ("/agente", "agent"),
        ("/estado", "status"),
        ("/historial", "history"),
        ("/historico", "history"),
        ("/histórico", "history"),
        ("/HISTÓRICO", "history"),
        ("/histo\N{COMBINING ACUTE ACCENT}rico", "history"),
        ("/ayuda", "help"),
        ("/ajuda", "help"),
        ("  /Ayuda", "help"),
    ],
)
def test_names_of_other_languages_are_commands(typed, name):
    """With and without accents, however a keyboard composes them."""
    assert parse(typed) == ParsedCommand(name, "", "")


def test_localised_name_takes_the_same_arguments():
    """It is the same row of the table."""
    assert parse("/agente iva ¿cuándo?") == ParsedCommand("agent", "iva ¿cuándo?", "")
    assert parse("/reiniciar quiero devolver un libro") == ParsedCommand(
        "reset", "", "quiero devolver un libro"
    )


@pytest.mark.parametrize(
    ("locale", "typed"),
    [("es", "/ayuda"), ("es-MX", "/ayuda"), ("pt_BR", "/ajuda"), ("en", "/help"), ("", "/help")],
)
def test_users_are_told_the_name_of_their_language(locale, typed):
    """A locale with a country has the name of its language, if it has none of its own."""
    assert COMMANDS_BY_NAME["help"].typed(locale) == typed


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("before", ["", " ", "\n\t ", "\N{NO-BREAK SPACE}"])
@pytest.mark.parametrize("change", [str.lower, str.upper, str.title, str.swapcase])
def test_command_is_found_in_any_case_and_after_white_space(name, before, change):
    """Telephones write capitals and people add spaces."""
    assert parse(f"{before}/{change(name)}") == ParsedCommand(name, "", "")


@pytest.mark.parametrize("name", WITHOUT_ARGUMENT)
@pytest.mark.parametrize("space", SPACES)
def test_rest_of_the_message_is_kept_as_written(name, space):
    """Only the white space between is gone; what follows is the user's own, to the last space."""
    assert parse(f"/{name}{space}show me\n taxes ") == ParsedCommand(name, "", "show me\n taxes ")


@pytest.mark.parametrize(
    ("text", "argument"),
    [
        ("/agent", ""),
        ("/agent  ", ""),
        ("/agent math", "math"),
        ("/agent math what is 2+2", "math what is 2+2"),
        ("/agente: «Especialista en IVA», hola", "«Especialista en IVA», hola"),
        ("/agent /reset", "/reset"),
    ],
)
def test_agent_takes_all_that_follows_as_its_argument(text, argument):
    """agent_picks.py decides with the registry which part of it is the name."""
    assert parse(text) == ParsedCommand("agent", argument, "")


def test_command_inside_the_rest_is_not_parsed_again():
    """One message is one command; what follows it is text."""
    assert parse("/supervisor /reset") == ParsedCommand("supervisor", "", "/reset")


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "/",
        "/ reset",
        "//reset",
        "/supervisors",
        "/super visor",
        "/resetting",
        "/agentsmith",
        "/unknown x",
        "/histories",
        "/ayudame",
        "/estados",
        "/reset/",
        "a /status page",
        "status",
        "please /reset",
        "\\reset",
        "-/reset",
        '"/reset"',
        "`/reset`",
        "⁄reset",  # noqa: RUF001 - the fraction slash.
        "/ſtatus",  # noqa: RUF001 - the long s, which matches an s where case is ignored.
        "/ѕtatus",  # noqa: RUF001 - a Cyrillic letter.
        "/statuṡ",
        "/reset\N{COMBINING DOT ABOVE}",
        "/re\x00set",
        "/reset-password",
        "/help.txt",
        "/home/ana/factura.pdf",
        "/status?page=2",
        "/menú_del_día",
    ],
)
def test_ordinary_text_is_never_a_command(text):
    """Text that merely looks like a command is a message."""
    assert parse(text) is None


@pytest.mark.parametrize("invisible", INVISIBLE)
@pytest.mark.parametrize("template", ["{}/reset", "/{}reset", "/re{}set", "/reset{}", " {}/reset"])
def test_invisible_characters_do_not_matter(invisible, template):
    """Pasted text may hold characters that people cannot see."""
    assert parse(template.format(invisible)) == ParsedCommand("reset", "", "")


def read(text):
    """Return the command that a text is, and the text that is left."""
    parsed = parse(text)
    return [parsed.name, parsed.rest] if parsed else [None, text]


@pytest.mark.parametrize("inputs", [own_inputs, field_inputs])
def test_whole_message_is_the_command_however_it_is_typed(inputs):
    """Case, accents, punctuation, keyboards; and what only looks like a command stays text."""
    found = [[text, *read(text)] for text, _, _ in inputs("command")]
    assert found == inputs("command")


def test_registry_adds_words_for_commands():
    """In any case and without accents, as the service's own."""
    own = {fold_word("Recepción"): "supervisor", "menu2": "help"}
    assert parse("/RECEPCION, hola", own) == ParsedCommand("supervisor", "", "hola")
    assert parse("/menu2", own) == ParsedCommand("help", "", "")
    assert parse("/recepción") is None


@given(st.text())
def test_text_without_a_leading_slash_is_never_a_command(text):
    """A command later in the text does not count."""
    if text[skip_invisible(text, 0, also="¿¡") :][:1] not in ("/", "\uff0f"):
        assert parse(text) is None


@given(st.text(min_size=1), st.sampled_from(NAMES))
def test_something_before_the_slash_makes_it_text(before, name):
    """Only what people cannot see, and an opening mark, may come first."""
    first = before[skip_invisible(before, 0, also="¿¡") :][:1]
    if first and first not in "/\uff0f":
        assert parse(f"{before}/{name}") is None


@given(st.text(alphabet=st.characters(categories=["Lu", "Ll", "Lo", "Nd"]), max_size=12))
def test_only_names_of_the_table_are_commands(word):
    """A command's name is one of the table's, letter by letter, for any text."""
    parsed = parse(f"/{word}")
    row = COMMANDS_BY_NAME.get(fold_word(word))
    assert (parsed.name if parsed else None) == (row.name if row else None)


@given(st.text(max_size=12))
def test_command_is_never_longer_or_shorter_than_a_name(word):
    """Any characters: what is read as the name is a name of the table."""
    parsed = parse(f"/{word}")
    names = {fold_word(word[:end]) for end in range(len(word) + 1)}
    assert parsed is None or not names.isdisjoint(COMMANDS_BY_NAME)


@given(
    st.sampled_from(WITHOUT_ARGUMENT),
    st.sampled_from(["", " ", "\n"]),
    st.sampled_from(SPACES),
    st.text(),
)
def test_command_with_any_rest_comes_back_whole(name, before, space, rest):
    """Every letter and digit after the command is kept."""
    parsed = parse(f"{before}/{name}{space}a {rest}")
    assert parsed == ParsedCommand(name, "", f"a {rest}")
    parsed = parse(f"{before}/{name}{space}{rest}")
    assert parsed is not None
    assert rest.endswith(parsed.rest)
    assert says_nothing(rest.removesuffix(parsed.rest))


@given(st.text())
def test_every_message_is_read_without_an_error(text):
    """Users type anything, and a parsed message has lost nothing but white space and quotes."""
    for message in (text, f"/agent {text}", f"/{text}"):
        parsed = parse(message)
        if parsed is not None:
            assert parsed.name in NAMES
            assert parsed.argument in message
            assert message.endswith(parsed.rest)
