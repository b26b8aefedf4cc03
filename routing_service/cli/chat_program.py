"""The chat as a program: its server, its agents, and the source of messages.

Messages come from a person, a pipe or a story. Its rule: it always exits cleanly, and a story whose
turns go another way is a failure.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Final

import typer

from agent_routing import Client, RetryPolicy, RoutingError
from agent_routing.v1.agent_pb2 import AGENT_KIND_HUMAN, AGENT_KIND_SYSTEM
from agent_routing.v1.item_pb2 import Item
from agent_routing.v1.routing_service_pb2 import ListAgentsResponse, StatusResponse
from routing_service.cli.chat_options import ChatOptions
from routing_service.cli.chat_screen import JsonScreen, Screen, TextScreen
from routing_service.cli.conversation import (
    AgentAnswered,
    Agents,
    Conversation,
    DecisionWord,
    Degraded,
    Failed,
    Happening,
    NothingToDecide,
    Refused,
    Repeated,
    Replied,
    Speaker,
)
from routing_service.cli.credentials import given
from routing_service.cli.embedded_server import leave_by_interrupt, server_in_thread
from routing_service.cli.example_files import EXAMPLES as EXAMPLE_NAMES
from routing_service.cli.example_files import example_file
from routing_service.cli.failure import EXIT_FAILED, EXIT_USAGE, CommandFailed, call_failed
from routing_service.cli.stand_in_agents import StandInAgents
from routing_service.cli.typed_lines import TypedLines
from routing_service.examples import EXAMPLES, Example
from routing_service.examples.stories import STORIES
from routing_service.examples.story import Story, StoryItem, StoryTurn
from routing_service.ids import new_uuid7
from routing_service.registry.file import RegistryFileError
from routing_service.settings.listen_address import ListenFailed
from routing_service.settings.rules import SettingsInvalid
from routing_service.storage.store import StoreError

EXAMPLE_DEFAULT: Final = "tax"
CHANNEL_DEFAULT: Final = "web"

_RETRY: Final = RetryPolicy(attempts_max=3, backoff_first_s=0.1)
"""A person waits for the answer, and the client has a fallback if the server stays away."""

_DECISIONS: Final[Mapping[str, DecisionWord]] = {"!approve": "approve", "!reject": "reject"}
"""A person's decision about an approval. It is not sent to the agents as a message."""

_HEARING_S: Final = 1.0
"""Between two looks for what people have said: to a user the same as at once."""

_TYPING_S: Final = 0.6
"""The pause before each message of a story in a terminal, so that people can read along."""


def run_chat(options: ChatOptions) -> None:
    """Run the command. Raises CommandFailed, typer.Exit."""
    _check(options)
    story = STORIES[options.story] if options.story else None
    leave_by_interrupt()
    # The chat reports outages itself, so the client's log lines are dropped.
    logging.getLogger("agent_routing").addHandler(logging.NullHandler())
    try:
        with _server(options, story) as target, _client(options, target) as client:
            try:
                known = client.list_agents()
            except RoutingError as error:
                raise call_failed(error, target, as_json=options.as_json) from error
            agents, title = _agents(options, story, known)
            screen: Screen = JsonScreen() if options.as_json else TextScreen(options.width or 0)
            conversation = Conversation(client, agents, _speaker(options, story))
            hint = "" if options.target else _how_to_be_a_person(known, target)
            went_well = _converse(conversation, screen, title, hint, story)
    except SettingsInvalid as error:
        raise CommandFailed(str(error), exit_code=EXIT_USAGE) from error
    except (RegistryFileError, StoreError, ListenFailed) as error:
        raise CommandFailed(str(error)) from error
    if not went_well:
        raise typer.Exit(EXIT_FAILED)


def _check(options: ChatOptions) -> None:
    """Refuse options that contradict each other or name something unknown."""
    if options.target and (options.agents or options.store):
        raise typer.BadParameter("--target has a registry and a store; leave out --agents, --store")
    if options.agents and (options.example or options.story):
        raise typer.BadParameter("--agents names a registry of your own; leave out the example")
    if options.example and options.example not in EXAMPLE_NAMES:
        names = ", ".join(EXAMPLE_NAMES)
        raise typer.BadParameter(f'no example "{options.example}"; there are {names}')
    if options.target and options.example and options.example not in EXAMPLES:
        raise typer.BadParameter(
            f'"{options.example}" has no scripted agents to bring; leave out the example'
        )
    if options.story and options.story not in STORIES:
        raise typer.BadParameter(f'no story "{options.story}"; there are {", ".join(STORIES)}')
    if options.story and options.example not in ("", STORIES[options.story].example):
        raise typer.BadParameter(
            f'story "{options.story}" is of the example "{STORIES[options.story].example}"'
        )


