"""``agent-routing top``: live activity on a screen that updates itself."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

import typer
from rich.live import Live

from agent_routing import Admin, errors
from routing_service.cli.failure import EXIT_INTERRUPTED
from routing_service.cli.screen import console
from routing_service.cli.server_call import CallOptions, calling, server_command
from routing_service.cli.top_screen import TopState

FRAMES_A_SECOND: Final = 2
STATS_EVERY_S: Final = 5.0
"""The totals come from background counting; asking more often would show nothing new."""
AWAY_S_MAX: Final = 3600.0
"""A screen that is left open survives a restart or a longer outage."""

EPILOG: Final = """\b
Examples:
  agent-routing top
  agent-routing top --seconds 30
"""


@server_command(json=None)
def top(
    *,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds",
            metavar="N",
            min=1,
            max=86_400,
            show_default=False,
            help="Exit after this time and leave the last screen.",
        ),
    ] = None,
    call: CallOptions,
) -> None:
    """Show live activity: messages, agents, refusals, events.

    The line "since" and the agents' turns are the store's figures of the last one to two hours, so
    they do not begin with this command. Runs until Ctrl-C, or for --seconds. The caller must be
    allowed to watch all sessions.
    """
    state = TopState(call.target)
    ended = threading.Event()
    threads: list[threading.Thread] = []
    out = console()
    with ExitStack() as stack:
        # Joined last: closing the client ends what the threads wait for.
        stack.callback(_join, threads, call.timeout_s)
        client = stack.enter_context(calling(call))
        stack.callback(ended.set)
        # The first answer decides: a wrong address or a missing right ends here with a message,
        # not on an empty screen.
        _ask(client, state, call.timeout_s)
        state.health = "SERVING"
        with suppress(errors.RoutingError):
            # Only for names and colours; agents are shown by their ids otherwise.
            state.knows(client.list_agents(timeout=call.timeout_s).agents)
        state.began(time.time())
        for work, words in (
            (_watch, (client, state, ended)),
            (_count, (client, state, ended, call.timeout_s)),
        ):
            threads.append(threading.Thread(target=work, args=words, daemon=True))
            threads[-1].start()
        until = None if seconds is None else time.monotonic() + seconds
        try:
            with Live(
                state.screen(time.time(), rows=out.height),
                console=out,
                screen=out.is_terminal and seconds is None,
                auto_refresh=False,
                transient=False,
            ) as live:
                while until is None or time.monotonic() < until:
                    time.sleep(1 / FRAMES_A_SECOND)
                    live.update(state.screen(time.time(), rows=out.height), refresh=True)
            if not out.is_terminal:
                out.print()  # In a pipe the last screen has no newline at its end.
        except KeyboardInterrupt:
            # The usual way to end it, not a failure.
            raise typer.Exit(EXIT_INTERRUPTED) from None


def _watch(client: Admin, state: TopState, ended: threading.Event) -> None:
    """Pass every change to the screen until the command ends."""
    try:
        for message in client.watch_events(away_timeout=AWAY_S_MAX):
            state.changed(message.change, message.tenant, time.time())
    except errors.RoutingError as error:
        state.away = str(error)
    except (RuntimeError, ValueError):
        # The client was closed during the wait: the command ends.
        if not ended.is_set():
            raise


def _count(client: Admin, state: TopState, ended: threading.Event, timeout_s: float) -> None:
    """Update the totals regularly, and show whether the server answers."""
    gone_since = 0.0
    while not ended.wait(STATS_EVERY_S):
        try:
            _ask(client, state, timeout_s)
            state.away, gone_since = "", 0.0
        except errors.RoutingError as error:
            gone_since = gone_since or time.time()
            away_s = time.time() - gone_since
            state.away = f"no answer for {away_s:.0f} s [{error.reason or error.code.name}]"


def _ask(client: Admin, state: TopState, timeout_s: float) -> None:
    """Ask for the store's figures: all, and those since the full hour before the current one."""
    since = datetime.now(UTC) - timedelta(hours=1)
    total = client.routing_stats(timeout=timeout_s)
    recent = client.routing_stats(start_time=since, timeout=timeout_s)
    state.totals(total, time.time(), recent)


def _join(threads: list[threading.Thread], timeout_s: float) -> None:
    """Wait for the threads."""
    for thread in threads:
        thread.join(timeout_s)
