"""``agent-routing a2a``: carry the turns of an agent's inbox to a remote agent, over A2A."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from agent_routing import AsyncClient, Client, RoutingError, outcomes
from agent_routing.worker import CONCURRENCY_DEFAULT, LEASE_S_DEFAULT, Worker
from routing_service.cli.credentials import given
from routing_service.cli.failure import EXIT_USAGE, CommandFailed, call_failed
from routing_service.cli.server_call import CallOptions, connected, server_command

EPILOG: Final = """\b
Examples:
  agent-routing a2a --agent planner --url https://planner.example.org
  agent-routing a2a --agent planner --url https://planner.example.org \\
      --remote-token-file planner.token
  agent-routing a2a --agent translator --url http://127.0.0.1:41241 --completed proceed

\b
Needs the extra a2a of the client: pip install "agent-routing-client[a2a]"
"""

REPLY_S_DEFAULT: Final = 300.0
"""How long the remote agent may be silent: a model thinks for minutes."""

MODULES: Final = ("a2a", "httpx")
"""What the extra installs."""


_AgentOption = Annotated[
    str, typer.Option("--agent", metavar="ID", help="The agent, with delivery: inbox.")
]
_UrlOption = Annotated[
    str,
    typer.Option(
        "--url",
        metavar="URL",
        help="The remote agent: below it is /.well-known/agent-card.json.",
    ),
]
_CompletedOption = Annotated[
    Literal["complete", "proceed"],
    typer.Option(
        "--completed",
        help="After a completed remote task: complete (the registry names the next agent), or"
        " proceed (this agent keeps the conversation).",
    ),
]
_RemoteTokenFileOption = Annotated[
    Path | None,
    typer.Option(
        "--remote-token-file",
        metavar="FILE",
        show_default=False,
        help="A file with a bearer token for the remote agent, read before each request.",
    ),
]
_AllowOriginOption = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-origin",
        metavar="ORIGIN",
        show_default=False,
        help="Another origin to which the remote agent's card may send requests, such as"
        " https://rpc.example.org. May be repeated.",
    ),
]
_TooLongOption = Annotated[
    str | None,
    typer.Option(
        "--too-long",
        metavar="TEXT",
        show_default=False,
        help="What the user reads in place of an answer that is too long.",
    ),
]
_ReplyTimeoutOption = Annotated[
    float,
    typer.Option(
        "--reply-timeout",
        metavar="SECONDS",
        min=1.0,
        help="How long the remote agent may be silent.",
    ),
]
_ConcurrencyOption = Annotated[
    int, typer.Option("--concurrency", metavar="N", min=1, help="Turns at a time.")
]
_LeaseOption = Annotated[
    float,
    typer.Option(
        "--lease",
        metavar="SECONDS",
        min=1.0,
        max=3600.0,
        help="How long a turn waits for another worker if this one crashes.",
    ),
]


@server_command(json=None)
def a2a(
    *,
    agent: _AgentOption,
    url: _UrlOption,
    completed: _CompletedOption = "complete",
    remote_token_file: _RemoteTokenFileOption = None,
    allow_origin: _AllowOriginOption = None,
    too_long: _TooLongOption = None,
    reply_timeout: _ReplyTimeoutOption = REPLY_S_DEFAULT,
    concurrency: _ConcurrencyOption = CONCURRENCY_DEFAULT,
    lease: _LeaseOption = LEASE_S_DEFAULT,
    call: CallOptions,
) -> None:
    """Carry an agent's turns to a remote agent, over A2A.

    Runs until SIGTERM or Ctrl-C, which wait for turns in work. Start it several times for more
    capacity. The credential needs the scope agent and speaks for the agent.
    """
    _check_extra()
    for option, origin in (
        ("--url", url),
        *(("--allow-origin", each) for each in allow_origin or ()),
    ):
        if not origin.startswith(("http://", "https://")):
            message = f'{option} is "{origin}"; it must begin with http:// or https://'
            raise CommandFailed(message, exit_code=EXIT_USAGE)
    if remote_token_file is not None:
        _token(remote_token_file)
    _check_agent(agent, call)
    from agent_routing.integrations.a2a import (  # noqa: PLC0415 - an optional extra
        TOO_LONG,
        RemoteAgent,
    )

    client = AsyncClient(
        call.target, tenant=call.tenant, timeout=call.timeout_s, **given().for_client()
    )
    worker = Worker(client, concurrency=concurrency, lease=lease)
    outcome = outcomes.complete() if completed == "complete" else outcomes.proceed()
    # Read for each request, so that a new token is taken up without a restart.
    token = None if remote_token_file is None else partial(_token, remote_token_file)
    try:
        remote = RemoteAgent(
            url,
            client=client,
            completed=outcome,
            token=token,
            reply_timeout=reply_timeout,
            allow_origins=allow_origin or (),
            too_long=too_long or TOO_LONG,
        )
    except ValueError as error:
        raise CommandFailed(str(error), exit_code=EXIT_USAGE) from None
    worker.agent(agent)(remote.answer)
    typer.echo(f'carrying the turns of "{agent}" to {url}; Ctrl-C stops')
    try:
        worker.run()
    except RoutingError as error:
        raise call_failed(error, call.target, as_json=False) from error


def _check_extra() -> None:
    """Raise CommandFailed if the protocol's SDK is missing."""
    missing = [module for module in MODULES if find_spec(module) is None]
    if missing:
        raise CommandFailed(
            f"A2A needs the extra a2a of the client; not installed: {', '.join(missing)};"
            ' install it with: pip install "agent-routing-client[a2a]"'
        )


def _check_agent(agent: str, options: CallOptions) -> None:
    """Raise CommandFailed for a server that does not answer, or does not have the agent."""
    with connected(Client, options) as client:
        known = sorted(each.agent_id for each in client.list_agents().agents)
    if agent not in known:
        raise CommandFailed(
            f'agent "{agent}" is not registered; registered agents: {", ".join(known)}'
        )


def _token(path: Path) -> str:
    try:
        token = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        message = f"--remote-token-file {path} cannot be read: {error}"
        raise CommandFailed(message, exit_code=EXIT_USAGE) from error
    if not token or not token.isascii() or any(letter.isspace() for letter in token):
        message = f"--remote-token-file {path} must have one token and nothing else"
        raise CommandFailed(message, exit_code=EXIT_USAGE)
    return token
