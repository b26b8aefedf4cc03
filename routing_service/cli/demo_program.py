"""The demo as a program: its server, its story, and the person who may take over."""

from __future__ import annotations

import json
import logging
import queue
import sys
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import typer

from agent_routing import Client, RetryPolicy
from agent_routing.v1.routing_service_pb2 import ListAgentsResponse
from routing_service.cli.chat_program import play_turn, story_differences
from routing_service.cli.chat_screen import JsonScreen, Screen, TextScreen
from routing_service.cli.conversation import Conversation, Happening, Speaker
from routing_service.cli.demo_listener import DemoFeed, demo_listener
from routing_service.cli.doctor_extras import WEB_MODULES, is_installed
from routing_service.cli.embedded_server import (
    leave_by_interrupt,
    server_and_console_in_thread,
    server_in_thread,
)
from routing_service.cli.failure import EXIT_FAILED, CommandFailed
from routing_service.examples import EXAMPLES
from routing_service.examples.stories import STORIES
from routing_service.examples.story import Story
from routing_service.ids import new_uuid7
from routing_service.storage.store import StoreError

_TAKEN_OVER: Final = "The conversation is yours. /agents lists who can help."
_NO_CONSOLE: Final = 'no console: pip install "agent-routing-service[web]" adds it'
_OVER: Final = "The story is over; the conversation is yours. /agents lists who can help."


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The options of the command, as given."""

    story: str
    port: int
    pause_s: float
    browser: bool | None
    once: bool


def run_demo(options: DemoOptions) -> None:
    """Run the command until the story or Ctrl-C ends it. Raises CommandFailed, typer.Exit."""
    if options.story not in STORIES:
        raise typer.BadParameter(f'no story "{options.story}"; there are {", ".join(STORIES)}')
    story = STORIES[options.story]
    leave_by_interrupt()
    logging.getLogger("agent_routing").addHandler(logging.NullHandler())
    feed = DemoFeed()
    try:
        with (
            _server(EXAMPLES[story.example].registry_path) as (target, console_url),
            Client(target, retry=RetryPolicy(attempts_max=3, backoff_first_s=0.1)) as client,
            _page(feed, options) as url,
        ):
            agents = EXAMPLES[story.example].make_agents()
            conversation = Conversation(client, agents, _speaker(story))
            session_id = conversation.speaker.session_id
            screen = _BothScreens(feed)
            screen.opened(story.title, f"Session {session_id}, server {target}")
            opening = _opening(story.title, session_id, target, client.list_agents())
            feed.publish(opening | {"console_url": console_url})
            typer.echo(f"demo on {url}")
            typer.echo(f"console on {console_url}" if console_url else _NO_CONSOLE)
            sys.stdout.flush()
            if sys.stdout.isatty() if options.browser is None else options.browser:
                webbrowser.open(url)
            went_well = _play(conversation, screen, story, feed, options)
    except StoreError as error:
        raise CommandFailed(str(error)) from error
    except KeyboardInterrupt:
        return
    if not went_well:
        raise typer.Exit(EXIT_FAILED)


@contextmanager
def _server(registry: Path) -> Iterator[tuple[str, str]]:
    """Serve; give the target, and the console's URL or "" if the extra web is not installed."""
    if all(map(is_installed, WEB_MODULES)):
        with server_and_console_in_thread(registry) as (target, console_url):
            yield target, console_url
    else:
        with server_in_thread(registry) as target:
            yield target, ""


@contextmanager
def _page(feed: DemoFeed, options: DemoOptions) -> Iterator[str]:
    try:
        listener = demo_listener(feed, options.port)
        url = listener.__enter__()
    except OSError as error:
        raise CommandFailed(
            f"the page cannot listen on 127.0.0.1:{options.port}: {error.strerror}; "
            "name another with --port, or 0 for a free one"
        ) from error
    try:
        yield url
    finally:
        listener.__exit__(None, None, None)


def _speaker(story: Story) -> Speaker:
    return Speaker(
        session_id=f"demo-{new_uuid7()}",
        user_id="you",
        locale=story.locale,
        channel=story.channel,
        entitlements=story.entitlements,
        metadata=story.metadata,
    )


def _opening(
    title: str, session_id: str, target: str, listed: ListAgentsResponse
) -> dict[str, Any]:
    """Return the page's first event: the agents and how to reach the server."""
    return {
        "kind": "opened",
        "title": title,
        "session_id": session_id,
        "target": target,
        "home_agent_id": listed.home_agent_id,
        "agents": [
            {
                "agent_id": agent.agent_id,
                "name": agent.display_name or agent.agent_id,
                "description": agent.description,
                "color": agent.color,
            }
            for agent in listed.agents
        ],
    }


def _play(
    conversation: Conversation, screen: Screen, story: Story, feed: DemoFeed, options: DemoOptions
) -> bool:
    """Play the story, then let the person talk; return whether the story went as it says.

    The first message of the person ends the story: one conversation has one user.
    """
    went_well = True
    for number, turn in enumerate(story.turns, 1):
        try:
            typed = feed.messages.get(timeout=options.pause_s or None, block=options.pause_s > 0)
        except queue.Empty:
            happenings, status = play_turn(conversation, screen, turn)
            for difference in story_differences(turn, happenings, status):
                screen.noted(f"turn {number} went another way: {difference}")
                went_well = False
            continue
        feed.publish({"kind": "note", "text": _TAKEN_OVER})
        _say(conversation, screen, typed)
        break
    else:
        feed.publish({"kind": "note", "text": _OVER})
    while not options.once:
        # A time-out, because Ctrl-C does not interrupt a wait without one on every platform.
        try:
            _say(conversation, screen, feed.messages.get(timeout=1))
        except queue.Empty:
            continue
    return went_well


def _say(conversation: Conversation, screen: Screen, text: str) -> None:
    screen.said(text, is_echo=False)
    for happening in conversation.say(text):
        screen.happened(happening)
    screen.stands(conversation.standing())


class _BothScreens:
    """The terminal's lines, and the page's events."""

    def __init__(self, feed: DemoFeed) -> None:
        self._text = TextScreen()
        self._page = JsonScreen(lambda line: feed.publish(json.loads(line)))

    def opened(self, title: str, detail: str) -> None:
        """See Screen."""
        self._text.noted(title)
        self._text.noted(detail)

    def said(self, text: str, *, is_echo: bool) -> None:
        """See Screen."""
        self._text.said(text, is_echo=is_echo)
        self._page.said(text, is_echo=is_echo)

    def happened(self, happening: Happening) -> None:
        """See Screen."""
        self._text.happened(happening)
        self._page.happened(happening)

    def stands(self, status: Any) -> None:
        """See Screen."""
        self._page.stands(status)

    def noted(self, text: str) -> None:
        """See Screen."""
        self._text.noted(text)

    def prompt(self, status: Any) -> str:
        """See Screen."""
        return self._page.prompt(status)
