"""``agent-routing token``: make a token for first steps and tests."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final

import typer

from routing_service.auth import claims
from routing_service.auth.caller import SCOPES, SignInRefused, is_tenant
from routing_service.auth.development import KeyUnusable, make_token, read_or_make_key
from routing_service.cli.failure import EXIT_USAGE, CommandFailed

DEFAULT_KEY: Final = "var/development.key"
LASTS_DEFAULT: Final = "12h"

EPILOG: Final = """\b
Examples:
  agent-routing token --user ana --scope route
  agent-routing token --scope agent --agent vat --lasts 30d > vat.token
  agent-routing token --scope admin > admin.token
  agent-routing --token-file admin.token sessions

\b
For a server with --sign-in development and the same key file. With that file one
can sign in as any caller. Scopes: route, agent, read, approve, admin,
read_words, act_as, platform.
"""

_ROLE: Final = re.compile(r"[A-Za-z0-9._:/@+=-]{1,64}")
_LASTS: Final = re.compile(r"(\d{1,6})([smhd])")
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


_UserOption = Annotated[
    str,
    typer.Option(
        "--user",
        metavar="ID",
        show_default=False,
        help="The user who signs in. Default: a service without a user.",
    ),
]
_ScopeOption = Annotated[
    list[str] | None,
    typer.Option("--scope", metavar="WORD", show_default=False, help="A scope. May be repeated."),
]
_RoleOption = Annotated[
    list[str] | None,
    typer.Option(
        "--role",
        metavar="WORD",
        show_default=False,
        help="A role, for approvals that a registry leaves to it. May be repeated.",
    ),
]
_AgentOption = Annotated[
    list[str] | None,
    typer.Option(
        "--agent",
        metavar="ID",
        show_default=False,
        help="An agent that a runtime acts for; * for all. May be repeated.",
    ),
]
_EntitlementOption = Annotated[
    list[str] | None,
    typer.Option(
        "--entitlement",
        metavar="WORD",
        show_default=False,
        help="An entitlement of the user. May be repeated. Default: the token has none.",
    ),
]
_SubjectOption = Annotated[
    str,
    typer.Option(
        "--subject",
        metavar="NAME",
        show_default=False,
        help="The caller's name in the audit. Default: the user, the agents, or development.",
    ),
]
_LastsOption = Annotated[
    str,
    typer.Option("--lasts", metavar="TIME", help="How long it is valid: 90s, 30m, 12h or 30d."),
]
_KeyFileOption = Annotated[
    str,
    typer.Option(
        "--key-file",
        metavar="FILE",
        envvar="AGENT_ROUTING_DEVELOPMENT_KEY_FILE",
        help="The server's development key file; created if missing.",
    ),
]


def token(
    *,
    user: _UserOption = "",
    scope: _ScopeOption = None,
    role: _RoleOption = None,
    agent: _AgentOption = None,
    entitlement: _EntitlementOption = None,
    subject: _SubjectOption = "",
    tenant: Annotated[str, typer.Option("--tenant", metavar="ID", help="The tenant.")] = "default",
    lasts: _LastsOption = LASTS_DEFAULT,
    key_file: _KeyFileOption = DEFAULT_KEY,
) -> None:
    """Print a signed token, for --sign-in development."""
    found = _LASTS.fullmatch(lasts)
    if found is None:
        raise typer.BadParameter(f'--lasts "{lasts}" is not a duration; write 90s, 30m, 12h or 30d')
    unknown = sorted(set(scope or ()) - SCOPES)
    if unknown:
        raise typer.BadParameter(f'no scope "{unknown[0]}"; use {", ".join(sorted(SCOPES))}')
    wrong = [word for word in role or () if word in SCOPES or not _ROLE.fullmatch(word)]
    if wrong:
        raise typer.BadParameter(f'--role "{wrong[0]}" is a scope, or has the wrong form')
    if not is_tenant(tenant):
        raise typer.BadParameter(f'--tenant "{tenant}" is not a valid tenant')
    named = subject or user or (f"agents/{'+'.join(sorted(agent))}" if agent else "development")
    try:
        # Refuse here what the server would refuse later.
        claims.subject(named, "subject")
        claims.agents(agent or ())
        claims.entitlements(entitlement or [], "entitlements")
        was_there = Path(key_file).exists()
        key = read_or_make_key(Path(key_file))
    except SignInRefused as error:
        what = error.problem.removeprefix("bad_")
        raise CommandFailed(f"{what} has the wrong form", exit_code=EXIT_USAGE) from error
    except KeyUnusable as error:
        raise CommandFailed(str(error)) from error
    if not was_there:
        # If the server uses another file, it refuses tokens of this key.
        typer.echo(f"made a new key at {key_file}", err=True)
    typer.echo(
        make_token(
            key,
            subject=named,
            user=user,
            tenant=tenant,
            scopes=(*(scope or ()), *(role or ())),
            agents=agent or (),
            entitlements=entitlement,
            lasts_s=int(found[1]) * _UNITS_S[found[2]],
        )
    )
