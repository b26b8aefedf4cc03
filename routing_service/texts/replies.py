"""The text of a reply to a command or a declined suggestion, and of a notice, in a language.

Rule: a pure function of the ``ReplySpec``, the registry, the locale and, for /history, the turns.
The same reply in the same language is always the same text, because it is stored with its change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from routing_service.core.channel_profiles import REPLY_CHARACTERS_MAX, ChannelProfile, Choices
from routing_service.core.evolve import OTHER_AGENTS
from routing_service.core.history import TurnRecord
from routing_service.core.registry import Registry
from routing_service.core.slash_commands import (
    BECAUSE,
    COMMANDS_BY_NAME,
    SLASH_COMMANDS,
    STATUS_DETAILS,
    ReplySpec,
)
from routing_service.texts.agent_names import NameForms, name_forms, plain_forms
from routing_service.texts.catalogue import Texts
from routing_service.texts.own_texts import COMMON_COMMANDS, reply_texts
from routing_service.texts.plain_text import clipped, without_emoji

# A reply is read on a phone, and stored: longer lists are cut, and the rest is counted.
LISTED_MAX = 20

# A list shows the beginning of a description, and less of it where the reply would get too long.
DESCRIPTION_CHARACTERS_MAX = 160
_DESCRIPTION_CHARACTERS = (DESCRIPTION_CHARACTERS_MAX, 80, 40, 0)

# Of a list that is read aloud.
SPOKEN_LISTED_MAX = 5

# Of the text that a user wrote in place of an agent's name.
WRITTEN_CHARACTERS_MAX = 60

# /history shows the latest messages; frontends and ListTurns have all of them.
HISTORY_MESSAGES_MAX = 5

# Of a user's message, and of the names of the agents that had it.
HISTORY_CHARACTERS_MAX = 100

# Rules that refuse only the target; other agents may still be allowed.
_RULES_OF_THE_TARGET = frozenset(
    {
        "enabled",
        "not_system",
        "not_active",
        "entitled",
        "channel",
        "user_selectable",
        "return_stack",
    }
)

_RETURNS_TO = "returns_to:"

# What /status leaves out next to another fact, because the two would contradict each other: an
# agent that gets no messages is not said to wait for one.
_SILENCED_BY = {
    "stickiness_off": frozenset({"unavailable", "locked", _RETURNS_TO}),
    "unavailable": frozenset({"locked", _RETURNS_TO}),
    "task_paused": frozenset({"locked", "task_running"}),
}

_EMOJI = {
    "supervisor": "👋",
    "reset": "🔄",
    "agents": "👥",
    "agent": "💬",
    "status": "📍",
    "tasks": "🗂",
    "task": "📌",
    "history": "🗂",
    "help": "💡",
    "": "👍",
    "notice": "📌",
}
"""What a reply begins with in a registry with emoji, by command."""


@dataclass(frozen=True, slots=True)
class ReplyOption:
    """A button's label, and the message that it stands for."""

    label: str
    text: str


@dataclass(frozen=True, slots=True)
class RenderedReply:
    """A reply's text, its language, and what to choose where the channel has buttons."""

    text: str
    locale: str
    options: tuple[ReplyOption, ...] = ()


def render_reply(
    reply: ReplySpec,
    registry: Registry,
    locale: str,
    turns: Sequence[TurnRecord] = (),
    texts: Texts | None = None,
    *,
    channel: str = "",
    characters_max: int = REPLY_CHARACTERS_MAX,
) -> RenderedReply:
    """Return what the user sees: at most characters_max characters, and what the channel takes.

    locale: the user's; empty for the registry's default. turns: the latest, for /history.
    """
    profile = registry.channels.of(channel)
    characters_max = min(characters_max, profile.reply_characters)
    texts = texts or reply_texts(registry.replies)
    writer = _Writer(texts, registry, locale or registry.default_locale, profile)
    text = ""
    for writer.description_characters in _DESCRIPTION_CHARACTERS:
        writer.options.clear()
        text = "\n".join(line for line in _lines(writer, reply, turns) if line)
        if registry.replies.emoji:
            text = f"{_EMOJI['notice' if reply.variant == 'notice' else reply.command]} {text}"
        if registry.replies.emoji is False or not profile.shows_emoji:
            text = without_emoji(text)
        if len(text) <= characters_max:
            break
    return RenderedReply(_cut(text, characters_max), writer.text_locale, tuple(writer.options))


