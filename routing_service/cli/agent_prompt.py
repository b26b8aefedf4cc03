"""The instructions for one agent's prompt, from a server or from a registry file.

Its rule: in a pipe the text is printed unchanged, because a prompt is made of it.
"""

from __future__ import annotations

import json
import sys

import typer

from routing_service.cli.failure import CommandFailed
from routing_service.cli.server_call import CallOptions, calling
from routing_service.core.errors import unknown_agent
from routing_service.registry.file import RegistryFileError, load_registry
from routing_service.telemetry.terminal_text import seen, seen_json
from routing_service.texts.agent_instructions import agent_instructions


def print_instructions_of_file(path: str, agent: str, locale: str, *, as_json: bool) -> None:
    """Print the instructions from a registry file. agent: an id or alias. Raises CommandFailed."""
    try:
        registry = load_registry(path)
    except RegistryFileError as error:
        raise CommandFailed(str(error)) from error
    agent_id = registry.resolve(agent)
    if agent_id is None:
        raise _unknown(agent, tuple(registry.agents))
    _print(agent_id, agent_instructions(registry, agent_id, locale), as_json=as_json)


def print_instructions_of_server(
    place: CallOptions, agent: str, *, session: str, user: str, from_agent: str, locale: str
) -> None:
    """Print the instructions from a server's registry. agent: an id. Raises CommandFailed."""
    with calling(place) as client:
        answer = client.list_agents(
            session_id=session,
            user_id=user,
            locale=locale,
            from_agent_id=from_agent,
            include_instructions=True,
        )
    if agent not in answer.instructions:
        raise _unknown(agent, tuple(listed.agent_id for listed in answer.agents))
    _print(agent, answer.instructions[agent], as_json=place.as_json)


def _unknown(agent: str, known: tuple[str, ...]) -> CommandFailed:
    return CommandFailed(unknown_agent(agent, known).message)


def _print(agent_id: str, text: str, *, as_json: bool) -> None:
    if as_json:
        answer = {"agent_id": agent_id, "instructions": text}
        typer.echo(seen_json(json.dumps(answer, indent=2, ensure_ascii=False)))
    else:
        # In a pipe it is printed unchanged: a model reads it.
        typer.echo(seen(text) if sys.stdout.isatty() else text, nl=False)