@contextmanager
def _server(options: ChatOptions, story: Story | None) -> Iterator[str]:
    if options.target:
        yield options.target
        return
    name = story.example if story else options.example or EXAMPLE_DEFAULT
    with server_in_thread(options.agents or example_file(name), options.store) as target:
        yield target


def _client(options: ChatOptions, target: str) -> Client:
    # The command's own server has neither TLS nor sign-in.
    credentials = given().for_client() if options.target else {}
    return Client(target, tenant=options.tenant, retry=_RETRY, **credentials)


def _agents(
    options: ChatOptions, story: Story | None, known: ListAgentsResponse
) -> tuple[Agents, str]:
    """Return the agents and the title: scripted agents if there are scripts, else stand-ins."""
    ids = {agent.agent_id for agent in known.agents if agent.kind != AGENT_KIND_SYSTEM}
    wanted = story.example if story else options.example
    if wanted not in EXAMPLES:
        # One without scripts, on the chat's own server.
        wanted = ""
    chosen: Example | None = None
    for example in EXAMPLES.values():
        if ids <= set(example.make_agents().agent_ids) and wanted in ("", example.name):
            chosen = example
            break
    if chosen is None and wanted:
        raise CommandFailed(
            f'the server at {options.target} has other agents than the example "{wanted}": '
            f"{', '.join(sorted(ids))}"
        )
    count = len(known.agents)
    if chosen is None:
        title = f"{count} agents, registry {known.registry_version}; stand-ins answer"
        return StandInAgents(known.agents, known.home_agent_id), title
    title = story.title if story else f"The {chosen.name} example, {count} agents"
    return chosen.make_agents(), title


def _speaker(options: ChatOptions, story: Story | None) -> Speaker:
    speaker = Speaker(
        session_id=options.session or f"chat-{new_uuid7()}",
        user_id=options.user,
        locale=options.locale or _terminal_locale(),
        channel=options.channel or CHANNEL_DEFAULT,
        entitlements=tuple(options.entitlements or ()),
    )
    if story is None:
        return speaker
    return replace(
        speaker,
        locale=story.locale,
        channel=story.channel,
        entitlements=story.entitlements,
        metadata=story.metadata,
    )


def _terminal_locale() -> str:
    """Return the language of the terminal, "" in a pipe."""
    if not sys.stdin.isatty():
        return ""
    name = next(filter(None, map(os.environ.get, ("LC_ALL", "LC_MESSAGES", "LANG"))), "")
    language = name.partition(".")[0].partition("@")[0]
    # Containers say C or nothing, which is not a language: English is assumed.
    return "en" if language in ("", "C", "POSIX") else language.replace("_", "-")


def _how_to_be_a_person(known: ListAgentsResponse, target: str) -> str:
    """Return what another terminal needs for the chat's own server, "" if no agent is a person."""
    for agent in known.agents:
        if agent.kind == AGENT_KIND_HUMAN:
            command = f"agent-routing desk open {agent.agent_id} --as NAME --target {target}"
            return (
                f"{agent.display_name} has people. To be one, type in another terminal:\n{command}"
            )
    return ""


def _converse(
    conversation: Conversation, screen: Screen, title: str, hint: str, story: Story | None
) -> bool:
    """Talk until the input ends; return whether everything went as expected."""
    speaker = conversation.speaker
    _take_any_bytes()
    screen.opened(title, f"Session {speaker.session_id}, user {speaker.user_id}")
    if hint:
        screen.noted(hint)
    try:
        if story is not None:
            return _play(conversation, screen, story)
        if sys.stdin.isatty():
            _talk(conversation, screen)
            return True
        return _read(conversation, screen)
    except KeyboardInterrupt:
        screen.noted("")
        return story is None
    finally:
        screen.noted(f"left session {speaker.session_id}")


def _take_any_bytes() -> None:
    """Go on over bytes that are no UTF-8, and signs that the terminal's locale does not have."""
    if isinstance(sys.stdin, io.TextIOWrapper) and not sys.stdin.isatty():
        sys.stdin.reconfigure(encoding="utf-8", errors="replace")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _talk(conversation: Conversation, screen: Screen) -> None:
    """Talk with the person at the terminal, until Ctrl-D."""
    lines, talking = TypedLines(), threading.Lock()
    status = conversation.standing()
    with _hearing(conversation, screen, lines, talking):
        while (text := lines.ask(screen.prompt(status))) is not None:
            if text.strip():
                with talking:
                    _, status = _say(conversation, screen, text.strip(), is_echo=True)
    screen.noted("")


