"""The table of commands.

Owns the order in which they are listed. It must not know what any of them does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final

import typer

from routing_service import __version__
from routing_service.cli import (
    agents,
    backup,
    chat,
    check,
    clear,
    compact,
    complete,
    copy,
    doctor,
    erase_user,
    events,
    export_user,
    handoff,
    health,
    history,
    log_id,
    migrate,
    purge,
    reload,
    replay,
    resume,
    route,
    serve,
    sessions,
    stats,
    status,
    stickiness,
    tasks,
    token,
    top,
    topics,
    verify,
    watch,
)
from routing_service.cli.credentials import (
    Credentials,
    TlsCaOption,
    TlsCertOption,
    TlsKeyOption,
    TlsNameOption,
    TlsOption,
    TokenFileOption,
    use,
)

_EPILOG: Final = """\b
A first conversation:
  agent-routing chat                               talk to the example agents
  agent-routing serve --agents FILE                serve your own
  agent-routing route chat-1 "hello" --user ana    send a message
  agent-routing status chat-1                      see who has it now

\b
Of another server, by a name in ~/.config/agent-routing/profiles.toml:
  agent-routing status chat-1 --profile staging
"""

app: Final = typer.Typer(
    name="agent-routing",
    help="Route conversations between agents: which agent has the conversation, and why.",
    epilog=_EPILOG,
    no_args_is_help=True,
    # Plain help: it is read in pipes and pagers too, and costs a tenth of a second less.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_COMMANDS: Final[tuple[tuple[str, Callable[..., None], str], ...]] = (
    ("serve", serve.make_serve(), serve.EPILOG),
    ("check", check.check, check.EPILOG),
    ("chat", chat.chat, chat.EPILOG),
    ("route", route.route, route.EPILOG),
    ("complete", complete.complete, complete.EPILOG),
    ("handoff", handoff.handoff, handoff.EPILOG),
    ("clear", clear.clear, clear.EPILOG),
    ("status", status.status, status.EPILOG),
    ("history", history.history, history.EPILOG),
    ("tasks", tasks.tasks, tasks.EPILOG),
    ("approve", resume.approve, resume.APPROVE_EPILOG),
    ("reject", resume.reject, resume.REJECT_EPILOG),
    ("resume", resume.resume, resume.RESUME_EPILOG),
    ("agents", agents.agents, agents.EPILOG),
    ("sessions", sessions.sessions, sessions.EPILOG),
    ("events", events.events, events.EPILOG),
    ("watch", watch.watch, watch.EPILOG),
    ("top", top.top, top.EPILOG),
    ("stats", stats.stats, stats.EPILOG),
    ("stickiness", stickiness.stickiness, stickiness.EPILOG),
    ("reload", reload.reload, reload.EPILOG),
    ("export-user", export_user.export_user, export_user.EPILOG),
    ("token", token.token, token.EPILOG),
    ("replay", replay.replay, replay.EPILOG),
    ("doctor", doctor.make_doctor(), doctor.EPILOG),
    ("health", health.health, health.EPILOG),
    ("erase-user", erase_user.erase_user, erase_user.EPILOG),
    ("purge", purge.purge, purge.EPILOG),
    ("migrate", migrate.migrate, migrate.EPILOG),
    ("verify", verify.verify, verify.EPILOG),
    ("backup", backup.backup, backup.BACKUP_EPILOG),
    ("restore", backup.restore, backup.RESTORE_EPILOG),
    ("copy", copy.copy, copy.EPILOG),
    ("compact", compact.compact, compact.EPILOG),
    ("log-id", log_id.log_id, log_id.EPILOG),
)
"""Name, function, and what its help ends with."""


def _show_version(value: bool) -> None:  # noqa: FBT001 - as the parser calls it
    if value:
        typer.echo(f"agent-routing {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
    token_file: TokenFileOption = "",
    tls: TlsOption = False,
    tls_ca: TlsCaOption = "",
    tls_cert: TlsCertOption = "",
    tls_key: TlsKeyOption = "",
    tls_name: TlsNameOption = "",
) -> None:
    del version
    use(Credentials(token_file, tls, tls_ca, tls_cert, tls_key, tls_name))


for _name, _function, _ending in _COMMANDS:
    app.command(_name, epilog=_ending)(_function)
app.add_typer(topics.topics)
