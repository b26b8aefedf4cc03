"""The commands that users type, and the replies that answer them.

The table of commands, the parser that distinguishes a command from ordinary text, and the shape of
a reply before it has a language (``routing_service.texts`` has the texts).

Rule: ordinary text is never taken for a command. A command is the message's first word, a slash and
a name from the table, alone or before white space; anything else is a message. Names of every
language count in every session, since people write in several.
Only what a user typed is ever parsed: never an agent's text, an item or history.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from routing_service.core.registry import locale_chain

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class SlashCommand:
    """One row of the table: how a command is written."""

    # Without the slash, lower case. Registries, replies and logs use this name.
    name: str
    # The first word after the command, or the first quoted words, are an agent's name.
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
        names={"es": ("supervisor", "supervisora"), "pt": ("supervisor", "supervisora")},
    ),
    SlashCommand(
        "reset",
        names={"es": ("reiniciar",), "pt": ("reiniciar",)},
    ),
    SlashCommand("agents", names={"es": ("agentes",), "pt": ("agentes",)}),
    SlashCommand(
        "agent",
        takes_argument=True,
        names={"es": ("agente",), "pt": ("agente",)},
    ),
    SlashCommand("status", names={"es": ("estado",), "pt": ("estado",)}),
    SlashCommand("history", names={"es": ("historial",), "pt": ("histórico", "historico")}),
    SlashCommand("help", names={"es": ("ayuda",), "pt": ("ajuda",)}),
)


@dataclass(frozen=True, slots=True)
class ParsedCommand:
    """A message that is a command."""

    # Its name in the table, even if the user wrote another one.
    name: str
    # The agent named, as written but without quotes; empty where the command takes none or the
    # user gave none.
    argument: str
    # The rest of the message, as written, without the white space before it.
    rest: str


@dataclass(frozen=True, slots=True)
class ReplySpec:
    """What a reply says, in no language yet.

    The variants of each command, and what the other fields then hold:

    supervisor   done (agent_id: the agent left), none_active; agent_ids: agents the user can ask
    reset        done; agent_ids: agents the user can ask
    agents       done; agent_id: the active one or empty; agent_ids: agents this user may reach
    agent        done, already_active (agent_id); refused (agent_id; detail: the rules' names);
                 unknown_agent (detail: the name as written), no_argument;
                 agent_ids on the last three: agents the user can select
    status       active (agent_id), none_active; detail: words of STATUS_DETAILS, or
                 ``returns_to:AGENT_ID`` for the frame on top of the return stack
    history      done (agent_ids: agents that have answered, in the order of their first turns;
                 counts: the turns of each), none_answered
    help         done
    any          disabled
    ""           stays (agent_id: the agent the user is still with): a suggestion was declined
    """

    command: str
    variant: str
    agent_id: str = ""
    agent_ids: tuple[str, ...] = ()
    detail: tuple[str, ...] = ()
    counts: tuple[int, ...] = ()


# What /status may add about a session, in the order of the reply.
STATUS_DETAILS: tuple[str, ...] = (
    "stickiness_off",
    "unavailable",
    "locked",
    "task_running",
    "task_paused",
)

# Opening quote -> closing quote, as keyboards of several languages write them.
_QUOTES: Mapping[str, str] = {
    '"': '"',
    "'": "'",
    "“": "”",
    "„": "“",
    "‘": "’",  # noqa: RUF001 - this is the quotation mark that people paste.
    "«": "»",
}


COMMAND_PREFIX = "/"
"""What every command begins with, once white space before it is gone."""


def _commands_by_name() -> Mapping[str, SlashCommand]:
    """Index the table by every name in it; no two rows share one."""
    by_name: dict[str, SlashCommand] = {}
    for command in SLASH_COMMANDS:
        localised_names = [name for names in command.names.values() for name in names]
        for name in dict.fromkeys((command.name, *localised_names)):
            assert name == _fold(name), name
            assert name not in by_name, name
            by_name[name] = command
    return by_name


def _fold(word: str) -> str:
    return unicodedata.normalize("NFC", word).lower()


COMMANDS_BY_NAME: Mapping[str, SlashCommand] = _commands_by_name()


def parse(text: str) -> ParsedCommand | None:
    """Return the command that a user's message is, or None for ordinary text.

    White space before the slash, the case of the name, and which white space follows it (a line
    break, a no-break space) do not matter. Invisible characters other than white space do: with
    one of them the word is a different word.
    """
    text = text.lstrip()
    if not text.startswith(COMMAND_PREFIX):
        return None
    word, rest = _split_word(text)
    name = _fold(word[1:])
    if name.isascii() and not word.isascii():
        return None  # Look-alikes, such as a Kelvin sign for a K, do not spell a command.
    command = COMMANDS_BY_NAME.get(name)
    if command is None:
        return None
    argument = ""
    if command.takes_argument:
        argument, rest = _split_argument(rest)
    return ParsedCommand(command.name, argument, rest)


def _split_word(text: str) -> tuple[str, str]:
    """Split at the first white space; what follows loses its leading white space only."""
    parts = text.split(maxsplit=1)
    return parts[0] if parts else "", parts[1] if len(parts) > 1 else ""


def _split_argument(text: str) -> tuple[str, str]:
    """Split off the first word, or the text between a pair of quotes.

    A quote that is never closed is part of its word, so that no text is lost.
    """
    closing = _QUOTES.get(text[:1])
    end = text.find(closing, 1) if closing else -1
    if end > 0:
        return text[1:end].strip(), text[end + 1 :].lstrip()
    return _split_word(text)
