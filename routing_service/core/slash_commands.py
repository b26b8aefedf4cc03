"""The commands that users type, and the replies that answer them.

Rule: ordinary text is never taken for a command. A command is the message's first word: a slash and
a name from the table or from the registry, in any case, with or without accents, and with
punctuation after it. Paths, addresses and longer words (/reset-password, /help.txt) are text.
Every name counts in every session, whatever its language: people write in several.
Only what a user typed is ever parsed: never an agent's text, an item or history.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from routing_service.core.registry import locale_chain
from routing_service.core.typed_text import (
    ends_word,
    fold_word,
    says_nothing,
    skip_invisible,
    without_separator,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class SlashCommand:
    """One row of the table: how a command is written."""

    # Without the slash, lower case. Registries, replies and logs use this name.
    name: str
    # An agent's name follows, and after it perhaps a message (see agent_picks.py).
    takes_argument: bool = False
    # Language -> further names, for users who write in it. Replies use the first.
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def typed(self, locale: str) -> str:
        """Return what users of a locale type, slash included."""
        own = next((self.names[tag] for tag in locale_chain(locale) if tag in self.names), ())
        return f"/{own[0] if own else self.name}"


# In the order in which /help lists them.
SLASH_COMMANDS: tuple[SlashCommand, ...] = (
    SlashCommand(
        "supervisor",
        names={
            "en": ("supervisor", "back", "home", "menu", "exit", "quit", "leave", "main"),
            "es": (
                "supervisor",
                "supervisora",
                "salir",
                "volver",
                "inicio",
                "menú",
                "regresar",
                "atrás",
                "principal",
            ),
            "pt": (
                "supervisor",
                "supervisora",
                "voltar",
                "sair",
                "início",
                "menu",
                "regressar",
                "principal",
            ),
        },
    ),
    SlashCommand(
        "reset",
        names={
            "en": ("reset", "restart"),
            "es": ("reiniciar", "resetear"),
            "pt": ("reiniciar", "recomeçar", "resetar"),
        },
    ),
    SlashCommand(
        "agents",
        names={
            "en": ("agents", "specialists"),
            "es": ("agentes", "especialistas"),
            "pt": ("agentes", "especialistas"),
        },
    ),
    SlashCommand(
        "agent",
        takes_argument=True,
        names={"en": ("agent",), "es": ("agente",), "pt": ("agente",)},
    ),
    SlashCommand(
        "status",
        names={"en": ("status",), "es": ("estado", "estatus"), "pt": ("estado", "situação")},
    ),
    SlashCommand(
        "tasks",
        names={"en": ("tasks",), "es": ("tareas",), "pt": ("tarefas",)},
    ),
    SlashCommand(
        "task",
        takes_argument=True,
        names={"en": ("task",), "es": ("tarea",), "pt": ("tarefa",)},
    ),
    SlashCommand(
        "history",
        names={"en": ("history",), "es": ("historial", "historia"), "pt": ("histórico",)},
    ),
    SlashCommand("help", names={"en": ("help",), "es": ("ayuda",), "pt": ("ajuda",)}),
)


@dataclass(frozen=True, slots=True)
class ParsedCommand:
    """A message that is a command."""

    # Its name in the table, even if the user wrote another one.
    name: str
    # What follows a command that takes an argument, as written: a name, and perhaps a message.
    argument: str
    # The rest of the message, as written, without the white space before it.
    rest: str


@dataclass(frozen=True, slots=True)
class ReplySpec:
    """What a reply says, in no language yet.

    The variants of each command, and what the other fields then hold:

    supervisor   done (agent_id: the agent left), none_active; agent_ids: agents the user can ask
    reset        done; agent_ids: agents the user can ask
    agents       done; agent_id: the active one or empty; agent_ids: agents this user may reach;
                 counts: the page asked for, from 1
    agent        done, already_active (agent_id); refused (agent_id; detail: the rules' names);
                 unknown_agent (detail: the name as written), no_argument, which (detail: as
                 written); agent_ids on the last four: agents the user can select, of ``which``
                 those that fit
    status       active (agent_id), none_active; detail: words of STATUS_DETAILS,
                 ``because:RULE`` for each rule that makes the agent unavailable, or
                 ``returns_to:AGENT_ID`` for the frame on top of the return stack
    tasks        done (agent_ids: the agents of the parked tasks; counts: their numbers; waits:
                 paused, locked or running for each), none_parked
    task         done, paused (agent_id: who has it); unknown_task (detail: as written),
                 no_argument; refused (detail: the rules' names); unknown_task and no_argument also
                 have what tasks has
    history      done (agent_ids: agents that have answered, in the order of their first turns;
                 counts: the turns of each), none_answered; detail: ``NUMBER:TASK_ID`` for each
                 parked task
    help         done; detail: commands that this user has no use for
    any          disabled
    ""           stays (agent_id: the agent the user is still with): a suggestion was declined;
                 notice: only what became of an approval, next to a dispatch; parked (agent_id:
                 whose task waits for an approval), next to the answer that asked for it

    approval: withdrawn or expired, if an approval ended so and the user does not know it yet.
    """

    command: str
    variant: str
    agent_id: str = ""
    agent_ids: tuple[str, ...] = ()
    detail: tuple[str, ...] = ()
    counts: tuple[int, ...] = ()
    approval: str = ""
    waits: tuple[str, ...] = ()


BECAUSE: Final = "because:"

# What /status may add about a session, in the order of the reply.
STATUS_DETAILS: tuple[str, ...] = (
    "stickiness_off",
    "unavailable",
    "locked",
    "task_running",
    "task_paused",
)

TASK_COMMANDS: Final = frozenset({"tasks", "task"})
"""Commands only where tasks may be parked; elsewhere ordinary text."""

MOVING_COMMANDS: Final = frozenset({"supervisor", "reset", "agent"})
"""Commands about the task that their message names."""

COMMAND_PREFIXES: Final = "/\uff0f"
"""What commands begin with: the slash, and the full-width slash of East Asian keyboards."""

NAME_CHARACTERS_MAX: Final = 64
"""Longer words are not looked up: no command's name is as long."""

_OPENING_MARKS: Final = "¿¡"
"""Spanish keyboards put these before a question or an exclamation, a command's too."""


def _commands_by_name() -> Mapping[str, SlashCommand]:
    """Index the table by every folded name in it. Two rows with one name are our own mistake."""
    by_name: dict[str, SlashCommand] = {}
    for command in SLASH_COMMANDS:
        localised_names = [name for names in command.names.values() for name in names]
        for name in dict.fromkeys(map(fold_word, (command.name, *localised_names))):
            assert name not in by_name, name
            by_name[name] = command
    return by_name


COMMANDS_BY_NAME: Mapping[str, SlashCommand] = _commands_by_name()

NO_OWN_WORDS: Mapping[str, str] = MappingProxyType({})


def may_be_command(text: str) -> bool:
    """Say whether a text has a slash at all: most messages have none, and seeing that is cheap."""
    return COMMAND_PREFIXES[0] in text or COMMAND_PREFIXES[1] in text


def parse(text: str, own_words: Mapping[str, str] = NO_OWN_WORDS) -> ParsedCommand | None:
    """Return the command that a user's message is, or None for ordinary text.

    own_words: the registry's further names, folded, with the command that each stands for.
    The case and the accents of the name, full-width letters, invisible characters, and punctuation
    and white space around it do not matter. Letters of other alphabets do.
    """
    start = skip_invisible(text, 0, also=_OPENING_MARKS)
    if text[start : start + 1] not in tuple(COMMAND_PREFIXES):
        return None
    start += 1
    end = start
    while end < len(text) and end - start <= NAME_CHARACTERS_MAX and not ends_word(text, end):
        end += 1
    name = fold_word(text[start:end])
    # The table's own names come first: check refuses a registry that gives them another meaning.
    command = COMMANDS_BY_NAME.get(name)
    if command is None or command.name in TASK_COMMANDS:
        # Registries from before these two commands may have given their words another meaning.
        command = COMMANDS_BY_NAME.get(own_words.get(name, "")) or command
    if command is None:
        return None
    rest = without_separator(text[end:])
    if rest is None:
        return None  # A path, an address or a longer word.
    if says_nothing(rest) and not command.takes_argument:
        rest = ""
    if command.takes_argument:
        return ParsedCommand(command.name, rest, "")
    return ParsedCommand(command.name, "", rest)
