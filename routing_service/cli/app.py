"""The table of commands: the name, module and summary of each, in the order of the help.

A command's module is imported when the command runs or shows its own help. The list of commands
and their completion need the table alone, so they import neither gRPC nor tables of rich.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from routing_service import __version__
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
  agent-routing status chat-1                      see which agent has it now

\b
The documentation, also without a network:
  agent-routing docs

\b
To use another server, name it in ~/.config/agent-routing/profiles.toml:
  agent-routing status chat-1 --profile staging
"""


TOPICS: Final = "agent-routing-topics"


@dataclass(frozen=True, slots=True)
class Command:
    """A row of the table.

    place: the module in routing_service.cli and, after a colon, its function or group of commands;
    TOPICS: those of agent-routing-topics.
    summary: the first sentence of the command's help. read_on: topics of agent-routing docs, named
    at the end of its help. epilog: the constant with what comes before them, unused for a group.
    """

    name: str
    place: str
    summary: str
    read_on: str = ""
    epilog: str = "EPILOG"


COMMANDS: Final = (
    Command(
        "demo",
        "demo:demo",
        "Show a whole conversation on a web page, and join in.",
        "first-conversation",
    ),
    Command(
        "init",
        "init:init",
        "Start a project: registry, agents in Python, compose file.",
        "tutorial run-agents-as-workers",
    ),
    Command(
        "serve",
        "serve:serve",
        "Serve a registry's agents over gRPC until SIGTERM or Ctrl-C.",
        "run-your-own-server security",
    ),
    Command(
        "check",
        "check:check",
        "Check registry files: each problem, its place, its remedy.",
        "write-a-registry",
    ),
    Command(
        "chat",
        "chat:chat",
        "Talk to agents in the terminal, and see who answers and why.",
        "chat-screens",
    ),
    Command(
        "route",
        "route:route",
        "Send a user's message; see which agent gets it and why.",
        "first-conversation",
    ),
    Command(
        "desk",
        "desk:desk",
        "Claim, read and answer what waits for the people of an agent.",
        "people",
    ),
    Command(
        "complete",
        "complete:complete",
        "Report what an agent answered, and see what comes next.",
        "first-conversation sessions",
    ),
    Command(
        "handoff",
        "handoff:handoff",
        "Hand a session to an agent, if the rules allow it.",
        "tutorial sessions",
    ),
    Command(
        "clear",
        "clear:clear",
        "Give a session back to the supervisor or default agent.",
        "user-commands sessions",
    ),
    Command(
        "status",
        "status:status",
        "Show a session: which agent has it, and what is pending.",
        "first-conversation",
    ),
    Command(
        "history",
        "history:history",
        "Show a session's turns: who said what, and why.",
        "first-conversation",
    ),
    Command("tasks", "tasks:tasks", "List a session's tasks and their status.", "sessions tasks"),
    Command("cancel", "cancel:cancel", "Cancel an open task.", "tasks"),
    Command(
        "approve",
        "resume:approve",
        "Approve what a paused task waits for.",
        "approvals",
        epilog="APPROVE_EPILOG",
    ),
    Command(
        "reject",
        "resume:reject",
        "Reject what a paused task waits for.",
        "approvals",
        epilog="REJECT_EPILOG",
    ),
    Command(
        "approvals",
        "approvals:approvals",
        "List, watch and decide approvals of all sessions.",
        "approvals",
    ),
    Command(
        "inbox",
        "inbox:inbox",
        "List and watch what waits for workers, and help by hand.",
        "run-agents-as-workers",
    ),
    Command(
        "a2a",
        "a2a:a2a",
        "Carry an agent's turns to a remote agent, over A2A.",
        "run-agents-as-workers",
    ),
    Command(
        "resume",
        "resume:resume",
        "Decide what a paused task waits for.",
        "approvals",
        epilog="RESUME_EPILOG",
    ),
    Command(
        "agents",
        "agents:agents",
        "List a server's agents, or print an agent's instructions.",
        "write-a-registry",
    ),
    Command(
        "sessions",
        "sessions:sessions",
        "List sessions and the agent that has each.",
        "run-your-own-server",
    ),
    Command("events", "events:events", "List events and refused handoffs.", "analytics"),
    Command("watch", "watch:watch", "Print changes as they happen, until Ctrl-C.", "analytics"),
    Command(
        "top", "top:top", "Show live activity: messages, agents, refusals, events.", "operations"
    ),
    Command(
        "stats",
        "stats:stats",
        "Show routing figures: handoffs, refusals, stuck users.",
        "analytics",
    ),
    Command(
        "stickiness",
        "stickiness:stickiness",
        "Show or switch stickiness.",
        "migrate-from-a-supervisor",
    ),
    Command(
        "reload", "reload:reload", "Take up the registry file, or show what changes.", "operations"
    ),
    Command(
        "audit", "audit:audit", "Prove the audit of a store, or export it for a SIEM.", "operations"
    ),
    Command(
        "export-user",
        "export_user:export_user",
        "Export all data stored about a user.",
        "retention",
    ),
    Command("token", "token:token", "Print a signed token, for --sign-in development.", "security"),
    Command(
        "dialogues",
        "dialogues:dialogues",
        "Write stored conversations as dialogues, pseudonymised.",
        "export-dialogues replay-conversations",
    ),
    Command(
        "replay",
        "replay:replay",
        "Replay recorded dialogues and count what routing did.",
        "replay-conversations",
    ),
    Command(
        "doctor",
        "doctor:doctor",
        "Check everything a server needs, and report problems.",
        "operations",
    ),
    Command(
        "health", "health:health", "Ask a server whether it is ready, as probes do.", "operations"
    ),
    Command(
        "erase-user",
        "erase_user:erase_user",
        "Erase the content of all of a user's sessions.",
        "retention",
    ),
    Command(
        "purge", "purge:purge", "Remove sessions that have not been used for long.", "retention"
    ),
    Command(
        "plan",
        "plan:plan_command",
        "Plan machines and engine sizes for a number of users.",
        "scaling",
    ),
    Command("migrate", "migrate:migrate", "Bring a store's schema up to date.", "operations"),
    Command(
        "verify",
        "verify:verify",
        "Verify a store's data, and print hashes to compare.",
        "operations",
    ),
    Command(
        "backup",
        "backup:backup",
        "Back up a SQLite store to one file while its server runs.",
        "operations",
        epilog="BACKUP_EPILOG",
    ),
    Command(
        "restore",
        "backup:restore",
        "Replace a SQLite store that is not in use with a backup.",
        "operations",
        epilog="RESTORE_EPILOG",
    ),
    Command(
        "copy", "copy:copy", "Copy one store into another; run it again to resume.", "operations"
    ),
    Command(
        "compact",
        "compact:compact",
        "Rewrite a SQLite store's file without erased data.",
        "retention",
    ),
    Command("log-id", "log_id:log_id", "Print the hash that stands for an id in a log.", "limits"),
    Command(
        "texts",
        "texts:texts",
        "List the texts of replies, to word them in a registry.",
        "write-a-registry",
    ),
    Command("topics", TOPICS, "Measure topic detection, and choose its threshold.", "topics"),
    Command("docs", "docs:docs", "Read the documentation: list its pages, or show one."),
)


