"""The texts of replies with their names and placeholders, for the authors of registry files."""

from __future__ import annotations

import json
from typing import Annotated, Final

import typer

from routing_service.cli.failure import CommandFailed
from routing_service.core.channel_profiles import ReplyStyle
from routing_service.core.registry import fold_locale
from routing_service.registry.file import RegistryFileError, load_registry
from routing_service.telemetry.terminal_text import seen, seen_json
from routing_service.texts.catalogue import FALLBACK_LOCALE, shipped_texts
from routing_service.texts.own_texts import reply_texts, variables_of

EPILOG: Final = """\b
Examples:
  agent-routing texts --locale es
  agent-routing texts --agents brand.yaml --json
"""


def texts(
    agents: Annotated[
        str, typer.Option("--agents", metavar="FILE", help="A registry file with its own texts.")
    ] = "",
    locale: Annotated[str, typer.Option(help="Language of the texts.")] = FALLBACK_LOCALE,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the texts of replies, to word them in a registry.

    A registry file replaces them under replies.texts, by language and name.
    """
    style = ReplyStyle()
    if agents:
        try:
            style = load_registry(agents).replies
        except RegistryFileError as error:
            raise CommandFailed(str(error)) from error
    listed = {
        message_id: {
            # Placeholders stand for themselves: the text is shown as an author writes it.
            "text": reply_texts(style).render(
                message_id,
                fold_locale(locale),
                **{name: f"{{{name}}}" for name in variables_of(message_id)},
            ),
            "placeholders": sorted(variables_of(message_id)),
        }
        for message_id in shipped_texts().message_ids(FALLBACK_LOCALE)
    }
    if as_json:
        typer.echo(seen_json(json.dumps(listed, indent=2, ensure_ascii=False)))
        return
    for message_id, shown in listed.items():
        typer.echo(seen(f"{message_id}: {shown['text']}"))
