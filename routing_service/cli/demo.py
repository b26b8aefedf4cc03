"""``agent-routing demo``: a server, scripted agents, a talking user, and a page that shows them."""

from __future__ import annotations

import os
from typing import Annotated, Final

import typer

PAUSE_S_DEFAULT: Final = 1.5
STORY_DEFAULT: Final = "budget"

EPILOG: Final = """\b
Exit codes: 0 the demo ended as its story says; 1 it did not, or something it
needs could not start; 2 an option is wrong.

\b
Examples:
  agent-routing demo
  agent-routing demo --story tutor --pause 3
  agent-routing demo --once --no-browser --pause 0
"""


def demo(
    *,
    story: Annotated[
        str,
        typer.Option("--story", metavar="NAME", help="The story that the scripted user plays."),
    ] = STORY_DEFAULT,
    port: Annotated[
        int,
        typer.Option(
            "--port", min=0, max=65535, help="The page's port on 127.0.0.1; 0: a free one."
        ),
    ] = 0,
    pause: Annotated[
        float,
        typer.Option(
            "--pause", min=0, max=60, metavar="SECONDS", help="The pause before each message."
        ),
    ] = PAUSE_S_DEFAULT,
    browser: Annotated[
        bool | None,
        typer.Option(
            "--browser/--no-browser",
            show_default=False,
            help="Open the page in a browser. Default: if a terminal shows the output.",
        ),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="End with the story instead of waiting for messages.")
    ] = False,
) -> None:
    """Show a whole conversation on a web page, and join in.

    A scripted user talks to scripted agents; your first message takes over. The server is the one
    of agent-routing serve, with a store of its own that is removed at the end. With the extra web
    it also has the operators' console, whose address is printed. Ctrl-C ends the demo. No model and
    no network are needed.
    """
    # gRPC reads it when it is imported: the demo reports connection errors itself.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from routing_service.cli.demo_program import DemoOptions, run_demo  # noqa: PLC0415 - after the line above

    run_demo(DemoOptions(story, port, pause, browser, once))
