"""``agent-routing agents``: list the agents of a server, or print an agent's instructions."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from routing_service.cli.agent_prompt import (
    print_instructions_of_file,
    print_instructions_of_server,
)
from routing_service.cli.answers import print_agents
from routing_service.cli.options import (
    LocaleOption,
    UserOption,
)
from routing_service.cli.screen import print_json
from routing_service.cli.server_call import CallOptions, calling, server_command

EPILOG: Final = """\b
Examples:
  agent-routing agents
  agent-routing agents --session chat-1 --locale es
  agent-routing agents --instructions billing --agents agents.yaml --locale es > prompt.md
"""


@server_command()
def agents(
    *,
    session: Annotated[
        str,
        typer.Option(
            "--session",
            metavar="ID",
            show_default=False,
            help="Only agents that this session's user may reach.",
        ),
    ] = "",
    from_agent: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="ID",
            show_default=False,
            help="Only agents that this agent may hand over to.",
        ),
    ] = "",
    instructions: Annotated[
        str,
        typer.Option(
            "--instructions",
            metavar="ID",
            show_default=False,
            help="Print this agent's instructions for its prompt instead: how it keeps the "
            "conversation, asks, completes, and which agents it may hand over to.",
        ),
    ] = "",
    agents_file: Annotated[
        str,
        typer.Option(
            "--agents",
            metavar="FILE",
            show_default=False,
            help="With --instructions: read this registry file instead of asking a server.",
        ),
    ] = "",
    locale: LocaleOption = "",
    user: UserOption = "",
    call: CallOptions,
) -> None:
    """List a server's agents, or print an agent's instructions."""
    if agents_file and not instructions:
        raise typer.BadParameter(
            "--agents goes with --instructions ID; to list a file's agents: agent-routing check "
            + agents_file
        )
    if agents_file and (session or from_agent):
        raise typer.BadParameter("--session and --from need a server; leave out --agents")
    if agents_file:
        print_instructions_of_file(agents_file, instructions, locale, as_json=call.as_json)
        return

    if instructions:
        print_instructions_of_server(
            call,
            instructions,
            session=session,
            user=user,
            from_agent=from_agent,
            locale=locale,
        )
        return

    with calling(call) as client:
        answer = client.list_agents(
            session_id=session, user_id=user, locale=locale, from_agent_id=from_agent
        )
    if call.as_json:
        print_json(answer)
    else:
        print_agents(answer)