class LazyCommands(TyperGroup):
    """The commands of the table, each imported when it is called."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        # Enough for the help and for completion, which show a name and a summary.
        self.commands = {row.name: TyperCommand(row.name, help=row.summary) for row in COMMANDS}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the arguments name, with its options, and what is left."""
        name, _, rest = super().resolve_command(ctx, args)
        return name, load_command(name) if name else None, rest


def load_command(name: str) -> Any:
    """Import a command and return it with its options. Raises KeyError for an unknown name."""
    row = {row.name: row for row in COMMANDS}[name]
    if row.place == TOPICS:
        found, epilog = _topic_commands(), ""
    else:
        module_name, _, attribute = row.place.partition(":")
        module = importlib.import_module(f"routing_service.cli.{module_name}")
        found, epilog = getattr(module, attribute), getattr(module, row.epilog, "")
    if not isinstance(found, typer.Typer):
        # typer makes commands of an application's functions, so each gets an application.
        alone = typer.Typer(
            add_completion=False,
            rich_markup_mode=None,
            pretty_exceptions_enable=False,
            context_settings=_CONTEXT,
        )
        alone.command(row.name, epilog=epilog)(found)
        found = alone
    command = typer.main.get_command(found)
    if row.read_on:
        pages = "\n".join(f"  agent-routing docs {topic}" for topic in row.read_on.split())
        command.epilog = f"{command.epilog or ''}\n\b\nRead on:\n{pages}\n"
    return command


def _topic_commands() -> Any:
    """Return the commands of agent-routing-topics. Raises CommandFailed if it is not installed."""
    # Imported by this command alone.
    from routing_service.cli.failure import EXIT_USAGE, CommandFailed  # noqa: PLC0415
    from routing_service.topics.detector_plugin import (  # noqa: PLC0415
        DetectorUnavailable,
        load_shipped,
    )

    try:
        return load_shipped("commands")
    except DetectorUnavailable as error:
        raise CommandFailed(str(error), exit_code=EXIT_USAGE) from error


def _show_version(value: bool) -> None:  # noqa: FBT001 - as the parser calls it
    if value:
        typer.echo(f"agent-routing {__version__}")
        raise typer.Exit


_CONTEXT: Final = {"help_option_names": ["-h", "--help"]}

app: Final = typer.Typer(
    name="agent-routing",
    cls=LazyCommands,
    help="Route conversations between agents: which agent has the conversation, and why.",
    epilog=_EPILOG,
    no_args_is_help=True,
    # Plain help: it is read in pipes and pagers too, and costs a tenth of a second less.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=_CONTEXT,
)


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