def _cut(text: str, characters_max: int) -> str:
    """Return a text, or as many of its first lines as there is room for."""
    if len(text) <= characters_max:
        return text
    kept = text[: characters_max - 2]
    whole, _, _ = kept.rpartition("\n")
    return f"{whole or kept}\n…"


def _lines(writer: _Writer, reply: ReplySpec, turns: Sequence[TurnRecord]) -> Iterable[str]:
    """Return the lines of a reply; empty ones are left out."""
    lines = _own_lines(writer, reply, turns)
    return [*lines, writer.say(f"approval-{reply.approval}")] if reply.approval else lines


def _own_lines(writer: _Writer, reply: ReplySpec, turns: Sequence[TurnRecord]) -> Iterable[str]:
    if reply.variant == "notice":
        return []
    if reply.variant == "parked":
        tasks = writer.typed("tasks")
        return [writer.say("task-parked", agent=writer.name(reply.agent_id), tasks_command=tasks)]
    if reply.variant == "disabled":
        return writer.disabled(reply)
    if reply.variant == "stays":
        return [writer.say("suggestion-stays", agent=writer.name(reply.agent_id))]
    if reply.command == "history":
        return _history(writer, reply, turns)
    return _LINES[reply.command](writer, reply)


class _Writer:
    """One reply being written: texts, names and what this registry lets users type."""

    def __init__(
        self, texts: Texts, registry: Registry, locale: str, profile: ChannelProfile
    ) -> None:
        self.texts = texts
        self.registry = registry
        self.locale = locale
        self.profile = profile
        self.description_characters = _DESCRIPTION_CHARACTERS[0]
        self.text_locale = texts.negotiate(locale, registry.default_locale)
        self.home = self.name(registry.home_agent_id)
        self.listed_max = SPOKEN_LISTED_MAX if self.is_spoken else LISTED_MAX
        self.common: dict[str, str | int] = {
            f"{name}_command": self.typed(name) for name in COMMON_COMMANDS
        }
        self.common |= self.home.variables("home")
        self.options: list[ReplyOption] = []

    @property
    def is_spoken(self) -> bool:
        """Say whether the user hears the reply."""
        return self.profile.choices is Choices.SPOKEN

    @property
    def shows_commands(self) -> bool:
        """Say whether the reply may ask the user to type a command."""
        return self.profile.shows_commands

    def say(self, message_id: str, **variables: str | int | NameForms) -> str:
        """Render one message; every message may use the home agent's name and these commands."""
        values = dict(self.common)
        for name, value in variables.items():
            values |= value.variables(name) if isinstance(value, NameForms) else {name: value}
        return self.texts.render(
            message_id, self.locale, default_locale=self.registry.default_locale, **values
        )

    def typed(self, command: str) -> str:
        """Return a command as users of the reply's language type it."""
        return COMMANDS_BY_NAME[command].typed(self.text_locale)

    def name(self, agent_id: str) -> NameForms:
        """Return an agent's name; its id if this registry no longer has it."""
        agent = self.registry.agent(agent_id)
        emphasis = self.profile.bold.value
        if agent is None:
            return plain_forms(agent_id, self.text_locale, emphasis)
        default_locale = self.registry.default_locale
        return name_forms(agent, self.locale, default_locale, self.text_locale, emphasis)

    def may_type(self, command: str) -> bool:
        return command not in self.registry.disabled_commands

    def is_selectable(self, agent_id: str) -> bool:
        """Say whether users may select this agent with /agent."""
        agent = self.registry.agent(agent_id)
        return agent is not None and agent.user_selectable and self.may_type("agent")

    def list(
        self, agent_ids: tuple[str, ...], kind: str, *, active_id: str = "", start: int = 0
    ) -> Iterable[str]:
        """Yield a line for each agent, with what to type for those that may be chosen.

        start: the agents before this place are left out; numbers count them.
        """
        shown = agent_ids[start : start + self.listed_max]
        for number, agent_id in enumerate(shown, start=start + 1):
            agent = self.registry.agent(agent_id)
            label = self.name(agent_id).bare
            if self.is_selectable(agent_id) and self.profile.choices is Choices.BUTTONS:
                if kind == "list-number" and agent_id != active_id:
                    self.offer(agent_id)
                label += f" [{agent_id}]"
            description = (
                agent.display_description(self.locale, self.registry.default_locale)
                if agent and self.description_characters
                else ""
            )
            message_id = kind if description else f"{kind}-plain"
            line = self.say(
                message_id,
                number=str(number),
                label=label,
                description=clipped(description, self.description_characters),
            )
            is_active = agent_id == active_id
            yield f"{line} {self.say('agents-active-mark')}" if is_active else line
        rest = len(agent_ids) - start - len(shown)
        if rest > 0:
            yield self.say("list-more", count=rest)

    def offer(self, agent_id: str) -> None:
        """Add a button that selects an agent."""
        agent = self.registry.agent(agent_id)
        assert agent is not None
        name = agent.display_name(self.locale, self.registry.default_locale)
        self.add_option(name, f"{self.typed('agent')} {agent_id}")

    def add_option(self, label: str, text: str) -> None:
        """Add a button. text: the message that it sends."""
        self.options.append(ReplyOption(clipped(label, self.profile.button_characters), text))

    def disabled(self, reply: ReplySpec) -> Iterable[str]:
        yield self.say("command-disabled", typed=self.typed(reply.command))
        if self.may_type("help") and self.shows_commands:
            yield self.say("command-disabled-help")