@contextmanager
def _hearing(
    conversation: Conversation, screen: Screen, lines: TypedLines, talking: threading.Lock
) -> Iterator[None]:
    """Show what people say while the user types. talking: held while the conversation is used."""
    ended = threading.Event()

    def hear() -> None:
        while not ended.wait(_HEARING_S):
            # A service that is away is shown with the user's next message.
            with talking, suppress(RoutingError):
                for happening in conversation.news():
                    with lines.above():
                        screen.happened(happening)

    thread = threading.Thread(target=hear, name="hearing", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _read(conversation: Conversation, screen: Screen) -> bool:
    """Send each line of a pipe; return whether all were answered."""
    went_well = True
    for line in sys.stdin:
        text = line.strip()
        if text:
            happenings, _ = _say(conversation, screen, text, is_echo=False)
            went_well = went_well and not _went_wrong(happenings)
    return went_well


def _went_wrong(happenings: list[Happening]) -> bool:
    return any(isinstance(each, Failed | Degraded | NothingToDecide) for each in happenings)


def _say(
    conversation: Conversation, screen: Screen, text: str, *, is_echo: bool
) -> tuple[list[Happening], StatusResponse | None]:
    """Send a message and show the result."""
    order, _, rest = text.partition(" ")
    if order in _DECISIONS:
        coming = conversation.decide(_DECISIONS[order], rest.strip())
    else:
        coming = conversation.say(text)
    return _show(conversation, screen, text, coming, is_echo=is_echo)


def _show(
    conversation: Conversation,
    screen: Screen,
    text: str,
    coming: Iterable[Happening],
    *,
    is_echo: bool,
) -> tuple[list[Happening], StatusResponse | None]:
    """Show the happenings of a message or decision as they come, then the session's state."""
    screen.said(text, is_echo=is_echo)
    happenings = []
    for happening in coming:
        screen.happened(happening)
        happenings.append(happening)
    status = conversation.standing()
    screen.stands(status)
    return happenings, status


def _play(conversation: Conversation, screen: Screen, story: Story) -> bool:
    """Play a story to its end; return whether every turn went as the story expects."""
    went_well = True
    for number, turn in enumerate(story.turns, 1):
        if sys.stdout.isatty():
            time.sleep(_TYPING_S)
        happenings, status = play_turn(conversation, screen, turn)
        for difference in story_differences(turn, happenings, status):
            screen.noted(f"turn {number} went another way: {difference}")
            went_well = False
    return went_well


def play_turn(
    conversation: Conversation, screen: Screen, turn: StoryTurn
) -> tuple[list[Happening], StatusResponse | None]:
    """Send a message or decision of a story and show the result."""
    for order, decision in _DECISIONS.items():
        if turn.decision == decision:
            coming = conversation.decide(decision, turn.user_text, comes_twice=turn.comes_twice)
            said = f"{order} {turn.user_text}"
            return _show(conversation, screen, said, coming, is_echo=False)
    items = tuple(map(_to_item, turn.items))
    coming = conversation.say(turn.user_text, items, comes_twice=turn.comes_twice)
    said = turn.user_text + "".join(f" [{item.content_type}]" for item in items)
    return _show(conversation, screen, said, coming, is_echo=False)


def _to_item(item: StoryItem) -> Item:
    if item.uri:
        return Item(content_type=item.content_type, uri=item.uri)
    return Item(content_type=item.content_type, text=item.text)


def story_differences(
    turn: StoryTurn, happenings: list[Happening], status: StatusResponse | None
) -> Iterator[str]:
    """Yield each difference between what a story's turn expects and what happened."""
    answers = [each for each in happenings if isinstance(each, AgentAnswered)]
    replies = [each.reply.command for each in happenings if isinstance(each, Replied)]
    refusals = [each.error for each in happenings if isinstance(each, Refused)]
    refused = tuple(rule for error in refusals for rule in error.rules)
    told = (
        ("answers", turn.expect_agent_ids, tuple(each.agent.agent_id for each in answers)),
        ("first reason", turn.expect_reason.lower(), answers[0].reason if answers else ""),
        ("command", turn.expect_command, "".join(replies).removeprefix("/")),
        ("waits", turn.expect_locked_after, status.locked if status else None),
        ("active", turn.expect_active_after, status.active_agent.agent_id if status else None),
        (
            "waits for approval",
            turn.expect_paused_after,
            status.HasField("pending_approval") if status else None,
        ),
        (
            "same answer again",
            [True] if turn.comes_twice else [],
            [each.replayed for each in happenings if isinstance(each, Repeated)],
        ),
    )
    for name, expected, found in told:
        if expected != found:
            yield f"{name} {found!r}, expected {expected!r}"
    # A refused command is reported in its reply; a refused agent gets an error with the rules.
    if turn.expect_agent_ids and refused != turn.expect_refused_rules:
        yield f"refused {refused!r}, expected {turn.expect_refused_rules!r}"
    if any(isinstance(each, NothingToDecide) for each in happenings):
        yield "no agent waited for an approval"
    for each in happenings:
        if isinstance(each, Failed | Degraded):
            yield f"{each.error.message} [{each.error.reason or each.error.code.name}]"