def _supervisor(writer: _Writer, reply: ReplySpec) -> Iterable[str]:
    if reply.variant == "done" and reply.agent_id:
        yield writer.say("supervisor-done", agent=writer.name(reply.agent_id))
    else:
        yield writer.say("supervisor-none-active")
    yield from _what_to_ask(writer, reply)


def _reset(writer: _Writer, reply: ReplySpec) -> Iterable[str]:
    yield writer.say("reset-done")
    yield from _what_to_ask(writer, reply)


def _what_to_ask(writer: _Writer, reply: ReplySpec) -> Iterable[str]:
    others = tuple(i for i in reply.agent_ids if i != writer.registry.home_agent_id)
    if not others:
        yield writer.say("ask-freely")
        return
    yield writer.say("ask-about", count=len(others))
    yield from writer.list(others, "list-item")
    yield writer.say("ask-what")


def _agents(writer: _Writer, reply: ReplySpec) -> Iterable[str]:
    others = tuple(i for i in reply.agent_ids if i != writer.registry.home_agent_id)
    if not others:
        yield writer.say("agents-none")
        return
    pages = -(-len(others) // writer.listed_max)
    page = min(reply.counts[0] if reply.counts else 1, pages)
    start = (page - 1) * writer.listed_max
    yield writer.say("agents-head", count=len(others))
    yield from writer.list(others, "list-number", active_id=reply.agent_id, start=start)
    if page < pages and writer.shows_commands:
        yield writer.say("agents-next-page", agents_command=writer.typed("agents"), page=page + 1)
        if writer.profile.choices is Choices.BUTTONS:
            more = f"{writer.typed('agents')} {page + 1}"
            writer.add_option(more, more)
    others = others[start : start + writer.listed_max]
    selectable = [agent_id for agent_id in others if writer.is_selectable(agent_id)]
    if not selectable or not writer.shows_commands:
        yield writer.say("agents-ask")
    elif writer.profile.choices is Choices.NUMBERS:
        yield writer.say("agent-by-number")
    else:
        yield writer.say(
            "agents-select",
            count=len(selectable),
            agent_id=selectable[0],
            name=writer.name(selectable[0]),
        )


def _agent(writer: _Writer, reply: ReplySpec) -> Iterable[str]:
    match reply.variant:
        case "done" | "already_active" if "stickiness_off" in reply.detail:
            yield writer.say("agent-kept", agent=writer.name(reply.agent_id))
            return
        case "done":
            yield writer.say("agent-done", agent=writer.name(reply.agent_id))
            return
        case "already_active":
            yield writer.say("agent-already-active", agent=writer.name(reply.agent_id))
            return
        case "refused":
            yield writer.say("agent-refused", agent=writer.name(reply.agent_id))
            for rule in reply.detail:
                yield _why(writer, rule, reply.agent_id)
            if not _RULES_OF_THE_TARGET.issuperset(reply.detail):
                return  # The other rules would refuse every other agent as well.
        case "unknown_agent":
            written = " ".join(reply.detail)
            yield writer.say("agent-unknown", written=clipped(written, WRITTEN_CHARACTERS_MAX))
        case "which":
            written = " ".join(reply.detail)
            yield writer.say("agent-which", written=clipped(written, WRITTEN_CHARACTERS_MAX))
            yield from writer.list(reply.agent_ids, "list-number")
            if writer.shows_commands:
                yield writer.say("agent-by-number")
            return
        case _:
            yield writer.say("agent-no-argument")
    choices = tuple(
        agent_id
        for agent_id in reply.agent_ids
        if writer.is_selectable(agent_id) and agent_id != reply.agent_id
    )
    if choices:
        yield writer.say("agent-choices", count=len(choices))
        yield from writer.list(choices, "list-number")
        if writer.shows_commands:
            yield writer.say("agent-by-number")
    elif reply.variant != "refused":
        yield writer.say("agent-no-choices")


def _why(writer: _Writer, rule: str, agent_id: str) -> str:
    """Return the text of one rule's refusal: the registry's words for the agent, or ours.

    A rule without its own text gets a general one.
    """
    registry = writer.registry
    agent = registry.agent(agent_id)
    words = agent.why_unavailable(rule, writer.locale, registry.default_locale) if agent else ""
    if words:
        return words
    if rule == "unknown":
        return writer.say("agent-unknown", written=clipped(agent_id, WRITTEN_CHARACTERS_MAX))
    can_leave = writer.may_type("supervisor") and writer.shows_commands
    if rule == "owns_session" and can_leave:
        return writer.say("rule-owns_session-leave")
    message_id = f"rule-{rule}"
    known = writer.texts.message_ids("en")
    return writer.say(message_id if message_id in known else "rule-other")


def _status(writer: _Writer, reply: ReplySpec) -> Iterable[str]:
    agent = writer.name(reply.agent_id) if reply.agent_id else writer.home
    is_away = "unavailable" in reply.detail or "stickiness_off" in reply.detail
    silenced = {fact for each in reply.detail for fact in _SILENCED_BY.get(each, ())}
    if not is_away:
        is_active = reply.variant == "active"
        yield writer.say("status-active" if is_active else "status-none-active", agent=agent)
    for detail in STATUS_DETAILS:
        if detail in reply.detail and detail not in silenced:
            said = [writer.say(f"status-{detail}", agent=agent)]
            if detail == "unavailable":
                rules = [each.removeprefix(BECAUSE) for each in reply.detail if BECAUSE in each]
                said += [_why(writer, rule, reply.agent_id) for rule in rules]
            yield " ".join(said)
    for detail in reply.detail:
        if detail.startswith(_RETURNS_TO) and _RETURNS_TO not in silenced:
            next_agent = writer.name(detail.removeprefix(_RETURNS_TO))
            yield writer.say("status-returns-to", next_agent=next_agent)
    is_elsewhere = reply.agent_id not in {"", writer.registry.home_agent_id}
    may_leave = writer.may_type("supervisor") and writer.shows_commands
    if is_elsewhere and not is_away and may_leave:
        yield writer.say("status-way-back")


def _tasks(writer: _Writer, reply: ReplySpec) -> Iterable[str]:
    if not reply.counts:
        yield writer.say("tasks-none-parked")
        return
    yield writer.say("tasks-head", count=len(reply.counts))
    for number, agent_id, waits in zip(reply.counts, reply.agent_ids, reply.waits, strict=True):
        label = writer.name(agent_id).bare
        yield writer.say(f"tasks-{waits}", number=str(number), label=label)
        if writer.profile.choices is Choices.BUTTONS and writer.may_type("task"):
            writer.add_option(f"{number}. {label}", f"{writer.typed('task')} {number}")
    if writer.may_type("task") and writer.shows_commands:
        first = str(reply.counts[0])
        yield writer.say("tasks-select", task_command=writer.typed("task"), number=first)


def _task(writer: _Writer, reply: ReplySpec) -> Iterable[str]:
    match reply.variant:
        case "done" | "paused":
            yield writer.say(f"task-{reply.variant}", agent=writer.name(reply.agent_id))
        case "refused":
            yield writer.say("task-refused")
        case "unknown_task":
            written = clipped(" ".join(reply.detail), WRITTEN_CHARACTERS_MAX)
            yield writer.say("task-unknown", written=written)
            yield from _tasks(writer, reply)
        case _:
            yield writer.say("task-no-argument")
            yield from _tasks(writer, reply)


def _history(writer: _Writer, reply: ReplySpec, turns: Sequence[TurnRecord]) -> Iterable[str]:
    if not reply.agent_ids:
        yield writer.say("history-none")
    else:
        yield writer.say("history-head")
    counted = list(zip(reply.agent_ids, reply.counts, strict=True))
    for agent_id, count in counted[:LISTED_MAX]:
        if agent_id == OTHER_AGENTS and writer.registry.agent(agent_id) is None:
            yield writer.say("history-others", count=count)
        else:
            agent = clipped(writer.name(agent_id).bare, HISTORY_CHARACTERS_MAX)
            yield writer.say("history-agent", agent=agent, count=count)
    if len(counted) > LISTED_MAX:
        yield writer.say("list-more", count=len(counted) - LISTED_MAX)
    latest = _latest_messages(turns)
    if latest:
        yield writer.say("history-latest")
    numbers = {task_id: number for number, _, task_id in (d.partition(":") for d in reply.detail)}
    for text, agent_ids, task_id in latest:
        names = " → ".join(writer.name(agent_id).bare for agent_id in agent_ids)
        line = "history-message" if text else "history-message-plain"
        yield writer.say(
            f"{line}-task" if task_id in numbers else line,
            text=text,
            agents=clipped(names, HISTORY_CHARACTERS_MAX),
            number=numbers.get(task_id, ""),
        )


def _latest_messages(turns: Sequence[TurnRecord]) -> list[tuple[str, list[str], str]]:
    """Return the user's latest messages, oldest first, with their agents and tasks."""
    messages: dict[int, tuple[str, list[str], str]] = {}
    for turn in turns:
        if not turn.has_message or not turn.message_revision:
            continue  # Its message lies further back than what is shown.
        if turn.asker:
            continue  # The user was not with this agent.
        text = clipped(turn.user_text, HISTORY_CHARACTERS_MAX)
        _, agent_ids, _ = messages.setdefault(turn.message_revision, (text, [], turn.task_id))
        if agent_ids[-1:] != [turn.agent_id]:
            agent_ids.append(turn.agent_id)
    return [messages[revision] for revision in sorted(messages)[-HISTORY_MESSAGES_MAX:]]


def _help(writer: _Writer, reply: ReplySpec) -> Iterable[str]:
    yield writer.say("help-head")
    for command in SLASH_COMMANDS:
        if writer.may_type(command.name) and command.name not in reply.detail:
            yield writer.say(f"help-{command.name}", typed=writer.typed(command.name))
    yield writer.say("help-foot")


_LINES: dict[str, Callable[[_Writer, ReplySpec], Iterable[str]]] = {
    "supervisor": _supervisor,
    "reset": _reset,
    "agents": _agents,
    "agent": _agent,
    "status": _status,
    "tasks": _tasks,
    "task": _task,
    "help": _help,
}
